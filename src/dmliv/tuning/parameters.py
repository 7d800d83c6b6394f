"""The settings a learner has to offer, and a learner with other settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from numbers import Real
from typing import Any, Final

from sklearn.base import BaseEstimator, clone

from dmliv.nets.settings import ByRows, NetworkSettings

NETWORK_SETTINGS: Final = ("learning_rate", "width", "weight_decay", "dropout")
TREE_SETTINGS: Final = ("learning_rate", "min_samples_leaf", "max_leaf_nodes")
# These multiply what the learner has; the others replace it.
FACTORS: Final = ("learning_rate", "width", "weight_decay")

_NARROWEST = 4
_REGRESSORS = ("regressor", "classifier")


def settings_of(learner: Any) -> tuple[str, ...]:
    """Return the names of the settings that can be tuned, in a fixed order."""
    if isinstance(getattr(learner, "settings", None), NetworkSettings):
        return NETWORK_SETTINGS
    if (regressor := getattr(learner, "regressor", None)) is not None:
        return _numbers(regressor.get_params(deep=False))
    if is_dataclass(learner):
        return _numbers({entry.name: getattr(learner, entry.name) for entry in fields(learner)})
    return ()


def with_settings(learner: Any, values: Mapping[str, float]) -> Any:
    """Return the learner with other settings; the learner itself stays as it is.

    Parameters
    ----------
    learner
        Outcome, action or structural learner.
    values
        By name, as :func:`settings_of` gives them. ``learning_rate``, ``width`` and ``weight_decay`` multiply
        what the learner has, so that rules that depend on the number of rows stay rules.
    """
    if isinstance(getattr(learner, "settings", None), NetworkSettings):
        return replace(learner, settings=_network(learner.settings, values))
    if hasattr(learner, "regressor"):
        changed = {
            name: _estimator(getattr(learner, name), values)
            for name in _REGRESSORS
            if getattr(learner, name, None) is not None
        }
        return replace(learner, **changed)
    current = {name: getattr(learner, name) for name in values}
    return replace(learner, **_changed(current, values))


def _numbers(parameters: Mapping[str, object]) -> tuple[str, ...]:
    # A setting that is None or a word was meant as such.
    return tuple(name for name in TREE_SETTINGS if isinstance(parameters.get(name), Real))


def _network(settings: NetworkSettings, values: Mapping[str, float]) -> NetworkSettings:
    changed: dict[str, Any] = {}
    for name, value in values.items():
        if name == "width":
            changed["hidden"] = tuple(max(_NARROWEST, round(value * width)) for width in settings.hidden)
        elif name in FACTORS:
            changed[name] = _times(getattr(settings, name), value)
        else:
            changed[name] = value
    return replace(settings, **changed)


def _times(setting: float | ByRows, factor: float) -> float | ByRows:
    if not isinstance(setting, ByRows):
        return factor * setting
    parts = {name: factor * getattr(setting, name) for name in ("factor", "offset", "low", "high")}
    return replace(setting, **parts)


def _estimator(estimator: BaseEstimator, values: Mapping[str, float]) -> BaseEstimator:
    current = estimator.get_params(deep=False)
    return clone(estimator).set_params(**_changed(current, values))


def _changed(current: Mapping[str, Any], values: Mapping[str, float]) -> dict[str, float]:
    changed: dict[str, float] = {}
    for name, value in values.items():
        if name in FACTORS:
            changed[name] = value * current[name]
        else:
            # scikit-learn reads a leaf size that is no whole number as a share of the rows.
            changed[name] = int(value) if float(value).is_integer() else value
    return changed
