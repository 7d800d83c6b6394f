"""Names that moved: imports from where they were still work, with a warning, for one version.

To move a public name, move it and add a line to :data:`MOVED`; with the version after next the line goes.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final

#: Modules that are gone, and where their names are now: one module for all of them, or one for each.
MOVED: Final[Mapping[str, str | Mapping[str, str]]] = {
    "dmliv.interop": "dmliv.estimators.interop",
    "dmliv.policy.bandits": "dmliv.bandits",
    "dmliv.problems.suite.strength": "dmliv.problems.suite.shares",
    "dmliv.streaming": {
        "ParquetRows": "dmliv.data",
        "csv_as_parquet": "dmliv.data",
        "can_stream": "dmliv.estimators",
        "fit_parquet": "dmliv.estimators",
    },
    "dmliv.style": "dmliv.diagnostics.house_style",
}


class MovedModules(MetaPathFinder, Loader):
    """Finds modules of :data:`MOVED`, which are no longer there."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return a spec for a module that has moved."""
        del path, target
        return ModuleSpec(fullname, self) if fullname in MOVED else None

    def exec_module(self, module: ModuleType) -> None:
        """Fill a module with the names that were in it."""
        name = module.__name__
        places = MOVED[name]
        if isinstance(places, str):
            found = importlib.import_module(places)
            names = {each: places for each in vars(found) if not each.startswith("__")}
        else:
            names = dict(places)
        warnings.warn(
            f"{name} has moved and goes with the next version; import from "
            f"{' or '.join(sorted(set(names.values())))} instead.",
            FutureWarning,
            # Frames of the import system do not count.
            stacklevel=2,
        )
        for each, place in names.items():
            setattr(module, each, getattr(importlib.import_module(place), each))


def warn_of_moved_modules() -> None:
    """Let the import system find modules that have moved."""
    if not any(isinstance(finder, MovedModules) for finder in sys.meta_path):
        sys.meta_path.append(MovedModules())


def moved_names(module: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a ``__getattr__`` for a module from which single names moved to others.

    Parameters
    ----------
    module : str
        Where they were.
    names : mapping of str to str
        The names, and the modules they are in now.
    """

    def get(name: str) -> Any:
        place = names.get(name)
        if place is None:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warnings.warn(
            f"{module}.{name} has moved and goes with the next version; import it from {place} instead.",
            FutureWarning,
            stacklevel=2,
        )
        return getattr(importlib.import_module(place), name)

    return get
