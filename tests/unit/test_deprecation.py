"""Imports from where names were: they work, and say where the names are now."""

from __future__ import annotations

import importlib
import sys
import warnings

import pytest

from dmliv.deprecation import MOVED


@pytest.mark.parametrize("old", sorted(MOVED))
def test_a_module_that_moved_has_its_names_and_warns(old: str) -> None:
    sys.modules.pop(old, None)
    with pytest.warns(FutureWarning, match=f"{old} has moved and goes with the next version; import from "):
        module = importlib.import_module(old)
    places = MOVED[old]
    if isinstance(places, str):
        now = importlib.import_module(places)
        names = dict.fromkeys(getattr(now, "__all__", None) or ["__doc__"], places)
    else:
        names = dict(places)
    for name, place in names.items():
        if name != "__doc__":
            assert getattr(module, name) is getattr(importlib.import_module(place), name)


def test_the_warning_points_at_the_line_that_imports() -> None:
    sys.modules.pop("dmliv.streaming", None)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        from dmliv.streaming import ParquetRows  # type: ignore[import-not-found]  # noqa: F401, PLC0415
    assert [each.filename for each in found if each.category is FutureWarning] == [__file__]


def test_a_name_that_left_its_module_has_moved() -> None:
    import dmliv.bandits  # noqa: PLC0415
    import dmliv.policy  # noqa: PLC0415

    with pytest.warns(FutureWarning, match=r"dmliv.policy.LinLCB has moved .* import it from dmliv.bandits"):
        assert dmliv.policy.LinLCB is dmliv.bandits.LinLCB
    with pytest.raises(AttributeError, match="no attribute 'Nowhere'"):
        _ = dmliv.policy.Nowhere


def test_other_absent_modules_are_absent() -> None:
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("dmliv.nowhere")
