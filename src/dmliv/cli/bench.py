"""The shell commands of the benchmark: list, run, render and compare."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dmliv.errors import InputError

if TYPE_CHECKING:
    from dmliv.benchmark.summary import Contents

bench_app = typer.Typer(no_args_is_help=True, help="The paper's evaluation: run, resume, render, compare.")

_EXIT_INTERRUPTED = 130
_RANGE = re.compile(r"(\d+)-(\d+)|(\d+)")

NameArgument = Annotated[str, typer.Argument(help="Name of a benchmark; see: dmliv bench list")]
RecordsOption = Annotated[
    Path, typer.Option("--records", file_okay=False, help="Folder with the records, one file per benchmark.")
]
StaleOption = Annotated[
    bool,
    typer.Option("--include-stale", help="Include records made with other settings than the current ones."),
]
_RECORDS = Path("docs/results/records")


@bench_app.command("list")
def list_grids(
    name: Annotated[str | None, typer.Argument(help="Show the methods and cells of one benchmark.")] = None,
    records: RecordsOption = _RECORDS,
) -> None:
    """List the benchmarks with their trials and records, or the methods and cells of one."""
    from dmliv.benchmark.grids import GRID_NAMES, grid
    from dmliv.benchmark.store import RecordStore
    from dmliv.benchmark.summary import cell_label
    from dmliv.benchmark.tables import number_ranges

    if name is None:
        width = max(map(len, GRID_NAMES))
        for each in map(grid, GRID_NAMES):
            runnable = sum(not method.archived for method in each.methods)
            trials = len(each.cells) * runnable * len(each.seeds)
            found = len(RecordStore(records / f"{each.name}.jsonl").read())
            typer.echo(f"{each.name:<{width}}  {trials:>5} trials  {found:>5} records  {each.title}")
        return
    chosen = grid(name)
    typer.echo(chosen.title)
    typer.echo(f"cells:   {'; '.join(cell_label(chosen, cell) for cell in chosen.cells)}")
    typer.echo(f"seeds:   {number_ranges(chosen.seeds)}")
    typer.echo("methods:")
    for method in chosen.methods:
        archived = "; archived: records only" if method.archived else ""
        typer.echo(f"  {method.name}  ({method.label}{archived})")


@bench_app.command()
def run(
    name: NameArgument,
    methods: Annotated[str | None, typer.Option(help="Run only these methods: dml-iv,kiv.")] = None,
    sizes: Annotated[
        str | None, typer.Option(help="Numbers of rows instead of the benchmark's: 1000,5000.")
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="Seeds instead of the benchmark's: 0-4 or 0,3,7.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Trials to run at a time, one thread each.")] = 1,
    backend: Annotated[
        str, typer.Option(help="Backend that runs the trials: loky (processes on this machine), dask or ray.")
    ] = "loky",
    address: Annotated[
        str | None, typer.Option(help="Address of the Dask or Ray cluster; by default a local one.")
    ] = None,
    budget: Annotated[
        float | None, typer.Option(min=0, help="Minutes after which no new trial starts.")
    ] = None,
    records: RecordsOption = _RECORDS,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Run failed trials again.")] = False,
) -> None:
    """Run the trials that have no record yet; it can be interrupted and continued."""
    from rich.console import Console

    from dmliv.benchmark.grids import grid
    from dmliv.benchmark.live import LiveTable
    from dmliv.benchmark.runner import run as run_trials
    from dmliv.benchmark.store import RecordStore
    from dmliv.benchmark.trials import plan
    from dmliv.parallel.backends import Workers

    workers = Workers(jobs, backend, address)  # type: ignore[arg-type]
    trials = plan(
        grid(name),
        methods=None if methods is None else read_names(methods),
        sizes=None if sizes is None else read_numbers(sizes, "sizes"),
        seeds=None if seeds is None else read_numbers(seeds, "seeds"),
    )
    store = RecordStore(records / f"{name}.jsonl")
    try:
        with LiveTable(Console(stderr=True, highlight=False), jobs) as observer:
            summary = run_trials(
                trials,
                store,
                workers=workers,
                budget_seconds=None if budget is None else 60.0 * budget,
                retry_failed=retry_failed,
                observer=observer,
            )
    except KeyboardInterrupt:
        typer.echo(f"Stopped. Finished trials are in {store.path}; the same command continues.", err=True)
        raise typer.Exit(_EXIT_INTERRUPTED) from None
    typer.echo(
        f"{summary.finished} trials run, {summary.failed} of them failed; {summary.known} had records "
        f"before, {summary.left} remain. Records: {store.path}"
    )
    if summary.left:
        typer.echo("The time budget is used up; the same command continues.")
    if summary.failed:
        typer.echo(f"To run failed trials again: dmliv bench run {name} --retry-failed")


@bench_app.command()
def render(
    name: NameArgument,
    output: Annotated[
        Path, typer.Option(file_okay=False, help="Folder for the pages and figures; made if missing.")
    ] = Path("docs/results"),
    records: RecordsOption = _RECORDS,
    include_stale: StaleOption = False,
) -> None:
    """Write the tables (Markdown and LaTeX) and figures of a benchmark from its records."""
    from dmliv.benchmark.render import render as write_pages

    for path in write_pages(_contents(name, records, include_stale), output):
        typer.echo(str(path))


@bench_app.command()
def compare(
    name: NameArgument, records: RecordsOption = _RECORDS, include_stale: StaleOption = False
) -> None:
    """Compare the results with the published numbers."""
    from rich.console import Console

    from dmliv.benchmark.comparison import comparison_tables

    contents = _contents(name, records, include_stale)
    console = Console(highlight=False)
    for table in comparison_tables(contents):
        console.print(table)


def read_names(text: str) -> list[str]:
    """Return the names of a comma-separated list."""
    return [name.strip() for name in text.split(",") if name.strip()]


def read_numbers(text: str, what: str) -> list[int]:
    """Return the whole numbers of a text such as ``"0-4"``, ``"0,3,7"`` or ``"0-4,10"``, each once.

    Raises
    ------
    InputError
        If the text is something else.
    """
    numbers: list[int] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            raise InputError(f"Expected {what} such as 0-4 or 0,3,7, got {text!r}; write whole numbers.")
        low, high = (match[1], match[2]) if match[3] is None else (match[3], match[3])
        if int(high) < int(low):
            raise InputError(f"Expected {what} in rising ranges, got {part.strip()!r}; write {high}-{low}.")
        numbers.extend(range(int(low), int(high) + 1))
    return list(dict.fromkeys(numbers))


def _contents(name: str, records: Path, include_stale: bool) -> Contents:
    from dmliv.benchmark.grids import grid
    from dmliv.benchmark.store import RecordStore
    from dmliv.benchmark.summary import arrange

    chosen = grid(name)
    return arrange(chosen, RecordStore(records / f"{name}.jsonl").read(), include_stale=include_stale)
