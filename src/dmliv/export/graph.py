"""An ONNX graph while it is written: values are referred to by name, numbers are doubles."""

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


@dataclass(frozen=True)
class Block:
    """Columns inside a graph: a value of shape (n, width); without columns there is no value."""

    name: str
    width: int


NO_COLUMNS = Block("", 0)


class GraphBuilder:
    """Collects nodes, constants and inputs, in the order in which they are needed."""

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

    def node(self, operator: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """Add an operator and return the name of its value."""
        name = f"{_INNER}{len(self._nodes)}"
        node = self._onnx.helper.make_node(operator, list(inputs), [name], domain=domain, **attributes)
        self._nodes.append(node)
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
        return Block(self.node("Unsqueeze", name, self.constant([1])), 1)

    def side_by_side(self, blocks: Sequence[Block]) -> Block:
        """Join blocks of columns."""
        filled = [block for block in blocks if block.width]
        if len(filled) <= 1:
            return filled[0] if filled else NO_COLUMNS
        width = sum(block.width for block in filled)
        return Block(self.node("Concat", *(block.name for block in filled), axis=1), width)

    def pick(self, block: Block, columns: npt.NDArray[np.int64]) -> Block:
        """Return some columns, each as often as it is named."""
        if not len(columns):
            return NO_COLUMNS
        return Block(self.node("Gather", block.name, self.constant(columns), axis=1), len(columns))

    def scaled(self, block: Block, centre: npt.ArrayLike, scale: npt.ArrayLike) -> Block:
        """Return (columns - centre) / scale."""
        if not block.width:
            return block
        moved = self.node("Sub", block.name, self.constant(np.asarray(centre, dtype=np.float64)))
        return Block(self.node("Div", moved, self.constant(np.asarray(scale, dtype=np.float64))), block.width)

    def affine(self, block: Block, weight: npt.NDArray[Any], bias: npt.NDArray[Any], n_rows: str) -> Block:
        """Return columns @ weight + bias, with weight (width, out) and bias (out,)."""
        offset = self.constant(np.asarray(bias, dtype=np.float64).reshape(1, -1))
        if not block.width:
            shape = self.node("Concat", n_rows, self.constant([weight.shape[1]]), axis=0)
            return Block(self.node("Expand", offset, shape), weight.shape[1])
        product = self.node("MatMul", block.name, self.constant(np.asarray(weight, dtype=np.float64)))
        return Block(self.node("Add", product, offset), weight.shape[1])

    def row_sums(self, value: str) -> str:
        """Return the sum over columns, shape (n, 1)."""
        return self.node("ReduceSum", value, self.constant([1]), keepdims=1)

    def repeated(self, block: Block, times: int, n_rows: str) -> Block:
        """Return every row so many times, one after the other."""
        if not block.width:
            return block
        middle = self.node("Unsqueeze", block.name, self.constant([1]))
        return self._flattened(middle, times, block.width, n_rows)

    def tiled(self, values: npt.NDArray[Any], n_rows: str) -> Block:
        """Return constant rows (k, width) once for each row of the input."""
        k, width = values.shape
        if not width:
            return NO_COLUMNS
        return self._flattened(self.constant(values.astype(np.float64)[None]), k, width, n_rows)

    def _flattened(self, value: str, times: int, width: int, n_rows: str) -> Block:
        shape = self.node("Concat", n_rows, self.constant([times, width]), axis=0)
        wide = self.node("Expand", value, shape)
        return Block(self.node("Reshape", wide, self.constant([-1, width])), width)

    def content(self, outputs: dict[str, tuple[str, bool]], description: dict[str, str]) -> bytes:
        """Return the finished file.

        Parameters
        ----------
        outputs : dict of str to (str, bool)
            Value of shape (n,) and whether it holds strings, by the name of the output.
        description : dict of str to str
            Metadata.
        """
        helper, kinds = self._onnx.helper, self._onnx.TensorProto
        infos = []
        for name, (value, text) in outputs.items():
            if name in self._used:
                raise InputError(
                    f"Expected no column of the name {name!r}, which is an output; rename it and fit again."
                )
            self._nodes.append(helper.make_node("Identity", [value], [name]))
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
