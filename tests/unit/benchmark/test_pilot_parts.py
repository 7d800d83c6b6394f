"""The comparison of the pilot's parts: every part can be taken out, and is back afterwards."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dmliv.benchmark.store import Record, RecordStore
from dmliv.benchmark.summary import arrange
from dmliv.benchmark.trials import plan
from dmliv.data import prepare
from dmliv.first_stage.distributions import MixtureDistribution
from dmliv.kernels.process import ProcessSettings
from dmliv.parallel.runtime import Runtime
from dmliv.progress import SilentProgress

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def script() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        yield importlib.import_module("pilot_parts")


@pytest.fixture(scope="module")
def fit() -> Callable[[Any], Any]:
    rng = np.random.default_rng(0)
    x, z, hidden, noise = rng.standard_normal((4, 200))
    action = z + 0.5 * x + hidden
    outcome = np.sin(action) - 2.0 * hidden + x + 0.3 * noise
    data = prepare(outcome, action, Z=z, X=x)
    mean = torch.from_numpy((z + 0.5 * x).reshape(200, 1, 1) / data.action_spec.scale[0]).float()
    distribution = MixtureDistribution(torch.ones(200, 1), mean, torch.ones(200, 1, 1, 1))
    runtime = Runtime(torch.device("cpu"), SilentProgress(), 1)

    def run(learner: Any) -> Any:
        return learner.fit(data, distribution, np.arange(200) % 4, seed=0, runtime=runtime)

    return run


def test_every_part_changes_the_pilot_and_comes_back(script: Any, fit: Callable[[Any], Any]) -> None:
    small = ProcessSettings(40, 100, 20)
    before = fit(script.ControlFunction(small)).values
    changed = 0
    for part in script.PARTS:
        changed += not np.allclose(fit(script.Without(small, part=part)).values, before, atol=1e-9)
    # Some parts have nothing to do on these few and even rows: ranks, say.
    assert changed >= len(script.PARTS) - 4
    np.testing.assert_array_equal(fit(script.ControlFunction(small)).values, before)


def test_answers_of_pilots_that_always_or_never_stand(script: Any, fit: Callable[[Any], Any]) -> None:
    small = ProcessSettings(40, 100, 20)
    never, always = (fit(script.Standing(small, stands=stands)) for stands in (True, False))
    assert max(never.evidence_against(None, None, seed=0).values()) == -np.inf
    assert always.evidence_against(None, None, seed=0) == {}


def test_trials_differ_and_seeds_were_not_looked_at(script: Any) -> None:
    trials = plan(script.parts_grid())
    assert len({trial.digest for trial in trials}) == len(trials)
    assert {trial.seed for trial in trials} <= set(range(60, 80))


def test_page(script: Any, made_up: Callable[..., list[Record]]) -> None:
    text = script.page(arrange(script.parts_grid(), made_up(script.parts_grid())))
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    assert len(lines) == 1 + len(script.methods())
    assert "| no ranks |" in text


def test_the_committed_page_is_that_of_the_records(script: Any) -> None:
    results = ROOT / "docs" / "results"
    assert RecordStore(results / script.RECORDS).read()
    assert script.render(results) == (results / script.PAGE).read_text()
