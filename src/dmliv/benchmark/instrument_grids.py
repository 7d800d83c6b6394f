"""Grids about instruments as studies have them: ordinary strengths, no control function, mean effects."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from dmliv.benchmark import methods, tasks
from dmliv.benchmark.trials import Grid, Metric, cells_of
from dmliv.problems import (
    ORDINARY_REPORTED_ONLY,
    ORDINARY_TUNED_ON,
    TUNED_ON,
    VIOLATIONS,
    VIOLATIONS_REPORTED_ONLY,
    VIOLATIONS_TUNED_ON,
    SuiteProblem,
    instrument_share,
)

# No setting was chosen on these, though earlier versions of the pilot were run on some of them: see the page
# of the pilot in the results, and the remark of each grid for the problems.
_SEEDS: Final = tuple(range(40, 45))
_MANY_SEEDS: Final = tuple(range(40, 80))

RELATIVE_MSE: Final = Metric("relative_mse", "relative MSE")
SUITE_REWARD: Final = Metric("reward", "reward", "higher", "optimum")

_EARLIER: Final = (
    "DML-IV before the pilot is the default of an earlier version: networks, networks that are linear in the "
    "action and a kernel, averaged and corrected."
)
_REGRESSION: Final = (
    "The regression, by the networks of that version, ignores the instrument: its error is what confounding "
    "costs."
)
_ORACLE: Final = (
    "The oracle is the same regression on as many rows without confounding, so that its error is learning "
    "error alone."
)


def ordinary() -> Grid:
    """Return six problems of the suite with instruments that explain 1 to 30 percent of the action."""
    ordinary = tasks.ordinary_tasks()
    return Grid(
        "ordinary",
        "Instruments of ordinary strength: error and reward",
        (*cells_of(ordinary, [1000]), *cells_of(ordinary, [5000])),
        methods.instrument_methods(),
        _SEEDS,
        (RELATIVE_MSE, SUITE_REWARD),
        remark=(
            "The percentage is the share that the instrument explains of what the context leaves of the "
            "action. Published studies have 0.2 to 10 %. The relative MSE is the MSE over the variance of "
            f"the truth. Settings may be chosen on {names_of(ORDINARY_TUNED_ON)} (seeds from 100 on); "
            f"{names_of(ORDINARY_REPORTED_ONLY)} chose nothing. The idea of a pilot, though no setting of "
            "it, was tried out on all six problems at full strength, with other seeds. "
            f"{_EARLIER} {_REGRESSION}"
        ),
        chart="heat",
    )


def assumption() -> Grid:
    """Return the problems in which a control function is wrong."""
    shares = ", ".join(
        f"{problem.name} {100.0 * instrument_share(problem):.0f} %" for problem in VIOLATIONS.values()
    )
    return Grid(
        "assumption",
        "Where a control function is wrong: error at 2000 rows",
        cells_of(tasks.violation_tasks(), [2000]),
        methods.instrument_methods(),
        _SEEDS,
        (RELATIVE_MSE,),
        remark=(
            "In these problems no residual of the action carries all of the confounding, which the pilot "
            "assumes; the instrument is valid in all of them. The relative MSE is the MSE over the variance "
            f"of the truth. The instruments explain, of what the context leaves of the action: {shares}. "
            f"Settings may be chosen on {names_of(VIOLATIONS_TUNED_ON)} (seeds from 100 on); "
            f"{names_of(VIOLATIONS_REPORTED_ONLY)} chose nothing. {_EARLIER} {_REGRESSION} "
            f"{_ORACLE}"
        ),
    )


def pilot_suite() -> Grid:
    """Return the suite with and without a pilot."""
    return Grid(
        "pilot-suite",
        "The suite with and without a pilot: error and reward at 2000 rows",
        cells_of(tasks.suite_tasks(), [2000]),
        (*methods.piloted_methods(), *methods.archived_references()),
        _SEEDS,
        (RELATIVE_MSE, SUITE_REWARD),
        remark=(
            "The relative MSE is the MSE over the variance of the truth. Settings may be chosen on "
            f"{names_of(TUNED_ON)} (seeds from 100 on); no setting was chosen on the other problems, but the "
            f"idea of a pilot was tried out on all of them, with other seeds. {_EARLIER} {_REGRESSION} "
            f"{_ORACLE}"
        ),
    )


def pilot_demand() -> Grid:
    """Return ticket demand, IHDP and PM-CMR with and without a pilot."""
    strong = cells_of([tasks.demand()], (1000, 2000, 5000, 10_000))
    weak = cells_of(map(tasks.demand, (0.2, 0.01)), [5000])
    return Grid(
        "pilot-demand",
        "Ticket demand with and without a pilot: error",
        (*strong, *weak),
        (*methods.piloted_methods(), methods.archived_references()[1]),
        tuple(range(40, 60)),
        (Metric("grid_mse", "MSE on the grid"),),
        remark=(
            f"Settings were chosen on seeds from 100 on. {_EARLIER} The oracle is a regression by its "
            "networks on as many rows without confounding. At strength 0.01 the data say next to nothing "
            "about the price."
        ),
    )


def pilot_real_world() -> Grid:
    """Return IHDP and PM-CMR with a pilot."""
    return Grid(
        "pilot-real-world",
        "IHDP and PM-CMR with a pilot: error",
        tasks.real_cells(),
        methods.default_methods(),
        # Settings were chosen on replication 0, and on other problems.
        tuple(range(40, 60)),
        (Metric("validation_mse", "MSE on validation rows"), Metric("test_mse", "MSE on test rows")),
        remark=(
            "Seeds are numbers of replications. All replications share one table of contexts: they are not "
            "independent data sets."
        ),
    )


def pilot_images() -> Grid:
    """Return demand with images with a pilot."""
    return Grid(
        "pilot-images",
        "Ticket demand with images with a pilot: error",
        cells_of([tasks.image_demand()], (1000, 2000, 5000, 10_000)),
        methods.default_methods(image=methods.PIXELS)[:1],
        _SEEDS,
        (Metric("grid_mse", "MSE on the grid"),),
        remark=(
            "What stands for an image in the pilot was chosen on seeds 100 and 101, nothing else on images."
        ),
    )


def mean_effects() -> Grid:
    """Return wages drawn from Card's table and the encouragement design."""
    return Grid(
        "mean-effects",
        "Mean effects: wages drawn from Card's table, and encouragement",
        (*cells_of(tasks.card_tasks(), [3010]), *cells_of(tasks.encouragement_tasks(), [2000])),
        methods.effect_methods(),
        _MANY_SEEDS,
        (
            Metric("ate_error", "error of the mean effect", "zero"),
            # The root: squares of a tenth of a log wage would vanish in a table.
            Metric("effect_rmse", "root MSE of the effects"),
        ),
        remark=(
            "Card: as many rows as the table has, drawn from it with replacement; a year at school raises "
            "the log wage by 0.1. A college nearby adds pi years; with pi of 0.35, 1 and 3 it explains 0.5, "
            "4 and 27 % of what the contexts leave of education, and the first-stage F is about 16, 125 and "
            "1130. Encouragement: the effect is 10 (constant), 5 X1 (linear) or 3 X1^2 - 2 X2 (curved), its "
            "mean 10, 0 or 3; the instrument explains 58 % of the action. Settings were chosen on both "
            f"designs as well, on seeds from 100 on. {_EARLIER}"
        ),
    )


def names_of(problems: Iterable[SuiteProblem]) -> str:
    """Return the names of problems in one line of text."""
    return ", ".join(problem.name for problem in problems)
