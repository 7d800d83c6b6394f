"""Trees of plain values, arrays, tensors and registered objects, to JSON nodes and back.

A node is a JSON scalar, a list, or an object with one word that says what it stands for, such as
``{"tuple": [...]}`` or ``{"array": "a3"}``. Arrays, objects and scikit-learn models are kept apart and
referred to, so that what is shared by two owners is stored once and shared again after loading.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator

from dmliv.data.savable import SAVED, saving_of
from dmliv.errors import InputError
from dmliv.nets.device import resolve_device

# Kinds and sizes of numbers that the array format knows.
_ARRAY_TYPES = frozenset("?bhilqBHILQefd")
# Columns of a matrix of this many columns keep their distances; a file cannot ask for more memory than that.
_LONGEST_STEP = 1024
_DEVICE_TYPES = frozenset({"cpu", "cuda", "mps", "xpu"})
# Lists in lists that a file may hold; what is written has a few.
_DEEPEST = 100


class Encoder:
    """Turns values into nodes and collects what nodes refer to.

    Attributes
    ----------
    arrays : dict of str to ndarray
        C-contiguous.
    objects : list of dict
        Class and fields of registered objects; an object comes after those it refers to.
    learners : list of (str, estimator)
        Estimators of scikit-learn, and where each was found.
    """

    def __init__(self) -> None:
        self.arrays: dict[str, npt.NDArray[Any]] = {}
        self.objects: list[dict[str, Any]] = []
        self.learners: list[tuple[str, BaseEstimator]] = []
        self._known: dict[int, dict[str, Any]] = {}
        # Keeps temporary values alive, so that no two of them ever have one id.
        self._seen: list[object] = []

    def encode(self, value: Any, place: str) -> Any:
        """Return the node of a value; ``place`` says in messages where it was found."""
        if value is None or type(value) in (bool, int, str):
            return value
        if type(value) is float:
            return value if math.isfinite(value) else {"float": repr(value)}
        if type(value) is list:
            return [self.encode(each, f"{place}[{index}]") for index, each in enumerate(value)]
        if type(value) is tuple:
            return {"tuple": self.encode(list(value), place)}
        if type(value) is dict:
            pairs = [
                [self.encode(key, f"a key of {place}"), self.encode(each, f"{place}[{key!r}]")]
                for key, each in value.items()
            ]
            return {"dict": pairs}
        if isinstance(value, torch.device):
            return {"device": str(value)}
        if id(value) not in self._known:
            self._known[id(value)] = self._encode_new(value, place)
            self._seen.append(value)
        return self._known[id(value)]

    def _encode_new(self, value: Any, place: str) -> dict[str, Any]:
        if isinstance(value, np.generic) and value.dtype.char in _ARRAY_TYPES:
            return {"scalar": self._store(np.asarray(value))}
        if type(value) is np.ndarray and value.dtype.char in _ARRAY_TYPES:
            return {"array": self._store(value), **_layout(value)}
        if type(value) is torch.Tensor:
            array = value.detach().cpu().numpy()
            if array.dtype.char in _ARRAY_TYPES:
                return {"tensor": self._store(array), "device": str(value.device), **_layout(array)}
        if type(value) is np.random.RandomState:
            return {"random state": self.encode(value.get_state(legacy=False), place)}
        name = type(value).__name__
        saving = SAVED.get(name)
        if saving is not None and saving.cls is type(value):
            if not is_dataclass(value):
                return self._encode_fields(name, value.saved_parts(), place)
            parts = {f.name: saving.left_out.get(f.name, getattr(value, f.name)) for f in fields(value)}
            return self._encode_fields(name, parts, place)
        if isinstance(value, BaseEstimator) and type(value).__module__.startswith("sklearn."):
            self.learners.append((place, value))
            return {"learner": len(self.learners) - 1}
        raise _cannot_save(value, place)

    def _encode_fields(self, name: str, parts: Mapping[str, Any], place: str) -> dict[str, Any]:
        nodes = {key: self.encode(value, f"{place}.{key}") for key, value in parts.items()}
        self.objects.append({"class": name, "fields": nodes})
        return {"object": len(self.objects) - 1}

    def _store(self, array: npt.NDArray[Any]) -> str:
        name = f"a{len(self.arrays)}"
        ordered = array.transpose(_stride_order(array.strides)) if not array.flags.c_contiguous else array
        # A copy also when nothing has to move: the array format looks at the memory itself.
        self.arrays[name] = np.array(ordered, dtype=array.dtype.newbyteorder("="), order="C")
        return name


class Decoder:
    """Turns nodes back into values.

    Parameters
    ----------
    arrays : mapping of str to ndarray
    learners : sequence of estimators
    objects : sequence of dict
        As the encoder left them.
    device : torch.device or None
        Where tensors go; None means where they were, or the CPU if that device is absent.
    """

    def __init__(
        self,
        arrays: Mapping[str, npt.NDArray[Any]],
        learners: Sequence[BaseEstimator],
        objects: Sequence[Mapping[str, Any]],
        device: torch.device | None,
    ) -> None:
        self._arrays = arrays
        self._learners = learners
        self._device = device
        self._made: dict[str, Any] = {}
        # Objects only refer to earlier ones, so that a file cannot describe a circle.
        self._objects: list[Any] = []
        for each in objects:
            self._objects.append(self._build(each["class"], each["fields"]))

    def decode(self, node: Any, depth: int = 0) -> Any:
        """Return the value of a node that lies inside of so many others."""
        if node is None or isinstance(node, bool | int | float | str):
            return node
        if depth > _DEEPEST:
            raise ValueError("nodes are nested too deeply")
        if isinstance(node, list):
            return [self.decode(each, depth + 1) for each in node]
        kind, content = next(iter(node.items()))
        if kind == "float":
            return {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}[content]
        if kind == "tuple":
            return tuple(self.decode(content, depth + 1))
        if kind == "dict":
            return {self.decode(key, depth + 1): self.decode(value, depth + 1) for key, value in content}
        if kind == "device":
            return self._place(content)
        if kind == "object":
            return self._objects[_index(content)]
        if kind == "learner":
            return self._learners[_index(content)]
        if kind == "random state":
            generator = np.random.RandomState()
            generator.set_state(self.decode(content))
            return generator
        if kind in ("array", "scalar", "tensor"):
            # One array is one object, however many owners it has.
            if content not in self._made:
                self._made[content] = self._make(kind, node)
            return self._made[content]
        raise ValueError(f"an unknown kind of node, {kind!r}")

    def _make(self, kind: str, node: Mapping[str, Any]) -> Any:
        array = np.array(self._arrays[node[kind]], order="C")
        if kind == "scalar":
            return array[()]
        if kind == "array":
            return _laid_out(array, node)
        # Torch has no steps backwards, and its own allocation is aligned as its kernels like it.
        tensor = torch.from_numpy(array).clone()
        if "axes" in node:
            tensor = tensor.permute(tuple(np.argsort(node["axes"]).tolist()))
        place = self._place(node["device"])
        # Apple's devices have no double precision; there such numbers stay where they are exact.
        return tensor if place.type == "mps" and tensor.dtype == torch.float64 else tensor.to(place)

    def _place(self, name: str) -> torch.device:
        if self._device is not None:
            return self._device
        device = torch.device(name)
        if device.type not in _DEVICE_TYPES:
            raise ValueError(f"an unknown device, {name!r}")
        try:
            return resolve_device(name)
        except InputError:
            return torch.device("cpu")

    def _build(self, name: str, nodes: Mapping[str, Any]) -> Any:
        parts = {key: self.decode(node) for key, node in nodes.items()}
        saving = saving_of(name)
        if saving is None:
            raise ValueError(f"the unknown class {name!r} (import its module first if it is yours)")
        if not is_dataclass(saving.cls):
            return saving.cls.from_saved_parts(parts)
        dropped, renamed = saving.dropped, saving.renamed
        # A dropped field with another value stays, and the constructor refuses it.
        kept = {key: part for key, part in parts.items() if key not in dropped or part != dropped[key]}
        return saving.cls(**{renamed.get(key, key): part for key, part in kept.items()})


def _stride_order(strides: Sequence[int]) -> list[int]:
    """Return the axes from the longest stride to the shortest."""
    return sorted(range(len(strides)), key=lambda axis: -abs(strides[axis]))


def _layout(array: npt.NDArray[Any]) -> dict[str, Any]:
    """Return how numbers stand in memory, if not one after the other: products may round differently."""
    if array.flags.c_contiguous:
        return {}
    if array.ndim == 1:
        step = array.strides[0] // array.itemsize
        return {"step": step} if 0 < abs(step) <= _LONGEST_STEP else {}
    return {"axes": _stride_order(array.strides)}


def _laid_out(array: npt.NDArray[Any], node: Mapping[str, Any]) -> npt.NDArray[Any]:
    """Return a C-contiguous array in the layout that `_layout` described."""
    if "axes" in node:
        return array.transpose(np.argsort(node["axes"]))
    if "step" not in node:
        return array
    step = node["step"]
    if type(step) is not int or not 0 < abs(step) <= _LONGEST_STEP or array.ndim != 1:
        raise ValueError(f"a step that no array has, {step!r}")
    spread = np.zeros(len(array) * abs(step), dtype=array.dtype)[::step]
    spread[:] = array
    return spread


def _index(value: Any) -> int:
    # A negative index would count from the end, and True is an int.
    if type(value) is not int or value < 0:
        raise ValueError(f"a reference that is no position, {value!r}")
    return value


def _cannot_save(value: object, place: str) -> InputError:
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if kind.startswith("dmliv."):
        return InputError(
            f"Expected classes that model files know, got {kind} in {place}; decorate it with "
            "dmliv.persistence.savable."
        )
    return InputError(
        "Expected plain values, arrays, learners of dmliv and estimators of scikit-learn to save, got "
        f"{value!r:.80} of type {kind} in {place}; functions and objects of other libraries cannot be saved, "
        "because loading must not run code from a file. Decorate a class of your own with "
        "dmliv.persistence.savable."
    )
