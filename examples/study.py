"""Code shared by the examples: fit a study with three methods, print the estimates and draw them."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dmliv import DMLIV, TwoStageLeastSquares
from dmliv.data import FloatArray, prepare
from dmliv.diagnostics import instrument_strength
from dmliv.diagnostics.house_style import (
    DMLIV_COLOUR,
    ORDINARY_COLOUR,
    TRUTH_COLOUR,
    WIDTH_INCHES,
    house_style,
    save_figure,
)
from dmliv.learners import neural

# Quantile of the normal distribution for two-sided 95 % intervals.
_WIDE = 1.96
_FIRST_SEED = 100


@dataclass(frozen=True)
class Study:
    """A table, the roles of its columns and the two actions to compare.

    Parameters
    ----------
    name : str
        Name of the figure's file, without its ending.
    title, effect_label : str
        Title of the figure, and label of its effect axes.
    frame : DataFrame
    outcome, action : str
        Names of columns.
    instrument, context : sequence of str
        Names of columns.
    start, end : float
        The two actions to compare.
    groups : callable
        Returns one label per row of a frame, for heterogeneous effects.
    groups_label : str
        What the groups are.
    """

    name: str
    title: str
    effect_label: str
    frame: pd.DataFrame
    outcome: str
    action: str
    instrument: Sequence[str]
    context: Sequence[str]
    start: float
    end: float
    groups: Callable[[pd.DataFrame], pd.Series]
    groups_label: str

    @property
    def X(self) -> pd.DataFrame:
        """The contexts."""
        return self.frame[list(self.context)]

    @property
    def Z(self) -> pd.DataFrame:
        """The instruments."""
        return self.frame[list(self.instrument)]

    def least_squares(self, instrument: pd.DataFrame) -> tuple[float, float, TwoStageLeastSquares]:
        """Return the two-stage least squares estimate of the effect, its standard error and the estimator."""
        line = TwoStageLeastSquares(covariance="robust")
        line.fit(self.frame[self.outcome], self.frame[self.action], Z=instrument, X=self.X)
        # The coefficient of a discrete action is the effect; that of a continuous action is a slope.
        length = 1.0 if line.feature_names_[-1] != self.action else self.end - self.start
        return length * line.coef_[-1], length * line.std_errors_[-1], line

    def nonlinear(self, seed: int, *, quick: bool) -> FloatArray:
        """Return the DML-IV estimate of the effect in every row."""
        est = DMLIV(
            neural(effort="fast" if quick else "balanced"), n_folds=2 if quick else 10, random_state=seed
        )
        est.fit(self.frame[self.outcome], self.frame[self.action], Z=self.Z, X=self.X)
        return est.effect(self.X, T0=self.start, T1=self.end)

    def linear_lines(self) -> list[str]:
        """Return the least-squares estimates and the strength of the instrument, as lines to print."""
        ordinary, ordinary_error, _ = self.least_squares(self.frame[[self.action]])
        slope, error, line = self.least_squares(self.Z)
        (f_statistic,) = line.first_stage_f_.values()
        data = prepare(self.frame[self.outcome], self.frame[self.action], Z=self.Z, X=self.X)
        share = instrument_strength(data).partial_r2
        return [
            f"rows {len(self.frame)}",
            f"instrument: first-stage F {f_statistic:.1f}, partial R2 on held-out rows {share:.4f}",
            f"ordinary regression  {ordinary:8.3f} (standard error {ordinary_error:.3f})",
            f"2SLS                 {slope:8.3f} (standard error {error:.3f})",
        ]


def run(study: Study, arguments: Sequence[str] | None = None) -> None:
    """Run a study from the command line: print the estimates and write the figure."""
    parser = argparse.ArgumentParser(description=study.title)
    parser.add_argument("--rows", type=int, help="random rows to use, with a fast fit, to try the script")
    parser.add_argument("--seeds", type=int, default=3, help="number of DML-IV fits, each with its own seed")
    parser.add_argument("--output", type=Path, default=Path(), help="folder for the figure")
    given = parser.parse_args(arguments)
    if given.rows is not None:
        frame = study.frame.sample(given.rows, random_state=0).reset_index(drop=True)
        study = Study(**{**vars(study), "frame": frame})
    print("\n".join(study.linear_lines()))
    effects = []
    seeds = range(_FIRST_SEED, _FIRST_SEED + given.seeds)
    for seed in seeds:
        effects.append(study.nonlinear(seed, quick=given.rows is not None))
        print(f"DML-IV, seed {seed}     {effects[-1].mean():8.3f}", flush=True)
    table = pd.DataFrame({f"seed {seed}": effect for seed, effect in zip(seeds, effects, strict=True)})
    by_group = table.groupby(study.groups(study.frame), observed=True).mean()
    by_group.index.name = study.groups_label
    print(f"\nDML-IV by {study.groups_label}")
    print(by_group.round(3).to_string())
    path = given.output / f"{study.name}.png"
    save_figure(draw(study, by_group, [float(effect.mean()) for effect in effects]), path)
    print(f"\nFigure: {path}")


def draw(study: Study, by_group: pd.DataFrame, means: Sequence[float]) -> Figure:
    """Draw all estimates of the mean effect, and those of DML-IV by group."""
    with house_style():
        figure = Figure(figsize=(WIDTH_INCHES, 3.9), layout="constrained")
        left, right = figure.subplots(1, 2, sharex=True)
        figure.suptitle(study.title, x=0.01, ha="left")
        _draw_estimates(left, study, means)
        for position, values in enumerate(by_group.to_numpy()):
            right.plot(values, np.full(len(values), position), "o", color=DMLIV_COLOUR, alpha=0.8)
        right.set_yticks(range(len(by_group)), [str(label) for label in by_group.index])
        right.set(title=f"DML-IV by {study.groups_label}, one dot a seed", ylim=(len(by_group) - 0.5, -0.5))
        for axis in (left, right):
            axis.axvline(0.0, color=TRUTH_COLOUR, lw=0.8)
            axis.set_xlabel(study.effect_label)
            axis.grid(visible=False, axis="y")
            axis.grid(visible=True, axis="x")
    return figure


def _draw_estimates(axis: Axes, study: Study, means: Sequence[float]) -> None:
    lines = (study.frame[[study.action]], ORDINARY_COLOUR), (study.Z, TRUTH_COLOUR)
    for position, (instrument, colour) in enumerate(lines):
        effect, error, _ = study.least_squares(instrument)
        axis.errorbar(effect, position, xerr=_WIDE * error, fmt="o", color=colour, capsize=4)
    axis.plot(means, np.full(len(means), 2.0), "o", color=DMLIV_COLOUR, alpha=0.8)
    axis.set_yticks(range(3), ["ordinary\nregression", "2SLS", "DML-IV,\neach seed"])
    axis.set(title="Mean effect; bars are 95 % intervals", ylim=(2.5, -0.5))
