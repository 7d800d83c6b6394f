"""How time and memory of the default DML-IV grow with the rows: in memory, and streamed from Parquet.

Data are the suite's ``twenty-columns``: 20 contexts, 5 instruments, a truth that is known. Every fit runs in
a process of its own on one thread, so that its peak memory is its own. Processor seconds are reported next to
elapsed ones, because the machine may have other work. Run parts, then render what is there::

    python benchmarks/scale.py memory --rows 10000 100000 1000000
    python benchmarks/scale.py parquet --rows 1000000 10000000 --folder rows/
    python benchmarks/scale.py batches --rows 100000
    python benchmarks/scale.py engine
    python benchmarks/scale.py overhead
    python benchmarks/scale.py render

A part that was stopped goes on where it ended; ``--again`` measures once more what is on record.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from rich.progress import track
from scale_page import render

from dmliv import DMLIV
from dmliv.benchmark.grids import grid
from dmliv.benchmark.runner import run
from dmliv.benchmark.store import RecordStore
from dmliv.benchmark.trials import plan
from dmliv.data import ParquetRows, prepare
from dmliv.estimators import fit_parquet
from dmliv.first_stage.blocks import resident, sample_encoder
from dmliv.first_stage.encoding_choice import ChosenInputs
from dmliv.first_stage.networks import NeuralAction, NeuralOutcome
from dmliv.first_stage.shared_batches import SharedRows
from dmliv.learners import neural
from dmliv.nets.heads import Head, MeanHead, MixtureHead
from dmliv.nets.settings import LARGE_ROWS, NetworkSettings
from dmliv.nets.training import TrainingPlan
from dmliv.parallel.backends import Workers
from dmliv.parallel.runtime import Runtime
from dmliv.problems.suite import TwentyColumns
from dmliv.progress import SilentProgress

RESULTS = Path(__file__).parent.parent / "docs" / "results"
PARTS = ("memory", "parquet", "batches", "engine", "overhead", "render", "one-fit", "one-folder")
DEFAULT_ROWS = {
    "memory": [10_000, 100_000, 1_000_000],
    "parquet": [1_000_000, 10_000_000],
    "batches": [100_000],
}
BATCH_SIZES = (250, 1024)
# The default learns in batches of 250 up to 50,000 rows, of 354 from 100,000 and of 1024 from a million.
STEP_BATCHES = (250, 354, 1024)
PROBLEM = TwentyColumns()
CHUNK = 500_000
GROUP = 100_000
MEMBERS = 6
COLUMNS: dict[str, Any] = {
    "outcome": "outcome",
    "action": "action",
    "instrument": [f"z{number}" for number in range(1, 6)],
    "context": [f"x{number:02d}" for number in range(1, 21)],
}


class StageTimes(SilentProgress):
    """Adds up processor seconds by stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str, total: int) -> Iterator[Callable[[], None]]:
        """Time a stage."""
        del total
        start = time.process_time()
        yield lambda: None
        spent = round(time.process_time() - start, 2)
        self.seconds[name] = self.seconds.get(name, 0.0) + spent


def peak_megabytes() -> float:
    """Return the most memory this process has held at once."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
    return math.nan


def measured(fit: Callable[[StageTimes], DMLIV], n_rows: int, n_bytes: int, seed: int) -> dict[str, Any]:
    """Run a fit and return what it cost and how far from the truth it is."""
    stages = StageTimes()
    elapsed, processor = time.perf_counter(), time.process_time()
    estimator = fit(stages)
    seconds, processor = time.perf_counter() - elapsed, time.process_time() - processor
    X, T, truth = PROBLEM.test_set()
    return {
        "rows": n_rows,
        "seed": seed,
        "seconds": round(seconds, 1),
        "processor_seconds": round(processor, 1),
        "peak_megabytes": round(peak_megabytes()),
        "data_megabytes": round(n_bytes / 2**20),
        "mse": float(np.mean((estimator.predict(T, X) - truth) ** 2)),
        "variance_of_truth": float(np.var(truth)),
        "stages": {name: round(spent, 1) for name, spent in stages.seconds.items()},
    }


def fit_in_memory(n_rows: int, seed: int, batch_size: int | None) -> dict[str, Any]:
    """Fit the default to arrays, or the default with batches of another size."""
    from dmliv.estimators import two_stage  # noqa: PLC0415

    data = PROBLEM.sample(n_rows, seed=seed)
    n_bytes = sum(values.nbytes for values in (data.Y, data.T, data.Z, data.X))

    def fit(stages: StageTimes) -> DMLIV:
        # The only way to listen to the stages of a fit from outside.
        two_stage.progress_for = lambda verbose: stages
        return DMLIV(random_state=seed).fit(data.Y, data.T, Z=data.Z, X=data.X)

    if batch_size is None:
        return measured(fit, n_rows, n_bytes, seed)
    with batches_of(batch_size):
        return {**measured(fit, n_rows, n_bytes, seed), "batch_size": batch_size}


@contextmanager
def batches_of(size: int) -> Iterator[None]:
    """Let networks that learn from more than 50,000 rows use batches of one size."""
    own = NetworkSettings.plan

    def changed(self: NetworkSettings, n_rows: int, *, trial: bool = False) -> TrainingPlan:
        settled = own(self, n_rows, trial=trial)
        large = n_rows > LARGE_ROWS and self.adapts
        return replace(settled, batch_size=size) if large else settled

    # A batch size of the settings themselves would also change the choices that are made on fewer rows.
    NetworkSettings.plan = changed  # type: ignore[method-assign]
    try:
        yield
    finally:
        NetworkSettings.plan = own  # type: ignore[method-assign]


def write_rows(folder: Path, n_rows: int, seed: int) -> None:
    """Write rows as Parquet in single precision, chunk by chunk; what is there already stays."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in track(range(math.ceil(n_rows / CHUNK)), "writing rows"):
        path = folder / f"rows-{number:04d}.parquet"
        if path.exists():
            continue
        data = PROBLEM.sample(min(CHUNK, n_rows - number * CHUNK), seed=1000 * seed + number)
        whole = np.column_stack([data.Y, data.T, data.Z, data.X]).astype(np.float32)
        names = [COLUMNS["outcome"], COLUMNS["action"], *COLUMNS["instrument"], *COLUMNS["context"]]
        pq.write_table(pa.table(dict(zip(names, whole.T, strict=True))), path, row_group_size=GROUP)


