"""The progress of a run counts what happens and guesses what is left."""

from collections.abc import Callable
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from dmliv.benchmark.live import DurationEstimate, LiveTable
from dmliv.benchmark.store import Record
from dmliv.benchmark.trials import Grid, plan


@pytest.fixture
def records(tiny: Grid, made_up: Callable[..., list[Record]]) -> dict[str, Record]:
    seconds = {"2sls": 1.0, "kiv": 10.0}
    made = made_up(tiny, seeds=range(100, 102))
    return {record.digest: replace(record, seconds=seconds[record.method]) for record in made}


def test_estimates_come_from_the_most_similar_trials(tiny: Grid, records: dict[str, Record]) -> None:
    trials = plan(tiny)
    assert DurationEstimate().seconds(trials) is None
    known = [record for record in records.values() if record.seed == 100]
    assert DurationEstimate(known).seconds(trials) == 4 * 1.0 + 4 * 10.0
    one_method = [record for record in known if record.method == "kiv"]
    assert DurationEstimate(one_method).seconds(trials) == 8 * 10.0
    failures = [replace(record, error="E: x") for record in known]
    assert DurationEstimate(failures).seconds(trials) is None


def test_a_terminal_gets_a_table(tiny: Grid, records: dict[str, Record]) -> None:
    trials = plan(tiny)
    output = StringIO()
    with LiveTable(Console(file=output, force_terminal=True, width=150, highlight=False), jobs=2) as observer:
        observer.started(trials, [])
        assert observer.time_left() == "time unknown"
        observer.finished(records[trials[0].digest])
        observer.finished(replace(records[trials[1].digest], error="ValueError: [x]"))
        table = observer.table()
        assert [list(column.cells) for column in table.columns] == [
            ["2sls", "kiv"],
            ["1", "0"],
            ["0", "1"],
            ["3", "3"],
        ]
        # Three trials of a second, three of unknown time, on two workers.
        assert observer.time_left() == "about 3 seconds"
    assert "ValueError: [x]" in output.getvalue()


def test_a_log_gets_a_line_per_trial(tiny: Grid, records: dict[str, Record]) -> None:
    trials = plan(tiny)
    output = StringIO()
    with LiveTable(Console(file=output, width=40), jobs=1) as observer:
        observer.started(trials, list(records.values()))
        observer.finished(records[trials[0].digest])
    first, second = output.getvalue().splitlines()
    assert first == "8 trials to run, about 44 seconds"
    assert second.startswith("demand, 100 rows, 2sls, seed 100: grid_mse 0.")
    assert second.endswith("(1.0 s); 7 left, about 43 seconds")
