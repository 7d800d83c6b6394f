"""What tuning may choose from: families of learners and the ranges of their settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from dmliv.errors import InputError, listed
from dmliv.learners import Learners, boosting, forest, kernel, neural
from dmliv.nets.settings import NetworkSettings
from dmliv.tuning.parameters import settings_of, with_settings

ROLES: Final = ("outcome", "action", "structural")
CURRENT: Final = "current"

_PRESETS: Final[dict[str, Callable[[], Learners]]] = {
    "neural": neural,
    "boosting": boosting,
    "forest": forest,
    "kernel": kernel,
}


@dataclass(frozen=True)
class Range:
    """Any number from ``low`` to ``high``; ``log`` searches orders of magnitude evenly."""

    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        """Check the bounds."""
        if not 0.0 <= self.low < self.high < float("inf") or (self.log and self.low == 0.0):
            raise InputError(
                f"Expected 0 <= low < high, with low above 0 for log=True, got {self}; change the bounds."
            )


Candidates = Range | tuple[float, ...] | None


@dataclass(frozen=True)
class SearchSpace:
    """What may be chosen. Each setting is a :class:`Range`, a tuple of values, or None to leave it alone.

    Parameters
    ----------
    families : tuple of str, or mapping of str to Learners
        Sets of learners; each role chooses its own. Names are those of the presets in
        :mod:`dmliv.learners`: ``"neural"``, ``"boosting"``, ``"forest"``, ``"kernel"``. The estimator's own
        learners always compete as well.
    learning_rate, weight_decay, width
        Multiples of what a learner has, for networks; ``learning_rate`` for boosting too. A multiple of a
        setting that depends on the number of rows still depends on it.
    dropout
        Dropout probability of networks.
    min_samples_leaf, max_leaf_nodes
        Of trees that limit them.
    """

    families: tuple[str, ...] | Mapping[str, Learners] = ("neural", "boosting", "forest", "kernel")
    learning_rate: Candidates = Range(0.2, 4.0, log=True)
    width: Candidates = (0.5, 1.0, 2.0)
    weight_decay: Candidates = Range(0.1, 100.0, log=True)
    dropout: Candidates = (0.0, 0.05, 0.1, 0.2, 0.4)
    min_samples_leaf: Candidates = (3, 5, 10, 20, 50)
    max_leaf_nodes: Candidates = (4, 8, 16, 32)

    def __post_init__(self) -> None:
        """Check names and values."""
        _check_families(self.families)
        for entry in fields(self)[1:]:
            _check(entry.name, getattr(self, entry.name))


def _check_families(families: object) -> None:
    if isinstance(families, Mapping):
        wrong = [name for name, learners in families.items() if not isinstance(learners, Learners)]
        if wrong:
            raise InputError(
                f"Expected Learners for every family, got something else for {listed(wrong)}; pass "
                "neural(), say."
            )
        return
    if not isinstance(families, tuple):
        raise InputError(
            f"Expected a tuple of families or a mapping, got {families!r}; write ('neural',), say."
        )
    unknown = [name for name in families if name not in _PRESETS]
    if unknown:
        raise InputError(
            f"Expected families among {listed(_PRESETS)}, got {listed(unknown)}; pass a mapping of names "
            "to Learners for your own."
        )


def _check(name: str, candidates: object) -> None:
    if candidates is None or isinstance(candidates, Range):
        return
    if not isinstance(candidates, tuple) or not candidates:
        raise InputError(
            f"Expected a Range, a tuple of values or None for {name}, got {candidates!r}; write (0.1, 0.2), "
            "say."
        )
    if any(not isinstance(value, (int, float)) or value < 0 for value in candidates):
        raise InputError(f"Expected numbers of at least 0 for {name}, got {candidates!r}; change them.")


@dataclass(frozen=True)
class RoleSpace:
    """What one role may choose from.

    Attributes
    ----------
    families : dict of str to learner
        The first one is the estimator's own.
    candidates : dict of str to Range or tuple
        By setting.
    """

    families: dict[str, Any]
    candidates: dict[str, Range | tuple[float, ...]]

    @property
    def own(self) -> str:
        """The name of the family that the estimator's own learner belongs to."""
        return next(iter(self.families))

    def settings(self, family: str) -> dict[str, Range | tuple[float, ...]]:
        """Return the settings that can be tuned in a family, with their candidates."""
        names = settings_of(self.families[family])
        return {name: self.candidates[name] for name in names if name in self.candidates}

    def learner(self, family: str, values: Mapping[str, float]) -> Any:
        """Return the learner of a family with these settings."""
        return with_settings(self.families[family], values) if values else self.families[family]


def role_space(space: SearchSpace, own: Learners, role: str) -> RoleSpace:
    """Return what a role may choose from; learners that are the same stand once."""
    named = (
        dict(space.families)
        if isinstance(space.families, Mapping)
        else {name: _PRESETS[name]() for name in space.families}
    )
    current = getattr(own, role)
    same = [name for name, learners in named.items() if _words(getattr(learners, role)) == _words(current)]
    families = {same[0] if same else CURRENT: current}
    known = {_words(current)}
    for name, learners in named.items():
        learner = getattr(learners, role)
        if _words(learner) not in known:
            families[name] = learner
            known.add(_words(learner))
    candidates = {entry.name: getattr(space, entry.name) for entry in fields(space)[1:]}
    return RoleSpace(families, {name: given for name, given in candidates.items() if given is not None})


def _words(learner: Any) -> str:
    """Return what a learner is; scikit-learn estimators are equal to themselves only, but print themselves.

    How long its trials are does not make another learner: they only choose among the same inputs.
    """
    settings = getattr(learner, "settings", None)
    if isinstance(settings, NetworkSettings):
        learner = replace(learner, settings=replace(settings, trial_share=1.0))
    return repr(learner)