def fit_on_files(folder: Path, n_rows: int, pass_rows: int, seed: int) -> dict[str, Any]:
    """Fit the default to a folder."""
    rows = ParquetRows(folder, **COLUMNS)

    def fit(stages: StageTimes) -> DMLIV:
        return fit_parquet(DMLIV(random_state=seed), rows, pass_rows=pass_rows, progress=stages)

    found = measured(fit, n_rows, 4 * 27 * n_rows, seed)
    return {**found, "pass_rows": pass_rows}


def engine() -> dict[str, Any]:
    """Return the speed of whole training steps against a plain matrix product, in turn on one thread."""
    data = PROBLEM.sample(60_000, seed=100)
    prepared = prepare(data.Y, data.T, Z=data.Z, X=data.X)
    learners = neural()
    assert isinstance(learners.outcome, NeuralOutcome)
    assert isinstance(learners.action, NeuralAction)
    shapes: list[tuple[str, Head, NetworkSettings, str]] = [
        ("outcome", MeanHead(), learners.outcome.settings, "standardised"),
        ("outcome", MeanHead(), learners.outcome.settings, "piecewise_context"),
        ("action", MixtureHead(5, 1), learners.action.settings, "standardised"),
        ("action", MixtureHead(5, 1), learners.action.settings, "piecewise_context"),
    ]
    runtime = Runtime(torch.device("cpu"), SilentProgress(), 1)
    source, found = resident(prepared, runtime.device), []
    for role, head, settings, encoding in shapes:
        for batch_size in STEP_BATCHES:
            fixed = NetworkSettings(
                hidden=settings.hidden, dropout=0.0, epochs=1, batch_size=batch_size, learning_rate=2e-3
            )
            shared = SharedRows(source, torch.ones(MEMBERS, 1), "outcome" if role == "outcome" else "action")
            encoder = sample_encoder(prepared, settings.n_bins)

            def steps(
                shared: SharedRows = shared,
                fixed: NetworkSettings = fixed,
                head: Head = head,
                encoding: str = encoding,
                encoder: Any = encoder,
            ) -> Any:
                generator = np.random.Generator(np.random.SFC64(0))
                inputs = ChosenInputs(encoding, 1.0)
                return shared.train(encoder, inputs, head, fixed, "steps", generator, runtime)

            plain, best = 0.0, math.inf
            for _ in range(3):
                plain = max(plain, plain_product())
                start = time.process_time()
                net, _ = steps()
                best = min(best, time.process_time() - start)
            macs = sum(a * b for a, b in zip(net.widths, net.widths[1:], strict=False))
            # Forward, and backward for weights and activations, except for the inputs themselves.
            flops = 2 * MEMBERS * len(prepared) * (3 * macs - net.widths[0] * net.widths[1])
            found.append(
                {
                    "role": role,
                    "encoding": encoding,
                    "batch_size": batch_size,
                    "widths": list(net.widths),
                    "gflops": round(flops / best / 1e9, 1),
                    "plain_gflops": round(plain, 1),
                    "product_share": round(product_share(steps), 2),
                }
            )
    return {"members": MEMBERS, "steps": found}


def plain_product(size: int = 1024, repeats: int = 10) -> float:
    """Return the GFLOP/s of one large matrix product."""
    left, right = torch.ones(size, size), torch.ones(size, size)
    torch.mm(left, right)
    start = time.process_time()
    for _ in range(repeats):
        torch.mm(left, right)
    return 2 * size**3 * repeats / (time.process_time() - start) / 1e9


