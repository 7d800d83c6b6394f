"""Descriptions are read off the objects, and digests follow them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from sklearn.ensemble import RandomForestRegressor

from dmliv import CEDMLIV, DMLIV, DeepIV
from dmliv.benchmark.describe import ADDED, canonical, describe, digest
from dmliv.benchmark.grids import GRID_NAMES, grid
from dmliv.benchmark.oracle import Oracle, Regression
from dmliv.benchmark.trials import Cell, Method, Trial, build_trial
from dmliv.errors import InputError
from dmliv.learners import Learners, boosting, neural
from dmliv.nets.settings import NetworkSettings
from dmliv.problems import IHDP
from dmliv.second_stage.kernel import KernelStructural
from dmliv.second_stage.network import NeuralStructural


@dataclass(frozen=True)
class Pair:
    first: object
    second: object = 2


def test_a_description_names_type_and_parameters() -> None:
    assert describe(Pair(1.5)) == {"type": "Pair", "first": 1.5, "second": 2}
    described = describe(RandomForestRegressor(n_estimators=7))
    assert isinstance(described, dict)
    assert (described["type"], described["n_estimators"]) == ("RandomForestRegressor", 7)


def test_nested_objects_are_described_to_the_bottom() -> None:
    text = canonical(DMLIV(neural()))
    for part in ('"NeuralStructural"', '"DrawRule"', '"ByRows"', '"n_folds":10', '"encodings"'):
        assert part in text


def test_numbers_of_numpy_and_python_are_the_same() -> None:
    assert canonical(Pair(np.float64(0.5), np.int64(3))) == canonical(Pair(0.5, 3))
    assert canonical((1, 2)) == canonical([1, 2])
    assert canonical(Pair(float("inf"))) != canonical(Pair(float("-inf")))


def test_arrays_differ_by_content_shape_and_type() -> None:
    base = np.arange(6.0)
    others = [base + 1.0, base.reshape(2, 3), base.astype(np.float32)]
    assert len({digest(array) for array in [base, *others]}) == 4
    assert digest(base) == digest(base.copy())


@pytest.mark.parametrize("name", ["data_dir", "verbose", "n_jobs"])
def test_what_changes_no_number_is_left_out(name: str) -> None:
    before, after = (IHDP(), IHDP(data_dir="x")) if name == "data_dir" else (DMLIV(), DMLIV(**{name: 2}))
    assert digest(before) == digest(after)


def test_an_object_without_parameters_is_refused() -> None:
    with pytest.raises(InputError, match="got a object; make it a dataclass"):
        describe(Pair(object()))


def changed_learners() -> Learners:
    preset = neural()
    settings = replace(preset.structural.settings, learning_rate=1e-3)
    return replace(preset, structural=replace(preset.structural, settings=settings))


def test_every_part_of_a_trial_changes_its_digest() -> None:
    task = grid("demand").tasks[0]
    method = Method("m", "M", lambda: DMLIV(neural()))
    base = build_trial(Cell(task, 100), method, 3)
    weaker = replace(task, problem=replace(task.problem, instrument_strength=0.5))
    others = [
        build_trial(Cell(task, 101), method, 3),
        build_trial(Cell(task, 100), method, 4),
        build_trial(Cell(weaker, 100), method, 3),
        build_trial(Cell(replace(task, n_contexts=7), 100), method, 3),
        build_trial(Cell(task, 100), Method("m", "M", lambda: DMLIV(neural(), n_folds=3)), 3),
        build_trial(Cell(task, 100), Method("m", "M", lambda: DMLIV(boosting())), 3),
        build_trial(Cell(task, 100), Method("m", "M", lambda: DMLIV(changed_learners())), 3),
    ]
    assert len({trial.digest for trial in [base, *others]}) == 8
    assert base.digest == build_trial(Cell(task, 100), replace(method, name="other"), 3).digest


def test_the_random_state_is_the_seed() -> None:
    trial = build_trial(grid("demand").cells[0], grid("demand").method("kiv"), 123)
    assert trial.estimator.get_params()["random_state"] == 123


def test_a_digest_stays_what_it_was() -> None:
    assert digest(Pair(1.5, (None, True, "a"))) == "641a28940f4a7a09"


@pytest.mark.parametrize("name", GRID_NAMES)
def test_no_method_hides_a_preset_behind_a_default(name: str) -> None:
    for method in grid(name).methods:
        if method.archived:
            continue
        described = describe(method.build())
        assert isinstance(described, dict)
        assert described.get("learners", "spelled out") is not None


def test_a_trial_names_its_keys() -> None:
    chosen = grid("weak-instrument")
    trial = build_trial(chosen.cells[1], chosen.method("2sls"), 100)
    assert isinstance(trial, Trial)
    keys = trial.keys()
    assert (keys["problem"], keys["rows"], keys["method"], keys["seed"]) == ("demand", 5000, "2sls", 100)
    assert isinstance(keys["parameters"], dict)
    assert keys["parameters"]["instrument_strength"] == 0.8


def test_a_parameter_that_came_later_and_changes_nothing_makes_no_new_trial() -> None:
    before = describe(NetworkSettings())
    assert isinstance(before, dict)
    assert "trial_share" not in before
    assert digest(NetworkSettings(trial_share=0.5)) != digest(NetworkSettings())


def test_parameters_that_came_later_exist() -> None:
    settings = {"NetworkSettings": NetworkSettings, "KernelStructural": KernelStructural}
    estimators = {each.__name__: each for each in (DMLIV, CEDMLIV, DeepIV, Regression, Oracle)}
    types: dict[str, Callable[[], Any]] = {**settings, **estimators}
    assert set(types) == set(ADDED)
    for name, parameters in ADDED.items():
        assert all(hasattr(types[name](), parameter) for parameter in parameters)


def test_a_former_parameter_with_the_value_that_is_left_makes_no_new_trial() -> None:
    learner = NeuralStructural(NetworkSettings())
    assert not hasattr(learner, "n_outcome_members")
    described = describe(learner)
    assert isinstance(described, dict)
    assert described["n_outcome_members"] == 0


def test_a_pilot_makes_a_new_trial() -> None:
    assert digest(DMLIV(neural(), pilot=None)) != digest(DMLIV(neural()))
    described = describe(DMLIV(neural(), pilot=None))
    assert isinstance(described, dict)
    assert "pilot" not in described
