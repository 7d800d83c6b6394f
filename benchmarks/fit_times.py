"""How long each estimator takes to fit 5000 rows of ticket demand, as multiples of the default DML-IV.

One run, one thread, nothing else running; predictions and data are not counted::

    python benchmarks/fit_times.py
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import torch
from rich.progress import track

from dmliv.benchmark.methods import demand_methods, piloted_methods, tree_methods
from dmliv.problems import TicketDemand

N_ROWS = 5000
SEED = 0
# These train for the paper's budgets, up to a quarter of an hour each.
LEFT_OUT = ("paper",)


def main() -> None:
    """Fit every method once and write the ratios."""
    torch.set_num_threads(1)
    data = TicketDemand().sample(N_ROWS, seed=SEED)
    small = TicketDemand().sample(100, seed=SEED)
    methods = [
        method
        for method in (*piloted_methods(), *demand_methods(), *tree_methods())
        if not method.archived and not any(word in method.name for word in LEFT_OUT)
    ]
    # The first fit of a process also pays for imports.
    methods[0].estimator().fit(small.Y, small.T, Z=small.Z, X=small.X)
    seconds = {}
    for method in track(methods, description="fits"):
        estimator = method.estimator()
        if "random_state" in estimator.get_params(deep=False):
            estimator.set_params(random_state=SEED)
        start = time.perf_counter()
        estimator.fit(data.Y, data.T, Z=data.Z, X=data.X)
        seconds[method.label] = time.perf_counter() - start
    base = seconds[methods[0].label]
    ratios = {label: value / base for label, value in seconds.items()}
    path = Path("docs/results/fit-times.json")
    path.write_text(json.dumps({"rows": N_ROWS, "times the default DML-IV": ratios}, indent=1) + "\n")
    for label, ratio in ratios.items():
        print(f"| {label} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
