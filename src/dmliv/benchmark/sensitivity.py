"""Methods of the sensitivity tables: a preset with learning rate, weight decay, dropout or width changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from dmliv.benchmark.methods import PIXELS, TWO_STAGE, TwoStageName, two_stage
from dmliv.benchmark.trials import Method
from dmliv.learners import Learners, paper_neural

_METHODS: Final[tuple[TwoStageName, ...]] = ("dml-iv", "ce-dml-iv")


@dataclass(frozen=True)
class Change:
    """A row of a sensitivity table; None keeps the table's base value.

    Parameters
    ----------
    rate, decay, dropout : float or None
        Learning rate, weight decay and dropout probability.
    width : int or None
        Units of the first of three hidden layers; each further layer has half as many.
    """

    rate: float | None = None
    decay: float | None = None
    dropout: float | None = None
    width: int | None = None

    @property
    def words(self) -> str:
        """The change for people, such as ``"weight decay 0.005, dropout 0.05"``."""
        named = {
            "learning rate": self.rate,
            "weight decay": self.decay,
            "dropout": self.dropout,
            "width": self.width,
        }
        return ", ".join(f"{name} {value:g}" for name, value in named.items() if value is not None) or "base"


# The rows of the paper's tables in their order.
LOW_DIMENSIONAL: Final = (
    Change(),
    Change(rate=0.0005),
    Change(rate=0.0001),
    Change(decay=0.0005),
    Change(decay=0.005),
    Change(decay=0.01),
    Change(dropout=0.05),
    Change(dropout=0.2),
    Change(width=64),
    Change(width=256),
    Change(decay=0.0005, dropout=0.2),
    Change(decay=0.005, dropout=0.05),
    Change(decay=0.01, dropout=0.05),
    Change(dropout=0.2, width=256),
    Change(dropout=0.05, width=64),
    Change(decay=0.005, width=256),
)
# Without the rows that change the number of channels, which the convolutions here keep at 32, 64 and 64.
IMAGES: Final = (
    Change(),
    Change(rate=0.0005),
    Change(rate=0.002),
    Change(rate=0.005),
    Change(decay=0.01),
    Change(decay=0.02),
    Change(decay=0.1),
    Change(dropout=0.1),
    Change(dropout=0.3),
    Change(decay=0.1, dropout=0.1),
    Change(decay=0.01, dropout=0.3),
)
# The paper's table gives 0.2 as the base dropout of the image networks; its released code has 0.3.
_IMAGE_BASE: Final = Change(rate=0.001, decay=0.05, dropout=0.2)


def low_dimensional_methods() -> tuple[Method, ...]:
    """Return DML-IV and CE-DML-IV with the paper's preset and its changes."""
    return _changed_methods(LOW_DIMENSIONAL, _changed_demand)


def image_methods() -> tuple[Method, ...]:
    """Return the same for images: the paper's preset (hours a fit) and its networks on a short schedule.

    Those on a short schedule are archived: most of their networks for h learned from the observed outcome.
    """
    short = _changed_methods(IMAGES, None, "short", published=False)
    return (*_changed_methods(IMAGES, _changed_image), *short)


def _changed_methods(
    changes: tuple[Change, ...],
    preset: Callable[[Change], Learners] | None,
    prefix: str = "",
    *,
    published: bool = True,
) -> tuple[Method, ...]:
    methods: list[Method] = []
    for name in _METHODS:
        for change in changes:
            suffix = "-".join([prefix, *change.words.replace(",", "").split()]).strip("-")
            note = f"{prefix}, {change.words}" if prefix else change.words
            changed = None if preset is None else partial(preset, change)
            (method,) = two_stage(changed, suffix, names=(name,), note=note)
            paper_name = f"{TWO_STAGE[name]}, {change.words}" if published else None
            methods.append(replace(method, published=paper_name))
    return tuple(methods)


def _changed_demand(change: Change) -> Learners:
    return _apply(paper_neural(), change)


def _changed_image(change: Change) -> Learners:
    return _apply(_apply(paper_neural("image", PIXELS), _IMAGE_BASE), change)


def _apply(preset: Learners, change: Change) -> Learners:
    roles: dict[str, Any] = {role: getattr(preset, role) for role in ("outcome", "action", "structural")}
    for role, learner in roles.items():
        settings: dict[str, Any] = {}
        if change.rate is not None:
            settings["learning_rate"] = change.rate
        if change.decay is not None:
            settings["weight_decay"] = change.decay
        # A network without dropout in the preset, as h is in the low-dimensional one, stays without.
        if change.dropout is not None and learner.settings.dropout != 0.0:
            settings["dropout"] = change.dropout
        if change.width is not None:
            settings["hidden"] = (change.width, change.width // 2, change.width // 4)
        roles[role] = replace(learner, settings=replace(learner.settings, **settings))
    return replace(preset, **roles)
