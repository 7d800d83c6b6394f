"""Estimators of EconML, DoubleML and linearmodels on the two designs with known effects.

Rows, seeds and measures are those of ``dmliv bench run mean-effects``, whose records stand beside;
``effect_peer_estimators.py`` has the settings of the others. Finished fits are kept, so that a stopped run
goes on where it was. Fits need the extra ``peers``; ``make bench-effect-peers`` makes an environment with it.
The page is written from the records alone, and needs nothing of it::

    python benchmarks/effect_peers.py --seeds 40-79
    python benchmarks/effect_peers.py --render
"""

from __future__ import annotations

import argparse
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path

import numpy as np
from effect_peer_estimators import CARD_PEERS, ENCOURAGEMENT_PEERS, MEAN_ONLY, PACKAGES
from peer_common import run_missing

from dmliv.benchmark.instrument_grids import mean_effects
from dmliv.benchmark.store import Record, RecordStore
from dmliv.benchmark.summary import Contents, Group, arrange, cell_label
from dmliv.benchmark.tables import caption
from dmliv.benchmark.trials import Grid, Method, Trial, plan
from dmliv.cli.bench import read_numbers
from dmliv.data import FloatArray
from dmliv.problems import CardWages

RESULTS = Path("docs/results")
PAGE, RECORDS, OURS = "effect-peers.md", "simulations/effect-peers.jsonl", "records/mean-effects.jsonl"
MEAN, EFFECTS = "ate_error", "effect_rmse"
TITLE = "Mean effects: other libraries on the same rows"
HEADER = (
    "| method | samples | RMSE of the mean effect | bias (sd) | root MSE of the effects (sd) | seconds |\n"
    "|---|---|---|---|---|---|"
)
LONGEST_ERROR = 200


# ---------------------------------------------------------------------------------------------------- grids


def peer_grids() -> tuple[Grid, Grid]:
    """Return the cells of ``mean-effects`` with the peers of each design: Card, then encouragement."""
    ours = mean_effects()

    def grid(name: str, methods: tuple[Method, ...], *, card: bool) -> Grid:
        cells = tuple(cell for cell in ours.cells if isinstance(cell.task.problem, CardWages) is card)
        return Grid(name, TITLE, cells, methods, ours.seeds, ours.metrics)

    return (
        grid("effect-peers-card", CARD_PEERS, card=True),
        grid("effect-peers-encouragement", ENCOURAGEMENT_PEERS, card=False),
    )


def plan_all(methods: Sequence[str] | None, seeds: Sequence[int] | None) -> tuple[Trial, ...]:
    """Return the trials of both designs, seed after seed."""
    trials: list[Trial] = []
    for grid in peer_grids():
        names = [method.name for method in grid.methods if methods is None or method.name in methods]
        if names:
            trials += plan(grid, methods=names, seeds=seeds)
    return tuple(sorted(trials, key=lambda trial: trial.seed))


def arrange_all(records: Iterable[Record]) -> Contents:
    """Put records into both designs; those of neither, or of other settings, count as stale."""
    known = list(records)
    grids = peer_grids()
    groups = tuple(chain.from_iterable(arrange(grid, known).groups for grid in grids))
    return Contents(grids[0], groups, len(known) - sum(len(group.records) for group in groups))


# ----------------------------------------------------------------------------------------------------- page


def row(group: Group, label: str) -> tuple[float, str]:
    """Return the RMSE of the mean effect of a group, by which tables are sorted, and its line."""
    errors, effects = group.values(MEAN), group.values(EFFECTS)
    failed = f", {len(group.failures)} of {len(group.records)} failed" if group.failures else ""
    if not len(errors):
        return np.inf, f"| {label}{failed} | 0 | - | - | - | - |"
    rmse = float(np.sqrt(np.mean(errors**2)))
    seconds = float(np.median([record.seconds for record in group.records if not record.failed]))
    spread = "-" if group.method.name in MEAN_ONLY else f"{effects.mean():.4f} ({deviation(effects):.4f})"
    return rmse, (
        f"| {label}{failed} | {len(errors)} | {rmse:.4f} | {errors.mean():.4f} ({deviation(errors):.4f}) | "
        f"{spread} | {seconds:.2f} |"
    )


