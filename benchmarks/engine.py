"""How fast the stacked engine is: per network and step, and for whole fits, against a plain PyTorch loop.

The plain loop is what most code does: one ``Sequential`` per network, a ``DataLoader``, ``AdamW``. Both sides
run in this process on one thread, in turn, and only ratios are reported. Run it with nothing else running::

    python benchmarks/engine.py
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import numpy as np
import torch
from rich.progress import track
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dmliv import DMLIV
from dmliv.learners import neural
from dmliv.nets.heads import MeanHead, MixtureHead
from dmliv.nets.settings import NetworkSettings
from dmliv.nets.stacked import StackedMLP
from dmliv.nets.training import train
from dmliv.problems import TicketDemand
from dmliv.progress import SilentProgress

HIDDEN = (128, 64, 32)
BATCH = 100
DROPOUT = 0.1
COMPONENTS = 10
MEMBERS = 10
PAPER_EPOCHS = {1000: 900, 5000: 500, 10_000: 450}
FOLDS = 10
EFFORTS: Final = ("balanced", "fast")


def plain_network(n_inputs: int, n_outputs: int) -> nn.Sequential:
    """Return the paper's network: three ReLU layers, dropout after the first two."""
    return nn.Sequential(
        nn.Linear(n_inputs, 128),
        nn.ReLU(),
        nn.Dropout(DROPOUT),
        nn.Linear(128, 64),
        nn.ReLU(),
        nn.Dropout(DROPOUT),
        nn.Linear(64, 32),
        nn.ReLU(),
        nn.Linear(32, n_outputs),
    )


