"""Speed and memory of a policy over many contexts and actions.

Ratios come from one run on one machine::

    python benchmarks/policy_speed.py
"""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from dmliv import DMLIV
from dmliv.policy import Interval
from dmliv.problems import TicketDemand

N_ACTIONS = 2000
# Actions of the plain loop; its time is proportional to their number.
LOOP_ACTIONS = 40


def seconds(call: Callable[[], object]) -> float:
    """Return the time of a call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def peak_mb() -> float:
    """Return the highest memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Fit once, then decide for more and more contexts."""
    torch.set_num_threads(1)
    problem = TicketDemand()
    data = problem.sample(1000, seed=0)
    fitted = DMLIV(random_state=0).fit(data.Y, data.T, Z=data.Z, X=data.X)
    actions = np.linspace(-5.0, 5.0, N_ACTIONS)
    policy, interval = fitted.policy(actions), fitted.policy(Interval(-5.0, 5.0))
    few, many = problem.contexts(10_000, seed=1), problem.contexts(100_000, seed=1)
    policy.predict(few[:100])

    grid = seconds(lambda: policy.predict(few))
    memory_few = peak_mb()
    loop = seconds(lambda: [fitted.predict(action, few) for action in actions[:LOOP_ACTIONS]])
    refined = seconds(lambda: interval.predict(few))
    all_contexts = seconds(lambda: policy.predict(many))
    result = {
        "contexts": len(few),
        "actions": N_ACTIONS,
        "plain loop over actions / policy": loop / LOOP_ACTIONS * N_ACTIONS / grid,
        "policy / interval of 200 points with refinement": grid / refined,
        "100,000 contexts / 10,000 contexts, time": all_contexts / grid,
        "100,000 contexts / 10,000 contexts, peak memory": peak_mb() / memory_few,
        "peak memory, MB": peak_mb(),
        "million evaluations a second": len(few) * N_ACTIONS / grid / 1e6,
    }
    for name, value in result.items():
        print(f"{name}: {value:.4g}")
    path = Path("docs/results/policy-speed.json")
    path.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
