"""Large arrays that Ray's workers fetch by name: each is sent to the cluster once, however many calls use it.

Joblib's Dask backend finds arrays that calls share by itself. Its Ray backend packs the arguments of every
call anew, so that ten folds would send the data ten times. Here a call is packed beforehand: large arrays go
to Ray's object store, and the call keeps their names. Ray is optional: import this module where it is used.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import ray
import torch
from ray.cloudpickle import CloudPickler

# Smaller arrays travel with the call, as Ray itself would have it.
_LARGE_BYTES = 100_000

# What is in the object store, by cluster and contents; an entry goes when the array goes it was made of.
_STORED: dict[tuple[object, ...], Any] = {}


def shipped(tasks: Sequence[Any]) -> list[Any]:
    """Return joblib's delayed calls as ones that name large arrays in place of holding them."""
    known: dict[int, tuple[Any, Any]] = {}
    return [_packed(task, known) for task in tasks]


def _packed(
    task: tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]], known: dict[int, tuple[Any, Any]]
) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    file = io.BytesIO()
    pickler = _Pickler(file, known)
    pickler.dump(task)  # type: ignore[no-untyped-call]
    # Names stand beside the packed call, where Ray sees them and keeps what they stand for.
    return _run_packed, (file.getvalue(), pickler.names), {}


def _run_packed(call: bytes, names: list[Any]) -> Any:
    function, arguments, keywords = _Unpickler(io.BytesIO(call), names).load()
    return function(*arguments, **keywords)


class _Pickler(CloudPickler):
    """Takes large arrays out of what it packs."""

    def __init__(self, file: io.BytesIO, known: dict[int, tuple[Any, Any]]) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)  # type: ignore[no-untyped-call]
        self.names: list[Any] = []
        # Arrays that were met before, with their names; they are held, so that no other takes their number.
        self._known = known

    def persistent_id(self, part: Any) -> tuple[str, int] | None:
        """Return the kind of a large array and the position of its name; None packs the part as usual."""
        if type(part) is np.ndarray and part.nbytes >= _LARGE_BYTES and not part.dtype.hasobject:
            kind, values = "array", part
        elif type(part) is torch.Tensor and part.device.type == "cpu" and part.nbytes >= _LARGE_BYTES:
            kind, values = "tensor", part.detach().numpy()
        else:
            return None
        if id(part) not in self._known:
            self._known[id(part)] = part, _name_of(values, part)
        self.names.append(self._known[id(part)][1])
        return kind, len(self.names) - 1


class _Unpickler(pickle.Unpickler):
    """Puts the arrays back."""

    def __init__(self, file: io.BytesIO, names: list[Any]) -> None:
        super().__init__(file)
        self._names = names

    def persistent_load(self, part: tuple[str, int]) -> Any:
        """Return an array; arrays share Ray's read-only memory, tensors have no such thing and are copies."""
        kind, position = part
        values = ray.get(self._names[position])
        return values if kind == "array" else torch.from_numpy(values.copy())


def _name_of(values: np.ndarray[Any, Any], owner: Any) -> Any:
    """Return the name of an array in the object store, where it stays as long as its owner lives."""
    contents = hashlib.blake2b(values.ravel(order="K").view(np.uint8).data, digest_size=16).digest()
    # The contents count, not the object: somebody may have written into it since. This process has a new
    # number in every cluster it joins, where names of the last one mean nothing.
    cluster = ray.get_runtime_context().get_worker_id()
    key = (cluster, values.dtype.str, values.shape, values.strides, contents)
    if key not in _STORED:
        _STORED[key] = ray.put(values)
        weakref.finalize(owner, _STORED.pop, key, None)
    return _STORED[key]
