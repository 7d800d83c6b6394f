"""What an object is, in plain data: two objects with the same description are the same trial.

The description is read off the object itself, its type and all of its parameters, so that a changed default
or a new parameter makes a new trial without anybody having to remember a version. There are two exceptions: a
new parameter with a value that leaves everything as it was before is listed in `ADDED`, a former parameter
with the value that all objects now have in `REMOVED`.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Final

import numpy as np
from sklearn.base import BaseEstimator

from dmliv.errors import InputError

Plain = None | bool | int | float | str | list["Plain"] | dict[str, "Plain"]

# How a trial is run, not what it computes: folders, display, and jobs that by contract change no number.
# Whether learners allow a pilot says nothing either, because every method spells its pilot out.
UNDESCRIBED: Final = frozenset({"data_dir", "verbose", "n_jobs", "with_pilot"})
# Parameters that came after the first records, by type, each with the value that changes nothing: with that
# value they are not described.
ADDED: Final[Mapping[str, Mapping[str, Any]]] = {
    "DMLIV": {"pilot": None},
    "CEDMLIV": {"pilot": None},
    "DeepIV": {"pilot": None},
    "Regression": {"pilot": None},
    "Oracle": {"pilot": None},
    "NetworkSettings": {"trial_share": 1.0},
    "KernelStructural": {"n_search_rows": 2000},
}
# Parameters that are gone, by type, each with the value that all objects have now: it is still described.
REMOVED: Final[Mapping[str, Mapping[str, Plain]]] = {"NeuralStructural": {"n_outcome_members": 0}}
_DIGITS: Final = 16


def describe(value: Any) -> Plain:
    """Return a value as plain data, by recursion.

    Parameters
    ----------
    value : object
        Numbers, strings, sequences, mappings, arrays, dataclasses, scikit-learn estimators, classes and
        functions, nested as deep as need be.

    Raises
    ------
    InputError
        If an object keeps its parameters to itself.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        # JSON has no infinity; unlimited settings are common.
        return value if math.isfinite(value) else repr(value)
    if isinstance(value, np.ndarray):
        return {
            "type": "ndarray",
            "dtype": str(value.dtype),
            "shape": list(value.shape),
            "sha256": hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest(),
        }
    if isinstance(value, Mapping):
        return {str(key): describe(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [describe(item) for item in value]
    if isinstance(value, (type, type(describe))):
        return f"{value.__module__}.{value.__qualname__}"
    if is_dataclass(value):
        return _parameters(value, {field.name: getattr(value, field.name) for field in fields(value)})
    if isinstance(value, BaseEstimator):
        return _parameters(value, value.get_params(deep=False))
    raise InputError(
        f"Expected numbers, strings, dataclasses or scikit-learn estimators to describe, got a "
        f"{type(value).__name__}; make it a dataclass."
    )


def canonical(value: Any) -> str:
    """Return the description as JSON text in one spelling."""
    return json.dumps(describe(value), sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(value: Any) -> str:
    """Return 16 hexadecimal digits that name the description."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:_DIGITS]


def _parameters(value: object, parameters: Mapping[str, Any]) -> Plain:
    # The name of the type without its module: moving a class to another file makes no other trial.
    kind = type(value).__qualname__
    added = ADDED.get(kind, {})
    described: dict[str, Plain] = {"type": kind, **REMOVED.get(kind, {})}
    for name, item in parameters.items():
        unchanged = name in added and item == added[name]
        if name not in UNDESCRIBED and not unchanged:
            described[name] = describe(item)
    return described
