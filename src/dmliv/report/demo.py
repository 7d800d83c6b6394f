"""The demo: what it says, and the order in which things happen."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
from rich.console import Console
from rich.table import Table

from dmliv.errors import InputError
from dmliv.problems import TicketDemand
from dmliv.report.comparison import CANDIDATES, Comparison, compare
from dmliv.report.demo_views import (
    dose_response_title,
    dose_responses,
    learning_curves,
    learning_title,
    recommendation_title,
    recommendations,
    to_price,
)
from dmliv.report.figures import draw_dose_response, draw_learning_curves, draw_recommendations
from dmliv.report.pilot_words import pilot_words
from dmliv.style import save_figure

# With fewer rows the networks still train, but the figures show nothing but noise.
_FEWEST_ROWS: Final = 100


def run_demo(rows: int, seed: int, folder: Path, console: Console) -> Comparison:
    """Simulate, fit, print what was found and write the figures.

    Parameters
    ----------
    rows : int
        Rows to simulate, at least 100.
    seed : int
        Seed of the sample and of all training.
    folder : Path
        Folder for the figures; made if missing.
    console : Console
        Where to print; progress bars go to standard error.

    Returns
    -------
    Comparison

    Raises
    ------
    InputError
        If there are too few rows or the folder cannot be made.
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
        "raise price and sales together, so that dear tickets seem to sell well. The cost of fuel moves the "
        "price and touches sales in no other way: it is the instrument.\n"
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
    cheapest, dearest = to_price(CANDIDATES[[0, -1]])
    console.print(
        f"DML-IV: {' '.join(pilot_words(comparison.estimator))}\n"
        "Ordinary regression is a network like those of DML-IV, fitted to sales given context and price. It "
        "predicts the sales one observes; it does not say what happens when one sets the price. Sales are in "
        "standardised units.\n"
        "Read the sales under learned prices with care: in this benchmark the best policy is a constant, the "
        f"lowest of the candidate prices ({cheapest:.1f} to {dearest:.1f} euros). They mostly test the sign "
        "of the slope outside the support of the price, which is here about "
        f"{low:.1f} to {high:.1f} euros (0.1 to 99.9 % quantiles)."
    )
