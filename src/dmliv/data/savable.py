"""Which classes a model file may name: each says so itself, where it is defined."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, is_dataclass
from typing import Any, TypeVar, overload

Class = TypeVar("Class", bound=type[Any])


@dataclass(frozen=True)
class Saving:
    """How a class is written to a model file, and read again.

    Attributes
    ----------
    cls : type
    formerly : tuple of str
        Names that earlier versions saved it under.
    renamed : dict of str to str
        Fields that earlier versions saved under another name, and their names now.
    dropped : dict of str to object
        Fields that earlier versions saved, each with the value that is now the only one.
    left_out : dict of str to object
        Fields that are only used while fitting, and what they are after loading.
    """

    cls: type[Any]
    formerly: tuple[str, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)
    dropped: Mapping[str, object] = field(default_factory=dict)
    left_out: Mapping[str, object] = field(default_factory=dict)


#: By the name of the class.
SAVED: dict[str, Saving] = {}


@overload
def savable(cls: Class) -> Class: ...
@overload
def savable(
    cls: None = None,
    *,
    formerly: tuple[str, ...] = (),
    renamed: Mapping[str, str] | None = None,
    dropped: Mapping[str, object] | None = None,
    left_out: Mapping[str, object] | None = None,
) -> Callable[[Class], Class]: ...
def savable(
    cls: Class | None = None,
    *,
    formerly: tuple[str, ...] = (),
    renamed: Mapping[str, str] | None = None,
    dropped: Mapping[str, object] | None = None,
    left_out: Mapping[str, object] | None = None,
) -> Class | Callable[[Class], Class]:
    """Let model files hold objects of a class, of this package or of a user's own.

    A dataclass is saved field by field and rebuilt by its constructor, which checks what it is given. Any
    other class has a method ``saved_parts()``, which returns a dict, and a class method
    ``from_saved_parts(parts)``. Parts may be plain values, arrays, tensors, estimators of scikit-learn and
    other savable objects. A file with a class of a user's own can be loaded once its module was imported.

    Parameters
    ----------
    formerly : tuple of str
        Names that earlier versions saved the class under.
    renamed : mapping of str to str, optional
        Fields that earlier versions saved under another name, and their names now.
    dropped : mapping of str to object, optional
        Fields that earlier versions saved, each with the value that is now the only one.
    left_out : mapping of str to object, optional
        Fields that are only used while fitting, and what they are after loading.
    """

    def register(cls: Class) -> Class:
        if not is_dataclass(cls) and not hasattr(cls, "from_saved_parts"):
            raise TypeError(
                f"Expected a dataclass, or a class with saved_parts and from_saved_parts, got {cls.__name__}."
            )
        known = SAVED.get(cls.__name__)
        # The same class again is a module that was reloaded.
        if known is not None and known.cls.__module__ != cls.__module__:
            raise TypeError(
                f"Expected a name of its own, got {cls.__name__}, as in {known.cls.__module__}; rename it."
            )
        SAVED[cls.__name__] = Saving(cls, formerly, renamed or {}, dropped or {}, left_out or {})
        return cls

    return register if cls is None else register(cls)


def saving_of(name: str) -> Saving | None:
    """Return how objects are read that were saved under the name of a class, today's or an earlier one."""
    found = SAVED.get(name)
    return found or next((each for each in SAVED.values() if name in each.formerly), None)
