"""Counterfactual error on ticket demand: every method, size and seed is one line of a records file.

Finished lines are not run again, so the script can be stopped and started at will::

    python benchmarks/demand.py --methods default --sizes 1000 5000 10000 --seeds 0 1 2 3 4
    python benchmarks/demand.py --summary
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

import dmliv
from dmliv import CEDMLIV, DMLIV, DeepIV
from dmliv.learners import paper_neural
from dmliv.problems import TicketDemand

METHODS: dict[str, Callable[[int], DMLIV | CEDMLIV | DeepIV]] = {
    "default": lambda seed: DMLIV(random_state=seed),
    "default-ce": lambda seed: CEDMLIV(random_state=seed),
    "default-deepiv": lambda seed: DeepIV(random_state=seed),
    "paper": lambda seed: DMLIV(paper_neural(), random_state=seed),
    "paper-ce": lambda seed: CEDMLIV(paper_neural(), random_state=seed),
    "paper-deepiv": lambda seed: DeepIV(paper_neural(), random_state=seed),
}


def run(method: str, n_rows: int, seed: int, strength: float) -> dict[str, object]:
    """Fit one method on one sample and measure it against the truth."""
    problem = TicketDemand(instrument_strength=strength)
    data = problem.sample(n_rows, seed=seed)
    start = time.perf_counter()
    estimator = METHODS[method](seed).fit(data.Y, data.T, Z=data.Z, X=data.X)
    seconds = time.perf_counter() - start

    def error(X: object, T: object, truth: np.ndarray) -> float:
        return float(np.mean((estimator.predict(T, X) - truth) ** 2))

    contexts = problem.contexts(2000, seed=1)
    actions = estimator.policy(np.linspace(-5.0, 5.0, 200)).predict(contexts)
    chosen = estimator.structural_model_.describe()
    return {
        "method": method,
        "rows": n_rows,
        "seed": seed,
        "strength": strength,
        "grid_mse": error(*problem.test_set()),
        "iid_mse": error(*problem.iid_test_set()),
        "reward": float(problem.counterfactual(contexts, actions).mean()),
        "seconds": seconds,
        "nuisances": estimator.nuisance_losses_,
        "encoding": chosen["encoding"],
        "variance_weight": chosen["variance_weight"],
        "dmliv": dmliv.__version__,
        "torch": torch.__version__.split("+")[0],
    }


def summary(records: list[dict[str, object]]) -> str:
    """Return a Markdown table: median and range over seeds."""
    groups: dict[tuple[object, ...], list[dict[str, object]]] = defaultdict(list)
    for record in records:
        groups[record["method"], record["rows"], record["strength"]].append(record)
    lines = [
        "| method | rows | strength | seeds | grid MSE, median (lowest to highest) | iid MSE, median |",
        "|---|---|---|---|---|---|",
    ]
    for (method, rows, strength), group in sorted(groups.items(), key=str):
        grid = np.array([record["grid_mse"] for record in group], dtype=float)
        iid = np.array([record["iid_mse"] for record in group], dtype=float)
        seeds = ", ".join(str(record["seed"]) for record in sorted(group, key=lambda r: str(r["seed"])))
        lines.append(
            f"| {method} | {rows} | {strength} | {seeds} | {np.median(grid):.4f} "
            f"({grid.min():.4f} to {grid.max():.4f}) | {np.median(iid):.4f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Run what is missing, then print the summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--methods", nargs="*", default=["default"], choices=list(METHODS))
    parser.add_argument("--sizes", nargs="*", type=int, default=[1000, 5000, 10_000])
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--strengths", nargs="*", type=float, default=[1.0])
    parser.add_argument("--records", type=Path, default=Path("docs/results/demand.jsonl"))
    parser.add_argument("--summary", action="store_true", help="only print the table")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    arguments.records.parent.mkdir(parents=True, exist_ok=True)
    arguments.records.touch()
    records = [json.loads(line) for line in arguments.records.read_text().splitlines()]
    done = {(r["method"], r["rows"], r["seed"], r["strength"]) for r in records}
    trials = [
        (method, rows, seed, strength)
        for method in arguments.methods
        for rows in arguments.sizes
        for strength in arguments.strengths
        for seed in arguments.seeds
        if not arguments.summary
    ]
    for trial in trials:
        if trial in done:
            continue
        record = run(*trial)
        records.append(record)
        with arguments.records.open("a") as file:
            file.write(json.dumps(record) + "\n")
        print(*trial, f"grid MSE {record['grid_mse']:.4f}", f"{record['seconds']:.1f} s", flush=True)
    print(summary(records))


if __name__ == "__main__":
    main()
