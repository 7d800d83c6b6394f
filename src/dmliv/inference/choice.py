"""Which kind of intervals a user asks for."""

from __future__ import annotations

from typing import Literal

from dmliv.errors import InputError
from dmliv.inference.bootstrap import Bootstrap
from dmliv.inference.debiased import Debiased

InferenceLike = Literal["debiased", "bootstrap"] | Debiased | Bootstrap | None


def read_inference(inference: InferenceLike) -> Debiased | Bootstrap | None:
    """Return the settings that a name or an object stands for."""
    if inference is None or isinstance(inference, (Debiased, Bootstrap)):
        return inference
    if inference == "debiased":
        return Debiased()
    if inference == "bootstrap":
        return Bootstrap()
    raise InputError(
        f"Expected inference among 'debiased', 'bootstrap', Debiased(), Bootstrap() and None, got "
        f"{inference!r}."
    )