def product_share(steps: Callable[[], Any]) -> float:
    """Return the share of the time inside torch that goes to matrix products."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        steps()
    spent = {event.key: event.self_cpu_time_total for event in profile.key_averages()}
    products = sum(value for key, value in spent.items() if key in ("aten::baddbmm", "aten::bmm", "aten::mm"))
    return float(products / sum(spent.values()))


def overhead(record: Record, *, again: bool) -> None:
    """Time 20 short trials in this process and on local workers."""
    trials = plan(grid("demand"), methods=["2sls"], sizes=[1000], seeds=range(100, 120))
    places = {
        "this process": Workers(1),
        "loky, 2": Workers(2),
        "dask, 2": Workers(2, "dask"),
        "ray, 2": Workers(2, "ray"),
    }
    found: dict[str, Any] = {"trials": 20} if again else record.read().get("overhead", {"trials": 20})
    with tempfile.TemporaryDirectory() as folder:
        for name, workers in places.items():
            if name in found:
                continue
            start = time.perf_counter()
            run(trials[:20], RecordStore(Path(folder) / f"{name}.jsonl"), workers=workers)
            found[name] = round(time.perf_counter() - start, 1)
            record.put("overhead", found)


@dataclass(frozen=True)
class Record:
    """What has been measured, on disk; a part goes there as soon as it is known."""

    path: Path

    def read(self) -> dict[str, Any]:
        """Return all parts."""
        known: dict[str, Any] = json.loads(self.path.read_text()) if self.path.exists() else {}
        return known

    def has_fit(self, part: str, wanted: dict[str, Any]) -> bool:
        """Return whether a fit with these settings is there."""
        return any(wanted.items() <= fit.items() for fit in self.read().get(part, []))

    def put_fit(self, part: str, fit: dict[str, Any], key: Sequence[str] = ("rows",)) -> None:
        """Put a fit among others, in place of one with the same key."""
        others = [
            other for other in self.read().get(part, []) if any(other.get(name) != fit[name] for name in key)
        ]
        self.put(part, sorted([*others, fit], key=lambda fit: [fit[name] for name in key]))

    def put(self, part: str, value: Any) -> None:
        """Put one part."""
        self.path.write_text(json.dumps({**self.read(), part: value}, indent=1) + "\n")


def in_own_process(what: str, options: dict[str, Any]) -> dict[str, Any]:
    """Run one fit in a process of its own and return its record."""
    arguments = [
        text for name, value in options.items() for text in (f"--{name.replace('_', '-')}", str(value))
    ]
    command = [sys.executable, __file__, what, *arguments]
    # What a fit has to say goes to the terminal, its record to the pipe.
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    found: dict[str, Any] = json.loads(answer.splitlines()[-1])
    return found


def run_missing(record: Record, given: argparse.Namespace, rows: Sequence[int]) -> None:
    """Run the fits of a part that are not on record, or all again if that is asked for."""
    part = given.part
    varied: dict[str, Sequence[int]] = {}
    if part == "parquet":
        varied = {"pass_rows": [given.pass_rows]}
    elif part == "batches":
        varied = {"batch_size": BATCH_SIZES}
    for n_rows, *values in itertools.product(rows, *varied.values()):
        wanted = {"rows": n_rows, "seed": given.seed, **dict(zip(varied, values, strict=True))}
        if not given.again and record.has_fit(part, wanted):
            continue
        if part == "parquet":
            folder = given.folder / f"{n_rows}-{given.seed}"
            write_rows(folder, n_rows, given.seed)
            record.put_fit(part, in_own_process("one-folder", {**wanted, "folder": folder}))
        else:
            key = ("rows", "seed", "batch_size") if part == "batches" else ("rows",)
            record.put_fit(part, in_own_process("one-fit", wanted), key)


def main() -> None:
    """Run one part; what is on record is not run again, unless asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--rows", type=int, nargs="+", help="one fit for each number of rows")
    parser.add_argument("--seed", type=int, default=110)
    parser.add_argument("--folder", type=Path, default=Path("rows"), help="for Parquet files")
    parser.add_argument("--pass-rows", type=int, default=1_000_000, help="rows of an epoch from Parquet")
    parser.add_argument("--batch-size", type=int, help="of one fit in memory; by default that of the library")
    parser.add_argument("--again", action="store_true", help="run what is on record, too")
    parser.add_argument("--record", type=Path, default=RESULTS / "scale.json")
    given = parser.parse_args()
    torch.set_num_threads(1)
    record = Record(given.record)
    rows = given.rows or DEFAULT_ROWS.get(given.part, [1000])
    if given.part == "one-fit":
        print(json.dumps(fit_in_memory(rows[0], given.seed, given.batch_size)))
    elif given.part == "one-folder":
        print(json.dumps(fit_on_files(given.folder, rows[0], given.pass_rows, given.seed)))
    elif given.part in DEFAULT_ROWS:
        run_missing(record, given, rows)
    elif given.part == "engine":
        record.put("engine", engine())
    elif given.part == "overhead":
        overhead(record, again=given.again)
    else:
        given.record.with_suffix(".md").write_text(render(record.read()))


if __name__ == "__main__":
    main()
