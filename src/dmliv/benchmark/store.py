"""Records of finished trials: one JSON line each, appended whole, so that a killed run loses nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, BinaryIO, Final, Self

from dmliv.errors import DMLIVError

_BLOCK_BYTES: Final = 4096


class RecordsError(DMLIVError):
    """A file of records that cannot be used."""


@dataclass(frozen=True)
class Record:
    """What is kept of a trial.

    Parameters
    ----------
    digest : str
        Name of the trial.
    problem, method : str
    parameters : dict
        Description of the problem.
    rows, seed : int
    metrics : dict of str to float
        Empty if the trial failed.
    seconds : float
        From drawing the sample to the last metric, on one thread.
    peak_memory_mb : float
        Largest resident memory of the worker process, libraries included; see ``peak_memory_of``.
    peak_memory_of : {"trial", "process"}
        Whether the peak was reset before the trial, or is that of the worker since it started.
    versions : dict of str to str
        Of Python and of the packages that decide the numbers, in the worker.
    machine : dict
        Cores and processor of the worker.
    commit : str
        Of the checkout, with "+" if the package differed from it; empty outside a checkout.
    error : str or None
        Why the trial failed.
    """

    digest: str
    problem: str
    parameters: dict[str, Any]
    rows: int
    method: str
    seed: int
    metrics: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    peak_memory_mb: float = 0.0
    peak_memory_of: str = "process"
    versions: dict[str, str] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)
    commit: str = ""
    error: str | None = None

    @property
    def failed(self) -> bool:
        """Whether the trial ended with an error."""
        return self.error is not None

    def to_line(self) -> str:
        """Return the record as one line of JSON, without the line break."""
        return json.dumps(asdict(self), allow_nan=False)

    @classmethod
    def from_line(cls, line: str) -> Self:
        """Read a line; raise ValueError if it is no record."""
        entries = json.loads(line)
        names = {entry.name for entry in fields(cls)}
        if not isinstance(entries, dict) or not entries.keys() <= names:
            raise ValueError("not a record")
        try:
            return cls(**entries)
        except TypeError as error:
            raise ValueError("entries are missing") from error


class RecordStore:
    """A file of records; only one process appends to it.

    Parameters
    ----------
    path : Path
        Made with its folder when the first record is appended.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> list[Record]:
        """Return the records, one per trial: the first that succeeded, else the first that failed.

        A last line without a line break was torn by the end of its process and is ignored.

        Raises
        ------
        RecordsError
            If a whole line is no record, or the file cannot be read.
        """
        try:
            content = self.path.read_bytes() if self.path.exists() else b""
        except OSError as error:
            raise RecordsError(
                f"Expected a file of records, got {self.path}: {error.strerror}; name another folder."
            ) from error
        records = []
        for number, line in enumerate(content.split(b"\n")[:-1], start=1):
            try:
                records.append(Record.from_line(line.decode()))
            except ValueError as error:
                raise RecordsError(
                    f"Expected a record in line {number} of {self.path}, got {line[:60]!r} ({error}); "
                    "restore the file or delete the line."
                ) from error
        return unique(records)

    def append(self, record: Record) -> None:
        """Write a record and wait until it is on the disk."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab+") as file:
            _drop_torn_line(file)
            # One write of a whole line: a process killed here leaves the line or a torn end, never a mixture.
            file.write(record.to_line().encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())


def unique(records: Iterable[Record]) -> list[Record]:
    """Return one record per digest: the first that succeeded, else the first that failed."""
    kept: dict[str, Record] = {}
    for record in records:
        first = kept.setdefault(record.digest, record)
        if first.failed and not record.failed:
            kept[record.digest] = record
    return list(kept.values())


def _drop_torn_line(file: BinaryIO) -> None:
    """Cut off what follows the last line break."""
    size = file.seek(0, os.SEEK_END)
    position, tail = size, b""
    while position > 0 and b"\n" not in tail:
        step = min(position, _BLOCK_BYTES)
        position -= step
        file.seek(position)
        tail = file.read(step)
    whole = position + tail.rfind(b"\n") + 1
    if whole < size:
        file.truncate(whole)
