"""Every estimator comes back from its file as it was: the same numbers, to the last bit."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

import dmliv
from dmliv.errors import InputError, NotFittedError

# Answers questions about files in another process, one for all: starting one takes longer than any answer.
_ANSWER = """
import sys
from pathlib import Path
import numpy as np
import dmliv

def answer(folder):
    data, estimator = np.load(folder / "data.npz"), dmliv.load(folder / "model.dmliv")
    np.savez(
        folder / "answers.npz",
        predict=estimator.predict(data["T"], data["X"]),
        effect=estimator.effect(data["X"], T0=-0.5, T1=1.0),
        slope=estimator.marginal_effect(data["T"], data["X"]),
        policy=estimator.policy(data["candidates"]).predict(data["X"]),
    )

for line in sys.stdin:
    try:
        answer(Path(line.strip()))
    except Exception as error:
        print(repr(error), flush=True)
    else:
        print("done", flush=True)
"""


@pytest.fixture(scope="module")
def other_process() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", _ANSWER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process


def reload(estimator: Any, folder: Path) -> Any:
    estimator.save(folder / "model.dmliv")
    return dmliv.load(folder / "model.dmliv")


def test_answers_are_the_same(method: Any, case: Any, tmp_path: Path) -> None:
    estimator = method.fitted(case)
    loaded = reload(estimator, tmp_path)
    assert type(loaded) is type(estimator)
    np.testing.assert_array_equal(loaded.predict(case.T, case.X), estimator.predict(case.T, case.X))
    for X in (case.X, case.some_X(1)):
        expected = estimator.effect(X, T0=case.T0, T1=case.T1)
        np.testing.assert_array_equal(loaded.effect(X, T0=case.T0, T1=case.T1), expected)
        before, after = (each.policy(case.candidates).decide(X) for each in (estimator, loaded))
        np.testing.assert_array_equal(after.action, before.action)
        np.testing.assert_array_equal(after.value, before.value)
    if not case.discrete:
        slopes = estimator.marginal_effect(case.T, case.X)
        np.testing.assert_array_equal(loaded.marginal_effect(case.T, case.X), slopes)
    if method.scores:
        arguments = {"Z": case.Z, "X": case.X}
        assert loaded.score(case.Y, **arguments) == estimator.score(case.Y, **arguments)


def test_support_of_actions_is_the_same(method: Any, case: Any, tmp_path: Path) -> None:
    estimator = method.fitted(case)
    loaded = reload(estimator, tmp_path)
    if not method.scores:
        with pytest.raises(InputError, match="Expected an estimator with an action distribution"):
            loaded.policy(case.candidates, min_support=0.05)
        return
    X = case.some_X(20)
    before, after = (each.policy(case.candidates, min_support=0.05).decide(X) for each in (estimator, loaded))
    np.testing.assert_array_equal(after.action, before.action)
    np.testing.assert_array_equal(after.support, before.support)


def test_parameters_and_records_are_the_same(method: Any, plain: Any, tmp_path: Path) -> None:
    estimator = method.fitted(plain)
    loaded = reload(estimator, tmp_path)
    assert repr(loaded.get_params()) == repr(estimator.get_params())
    assert repr(clone(loaded).get_params()) == repr(clone(estimator).get_params())
    assert set(vars(loaded)) == set(vars(estimator)) - estimator._unsaved
    assert loaded.structural_model_ is loaded.counterfactual_.model
    assert repr(loaded.structural_model_.describe()) == repr(estimator.structural_model_.describe())
    if method.scores:
        assert loaded.nuisance_losses_ == estimator.nuisance_losses_
        np.testing.assert_array_equal(loaded.first_stage_.target, estimator.first_stage_.target)
        described = estimator.first_stage_.action_model.describe()
        assert repr(loaded.first_stage_.action_model.describe()) == repr(described)


def test_a_loaded_estimator_can_be_saved_and_fitted_again(method: Any, plain: Any, tmp_path: Path) -> None:
    estimator = method.fitted(plain)
    again = reload(reload(estimator, tmp_path), tmp_path)
    expected = estimator.predict(plain.T, plain.X)
    np.testing.assert_array_equal(again.predict(plain.T, plain.X), expected)
    np.testing.assert_array_equal(again.fit(**plain.roles).predict(plain.T, plain.X), expected)


def test_saving_changes_nothing(method: Any, plain: Any, tmp_path: Path) -> None:
    estimator = method.fitted(plain)
    state = dict(vars(estimator))
    expected = estimator.predict(plain.T, plain.X)
    estimator.save(tmp_path / "model.dmliv")
    assert all(vars(estimator)[name] is value for name, value in state.items())
    np.testing.assert_array_equal(estimator.predict(plain.T, plain.X), expected)


def test_only_what_was_fitted_can_be_saved(method: Any, tmp_path: Path) -> None:
    with pytest.raises(NotFittedError):
        method.make().save(tmp_path / "model.dmliv")
    assert not list(tmp_path.iterdir())


def test_answers_are_the_same_in_another_process(
    method: Any, plain: Any, other_process: Any, tmp_path: Path
) -> None:
    estimator = method.fitted(plain)
    estimator.save(tmp_path / "model.dmliv")
    np.savez(tmp_path / "data", T=plain.T, X=plain.X, candidates=plain.candidates)
    other_process.stdin.write(f"{tmp_path}\n")
    other_process.stdin.flush()
    assert other_process.stdout.readline() == "done\n"
    answers = np.load(tmp_path / "answers.npz")
    np.testing.assert_array_equal(answers["predict"], estimator.predict(plain.T, plain.X))
    np.testing.assert_array_equal(answers["effect"], estimator.effect(plain.X, T0=-0.5, T1=1.0))
    np.testing.assert_array_equal(answers["slope"], estimator.marginal_effect(plain.T, plain.X))
    policy = estimator.policy(plain.candidates).predict(plain.X)
    np.testing.assert_array_equal(answers["policy"], policy)
