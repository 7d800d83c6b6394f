"""An ONNX graph while it is written: blocks of columns that one calculates with as with arrays of numpy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dmliv.errors import InputError

# Old enough for the runtimes in service, new enough for axes as inputs.
_OPSET = 18
_ML_OPSET = 3
_IR_VERSION = 9
# What makes names of inner values differ from those of columns.
_INNER = "/"


class GraphBuilder:
    """Collects nodes, constants and inputs, in the order in which they are needed; numbers are doubles."""

    def __init__(self) -> None:
        try:
            import onnx  # noqa: PLC0415 - an extra that only exports need
        except ImportError as error:
            raise ImportError(
                "Expected the package onnx for an export, got none; install dmliv with its extra: "
                "pip install 'dmliv[onnx]'."
            ) from error
        self._onnx: Any = onnx
        self._nodes: list[Any] = []
        self._constants: list[Any] = []
        self._inputs: list[Any] = []
        self._used: set[str] = set()

    def node(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """Add an operator and return the name of its value."""
        name = f"{_INNER}{len(self._nodes)}"
        self._nodes.append(self._onnx.helper.make_node(operator, list(inputs), [name], **attributes))
        return name

    def constant(self, values: npt.ArrayLike) -> str:
        """Add numbers (as doubles, whole ones as 64-bit integers) or strings; return their name."""
        array = np.asarray(values)
        name = f"{_INNER}c{len(self._constants)}"
        if array.dtype.kind in "OU":
            texts = [str(value).encode() for value in array.reshape(-1)]
            kind = self._onnx.TensorProto.STRING
            tensor = self._onnx.helper.make_tensor(name, kind, array.shape, texts)
        else:
            array = array.astype(np.int64 if array.dtype.kind in "iu" else np.float64)
            tensor = self._onnx.numpy_helper.from_array(array, name)
        self._constants.append(tensor)
        return name

    def column_input(self, name: str, *, text: bool) -> Block:
        """Add an input of shape (n,), numbers or strings, and return it as one column (n, 1)."""
        if name in self._used or name.startswith(_INNER) or not name:
            raise InputError(
                f"Expected every column of context and action under a name of its own, got {name!r}; rename "
                "it and fit again."
            )
        self._used.add(name)
        kind = self._onnx.TensorProto.STRING if text else self._onnx.TensorProto.DOUBLE
        self._inputs.append(self._onnx.helper.make_tensor_value_info(name, kind, ["rows"]))
        return Block(self, self.node("Unsqueeze", name, self.constant([1])), 1)

    def content(self, outputs: dict[str, tuple[Block, bool]], description: dict[str, str]) -> bytes:
        """Return the finished file.

        Parameters
        ----------
        outputs : dict of str to (Block, bool)
            One column and whether it holds strings, by the name of the output.
        description : dict of str to str
            Metadata.
        """
        helper, kinds = self._onnx.helper, self._onnx.TensorProto
        infos = []
        for name, (block, text) in outputs.items():
            if name in self._used:
                raise InputError(
                    f"Expected no column of the name {name!r}, which is an output; rename it and fit again."
                )
            self._nodes.append(helper.make_node("Reshape", [block.name, self.constant([-1])], [name]))
            infos.append(
                helper.make_tensor_value_info(name, kinds.STRING if text else kinds.DOUBLE, ["rows"])
            )
        graph = helper.make_graph(self._nodes, "dmliv", self._inputs, infos, self._constants)
        opsets = [helper.make_opsetid("", _OPSET), helper.make_opsetid("ai.onnx.ml", _ML_OPSET)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION, producer_name="dmliv")
        helper.set_model_props(model, description)
        self._onnx.checker.check_model(model)
        content: bytes = model.SerializeToString()
        return content


@dataclass(frozen=True, eq=False)
class Block:
    """Columns inside a graph: a value of shape (n, width)."""

    graph: GraphBuilder
    name: str
    width: int

    # Arrays leave operators to blocks.
    __array_ufunc__ = None

    def apply(
        self, operator: str, *others: Block | npt.ArrayLike, width: int | None = None, **attributes: Any
    ) -> Block:
        """Return what an operator makes of the block and other blocks or constants."""
        names, found = [self.name], self.width
        for other in others:
            if isinstance(other, Block):
                names.append(other.name)
                found = max(found, other.width)
            else:
                names.append(self.graph.constant(other))
                found = max(found, *np.shape(other)[-1:], 0)
        found = found if width is None else width
        return Block(self.graph, self.graph.node(operator, *names, **attributes), found)

    def __add__(self, other: Block | npt.ArrayLike) -> Block:
        return self.apply("Add", _doubles(other))

    def __sub__(self, other: Block | npt.ArrayLike) -> Block:
        return self.apply("Sub", _doubles(other))

    def __mul__(self, other: Block | npt.ArrayLike) -> Block:
        return self.apply("Mul", _doubles(other))

    def __truediv__(self, other: Block | npt.ArrayLike) -> Block:
        return self.apply("Div", _doubles(other))

    def __matmul__(self, weight: npt.NDArray[Any]) -> Block:
        """Return the columns times a matrix (width, out)."""
        if not self.width:
            return self.each_row(np.zeros(weight.shape[1]))
        return self.apply("MatMul", _doubles(weight), width=weight.shape[-1])

    def pick(self, columns: Sequence[int] | npt.NDArray[np.int64]) -> Block:
        """Return some columns, each as often as it is named."""
        index = np.array(columns, dtype=np.int64)
        return self.apply("Gather", index, width=len(index), axis=1)

    def chosen_from(self, values: npt.NDArray[Any]) -> Block:
        """Return the values (k,) that whole numbers point at."""
        graph = self.graph
        return Block(graph, graph.node("Gather", graph.constant(values), self.name), self.width)

    def folded(self, width: int) -> Block:
        """Return one column as rows of ``width`` values."""
        return self.apply("Reshape", np.array([-1, width]), width=width)

    def row_sums(self) -> Block:
        """Return the sum over columns, shape (n, 1)."""
        return self.apply("ReduceSum", np.array([1]), width=1, keepdims=1)

    def each_row(self, values: npt.NDArray[Any]) -> Block:
        """Return the same values (width,) for each row."""
        return self.tiled(values[None])

    def repeated(self, times: int) -> Block:
        """Return every row so many times, one after the other."""
        middle = self.graph.node("Unsqueeze", self.name, self.graph.constant([1]))
        return self._stretched(middle, times, self.width)

    def tiled(self, values: npt.NDArray[Any]) -> Block:
        """Return constant rows (k, width) once for each row."""
        return self._stretched(self.graph.constant(values.astype(np.float64)[None]), *values.shape)

    def _stretched(self, value: str, times: int, width: int) -> Block:
        graph = self.graph
        n_rows = graph.node("Shape", self.name, start=0, end=1)
        shape = graph.node("Concat", n_rows, graph.constant([times, width]), axis=0)
        wide = graph.node("Expand", value, shape)
        n_all = graph.node("Mul", n_rows, graph.constant([times]))
        shape = graph.node("Concat", n_all, graph.constant([width]), axis=0)
        return Block(graph, graph.node("Reshape", wide, shape, allowzero=1), width)


def _doubles(values: Block | npt.ArrayLike) -> Block | npt.ArrayLike:
    return values if isinstance(values, Block) else np.asarray(values, dtype=np.float64)


def side_by_side(blocks: Sequence[Block]) -> Block:
    """Join blocks of columns."""
    first, *others = [block for block in blocks if block.width] or blocks[:1]
    return first.apply("Concat", *others, width=sum(block.width for block in (first, *others)), axis=1)
