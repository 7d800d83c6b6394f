"""Records survive whatever ends a process."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dmliv.benchmark.store import Record, RecordsError, RecordStore, unique

RECORD = Record("0" * 16, "demand", {"type": "P"}, 100, "2sls", 7, metrics={"grid_mse": 0.1}, seconds=1.5)


@pytest.fixture
def store(tmp_path: Path) -> RecordStore:
    return RecordStore(tmp_path / "new" / "folder" / "demand.jsonl")


def test_what_is_appended_is_read(store: RecordStore) -> None:
    assert store.read() == []
    other = replace(RECORD, digest="1" * 16, error="ValueError: a\nb", metrics={})
    store.append(RECORD)
    store.append(other)
    assert store.read() == [RECORD, other]
    assert len(store.path.read_text().splitlines()) == 2


@pytest.mark.parametrize("kept_bytes", [1, 40, -1])
def test_a_torn_last_line_is_ignored_and_repaired(store: RecordStore, kept_bytes: int) -> None:
    store.append(RECORD)
    whole = store.path.read_bytes()
    other = replace(RECORD, digest="1" * 16)
    store.path.write_bytes(whole + other.to_line().encode()[:kept_bytes])
    assert store.read() == [RECORD]
    store.append(other)
    assert store.read() == [RECORD, other]
    assert store.path.read_bytes() == whole + other.to_line().encode() + b"\n"


def test_a_file_that_is_one_torn_line_is_repaired(store: RecordStore) -> None:
    store.path.parent.mkdir(parents=True)
    # Longer than a block of the search for the last line break.
    store.path.write_bytes(b"{" + b"x" * 10_000)
    assert store.read() == []
    store.append(RECORD)
    assert store.read() == [RECORD]


def test_a_whole_line_without_its_line_break_counts_as_torn(store: RecordStore) -> None:
    store.path.parent.mkdir(parents=True)
    store.path.write_text(RECORD.to_line())
    assert store.read() == []


@pytest.mark.parametrize("line", ["{", "[1]", '{"digest": "x"}', json.dumps({"other": 1})])
def test_damage_in_the_middle_is_named(store: RecordStore, line: str) -> None:
    store.append(RECORD)
    with store.path.open("a") as file:
        file.write(line + "\n")
    with pytest.raises(RecordsError, match="Expected a record in line 2 of"):
        store.read()


def test_a_folder_in_place_of_the_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecordsError, match="Expected a file of records"):
        RecordStore(tmp_path).read()


def test_of_duplicates_the_first_counts_and_success_before_failure() -> None:
    failed = replace(RECORD, error="E: no", metrics={})
    again = replace(failed, error="E: still no")
    later = replace(RECORD, seconds=9.0)
    assert unique([RECORD, later]) == [RECORD]
    assert unique([failed, again]) == [failed]
    assert unique([failed, RECORD, later]) == [RECORD]
    assert unique([RECORD, failed]) == [RECORD]


def test_numbers_that_json_does_not_have_are_refused(store: RecordStore) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        store.append(replace(RECORD, metrics={"grid_mse": float("nan")}))
    assert store.read() == []
