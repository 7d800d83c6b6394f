"""The HTML report: one file with everything in it."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined

from dmliv.data import FloatArray
from dmliv.data.files import write_atomically
from dmliv.diagnostics.checks import strength_findings
from dmliv.errors import InputError
from dmliv.estimators.base import CounterfactualEstimator
from dmliv.progress import ProgressReporter
from dmliv.report.contents import ActionSection, Curve, ReportContents
from dmliv.report.gather import gather
from dmliv.report.panel import PanelGrid
from dmliv.report.report_figures import (
    curve_limits,
    draw_along,
    draw_choices,
    draw_curve,
    draw_effects,
    draw_support,
    draw_values,
    image_source,
    report_style,
)
from dmliv.report.rules import draw_policy_tree

_MOST_SHOWN_COLUMNS = 6
_LEVELS_OF_TWO_BYTES = 65535


@dataclass(frozen=True)
class Picture:
    """A figure in the page: its source, alternative text, title and caption."""

    source: str
    alt: str
    title: str = ""
    caption: str = ""


def write_report(
    estimator: CounterfactualEstimator,
    path: str | Path,
    *,
    T: object,
    X: object = None,
    Y: object = None,
    Z: object = None,
    W: object = None,
    sample_weight: object = None,
    actions: object = None,
    title: str | None = None,
    outcome_name: str = "outcome",
    seed: int = 0,
    progress: ProgressReporter | None = None,
) -> ReportContents:
    """Write a report of a fitted estimator on a table to one HTML file.

    Parameters
    ----------
    estimator : CounterfactualEstimator
        Fitted.
    path : str or path
        File to write, as a whole or not at all.
    T : array-like or frame, shape (n,) or (n, d_T)
        Actions of the rows: those of the training table or of any other.
    X : array-like or frame, shape (n, d_X), or None
        Contexts, as in ``fit``.
    Y : array-like, shape (n,), optional
        Outcomes; their mean is shown beside the estimates.
    Z : array-like or frame, shape (n,) or (n, d_Z), optional
        Instruments, for their strength.
    W : array-like or frame, shape (n, d_W), optional
        Controls, part of the context when the strength of the instrument is measured.
    sample_weight : array-like, shape (n,), optional
        Row weights. Rows are then drawn with these weights, so that all numbers and figures describe the
        weighted rows.
    actions : array-like, Interval, Box or None
        Actions to choose from; by default the range of 98 % of the actions in ``T``, or all levels.
    title, outcome_name : str
    seed : int
        Draws a sample of rows from a large table.
    progress : ProgressReporter, optional

    Returns
    -------
    ReportContents
        The numbers behind the page.

    Raises
    ------
    InputError
        If the table does not fit the model, or the file cannot be written.
    """
    contents = gather(
        estimator,
        T=T,
        X=X,
        Y=Y,
        Z=Z,
        W=W,
        sample_weight=sample_weight,
        actions=actions,
        title=title,
        outcome_name=outcome_name,
        seed=seed,
        progress=progress,
    )
    try:
        write_atomically(Path(path), render(contents).encode("utf-8"))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise InputError(
            f"Expected a place to write the report, got {str(path)!r}: {reason}; choose another path."
        ) from error
    return contents


def render(contents: ReportContents) -> str:
    """Return the page as text."""
    environment = Environment(
        loader=PackageLoader("dmliv.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters["number"] = lambda value: f"{value:.4g}"
    environment.filters["ends"] = lambda ends: f"{ends[0]:.4g} to {ends[1]:.4g}"
    environment.filters["percent"] = lambda value: f"{value:.0%}"
    templates = files("dmliv.report") / "templates"
    style, script = ((templates / name).read_text(encoding="utf-8") for name in ("report.css", "panel.js"))
    tree, support = contents.tree, contents.policy.support
    rules = None
    if tree is not None:
        with report_style():
            drawn = draw_policy_tree(tree, "", action_name=contents.sections[0].axis.name)
        rules = Picture(image_source(drawn, crop=True), "The rules below as a decision tree.")
    page = environment.get_template("report.html.j2").render(
        report=contents,
        style=style,
        script=script,
        sections=[_pictures(section, contents.outcome_name) for section in contents.sections],
        values=_values_picture(contents),
        support=None if support is None else _support_picture(support),
        rules=rules,
        strength=None if contents.strength is None else strength_findings(contents.strength),
        panel=None if contents.panel is None else panel_data(contents, contents.panel),
    )
    return page.strip() + "\n"


def panel_data(contents: ReportContents, panel: PanelGrid) -> dict[str, Any]:
    """Return the data of the panel's script: columns, axes, and outcomes packed into two bytes each."""
    parts = [panel.values, *(each for each in (panel.lower, panel.upper) if each is not None)]
    low = min(float(values.min()) for part in parts for values in part)
    high = max(float(values.max()) for part in parts for values in part)
    unit = (high - low) / _LEVELS_OF_TWO_BYTES or 1.0

    def packed(values: FloatArray) -> str:
        return base64.b64encode(np.round((values - low) / unit).astype("<u2").tobytes()).decode("ascii")

    axes = [
        {
            "name": section.axis.name,
            "grid": [float(f"{each:.9g}") for each in section.axis.grid],
            "labels": list(section.axis.labels),
            "allowed": section.axis.allowed.tolist(),
            "support": [section.axis.low, section.axis.high],
            "values": packed(panel.values[number]),
            "lower": None if panel.lower is None else packed(panel.lower[number]),
            "upper": None if panel.upper is None else packed(panel.upper[number]),
        }
        for number, section in enumerate(contents.sections)
    ]
    columns = [
        {
            "name": column.name,
            "nodes": column.nodes.tolist(),
            "labels": list(column.labels),
            "typical": float(np.clip(column.typical, column.nodes[0], column.nodes[-1])),
            "whole": column.whole,
        }
        for column in panel.columns
    ]
    return {"outcome": contents.outcome_name, "axes": axes, "columns": columns, "low": low, "unit": unit}


