"""Memory of ``dmliv fit`` on a large CSV file, as a multiple of the file's size.

Writes a table of 20 columns, all of which the fits use, until the file has 200 MB, and measures the peak of a
process that only imports the package, of one that reads the file in parts, of one that also takes a sample of
its rows, and of whole fits as a user calls them. A copy of the file whose last row but one holds a fraction
among whole numbers shows what a type that appears late costs::

    python benchmarks/csv_memory.py --megabytes 200 --methods 2sls dml-iv

The result goes to ``docs/results/csv-memory.json`` and the page beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
from rich.progress import track

RESULTS = Path(__file__).parent.parent / "docs" / "results"
CHUNK_ROWS = 10_000
PLAIN = [f"x{number:02d}" for number in range(1, 15)]
CONTEXTS = (*PLAIN, "seats", "kind")
KINDS = np.array(["business", "family", "student", "retired"])
INSTRUMENTS = ("fuel", "wage")
LIMIT = 4.0
IMPORT = "import pathlib, sys, dmliv.cli, dmliv.cli.fitting"
READ = f"""
{IMPORT}
from dmliv.progress import SilentProgress
from dmliv.data import ParquetRows, csv_as_parquet
from dmliv.data.parquet import sample_of
file = pathlib.Path(sys.argv[1])
roles = {{"outcome": ["sales"], "action": ["price"], "instrument": {list(INSTRUMENTS)}}}
roles["context"] = {list(CONTEXTS)}
"""
PARTS = f"""{READ}
with csv_as_parquet(file, roles, place=file.parent, progress=SilentProgress()):
    pass
"""
SAMPLE = f"""{READ}
with csv_as_parquet(file, roles, place=file.parent, progress=SilentProgress()) as written:
    rows = ParquetRows(written.folder, outcome="sales", **{{role: roles[role] for role in list(roles)[1:]}})
    sample_of(rows, "auto", 0)
"""


def write_csv(path: Path, megabytes: float) -> int:
    """Write a table until the file has the size; return the number of rows."""
    rng = np.random.default_rng(100)
    n_rows = 0
    with path.open("wb") as stream:
        header = True
        while stream.tell() < megabytes * 1e6:
            X = dict(zip(PLAIN, rng.standard_normal((len(PLAIN), CHUNK_ROWS)), strict=True))
            fuel, wage, hidden, noise = rng.standard_normal((4, CHUNK_ROWS))
            kind = rng.integers(0, len(KINDS), CHUNK_ROWS)
            price = fuel + 0.5 * wage + 0.3 * X["x01"] + 0.2 * np.sin(X["x02"]) + hidden
            columns = {
                "sales": (2.0 + 0.5 * kind) * price - 3.0 * hidden + X["x01"] + X["x02"] ** 2 + 0.5 * noise,
                "price": price,
                "fuel": fuel,
                "wage": wage,
                **X,
                "seats": rng.integers(1, 6, CHUNK_ROWS),
                "kind": KINDS[kind],
            }
            pa.csv.write_csv(
                pa.table(columns), stream, pa.csv.WriteOptions(include_header=header, quoting_style="none")
            )
            header, n_rows = False, n_rows + CHUNK_ROWS
    return n_rows


def with_late_fraction(path: Path, copy: Path) -> None:
    """Copy a file and put a fraction among the whole numbers at its end."""
    shutil.copy(path, copy)
    size = copy.stat().st_size
    with copy.open("r+b") as stream:
        stream.seek(size - 2000)
        *before, last = stream.read().splitlines(keepends=True)
        cells = before[-1].decode().split(",")
        cells[-2] = "2.5"
        stream.seek(size - 2000)
        stream.write(b"".join([*before[:-1], ",".join(cells).encode(), last]))
        stream.truncate()


def measured(command: list[str]) -> dict[str, float]:
    """Run a command; return the peak of its resident memory in megabytes and the seconds it took."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    errors = process.stderr.read()
    # Of this one child, whatever others used before it.
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise RuntimeError(f"Expected {command[:4]} to end well, got:\n{errors[-2000:]}")
    return {
        "peak_megabytes": round(usage.ru_maxrss * 1024 / 1e6, 1),
        "processor_seconds": round(usage.ru_utime + usage.ru_stime, 1),
        "seconds": round(time.perf_counter() - start, 1),
    }


def page(record: dict[str, Any]) -> str:
    """Return the page of a record."""
    size = record["megabytes"]
    lines = [
        "# Memory of a large CSV file",
        "",
        f"`dmliv fit` on a CSV file of {size:.0f} MB: {record['rows']:,} rows of 20 columns (18 numbers in",
        "full precision, a small whole number and a text), all of them used. Such a file is read in parts",
        "and streams from the disk; see [how to](../how-to/large-tables.md). Written by",
        "`benchmarks/csv_memory.py`, one process per line, one thread. The peak is that of resident memory,",
        f"libraries included; the aim is at most {LIMIT:g} times the file. The machine had other work, so",
        "processor seconds are the fair measure.",
        "",
        "| process | peak MB | times the file | processor s |",
        "|---|---:|---:|---:|",
    ]
    for name, found in record["runs"].items():
        peak, seconds = found["peak_megabytes"], found["processor_seconds"]
        lines.append(f"| {name} | {peak:,.0f} | {peak / size:.1f} | {seconds:,.0f} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=float, default=200.0)
    parser.add_argument("--methods", nargs="*", default=["2sls", "dml-iv"])
    arguments = parser.parse_args()
    python = [sys.executable, "-c"]
    with tempfile.TemporaryDirectory() as folder:
        data, late, model = (Path(folder) / name for name in ("data.csv", "late.csv", "model.dmliv"))
        n_rows = write_csv(data, arguments.megabytes)
        with_late_fraction(data, late)
        roles = ["--outcome", "sales", "--action", "price"]
        roles += [part for name in INSTRUMENTS for part in ("--instrument", name)]
        roles += [part for name in CONTEXTS for part in ("--context", name)]
        fit = [*python, "from dmliv.cli import app; app()", "fit", str(data), *roles, "-o", str(model)]
        commands = {
            "imports": [*python, IMPORT],
            "reading in parts": [*python, PARTS, str(data)],
            "reading in parts, a type appears late": [*python, PARTS, str(late)],
            "reading and sampling": [*python, SAMPLE, str(data)],
            **{f"`fit --method {name}`": [*fit, "--method", name] for name in arguments.methods},
        }
        runs = {name: measured(command) for name, command in track(commands.items(), "measuring")}
        record = {"megabytes": round(data.stat().st_size / 1e6, 1), "rows": n_rows, "runs": runs}
    (RESULTS / "csv-memory.json").write_text(json.dumps(record, indent=1) + "\n")
    text = page(record)
    (RESULTS / "csv-memory.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
