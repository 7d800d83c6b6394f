"""The figures draw the arrays they were given."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from dmliv.benchmark.demo_figures import (
    DoseResponse,
    LearningCurve,
    Recommendation,
    draw_dose_response,
    draw_learning_curves,
    draw_recommendations,
)
from dmliv.data import FloatArray
from dmliv.diagnostics.house_style import save_figure


def drawn(axis: Axes, label: str) -> tuple[FloatArray, FloatArray]:
    (line,) = [line for line in axis.get_lines() if line.get_label() == label]
    return np.asarray(line.get_xdata()), np.asarray(line.get_ydata())


def texts_inside(figure: Figure) -> bool:
    """Tell whether title, labels and legend lie inside the figure after layout."""
    figure.canvas.draw()
    box = figure.get_tightbbox()
    width, height = figure.get_size_inches()
    return bool(box.x0 >= -0.01 and box.y0 >= -0.01 and box.x1 <= width + 0.01 and box.y1 <= height + 0.01)


def dose_response(seed: int) -> DoseResponse:
    rng = np.random.default_rng(seed)
    price = np.linspace(10.0, 25.0, 7)
    truth, ordinary, dmliv = rng.normal(size=(3, 7))
    return DoseResponse(f"context {seed}", price, truth, ordinary, dmliv, rng.uniform(5.0, 20.0, size=50))


def recommendation(seed: int) -> Recommendation:
    rng = np.random.default_rng(seed)
    optimum, ordinary, dmliv = rng.uniform(7.0, 29.0, size=(3, 5))
    time = np.linspace(0.0, 10.0, 5)
    observed = np.array([np.full(5, 12.0), np.full(5, 22.0)])
    return Recommendation(f"type {seed}", time, optimum, ordinary, dmliv, observed)


def test_dose_response_draws_its_arrays() -> None:
    panels = [dose_response(seed) for seed in range(3)]
    figure = draw_dose_response(panels, "A finding")
    assert figure.get_suptitle() == "A finding"
    assert len(figure.axes) == 3
    for axis, panel in zip(figure.axes, panels, strict=True):
        assert axis.get_title(loc="left") == panel.title
        for label, values in (
            ("truth", panel.best),
            ("ordinary regression", panel.ordinary),
            ("DML-IV", panel.dmliv),
        ):
            x, y = drawn(axis, label)
            np.testing.assert_array_equal(x, panel.x)
            np.testing.assert_array_equal(y, values)
        assert axis.get_ylim() == figure.axes[0].get_ylim()
        assert "euros" in axis.get_xlabel()


def test_dose_response_marks_observed_prices_inside_the_panel() -> None:
    panel = dose_response(0)
    (axis,) = draw_dose_response([panel], "A finding").axes
    (rug,) = axis.collections
    assert isinstance(rug, LineCollection)
    marked = sorted(segment[0, 0] for segment in rug.get_segments())
    np.testing.assert_array_equal(marked, np.sort(panel.observed[panel.observed >= 10.0]))
    (band,) = axis.patches
    assert isinstance(band, Rectangle)
    low, high = np.quantile(panel.observed, [0.01, 0.99])
    np.testing.assert_allclose([band.get_x(), band.get_x() + band.get_width()], [low, high])


def test_learning_curves_draw_their_arrays() -> None:
    curves = [
        LearningCurve("first", "loss one", np.array([3.0, 2.0, 1.5])),
        LearningCurve("second", "b", np.ones(5)),
    ]
    figure = draw_learning_curves(curves, "A finding")
    for axis, curve in zip(figure.axes, curves, strict=True):
        (line,) = axis.get_lines()
        np.testing.assert_array_equal(line.get_xdata(), np.arange(1, len(curve.values) + 1))
        np.testing.assert_array_equal(line.get_ydata(), curve.values)
        assert axis.get_title(loc="left") == curve.model
        assert axis.get_ylabel() == curve.loss


def test_recommendations_draw_their_arrays() -> None:
    panels = [recommendation(seed) for seed in range(2)]
    figure = draw_recommendations(panels, "A finding")
    for axis, panel in zip(figure.axes, panels, strict=True):
        for label, values in (
            ("best price", panel.best),
            ("ordinary regression", panel.ordinary),
            ("DML-IV", panel.dmliv),
        ):
            x, y = drawn(axis, label)
            np.testing.assert_array_equal(x, panel.x)
            np.testing.assert_array_equal(y, values)


@pytest.mark.parametrize(
    "figure",
    [
        draw_dose_response([dose_response(seed) for seed in range(3)], "A finding"),
        draw_recommendations([recommendation(seed) for seed in range(3)], "A finding"),
    ],
    ids=["dose-response", "recommendations"],
)
def test_legend_names_every_line_once_and_nothing_is_cut_off(figure: Figure) -> None:
    (legend,) = figure.legends
    labels = [text.get_text() for text in legend.get_texts()]
    assert len(labels) == len(set(labels)) == 4
    assert texts_inside(figure)
    # Below the panels: a legend never covers data.
    top = legend.get_window_extent().y1
    assert all(top <= axis.get_window_extent().y0 for axis in figure.axes)


def test_saving_the_same_figure_twice_gives_the_same_file(tmp_path: Path) -> None:
    for name in ("one.png", "two.png"):
        save_figure(draw_learning_curves([LearningCurve("m", "l", np.arange(4.0))], "t"), tmp_path / name)
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "two.png").read_bytes()
