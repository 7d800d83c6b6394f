"""Tables and figures say what the records say."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from dmliv.benchmark.charts import draw
from dmliv.benchmark.comparison import comparison_tables, is_ahead
from dmliv.benchmark.grids import GRID_NAMES, grid
from dmliv.benchmark.published import Published
from dmliv.benchmark.render import render
from dmliv.benchmark.store import Record
from dmliv.benchmark.summary import arrange, fitted_rate, statistics
from dmliv.benchmark.tables import caption, latex, markdown, number_ranges, table_cells
from dmliv.benchmark.trials import Cell, Grid
from dmliv.errors import InputError

MakeRecords = Callable[..., list[Record]]


def failed(record: Record, error: str = "RuntimeError: diverged") -> Record:
    return replace(record, metrics={}, error=error)


def paper_sized(tiny: Grid) -> Grid:
    """Return the tiny grid with 1000 rows, for which the paper has numbers."""
    return replace(tiny, cells=(Cell(tiny.cells[0].task, 1000),))


def test_statistics_are_those_of_the_values(tiny: Grid, made_up: MakeRecords) -> None:
    contents = arrange(tiny, made_up(tiny))
    row = statistics(contents, tiny.metrics[0])[0]
    values = row.group.values("grid_mse")
    assert len(values) == row.n == 12
    assert row.has_quartiles
    assert (row.median, row.mean) == (np.median(values), values.mean())
    assert (row.low, row.high) == tuple(np.quantile(values, [0.25, 0.75]))
    assert row.sd == values.std(ddof=1)


def test_few_values_have_extremes_in_place_of_quartiles(tiny: Grid, made_up: MakeRecords) -> None:
    contents = arrange(tiny, made_up(tiny, seeds=range(100, 103)))
    row = statistics(contents, tiny.metrics[0])[0]
    values = row.group.values("grid_mse")
    assert (row.low, row.high) == (values.min(), values.max())
    header, _ = table_cells(contents, tiny.metrics[0])
    assert "median (lowest to highest)" in header


def test_ratios_compare_like_with_like(tiny: Grid, made_up: MakeRecords) -> None:
    chosen = paper_sized(tiny)
    metric = chosen.metrics[0]
    row = next(
        row for row in statistics(arrange(chosen, made_up(chosen)), metric) if row.group.method.name == "kiv"
    )
    assert row.published == Published(0.27, "median")
    assert row.ratio == row.median / 0.27
    as_mean = replace(row, published=Published(0.5, "mean", 0.1))
    assert as_mean.ratio == row.mean / 0.5
    assert replace(row, published=None).ratio is None
    assert replace(row, n=0).ratio is None
    assert replace(row, published=Published(-1.2, "median")).ratio is None
    assert is_ahead(metric, replace(row, median=0.27))
    assert not is_ahead(metric, replace(row, median=0.271))
    assert is_ahead(replace(metric, better="higher"), replace(row, median=0.271))


def test_failures_are_shown_and_never_averaged(tiny: Grid, made_up: MakeRecords) -> None:
    records = made_up(tiny)
    broken = [failed(record) if record.seed in (100, 101) else record for record in records]
    contents = arrange(tiny, broken)
    row = statistics(contents, tiny.metrics[0])[0]
    assert row.n == 10
    kept = [r.metrics["grid_mse"] for r in records if r.method == "2sls" and r.rows == 100 and r.seed > 101]
    assert row.median == np.median(kept)
    page = markdown(contents)
    assert page.count("2 of 12 failed") == 4 * len(tiny.metrics)
    assert "2SLS, 100 rows, 2 times: RuntimeError: diverged" in page


def test_a_method_that_always_fails_stays_in_the_table(tiny: Grid, made_up: MakeRecords) -> None:
    records = [failed(r) if r.method == "kiv" else r for r in made_up(tiny)]
    contents = arrange(tiny, records)
    _, rows = table_cells(contents, tiny.metrics[0])
    kiv = next(row for row in rows if row[1] == "KIV")
    assert kiv[2:6] == ["0", "12 of 12 failed", "-", "-"]
    assert draw(contents, tiny.metrics[0]).axes


def test_records_with_other_settings_are_left_out(tiny: Grid, made_up: MakeRecords) -> None:
    records = made_up(tiny, seeds=range(100, 102))
    stale = replace(records[0], digest="f" * 16)
    contents = arrange(tiny, [stale, *records[1:]])
    assert (len(contents.records), contents.n_stale) == (len(records) - 1, 1)
    assert "1 records made with other settings" in markdown(contents)
    everything = arrange(tiny, [stale, *records[1:]], include_stale=True)
    assert (len(everything.records), everything.n_stale) == (len(records), 0)
    foreign = replace(records[0], problem="another")
    assert arrange(tiny, [foreign], include_stale=True).n_stale == 1


def test_the_caption_names_seeds_commits_machine_and_hours(tiny: Grid, made_up: MakeRecords) -> None:
    records = made_up(tiny, seeds=range(100, 105))
    records[0] = replace(records[0], commit="fedcba987654+")
    text = caption(arrange(tiny, records))
    for part in (
        "Seeds 100-104",
        "0123456789ab, fedcba987654+",
        "a processor, 2 cores",
        "20 trials, 0.2",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("numbers", "text"), [([], ""), ([3], "3"), ([4, 0, 1, 2], "0-2, 4"), ([5, 7, 7], "5, 7")]
)
def test_number_ranges(numbers: list[int], text: str) -> None:
    assert number_ranges(numbers) == text


def test_latex_escapes_and_closes_what_it_opens(tiny: Grid, made_up: MakeRecords) -> None:
    chosen = replace(tiny, title="50% & more_or_less")
    text = latex(arrange(chosen, made_up(chosen)))
    assert r"50\% \& more\_or\_less" in text
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == len(chosen.metrics)
    body = text.split(r"\hline")[2]
    assert all(line.count("&") == 7 for line in body.strip().splitlines())


def test_a_power_distribution_has_its_rate() -> None:
    rows = [500, 1000, 5000]
    assert fitted_rate(rows, [3.0 * n**-0.7 for n in rows]) == pytest.approx(-0.7)
    assert fitted_rate([500], [0.1]) is None


def test_lines_show_fitted_rates(made_up: MakeRecords) -> None:
    convergence = grid("convergence")
    contents = arrange(convergence, made_up(convergence, seeds=range(100, 103), spread=0.0))
    # The made-up errors fall with the root of the rows.
    assert "DML-IV N^-0.50; DML-IV, boosting N^-0.50" in markdown(contents)
    figure = draw(contents, convergence.metrics[0])
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels[0] == "DML-IV: N^-0.50"
    axis = figure.axes[0]
    assert (axis.get_xscale(), axis.get_yscale()) == ("log", "log")


def test_boxes_have_a_panel_per_cell_and_published_markers(made_up: MakeRecords) -> None:
    demand = grid("demand")
    contents = arrange(demand, made_up(demand))
    figure = draw(contents, demand.metrics[0])
    panels = [axis for axis in figure.axes if axis.get_visible()]
    assert [axis.get_title(loc="left") for axis in panels] == [
        "1000 rows",
        "2000 rows",
        "5000 rows",
        "10000 rows",
    ]
    assert all(axis.get_xscale() == "log" for axis in panels)
    markers = [line for line in panels[0].lines if line.get_marker() == "D"]
    assert {float(line.get_xdata()[0]) for line in markers} == {0.35, 0.275, 0.27, 0.225, 0.22, 0.205}  # type: ignore[index]
    rewards = draw(contents, demand.metrics[2])
    assert rewards.axes[0].get_xscale() == "linear"


def test_a_box_shows_median_and_quartiles(tiny: Grid, made_up: MakeRecords) -> None:
    contents = arrange(tiny, made_up(tiny))
    axis = draw(contents, tiny.metrics[0]).axes[0]
    values = contents.groups[0].values("grid_mse")
    low, high = np.quantile(values, [0.25, 0.75])
    box = axis.patches[0]
    assert (box.get_x(), box.get_x() + box.get_width()) == pytest.approx((low, high))  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", GRID_NAMES)
def test_every_grid_has_a_page(name: str, made_up: MakeRecords) -> None:
    chosen = grid(name)
    few = replace(chosen, cells=chosen.cells[:2])
    contents = arrange(chosen, made_up(few, seeds=range(100, 102)))
    page = markdown(contents)
    assert page.startswith(f"# {chosen.title}")
    assert page.count("| --- | --- |") >= len(chosen.metrics)
    for method in chosen.methods:
        assert f"| {method.label} |" in page


def test_times_are_multiples_seed_by_seed(tiny: Grid, made_up: MakeRecords) -> None:
    chosen = replace(tiny, timed_against="2sls")
    records = [
        # The second method takes three times as long whatever the seed, and failed with one of them.
        replace(
            record,
            seconds=(record.seed - 99.0) * (3.0 if record.method == "kiv" else 1.0),
            error="failed" if (record.method, record.seed) == ("kiv", 101) else None,
        )
        for record in made_up(chosen, seeds=range(100, 104))
    ]
    page = markdown(arrange(chosen, records)).split("## Time")[1]
    assert page.count("| 4 | 1.00 (1.00 to 1.00) |") == page.count("| 3 | 3.00 (3.00 to 3.00) |") == 2
    alone = [record for record in records if record.method == "kiv"]
    assert "| 0 | - |" in markdown(arrange(chosen, alone))
    assert "## Time" not in markdown(arrange(tiny, records))


def test_rendering_again_gives_the_same_bytes(tiny: Grid, made_up: MakeRecords, tmp_path: Path) -> None:
    records = made_up(tiny)
    first = list(render(arrange(tiny, records), tmp_path / "a" / "b"))
    # Records in another order are the same records.
    second = list(render(arrange(tiny, records[::-1]), tmp_path / "c"))
    assert [path.name for path in first] == [path.name for path in second]
    assert {"demand.md", "demand.tex", "demand-grid-mse.png"} <= {path.name for path in first}
    for before, after in zip(first, second, strict=True):
        assert before.read_bytes() == after.read_bytes()
    page = (tmp_path / "c" / "demand.md").read_text()
    for name in re.findall(r"\]\(([^)]*\.png)\)", page):
        assert imread(tmp_path / "c" / name)[..., :3].std() > 0.02


def test_nothing_to_render_says_what_to_run(tiny: Grid, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="got none; run: dmliv bench run demand"):
        list(render(arrange(tiny, []), tmp_path))


def test_comparisons_hold_published_rows_only(tiny: Grid, made_up: MakeRecords) -> None:
    chosen = paper_sized(tiny)
    tables = list(comparison_tables(arrange(chosen, made_up(chosen))))
    assert [table.title for table in tables] == [
        "MSE on the grid",
        "reward, actions in [-5, 5]",
        "reward in shifted contexts, actions in [-5, 5]",
    ]
    assert [table.row_count for table in tables] == [1, 1, 1]
    with pytest.raises(InputError, match="that the paper has numbers for"):
        list(comparison_tables(arrange(tiny, made_up(tiny))))


def test_a_metric_that_no_record_has_gets_no_figure(tiny: Grid, made_up: MakeRecords, tmp_path: Path) -> None:
    def without_error(record: Record) -> Record:
        return replace(record, metrics={k: v for k, v in record.metrics.items() if k != "grid_mse"})

    records = [without_error(record) for record in made_up(tiny, seeds=range(100, 102))]
    list(render(arrange(tiny, records), tmp_path))
    page = (tmp_path / "demand.md").read_text()
    assert not (tmp_path / "demand-grid-mse.png").exists()
    shown = re.findall(r"!\[(.*)\]\((.*)\)", page)
    assert shown[0] == ("MSE on fresh draws", "demand-iid-mse.png")
    assert len(shown) == len(tiny.metrics) - 1


@pytest.mark.parametrize(
    ("name", "noted"),
    [
        ("demand", True),
        ("trees", True),
        ("sensitivity", False),
        ("image-sensitivity", False),
        ("ordinary", False),
    ],
)
def test_pages_without_the_pilot_of_the_default_say_so(name: str, noted: bool) -> None:
    """Pages of the paper's settings, which have no pilot, and pages with and without one need no note."""
    page = markdown(arrange(grid(name), []))
    assert ("This page shows the default before the pilot" in page) is noted
    assert page.startswith(f"# {grid(name).title}\n\n")


def test_records_of_an_archived_method_are_shown_whatever_made_them(tiny: Grid, made_up: MakeRecords) -> None:
    records = [replace(record, digest=f"{n:016x}") for n, record in enumerate(made_up(tiny))]
    methods = tuple(replace(method, build=None) for method in tiny.methods[:1])
    contents = arrange(replace(tiny, methods=methods + tiny.methods[1:]), records)
    assert {group.method.name for group in contents.groups} == {"2sls"}
    assert contents.n_stale == len(records) // 2