def deviation(values: FloatArray) -> float:
    """Return the standard deviation of values (n,); that of one value is 0."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def sections(peers: Contents, ours: Contents) -> list[str]:
    """Return one table for each cell that has peers, best method first, ours among them."""
    grid = mean_effects()
    parts = []
    for cell in grid.cells:
        shown = [row(group, group.method.label) for group in peers.groups if group.cell == cell]
        if shown:
            shown += [
                row(group, f"ours: {group.method.label}") for group in ours.groups if group.cell == cell
            ]
            lines = [line for _, line in sorted(shown, key=lambda each: each[0])]
            parts.append("\n".join([f"## {cell_label(grid, cell)}\n", HEADER, *lines]))
    return parts


def failures(contents: Contents) -> list[str]:
    """Return a line for every kind of failure, with the number of times."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for group in contents.groups:
        for record in group.failures:
            error = " ".join((record.error or "").split())[:LONGEST_ERROR]
            counts[group.method.label, group.cell.task.label, error] += 1
    return [f"- {method}, {task}, {count} times: {error}" for (method, task, error), count in counts.items()]


def about_ours(ours: Contents) -> str:
    """Return where our numbers come from."""
    if not ours.records:
        return "There are no records of ours yet: `dmliv bench run mean-effects` makes them."
    stale = f" {ours.n_stale} records of other settings than today's are left out." if ours.n_stale else ""
    return f"Ours, from the records of `mean-effects`: {caption(ours)}{stale}"


def page(peers: Contents, ours: Contents) -> str:
    """Return the Markdown page of all records."""
    stale = f" {peers.n_stale} records of other settings are left out." if peers.n_stale else ""
    settings = [f"- {method.label}: {method.settings}." for method in (*ENCOURAGEMENT_PEERS, *CARD_PEERS)]
    failed = failures(peers)
    parts = [
        f"# {TITLE}",
        "Wages drawn from Card's table and the encouragement design; rows, seeds, contexts and measures are "
        "those of `mean-effects`. Root mean squared error (RMSE) and bias of the mean effect are over "
        "samples; the root MSE of the effects is over 10,000 contexts, its mean and standard deviation (sd) "
        "over samples. Seconds are the median of whole trials: drawing the sample, the fit, and effects at "
        "these contexts. Trials ran beside other work, ours at other times than the others: seconds are a "
        "rough guide. Tables are sorted by the RMSE of the mean effect.",
        f"Peers: {caption(peers)}{stale}",
        about_ours(ours),
        mean_effects().remark,
        *sections(peers, ours),
        *(["## Failures\n\n" + "\n".join(failed)] if failed else []),
        "## Settings\n\n" + "\n".join(settings),
        "EconML chooses its means among linear models and forests when nothing is said (`auto`); that takes "
        "many times as long as boosting and was no better on two samples that are not reported, hence "
        "boosting for all. All contexts may change the effect (`X`), unless they are said to be controls. "
        "IIVM estimates the mean effect among those whom the encouragement moves, who are almost a random "
        "part of all: theirs is 0.11 more than the mean of the linear effect, 0.01 less than that of the "
        "curved one. It gives no effects in single contexts. Unlike ours, the peers had folds "
        "and trees chosen on these designs, with samples that are not reported (seeds from 100 on).",
    ]
    return "\n\n".join(parts) + "\n"


def render(results: Path) -> str:
    """Return the page of the records in a folder of results; no other library is needed."""
    ours = arrange(mean_effects(), RecordStore(results / OURS).read())
    return page(arrange_all(RecordStore(results / RECORDS).read()), ours)


def main() -> None:
    """Run what is missing, unless told not to, then write the page."""
    names = [method.name for grid in peer_grids() for method in grid.methods]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--render", action="store_true", help="only write the page, from the records")
    parser.add_argument("--seeds", default="40-79", help="such as 40-79 or 40,45")
    parser.add_argument("--methods", nargs="+", choices=names, default=names, metavar="METHOD")
    parser.add_argument("--output", type=Path, default=RESULTS, help=f"{PAGE}, {RECORDS}")
    arguments = parser.parse_args()
    if not arguments.render:
        trials = plan_all(arguments.methods, read_numbers(arguments.seeds, "seeds"))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run_missing(trials, RecordStore(arguments.output / RECORDS), PACKAGES)
    text = render(arguments.output)
    (arguments.output / PAGE).write_text(text)
    print(text)


if __name__ == "__main__":
    main()
