"""Records of benchmark trials: one JSON line per finished trial, so that a run resumes where it stopped."""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import dmliv

Record = dict[str, Any]


def arguments(description: str | None, records: str, **defaults: Sequence[Any]) -> argparse.Namespace:
    """Read list options such as ``--sizes 1000 2000`` (one per default), ``--records`` and ``--summary``."""
    parser = argparse.ArgumentParser(description=description)
    for name, values in defaults.items():
        parser.add_argument(f"--{name}", nargs="*", type=type(values[0]), default=list(values))
    parser.add_argument("--records", type=Path, default=Path("docs/results") / records)
    parser.add_argument("--summary", action="store_true", help="only print the table")
    return parser.parse_args()


def run_missing(
    path: Path, keys: Sequence[str], trials: Iterable[tuple[Any, ...]], run: Callable[..., Record]
) -> list[Record]:
    """Run the trials whose keys are not in the records yet, and return all records.

    Parameters
    ----------
    path : Path
        The records file; made if missing.
    keys : sequence of str
        Names of the entries that identify a trial, in the order of a trial's values.
    trials : iterable of tuple
    run : callable
        Takes a trial's values and returns its metrics.
    """
    torch.set_num_threads(1)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    records: list[Record] = [json.loads(line) for line in path.read_text().splitlines()]
    done = {tuple(record[key] for key in keys) for record in records}
    for trial in trials:
        if trial in done:
            continue
        start = time.perf_counter()
        record = dict(zip(keys, trial, strict=True)) | run(*trial)
        record["seconds"] = time.perf_counter() - start
        # The peak of the whole process so far, in MB: meaningful for the first, largest trial of a run.
        record["peak_memory_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        record |= {"dmliv": dmliv.__version__, "torch": torch.__version__.split("+")[0]}
        records.append(record)
        with path.open("a") as file:
            file.write(json.dumps(record) + "\n")
        shown = {name: f"{value:.4f}" for name, value in record.items() if isinstance(value, float)}
        print(*trial, shown, flush=True)
    return records


def table(records: Sequence[Record], by: Sequence[str], repeated: str, metrics: Sequence[str]) -> str:
    """Return a Markdown table of medians and ranges over the ``repeated`` key (a seed, a replication)."""
    groups: dict[tuple[Any, ...], list[Record]] = defaultdict(list)
    for record in records:
        groups[tuple(record[name] for name in by)].append(record)
    header = [*by, f"{repeated}s", *(f"{metric}: median (lowest to highest)" for metric in metrics)]
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    for key, group in sorted(groups.items(), key=lambda item: tuple(map(str, item[0]))):
        cells = [str(value) for value in key]
        cells.append(", ".join(str(number) for number in sorted(record[repeated] for record in group)))
        for metric in metrics:
            values = np.array([record[metric] for record in group], dtype=float)
            cells.append(f"{np.median(values):.4f} ({values.min():.4f} to {values.max():.4f})")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)
