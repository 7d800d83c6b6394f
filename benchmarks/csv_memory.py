"""Memory of ``dmliv fit`` on a large CSV file, as a multiple of the file's size.

Writes a file of 200 MB into a temporary folder, then measures the peak of a process that reads it, of one
that also prepares it, and of whole fits::

    python benchmarks/csv_memory.py --megabytes 200 --methods 2sls dml-iv
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv

CHUNK_ROWS = 100_000
KINDS = np.array(["business", "family", "student", "retired"])
# Names by role; the file holds as many columns again that nobody asks for.
CONTEXTS = ("time", "distance", "seats", "kind")
OPTIONS = ("--outcome", "sales", "--action", "price", "--instrument", "fuel")
IMPORT = "import dmliv.cli, dmliv.estimators, dmliv.tables, dmliv.data"
READ = f"""
{IMPORT}
import pathlib, sys
names = {["sales", "price", "fuel", *CONTEXTS]}
table = dmliv.tables.read_columns(pathlib.Path(sys.argv[1]), {{"context": names}})
"""
PREPARE = f"""{READ}
data = dmliv.data.prepare(
    table["sales"], table["price"], Z=table.select(["fuel"]), X=table.select({list(CONTEXTS)})
)
"""


def write_csv(path: Path, megabytes: float) -> int:
    """Write a table until the file has the size; return the number of rows."""
    rng = np.random.default_rng(100)
    n_rows = 0
    with path.open("wb") as stream:
        header = True
        while stream.tell() < megabytes * 1e6:
            time_, distance, fuel, hidden = rng.standard_normal((4, CHUNK_ROWS))
            price = fuel + 0.3 * time_ + hidden
            columns = {
                "sales": 2.0 * price - 3.0 * hidden + time_,
                "price": price,
                "fuel": fuel,
                "time": time_,
                "distance": distance,
                "seats": rng.integers(1, 6, CHUNK_ROWS),
                "kind": KINDS[rng.integers(0, len(KINDS), CHUNK_ROWS)],
            }
            pa.csv.write_csv(
                pa.table(columns), stream, pa.csv.WriteOptions(include_header=header, quoting_style="none")
            )
            header, n_rows = False, n_rows + CHUNK_ROWS
    return n_rows


def peak_megabytes(command: list[str]) -> tuple[float, float]:
    """Run a command; return the peak of its resident memory and the seconds it took."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    errors = process.stderr.read()
    # Of this one child, whatever others used before it.
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise RuntimeError(f"Expected {command[:4]} to end well, got:\n{errors[-2000:]}")
    return usage.ru_maxrss / 1024 * 1.048576, time.perf_counter() - start


def main() -> None:
    """Print one line per measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=float, default=200.0)
    parser.add_argument("--methods", nargs="*", default=["2sls", "kiv", "dml-iv"])
    arguments = parser.parse_args()
    python = [sys.executable, "-c"]
    with tempfile.TemporaryDirectory() as folder:
        data, model = Path(folder) / "data.csv", Path(folder) / "model.dmliv"
        n_rows = write_csv(data, arguments.megabytes)
        size = data.stat().st_size / 1e6
        print(f"{n_rows:,} rows, {size:.0f} MB", flush=True)
        contexts = [part for name in CONTEXTS for part in ("--context", name)]
        fit = [*python, "from dmliv.cli import app; app()", "fit", str(data), *OPTIONS, *contexts]
        runs = {
            "imports": [*python, IMPORT],
            "reading": [*python, READ, str(data)],
            "reading and preparing": [*python, PREPARE, str(data)],
            **{
                f"fit --method {name}": [*fit, "-o", str(model), "--method", name]
                for name in arguments.methods
            },
        }
        for name, command in runs.items():
            peak, seconds = peak_megabytes(command)
            print(f"{name:<24} {peak:6.0f} MB  {peak / size:4.1f} x the file  {seconds:5.0f} s", flush=True)


if __name__ == "__main__":
    main()
