"""How much of the action an instrument explains, and the strength at which it explains a wanted share.

In published studies the instrument explains 0.2 to 10 percent of what the context leaves of the action; at
their default strength most problems of the suite have five times as much or more. Problems of ordinary
strength are made like this::

    from dmliv.problems import SaturatingDose, with_instrument_share

    problem = with_instrument_share(SaturatingDose(), 0.03)
    data = problem.sample(1000, seed=40)
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TypeVar

import numpy as np

from dmliv.data import FloatArray
from dmliv.errors import InputError
from dmliv.problems.arguments import is_finite_number
from dmliv.problems.drawn import Rows
from dmliv.problems.suite.pieces import SuiteProblem

AnySuiteProblem = TypeVar("AnySuiteProblem", bound=SuiteProblem)

# The simulation has a seed of its own: the strength of a problem does not depend on anybody's sample.
_SEED = 20_240_917
_ROWS = 50_000
_DRAWS = 4
_MOST_STEPS = 100
_STRONGEST = 1e3
_TOLERANCE = 1e-5
# Strengths are parts of the names of benchmark records. More digits would differ between machines.
_DIGITS = 4


def instrument_share(problem: SuiteProblem) -> float:
    """Return the share of the action's variance that the instrument explains, beyond the context.

    With context C, instrument Z and action A::

        share = Var(E[A | C, Z] - E[A | C]) / Var(A - E[A | C])

    It is found by simulation with a fixed seed, to about one percent of itself.

    Raises
    ------
    InputError
        If the action is discrete or has several columns.
    """
    if problem.levels or problem.n_actions > 1:
        what = f"the levels {problem.levels}" if problem.levels else f"{problem.n_actions} columns"
        raise InputError(
            f"Expected a problem with one continuous action, got {problem.name!r} with {what}; "
            "choose another problem."
        )
    return _simulated_share(problem)


def strength_for_share(problem: SuiteProblem, share: float) -> float:
    """Return the ``instrument_strength`` at which the instrument explains ``share`` of the action's variance.

    It has four significant digits. The problem's own strength does not matter.

    Raises
    ------
    InputError
        If the action is discrete or has several columns, or no strength gives that share.
    """
    if not (is_finite_number(share) and 0 < share < 1):
        raise InputError(f"Expected share to be a number above 0 and below 1, got {share!r}; pass one.")
    return _searched_strength(replace(problem, instrument_strength=1.0), float(share))


def with_instrument_share(problem: AnySuiteProblem, share: float) -> AnySuiteProblem:
    """Return the problem with the strength at which its instrument explains ``share`` of the action.

    Takes and raises what :func:`strength_for_share` does.
    """
    return replace(problem, instrument_strength=strength_for_share(problem, share))


@lru_cache(maxsize=256)
def _searched_strength(problem: SuiteProblem, share: float) -> float:
    wanted = share / (1.0 - share)
    strength = 1.0
    for _ in range(_MOST_STEPS):
        found = instrument_share(replace(problem, instrument_strength=strength))
        if not 0 < found < 1:
            break
        # Where instrument and hidden cause are added up, the odds grow with the square of the strength, and
        # the first step is exact.
        factor = np.sqrt(wanted * (1.0 - found) / found)
        if abs(factor - 1.0) < _TOLERANCE:
            return float(f"{strength:.{_DIGITS}g}")
        strength *= float(factor)
        if strength > _STRONGEST:
            break
    raise InputError(
        f"Expected a share that the instrument of {problem.name!r} can explain, got {share!r}; ask for less."
    )


def _simulated_share(problem: SuiteProblem) -> float:
    rng = np.random.default_rng(_SEED)
    X = problem.draw_context(rng, _ROWS)
    instruments = [problem.draw_instrument(rng, _ROWS) for _ in range(2)]
    sets = [_actions(problem, X, instruments, number) for number in range(2)]
    # Two instruments of one context: half the squared difference of the means is the variance between them.
    # A mean over few draws has noise of its own. The product of the differences of two independent sets has
    # none on average, and draws that both instruments share cancel where they are added to the instrument.
    moved = [drawn.mean(axis=1)[0] - drawn.mean(axis=1)[1] for drawn in sets]
    explained = 0.5 * float(np.mean(moved[0] * moved[1]))
    unexplained = float(np.mean([drawn.var(axis=1, ddof=1).mean() for drawn in sets]))
    return explained / (explained + unexplained)


def _actions(problem: SuiteProblem, X: Rows, instruments: list[Rows], number: int) -> FloatArray:
    """Return actions, shape (2, draws, rows): for each instrument the same draws of what is hidden."""
    actions = np.empty((len(instruments), _DRAWS, len(X)))
    for draw in range(_DRAWS):
        hidden = problem.draw_hidden(np.random.default_rng([_SEED, number, draw, 0]), len(X))
        for position, Z in enumerate(instruments):
            rng = np.random.default_rng([_SEED, number, draw, 1])
            actions[position, draw] = problem.act(X, Z, hidden, rng)
    return actions