def _pictures(section: ActionSection, outcome_name: str) -> dict[str, Any]:
    axis, limits = section.axis, curve_limits(section.curves)
    curves = []
    for curve in section.curves:
        best = int(np.where(axis.allowed, curve.outcome, -np.inf).argmax())
        words = axis.labels[best] if axis.labels else f"{axis.grid[best]:.4g}"
        alt = (
            f"Expected {outcome_name} against {axis.name}, {curve.caption}: "
            f"lowest {curve.outcome.min():.4g}, highest {curve.outcome.max():.4g}; "
            f"best action {words}."
        )
        source = image_source(draw_curve(axis, curve, limits, outcome_name))
        caption = f"{curve.caption}. Best action: {words}{_between(curve, best)}."
        curves.append(Picture(source, alt, curve.title, caption))
    shown = section.columns[:_MOST_SHOWN_COLUMNS]
    effect = f"effect on {outcome_name}"
    along = [
        Picture(
            image_source(draw_along(each, section.effects, effect)),
            f"The effect of every row against {each.column.name}.",
            each.column.name,
            f"{each.column.name} alone explains {each.share:.0%} of the variance of the effect.",
        )
        for each in shown
    ]
    recommended = [
        Picture(
            image_source(
                draw_choices(each, section.recommended, axis.labels)
                if axis.labels
                else draw_along(each, section.recommended, f"recommended {axis.name}")
            ),
            f"The recommended {axis.name} against {each.column.name}.",
            each.column.name,
        )
        for each in shown
    ]
    low, middle, high = np.quantile(section.effects, [0.1, 0.5, 0.9])
    return {
        "axis": axis,
        "curves": curves,
        "effects": Picture(
            image_source(draw_effects(section, outcome_name)),
            f"Distribution of the effect over rows: mean {section.effects.mean():.4g}, 10 % of rows below "
            f"{low:.4g}, 10 % above {high:.4g}.",
            "Over all rows",
            f"Dashed: the mean, {section.effects.mean():.4g}.",
        ),
        "mean": float(section.effects.mean()),
        "interval": section.effect_interval,
        "quantiles": (float(low), float(middle), float(high)),
        "negative": float((section.effects < 0.0).mean()),
        "along": along,
        "recommended": recommended,
        "left_out": len(section.columns) - len(shown),
    }


def _between(curve: Curve, point: int) -> str:
    if curve.lower is None or curve.upper is None:
        return ""
    return f"; 95 % confidence interval of its outcome {curve.lower[point]:.4g} to {curve.upper[point]:.4g}"


def _values_picture(contents: ReportContents) -> Picture:
    policy = contents.policy
    return Picture(
        image_source(draw_values(policy)),
        f"Estimated mean {contents.outcome_name}: recommended actions {policy.value:.4g}, "
        f"best single action {policy.constant_value:.4g}, "
        f"{policy.average_name} for all {policy.average_value:.4g}, "
        f"actions in the data {policy.today_value:.4g}.",
    )


def _support_picture(support: FloatArray) -> Picture:
    middle = float(np.median(support))
    return Picture(
        image_source(draw_support(support)),
        f"Distribution of the probability of the recommended actions over rows; median {middle:.1%}.",
    )