def mixture_loss(raw: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
    """Return the negative log-likelihood of a mixture of Gaussians, written the usual way."""
    logits, means, log_scales = raw.chunk(3, dim=1)
    component = torch.distributions.Normal(means, log_scales.exp()).log_prob(action[:, None])
    return -torch.logsumexp(torch.log_softmax(logits, dim=1) + component, dim=1).mean()


def plain_steps(
    loss_of: Callable[..., torch.Tensor], net: nn.Module, *tensors: torch.Tensor
) -> Iterator[None]:
    """Train for ever, one step per item."""
    optimiser = torch.optim.AdamW(net.parameters(), lr=2e-4, weight_decay=1e-3)
    loader = DataLoader(TensorDataset(*tensors), batch_size=BATCH, shuffle=True)
    while True:
        for batch in loader:
            optimiser.zero_grad()
            loss_of(*batch).backward()
            nn.utils.clip_grad_norm_(net.parameters(), 5.0)
            optimiser.step()
            yield


def seconds_per_step(steps: Iterator[None], n_steps: int = 300) -> float:
    """Return the mean time of a step after a short warm-up."""
    for _ in range(30):
        next(steps)
    start = time.perf_counter()
    for _ in range(n_steps):
        next(steps)
    return (time.perf_counter() - start) / n_steps


def plain_step_times(n_rows: int) -> dict[str, float]:
    """Return seconds per step of the plain loop for the three networks of the method."""
    problem = TicketDemand()
    data = problem.sample(n_rows, seed=0)
    exogenous = torch.tensor(np.column_stack([data.X, data.Z]), dtype=torch.float32)
    context = torch.tensor(data.X, dtype=torch.float32)
    outcome = torch.tensor(data.Y, dtype=torch.float32)
    action = torch.tensor(data.T, dtype=torch.float32)
    outcome_net, action_net = plain_network(9, 1), plain_network(9, 3 * COMPONENTS)
    structural_net = plain_network(9, 1)

    def structural_loss(c: torch.Tensor, cz: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            logits, means, log_scales = action_net(cz).chunk(3, dim=1)
            component = torch.distributions.Categorical(logits=logits).sample()[:, None]
            mean, scale = means.gather(1, component), log_scales.gather(1, component).exp()
            drawn = mean + scale * torch.randn_like(mean)
        return (target - structural_net(torch.cat([c, drawn], dim=1)).squeeze(1)).square().mean()

    return {
        "outcome": seconds_per_step(
            plain_steps(
                lambda x, y: (outcome_net(x).squeeze(1) - y).square().mean(), outcome_net, exogenous, outcome
            )
        ),
        "action": seconds_per_step(
            plain_steps(lambda x, a: mixture_loss(action_net(x), a), action_net, exogenous, action)
        ),
        "structural": seconds_per_step(
            plain_steps(structural_loss, structural_net, context, exogenous, outcome)
        ),
    }


def stacked_step_time(head: MeanHead | MixtureHead, n_rows: int = 1000, epochs: int = 30) -> float:
    """Return seconds per network and step of the stacked engine, for ten networks of the same shape."""
    generator = np.random.Generator(np.random.SFC64(0))
    inputs = torch.randn(n_rows, 9)
    shape = (n_rows, 1) if isinstance(head, MixtureHead) else (n_rows,)
    target = torch.randn(shape)
    net = StackedMLP(
        MEMBERS,
        (9, *HIDDEN, head.width),
        dropout=(DROPOUT, DROPOUT, 0.0),
        generator=generator,
        device=torch.device("cpu"),
    )

    class Objective:
        def row_loss(self, rows: torch.Tensor, *, training: bool) -> torch.Tensor:
            del training
            return head.row_loss(net(inputs[rows]), target[rows])

    plan = NetworkSettings(epochs=epochs, batch_size=BATCH, learning_rate=2e-4, schedule="constant").plan(
        n_rows
    )
    row_sets = [np.arange(n_rows)] * MEMBERS
    start = time.perf_counter()
    train(net, Objective(), row_sets, plan, generator=generator, progress=SilentProgress(), label="speed")
    return (time.perf_counter() - start) / (epochs * math.ceil(n_rows / BATCH) * MEMBERS)


def plain_budget(n_rows: int, step: dict[str, float]) -> float:
    """Return the seconds the plain loop needs for the paper's budget: 20 nuisances and the second stage."""
    epochs = PAPER_EPOCHS[n_rows]
    fold_steps = math.ceil(n_rows * (FOLDS - 1) / FOLDS / BATCH)
    nuisances = FOLDS * epochs * fold_steps * (step["outcome"] + step["action"])
    return nuisances + epochs * math.ceil(n_rows / BATCH) * step["structural"]


def main() -> None:
    """Measure, print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("docs/results/engine.json"))
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    step_ratios: dict[str, list[float]] = {"outcome": [], "action": []}
    fit_ratios = {effort: {1000: list[float](), 10_000: list[float]()} for effort in EFFORTS}
    for repeat in track(range(arguments.repeats), description="Plain loop and stacked engine in turn"):
        for n_rows in fit_ratios["balanced"]:
            plain = plain_step_times(n_rows)
            if n_rows == 1000:
                step_ratios["outcome"].append(plain["outcome"] / stacked_step_time(MeanHead()))
                step_ratios["action"].append(plain["action"] / stacked_step_time(MixtureHead(COMPONENTS, 1)))
            data = TicketDemand().sample(n_rows, seed=repeat)
            for effort in EFFORTS:
                start = time.perf_counter()
                DMLIV(neural(effort=effort), random_state=repeat).fit(data.Y, data.T, Z=data.Z, X=data.X)
                spent = time.perf_counter() - start
                fit_ratios[effort][n_rows].append(plain_budget(n_rows, plain) / spent)
    result = {
        "repeats": arguments.repeats,
        "threads": 1,
        "torch": torch.__version__.split("+")[0],
        "step_ratio": step_ratios,
        "fit_ratio": fit_ratios,
    }
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(result, indent=2) + "\n")
    for name, ratios in step_ratios.items():
        print(f"per network and step, {name} model: {statistics.median(ratios):.1f} times faster {ratios}")
    for effort, by_rows in fit_ratios.items():
        for rows, ratios in by_rows.items():
            print(f"{effort} fit, {rows} rows: {statistics.median(ratios):.0f} times faster {ratios}")


if __name__ == "__main__":
    main()
