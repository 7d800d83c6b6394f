"""Which kind of intervals a user asks for."""

from __future__ import annotations

from typing import Literal

from dmliv.errors import InputError, listed
from dmliv.inference.bootstrap import Bootstrap
from dmliv.inference.debiased import Debiased
from dmliv.inference.posterior import Posterior

Inference = Debiased | Bootstrap | Posterior
InferenceLike = Literal["debiased", "bootstrap", "posterior"] | Inference | None


def read_inference(inference: InferenceLike) -> Inference | None:
    """Return the settings that a name or an object stands for."""
    if inference is None or isinstance(inference, Inference):
        return inference
    named: dict[str, Inference] = {
        "debiased": Debiased(),
        "bootstrap": Bootstrap(),
        "posterior": Posterior(),
    }
    if isinstance(inference, str) and inference in named:
        return named[inference]
    raise InputError(
        f"Expected inference among {listed(named)}, Debiased(), Bootstrap(), Posterior() and None, got "
        f"{inference!r}."
    )
