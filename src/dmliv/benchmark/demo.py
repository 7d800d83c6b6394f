"""The demo: DML-IV next to an ordinary regression on simulated ticket sales, and what it says and draws."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
from rich.console import Console
from rich.table import Table

from dmliv.benchmark.demo_figures import (
    DoseResponse,
    LearningCurve,
    Recommendation,
    draw_dose_response,
    draw_learning_curves,
    draw_recommendations,
)
from dmliv.data import FloatArray, IVData
from dmliv.diagnostics.house_style import save_figure
from dmliv.errors import InputError
from dmliv.estimators import DMLIV
from dmliv.first_stage.nuisances import ActionModel, OutcomeModel
from dmliv.problems import TicketDemand
from dmliv.problems.ticket_demand import MAX_TIME, N_TYPES, to_action, to_price
from dmliv.report.ordinary import OrdinaryRegression
from dmliv.report.words import pilot_words
from dmliv.second_stage.pilot_model import PilotedModel
from dmliv.second_stage.structural import StructuralModel

Predict: TypeAlias = Callable[[FloatArray, FloatArray], FloatArray]
"""Actions (n,) and contexts (n, d_X) in, expected outcomes (n,) out."""

# The candidates of the published benchmark.
CANDIDATES: Final = np.linspace(-5.0, 5.0, 200)
SUPPORT_QUANTILES: Final = (0.001, 0.999)
_N_CONTEXTS: Final = 2000
_FRESH_ROWS: Final = 10_000
# With fewer rows the networks still train, but the figures show nothing but noise.
_FEWEST_ROWS: Final = 100
_SHOWN_CONTEXTS: Final = ((1.5, 2), (5.5, 4), (8.0, 6))
_SHOWN_TYPES: Final = (1, 4, 7)
# The figures stay nearer to the observed prices than the candidates of the benchmark do.
_DRAWN_CANDIDATES: Final = np.linspace(-3.0, 3.0, 121)
# Prices "at" a time are those of the nearest rows in time, this share of all.
_NEAR_SHARE: Final = 0.1
# A loss has levelled off when its last fifth brings less than this share of the whole fall.
_LEVEL_SHARE: Final = 0.05


@dataclass(frozen=True)
class Scores:
    """One method against the truth.

    Attributes
    ----------
    counterfactual_error : float
        Mean squared error on the problem's test grid.
    observed_r2 : float
        Share of the variance of *observed* outcomes explained on fresh rows.
    policy_value : float
        True mean outcome when the method sets the actions.
    """

    counterfactual_error: float
    observed_r2: float
    policy_value: float


@dataclass(frozen=True)
class Comparison:
    """Two fitted methods and how they compare.

    Attributes
    ----------
    problem, data
        The truth, and the rows both were fitted to.
    estimator, regression
        The methods; ``dmliv`` and ``ordinary`` are their scores.
    best_value, random_value : float
        True mean outcome under the best actions and under uniformly random ones.
    support : tuple of float
        The action's 0.1 and 99.9 % quantiles, a rough estimate of its support.
    """

    problem: TicketDemand
    data: IVData
    estimator: DMLIV
    regression: OrdinaryRegression
    dmliv: Scores
    ordinary: Scores
    best_value: float
    random_value: float
    support: tuple[float, float]


def compare(problem: TicketDemand, data: IVData, *, seed: int, verbose: bool = False) -> Comparison:
    """Fit both methods to rows of a problem and compare them with its truth; ``seed`` is that of training."""
    regression = OrdinaryRegression.fit(data, seed=seed, verbose=verbose)
    estimator = DMLIV(random_state=seed, verbose=verbose).fit(data.Y, data.T, Z=data.Z, X=data.X)

    contexts = np.asarray(problem.contexts(_N_CONTEXTS), dtype=np.float64)
    # Fresh rows come from a seed derived from the sample's own, so that they never are the training rows.
    fresh_seed = int(np.random.SeedSequence([seed, 1]).generate_state(1)[0])
    fresh = problem.sample(_FRESH_ROWS, seed=fresh_seed)
    X, test_actions, truth = problem.test_set()
    test_contexts = np.asarray(X, dtype=np.float64)

    def scores(predict: Predict, recommended: FloatArray) -> Scores:
        residuals = fresh.Y - predict(fresh.T, fresh.X)
        return Scores(
            counterfactual_error=float(np.mean((predict(test_actions, test_contexts) - truth) ** 2)),
            observed_r2=float(1.0 - np.mean(residuals**2) / np.var(fresh.Y)),
            policy_value=float(np.mean(problem.reward(contexts, recommended))),
        )

    low, high = float(CANDIDATES[0]), float(CANDIDATES[-1])
    bottom, top = np.quantile(data.T, SUPPORT_QUANTILES)
    return Comparison(
        problem=problem,
        data=data,
        estimator=estimator,
        regression=regression,
        dmliv=scores(estimator.predict, estimator.policy(CANDIDATES).predict(contexts)),
        ordinary=scores(regression.predict, regression.recommend(contexts, CANDIDATES)),
        best_value=problem.optimal_value(contexts, low, high),
        random_value=problem.random_value(contexts, low, high),
        support=(float(bottom), float(top)),
    )


def run_demo(rows: int, seed: int, folder: Path, console: Console) -> Comparison:
    """Simulate rows, fit, print what was found and write the figures into a folder.

    The seed is that of the sample and of all training; progress bars go to standard error.

    Raises
    ------
    InputError
        If there are fewer than 100 rows or the folder cannot be made.
    """
    if rows < _FEWEST_ROWS:
        raise InputError(f"Expected at least {_FEWEST_ROWS} rows for the demo, got {rows}; ask for more.")
    # Before the training: nobody should wait for it only to learn that the folder cannot be made.
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"Expected a folder to write to, got {str(folder)!r}: {error.strerror}.") from error

    _print_introduction(console, rows, seed)
    problem = TicketDemand()
    comparison = compare(problem, problem.sample(rows, seed=seed), seed=seed, verbose=True)
    _print_findings(console, comparison)
    console.print("\nFigures:")
    for path in write_figures(comparison, folder):
        # Never broken into lines, so that it can be copied.
        console.print(f"  {path}", soft_wrap=True, markup=False)
    return comparison


def write_figures(comparison: Comparison, folder: Path) -> list[Path]:
    """Write the three figures into an existing folder and return where they are."""
    responses, curves = dose_responses(comparison), learning_curves(comparison)
    recommended = recommendations(comparison)
    figures = {
        "dose-response.png": draw_dose_response(responses, dose_response_title(comparison, responses)),
        "learning-curves.png": draw_learning_curves(curves, learning_title(curves)),
        "recommended-price.png": draw_recommendations(recommended, recommendation_title(recommended)),
    }
    for name, figure in figures.items():
        save_figure(figure, folder / name)
    return [folder / name for name in figures]


def _print_introduction(console: Console, rows: int, seed: int) -> None:
    console.print(
        f"[bold]Simulated ticket sales of an airline: {rows:,} rows, seed {seed}.[/bold]\n"
        "Each row holds a price (the action), the sales at that price (the outcome), and the time of the "
        "year and the type of customer (the context). Hidden demand shocks, such as a conference in town, "
        "raise price and sales together, so that expensive tickets seem to sell well. The cost of fuel moves "
        "the price and touches sales in no other way: it is the instrument.\n"
    )


def _print_findings(console: Console, comparison: Comparison) -> None:
    dmliv, ordinary = comparison.dmliv, comparison.ordinary
    fit = comparison.estimator.nuisance_losses_
    table = Table(title="Against the truth, which a simulation knows", title_justify="left")
    table.add_column("")
    for heading in ("DML-IV", "Ordinary\nregression", "Best", "Random"):
        table.add_column(heading, justify="right")
    table.add_row(
        "Counterfactual error (MSE)",
        f"[bold]{dmliv.counterfactual_error:.3f}[/bold]",
        f"{ordinary.counterfactual_error:.3f}",
        "0",
    )
    table.add_row(
        "Mean sales under its prices",
        f"[bold]{dmliv.policy_value:.3f}[/bold]",
        f"{ordinary.policy_value:.3f}",
        f"{comparison.best_value:.3f}",
        f"{comparison.random_value:.3f}",
    )
    table.add_row("R2 on new observed rows", f"{dmliv.observed_r2:.3f}", f"{ordinary.observed_r2:.3f}")
    table.add_section()
    table.add_row("Outcome model, R2 out of fold", f"{fit['outcome_r2']:.3f}")
    table.add_row("Action model, R2 out of fold", f"{fit['action_r2']:.3f}")
    console.print()
    console.print(table)

    low, high = to_price(np.array(comparison.support))
    lowest, highest = to_price(CANDIDATES[[0, -1]])
    console.print(
        f"DML-IV: {' '.join(pilot_words(comparison.estimator))}\n"
        "Ordinary regression is a network like those of DML-IV, fitted to sales given context and price. It "
        "predicts the sales one observes; it does not say what happens when one sets the price. Sales are in "
        "standardised units.\n"
        "Read the sales under learned prices with care: in this benchmark the best policy is a constant, the "
        f"lowest of the candidate prices ({lowest:.1f} to {highest:.1f} euros). They mostly test the sign "
        "of the slope outside the support of the price, which is here about "
        f"{low:.1f} to {high:.1f} euros (0.1 to 99.9 % quantiles)."
    )


def dose_responses(comparison: Comparison) -> list[DoseResponse]:
    """Return expected sales against price in three contexts: early, midway and late in the year."""
    price = np.linspace(10.0, 25.0, 121)
    action = to_action(price)
    panels = []
    for time, kind in _SHOWN_CONTEXTS:
        context = _contexts(np.full(len(price), time), kind)
        panels.append(
            DoseResponse(
                title=f"Time {time:g}, customer type {kind}",
                x=price,
                best=comparison.problem.counterfactual(context, action),
                ordinary=comparison.regression.predict(action, context),
                dmliv=comparison.estimator.predict(action, context),
                observed=_prices_near(comparison.data, time),
            )
        )
    return panels


def dose_response_title(comparison: Comparison, panels: Sequence[DoseResponse]) -> str:
    """Return the finding about the effect of the price."""
    dmliv, ordinary = comparison.dmliv.counterfactual_error, comparison.ordinary.counterfactual_error
    if dmliv >= ordinary:
        return "On these rows DML-IV is no closer to the truth than ordinary regression"
    falls = all(panel.dmliv[-1] < panel.dmliv[0] for panel in panels)
    finding = "sees that higher prices reduce sales" if falls else "is closer to the truth"
    return f"DML-IV {finding}; ordinary regression has {ordinary / dmliv:.1f} times its error"


def learning_curves(comparison: Comparison) -> list[LearningCurve]:
    """Return the training losses of the models of DML-IV that are networks, each the mean over its own.

    A pilot is solved in closed form: where it stands alone, only the action model was trained.
    """
    first_stage = comparison.estimator.first_stage_
    structural: StructuralModel | None = comparison.estimator.structural_model_
    if isinstance(structural, PilotedModel):
        structural = structural.remainder
    models: list[tuple[str, str, OutcomeModel | ActionModel | StructuralModel | None]] = [
        ("Outcome model", "squared error (standardised)", first_stage.outcome_model),
        ("Action model", "negative log-likelihood", first_stage.action_model),
        ("Structural model", "projected squared error", structural),
    ]
    described = [(name, loss, model.describe()) for name, loss, model in models if model is not None]
    return [
        LearningCurve(name, loss, np.asarray(facts["train_loss"], dtype=np.float64))
        for name, loss, facts in described
        if "train_loss" in facts
    ]


def learning_title(curves: Sequence[LearningCurve]) -> str:
    """Return the finding about the training."""
    if len(curves) == 1 and _has_levelled_off(curves[0].values):
        return f"The training loss of the {curves[0].model.lower()} has levelled off"
    falling = [curve.model.lower() for curve in curves if not _has_levelled_off(curve.values)]
    if not falling:
        return "All training losses have levelled off"
    return f"Losses still moving in the last epochs: {', '.join(falling)}"


def recommendations(comparison: Comparison) -> list[Recommendation]:
    """Return recommended prices over the year for three types of customer."""
    time = np.linspace(0.0, MAX_TIME, 101)
    low, high = float(_DRAWN_CANDIDATES[0]), float(_DRAWN_CANDIDATES[-1])
    policy = comparison.estimator.policy(_DRAWN_CANDIDATES)
    near = np.array([np.quantile(_prices_near(comparison.data, moment), [0.01, 0.99]) for moment in time])
    panels = []
    for kind in _SHOWN_TYPES:
        context = _contexts(time, kind)
        panels.append(
            Recommendation(
                title=f"Customer type {kind}",
                x=time,
                best=to_price(comparison.problem.optimal_action(context, low, high)),
                ordinary=to_price(comparison.regression.recommend(context, _DRAWN_CANDIDATES)),
                dmliv=to_price(policy.predict(context)),
                observed=near.T,
            )
        )
    return panels


def recommendation_title(panels: Sequence[Recommendation]) -> str:
    """Return the finding about the recommended prices: how often each method names the best one."""
    dmliv = float(np.mean([panel.dmliv == panel.best for panel in panels]))
    ordinary = float(np.mean([panel.ordinary == panel.best for panel in panels]))
    return (
        f"The lowest price is best: DML-IV names it in {_percent(dmliv)} of cases, "
        f"regression in {_percent(ordinary)}"
    )


def _percent(share: float) -> str:
    """Return a share in words that never round "sometimes" to never or to always."""
    if 0.0 < share < 0.01:
        return "less than 1 %"
    if 0.99 < share < 1.0:
        return "more than 99 %"
    return f"{100 * share:.0f} %"


def _contexts(time: FloatArray, kind: int) -> FloatArray:
    """Return contexts (n, 8) for times (n,) and one type of customer."""
    return np.column_stack([time, np.tile(np.arange(1, N_TYPES + 1) == kind, (len(time), 1))])


def _prices_near(data: IVData, time: float) -> FloatArray:
    """Return the prices in euros of the rows nearest to a time, shape (k,)."""
    count = max(1, round(_NEAR_SHARE * len(data)))
    nearest = np.argsort(np.abs(np.asarray(data.X)[:, 0] - time))[:count]
    return to_price(np.asarray(data.T, dtype=np.float64)[nearest])


def _has_levelled_off(losses: FloatArray) -> bool:
    fall = float(losses[0] - losses.min())
    last_fifth = losses[-max(2, len(losses) // 5) :]
    return abs(float(last_fifth[0] - last_fifth[-1])) <= _LEVEL_SHARE * fall
