"""How time and memory of the default DML-IV grow with the rows: in memory, and streamed from Parquet.

Data are the suite's ``twenty-columns``: 20 contexts, 5 instruments, a truth that is known. Every fit runs in
a process of its own on one thread, so that its peak memory is its own. Processor seconds are reported next to
elapsed ones, because the machine may have other work. Run parts, then render what is there::

    python benchmarks/scale.py memory --rows 10000 100000 1000000
    python benchmarks/scale.py parquet --rows 10000000 --folder rows/
    python benchmarks/scale.py engine
    python benchmarks/scale.py overhead
    python benchmarks/scale.py render
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from rich.progress import track

from dmliv import DMLIV
from dmliv.benchmark.backends import Workers
from dmliv.benchmark.grids import grid
from dmliv.benchmark.runner import run
from dmliv.benchmark.store import RecordStore
from dmliv.benchmark.trials import plan
from dmliv.data import prepare
from dmliv.first_stage.base import Runtime
from dmliv.first_stage.blocks import resident, sample_encoder
from dmliv.first_stage.choice import ChosenInputs
from dmliv.first_stage.networks import NeuralAction, NeuralOutcome
from dmliv.first_stage.shared import SharedRows
from dmliv.learners import neural
from dmliv.nets.heads import Head, MeanHead, MixtureHead
from dmliv.nets.settings import NetworkSettings
from dmliv.problems.suite import TwentyColumns
from dmliv.progress import SilentProgress
from dmliv.streaming import ParquetRows, fit_parquet

RESULTS = Path(__file__).parent.parent / "docs" / "results"
RECORD = RESULTS / "scale.json"
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
    stayed = estimator.structural_model_.describe()
    return {
        "rows": n_rows,
        "seed": seed,
        "seconds": round(seconds, 1),
        "processor_seconds": round(processor, 1),
        "peak_megabytes": round(peak_megabytes()),
        "data_megabytes": round(n_bytes / 2**20),
        "mse": float(np.mean((estimator.predict(T, X) - truth) ** 2)),
        "variance_of_truth": float(np.var(truth)),
        "stayed": [name for name in ("networks", "lines", "kernel") if name in stayed],
        "stages": {name: round(spent, 1) for name, spent in stages.seconds.items()},
    }


def fit_in_memory(n_rows: int, seed: int) -> dict[str, Any]:
    """Fit the default to arrays."""
    from dmliv.estimators import two_stage  # noqa: PLC0415

    data = PROBLEM.sample(n_rows, seed=seed)
    n_bytes = sum(values.nbytes for values in (data.Y, data.T, data.Z, data.X))

    def fit(stages: StageTimes) -> DMLIV:
        # The only way to listen to the stages of a fit from outside.
        two_stage.progress_for = lambda verbose: stages
        return DMLIV(random_state=seed).fit(data.Y, data.T, Z=data.Z, X=data.X)

    return measured(fit, n_rows, n_bytes, seed)


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
    from dmliv.streaming import fit as streaming_fit  # noqa: PLC0415

    rows = ParquetRows(folder, **COLUMNS)

    def fit(stages: StageTimes) -> DMLIV:
        streaming_fit.progress_for = lambda verbose: stages
        return fit_parquet(DMLIV(random_state=seed), rows, pass_rows=pass_rows)

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
        for batch_size in (250, 1024):
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


def overhead() -> dict[str, Any]:
    """Return the time of 20 short trials in this process and on local workers."""
    found: dict[str, Any] = {"trials": 20}
    trials = plan(grid("demand"), methods=["2sls"], sizes=[1000], seeds=range(100, 120))
    places = {
        "this process": Workers(1),
        "loky, 2": Workers(2),
        "dask, 2": Workers(2, "dask"),
        "ray, 2": Workers(2, "ray"),
    }
    with tempfile.TemporaryDirectory() as folder:
        for name, workers in places.items():
            start = time.perf_counter()
            run(trials[:20], RecordStore(Path(folder) / f"{name}.jsonl"), workers=workers)
            found[name] = round(time.perf_counter() - start, 1)
    return found


def exponent(fits: list[dict[str, Any]], column: str) -> float:
    """Return the slope of log seconds on log rows."""
    return float(np.polyfit(*(np.log([fit[key] for fit in fits]) for key in ("rows", column)), 1)[0])


def store(part: str, value: Any) -> None:
    """Put one part into the record."""
    known = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    if isinstance(value, dict) and "rows" in value:
        others = [fit for fit in known.get(part, []) if fit["rows"] != value["rows"]]
        value = sorted([*others, value], key=lambda fit: fit["rows"])
    known[part] = value
    RECORD.write_text(json.dumps(known, indent=1) + "\n")


def render() -> str:
    """Return the page."""
    known = json.loads(RECORD.read_text())
    lines = ["# Scale", ""]
    lines += [
        "Default DML-IV (`DMLIV()`, ten folds, one thread) on the suite's `twenty-columns`: 20 contexts, 5",
        "instruments. Written by `benchmarks/scale.py`. The machine had other work, so processor seconds are",
        "the fair measure.",
        "The error is the mean squared error of h at the problem's 2000 test points (variance of the truth "
        f"{known['memory'][0]['variance_of_truth']:.2f}).",
        "",
        "| rows | from | processor s | elapsed s | rows per processor s | data MB | peak MB "
        "| 3 x data + 2 GB | MSE | h | seed |",
        "|---:|---|---:|---:|---:|---:|---:|---:|---:|---|---|",
    ]
    for part in ("memory", "parquet"):
        for fit in known.get(part, []):
            origin = "memory" if part == "memory" else f"Parquet, {fit['pass_rows']:,} rows an epoch"
            limit = f"{3 * fit['data_megabytes'] + 2048:,}" if part == "memory" else "flat"
            lines.append(
                f"| {fit['rows']:,} | {origin} | {fit['processor_seconds']:,.0f} | {fit['seconds']:,.0f} | "
                f"{fit['rows'] / fit['processor_seconds']:,.0f} | {fit['data_megabytes']:,} | "
                f"{fit['peak_megabytes']:,} | {limit} | {fit['mse']:.4f} | {', '.join(fit['stayed'])} | "
                f"{fit['seed']}{', ' + fit['note'] if 'note' in fit else ''} |"
            )
    lines += [
        "",
        "Growth exponent of processor seconds in memory: "
        f"{exponent(known['memory'], 'processor_seconds'):.2f}; "
        f"of elapsed seconds: {exponent(known['memory'], 'seconds'):.2f}.",
        "",
        "Where the processor seconds went:",
        "",
    ]
    fits = [fit for fit in (*known["memory"], *known.get("parquet", [])) if fit["stages"]]
    names = list(dict.fromkeys(name for fit in fits for name in fit["stages"]))
    lines.append("| stage | " + " | ".join(f"{fit['rows']:,}" for fit in fits) + " |")
    lines.append("|---|" + "---:|" * len(fits))
    for name in names:
        lines.append(f"| {name} | " + " | ".join(f"{fit['stages'].get(name, 0):.0f}" for fit in fits) + " |")
    rest = [fit["processor_seconds"] - sum(fit["stages"].values()) for fit in fits]
    lines.append("| everything else | " + " | ".join(f"{value:.0f}" for value in rest) + " |")
    if "engine" in known:
        lines += [
            "",
            "## Training steps",
            "",
            f"Whole steps of a stack of {known['engine']['members']} networks (fetching and encoding a",
            "batch, forward, loss, backward, clipping, AdamW) against a plain product of two 1024 x 1024",
            "matrices, in turn on the same core.",
            "",
            "| nuisance | encoding | widths | batch | GFLOP/s | plain product | share of matrix products |",
            "|---|---|---|---:|---:|---:|---:|",
        ]
        for step in known["engine"]["steps"]:
            lines.append(
                f"| {step['role']} | {step['encoding']} | {'-'.join(map(str, step['widths']))} | "
                f"{step['batch_size']:,} | {step['gflops']} | {step['plain_gflops']} | "
                f"{step['product_share']:.0%} |"
            )
    if "overhead" in known:
        times = {name: value for name, value in known["overhead"].items() if name != "trials"}
        lines += ["", "## Trials on a local cluster", ""]
        lines += [f"{known['overhead']['trials']} short trials, seconds with the start of the workers:", ""]
        lines += ["| " + " | ".join(times) + " |", "|" + "---:|" * len(times)]
        lines += ["| " + " | ".join(f"{value:.1f}" for value in times.values()) + " |"]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run one part."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("part", choices=["memory", "parquet", "engine", "overhead", "render", "one-fit"])
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--seed", type=int, default=110)
    parser.add_argument("--folder", type=Path, default=Path("rows"))
    parser.add_argument("--pass-rows", type=int, default=1_000_000)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.part == "memory":
        for n_rows in given.rows:
            command = [sys.executable, __file__, "one-fit", "--rows", str(n_rows), "--seed", str(given.seed)]
            answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            store("memory", json.loads(answer))
    elif given.part == "one-fit":
        print(json.dumps(fit_in_memory(given.rows[0], given.seed)))
    elif given.part == "parquet":
        write_rows(given.folder, given.rows[-1], given.seed)
        store("parquet", fit_on_files(given.folder, given.rows[-1], given.pass_rows, given.seed))
    elif given.part == "engine":
        store("engine", engine())
    elif given.part == "overhead":
        store("overhead", overhead())
    else:
        (RESULTS / "scale.md").write_text(render())


if __name__ == "__main__":
    main()
