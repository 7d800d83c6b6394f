"""Bootstrap replicates: what is resampled, what stays, and what no model may see."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from joblib import parallel_config
from sklearn.linear_model import LinearRegression
from sklearn.utils import check_random_state

from dmliv import CEDMLIV, DMLIV, DeepIV, load
from dmliv.data import TrainingData
from dmliv.estimators.two_stage import TwoStageIV
from dmliv.first_stage.networks import NeuralAction, NeuralOutcome
from dmliv.first_stage.resampling import Resample, cross_fit_again
from dmliv.inference import Bootstrap
from dmliv.inference.bootstrap import ReplicateUncertainty, TwoStageFit
from dmliv.learners import Learners
from dmliv.nets.settings import NetworkSettings
from dmliv.parallel.runtime import Runtime
from dmliv.progress import SilentProgress
from dmliv.second_stage.kernel import KernelStructural
from dmliv.second_stage.network import NeuralStructural
from dmliv.second_stage.structural import StructuralLearner, StructuralModel

N = 160
RUNTIME = Runtime(torch.device("cpu"), SilentProgress(), 1)
SMALL = NetworkSettings(hidden=(16, 8), epochs=6, batch_size=23, dropout=0.2, learning_rate=1e-2)
STRAIGHT = replace(SMALL, dropout=0.0)
NETWORKS = NeuralStructural(STRAIGHT, n_members=2)
KERNEL = KernelStructural(n_landmarks=30, n_search_rows=100)


def small(structural: StructuralLearner, settings: NetworkSettings = SMALL) -> Learners:
    return Learners(NeuralOutcome(settings), NeuralAction(settings, n_components=2), structural)


def choosing() -> Learners:
    """Learners that choose everything there is to choose."""
    first = replace(SMALL, encodings=("standardised", "piecewise"), rate_factors=(1.0, 2.0))
    second = replace(STRAIGHT, encodings=("standardised", "piecewise"))
    return small(replace(NETWORKS, settings=second), first)


def rows(n: int = N, seed: int = 0, discrete: bool = False) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    X, Z, hidden = rng.uniform(-1, 1, (n, 2)), rng.standard_normal((n, 1)), rng.standard_normal(n)
    T = Z[:, 0] + X[:, 0] + 0.5 * hidden
    Y = np.sin(T) + X[:, 1] + hidden
    return {"Y": Y, "T": np.where(T > 0, "on", "off") if discrete else T, "Z": Z, "X": X}


def fitted_to(est: TwoStageIV, cluster: Any = None) -> TwoStageFit:
    """Return what a fitted estimator hands to the bootstrap."""
    assert est._training is not None
    assert est.learners is not None
    learners = est.learners
    outcome = learners.outcome if est._target == "orthogonal" else None
    stages = (learners.action, learners.structural, est.first_stage_, est.structural_model_)
    return TwoStageFit(est._training[0], outcome, *stages, cluster)


def values(models: Sequence[StructuralModel], data: TrainingData) -> np.ndarray:
    spec = data.action_spec
    action = np.eye(spec.width)[data.action.astype(int)] if spec.kind == "discrete" else data.action
    return np.column_stack([model.predict(data.context, action) for model in models])


def inner_seed(random_state: int) -> int:
    return int(check_random_state(random_state).randint(2**31 - 1))


class TestIdentities:
    @pytest.mark.parametrize(
        "learners",
        [
            small(NETWORKS),
            small(replace(NETWORKS, settings=replace(STRAIGHT, patience=2)), replace(SMALL, patience=2)),
        ],
        ids=["networks", "early stopping"],
    )
    @pytest.mark.parametrize("weighted", [False, True])
    def test_every_row_once_is_the_fit_itself(self, learners: Learners, weighted: bool) -> None:
        weight = np.random.default_rng(1).exponential(size=N) if weighted else None
        cluster = np.arange(N) // 2 if weighted else None
        est = DMLIV(learners, n_folds=3, pilot=None, random_state=0)
        est.fit(**rows(), sample_weight=weight, cluster=cluster)
        fitted = fitted_to(est, cluster)
        whole = Resample.whole(N, cluster, 3, inner_seed(0))
        other = fitted.resample(7)
        again = fitted.fit_resamples([other, whole], RUNTIME)
        found = values([est.structural_model_, *again], fitted.data)
        np.testing.assert_allclose(found[:, 2], found[:, 0], atol=2e-4)
        assert np.abs(found[:, 1] - found[:, 0]).max() > 0.01

    def test_a_kernel_of_every_row_once_is_the_fit_itself(self) -> None:
        est = CEDMLIV(small(KERNEL), pilot=None, random_state=0).fit(**rows())
        fitted = fitted_to(est)
        (again,) = fitted.fit_resamples([Resample.whole(N, None, 1, inner_seed(0))], RUNTIME)
        found = values([est.structural_model_, again], fitted.data)
        np.testing.assert_allclose(found[:, 1], found[:, 0], atol=2e-4)

    @pytest.mark.parametrize(
        ("estimator", "discrete"),
        [
            (DMLIV(choosing(), n_folds=3, pilot=None, random_state=0), False),
            (DMLIV(choosing(), n_folds=2, pilot=None, random_state=0), True),
            (DeepIV(choosing(), pilot=None, random_state=0), False),
        ],
        ids=["DMLIV", "discrete", "DeepIV"],
    )
    def test_a_replicate_is_the_same_alone_and_among_others(
        self, estimator: TwoStageIV, discrete: bool
    ) -> None:
        fitted = fitted_to(estimator.fit(**rows(discrete=discrete)))
        assert fitted.stacks
        resamples = [fitted.resample(seed) for seed in range(3)]
        together = values(fitted.fit_resamples(resamples, RUNTIME), fitted.data)
        alone = values(fitted.fit_resamples(resamples[1:2], RUNTIME), fitted.data)
        np.testing.assert_allclose(together[:, 1], alone[:, 0], atol=2e-4)
        assert np.abs(together[:, 1] - together[:, 0]).max() > 0.01

    @pytest.mark.parametrize("learners", [choosing(), small(KERNEL)], ids=["networks", "kernel"])
    def test_choices_are_those_of_the_fit(self, learners: Learners) -> None:
        est = DMLIV(learners, n_folds=3, pilot=None, random_state=0).fit(**rows(), inference=Bootstrap(2))
        whole, uncertainty = est.structural_model_, est.counterfactual_.uncertainty
        assert isinstance(uncertainty, ReplicateUncertainty)
        kept = ("encoding", "variance_weight", "penalty")
        for replicate in uncertainty.models:
            told, expected = replicate.describe(), whole.describe()
            assert [told.get(key) for key in kept] == [expected.get(key) for key in kept]

    def test_weights_of_rows_leave_an_exact_line_as_it_is(self) -> None:
        """Replicates speak in the units of the fit, though their own mean and scale differ."""
        line = LinearRegression()
        data = rows()
        data |= {"T": 2.0 * data["Z"][:, 0] + 1.0}
        data |= {"Y": 3.0 * data["T"] + data["X"][:, 0]}
        est = DMLIV(Learners(line, line, line), n_folds=2, pilot=None, random_state=0)
        est.fit(**data, inference=Bootstrap(4))
        assert not fitted_to(est).stacks
        for bound in est.predict_interval(data["T"], data["X"]):
            np.testing.assert_allclose(bound, data["Y"], atol=1e-6)


class TestNoLeaks:
    @pytest.mark.parametrize("patience", [None, 2])
    def test_predictions_of_a_fold_never_saw_its_rows(self, patience: int | None) -> None:
        """Outcomes and actions of a fold's rows are spoiled: their own predictions may not move."""
        est = DMLIV(small(NETWORKS, replace(SMALL, patience=patience)), n_folds=3, pilot=None, random_state=0)
        fitted = fitted_to(est.fit(**rows()))
        resamples = [fitted.resample(seed) for seed in (1, 2)]
        inside = resamples[0].fold == 1
        assert resamples[0].counts[inside].max() > 1
        spoiled = replace(
            fitted.data,
            outcome=np.where(inside, 30.0, fitted.data.outcome),
            action=np.where(inside[:, None], -30.0, fitted.data.action),
        )
        first, second = (
            cross_fit_again(
                data, fitted.outcome, fitted.action, fitted.first_stage, resamples, runtime=RUNTIME
            )[0]
            for data in (fitted.data, spoiled)
        )
        means = [each.distribution.mean()[:, 0].numpy() for each in (first, second)]
        np.testing.assert_allclose(first.target[inside], second.target[inside], atol=1e-4)
        np.testing.assert_allclose(means[0][inside], means[1][inside], atol=1e-4)
        # The models of the other rows saw the spoiled ones.
        assert np.median(np.abs(first.target - second.target)[~inside]) > 0.1
        assert np.median(np.abs(means[0] - means[1])[~inside]) > 0.1

    def test_rows_that_were_not_drawn_are_not_learned_from(self) -> None:
        fitted = fitted_to(DMLIV(small(NETWORKS), n_folds=3, pilot=None, random_state=0).fit(**rows()))
        resample = fitted.resample(1)
        left_out = resample.counts == 0
        assert 0.25 < left_out.mean() < 0.5
        spoiled = replace(
            fitted,
            data=replace(fitted.data, outcome=np.where(left_out, 30.0, fitted.data.outcome)),
        )
        found = [each.fit_resamples([resample], RUNTIME)[0] for each in (fitted, spoiled)]
        both = values(found, fitted.data)
        np.testing.assert_allclose(both[:, 0], both[:, 1], atol=1e-6)


class TestResamples:
    def test_rows_are_drawn_with_replacement(self) -> None:
        resamples = [Resample.draw(np.ones(1000), None, 4, seed) for seed in range(20)]
        for resample in resamples:
            assert resample.counts.sum() == 1000
            assert np.bincount(resample.fold).tolist() == [250] * 4
        # Copies follow the Poisson distribution with mean one; folds differ from replicate to replicate.
        assert np.mean([each.counts.var() for each in resamples]) == pytest.approx(1.0, abs=0.05)
        assert len({each.fold.tobytes() for each in resamples}) == 20
        again = Resample.draw(np.ones(1000), None, 4, 3)
        np.testing.assert_array_equal(again.counts, resamples[3].counts)

    def test_clusters_are_drawn_and_folded_whole(self) -> None:
        cluster = np.random.default_rng(0).integers(0, 30, 300)
        resample = Resample.draw(np.ones(300), cluster, 3, 0)
        for label in range(30):
            assert len(set(resample.counts[cluster == label])) == 1
            assert len(set(resample.fold[cluster == label])) == 1
        per_cluster = [resample.counts[cluster == label][0] for label in range(30)]
        assert sum(per_cluster) == 30

    def test_rows_of_weight_zero_neither_count_nor_crowd_out_others(self) -> None:
        weight = (np.arange(200) < 50).astype(float)
        resample = Resample.draw(weight, None, 4, 0)
        assert resample.counts[:50].sum() == 50
        assert set(resample.counts[50:]) == {1}

    @pytest.mark.parametrize("n_folds", [1, 2])
    def test_few_clusters_leave_every_fold_rows_to_learn_from(self, n_folds: int) -> None:
        cluster = np.arange(40) // 10
        for seed in range(50):
            resample = Resample.draw(np.ones(40), cluster, n_folds, seed)
            for member in resample.plan():
                assert resample.counts[member.fit_rows].sum() > 1

    def test_all_weight_in_one_fold_still_ends(self) -> None:
        weight = np.zeros(10)
        weight[0] = 10.0
        assert Resample.draw(weight, None, 2, 0).counts.tolist() == [1] * 10


class TestIntervals:
    def test_same_seed_same_intervals_also_after_loading(self, tmp_path: Any) -> None:
        data = rows()
        bounds = []
        for seed in (0, 0, 1):
            est = DMLIV(small(NETWORKS), n_folds=2, pilot=None, random_state=seed)
            est.fit(**data, inference=Bootstrap(5))
            bounds.append(est.ate_interval(data["X"]))
        assert bounds[0] == bounds[1] != bounds[2]
        est.save(tmp_path / "m.dmliv")
        assert load(tmp_path / "m.dmliv").ate_interval(data["X"]) == bounds[2]

    def test_jobs_share_stacks_and_change_no_number(self) -> None:
        data, bounds = rows(60), []
        learners = small(NeuralStructural(replace(STRAIGHT, epochs=1)), replace(SMALL, epochs=1))
        for n_jobs in (1, 2):
            est = DMLIV(learners, n_folds=20, pilot=None, random_state=0, n_jobs=n_jobs)
            with parallel_config(backend="threading"):
                est.fit(**data, inference=Bootstrap(6))
            assert fitted_to(est).stack_size == 5
            bounds.append(est.ate_interval(data["X"]))
        assert bounds[0] == bounds[1]

    def test_a_fit_can_be_sent_to_a_worker(self) -> None:
        fitted = fitted_to(DMLIV(small(NETWORKS), n_folds=2, pilot=None, random_state=0).fit(**rows()))
        sent = pickle.loads(pickle.dumps(fitted))
        found = [each.fit_resamples([each.resample(0)], RUNTIME)[0] for each in (fitted, sent)]
        both = values(found, fitted.data)
        np.testing.assert_array_equal(both[:, 0], both[:, 1])

    def test_asking_leaves_the_model_as_it_is(self) -> None:
        data = rows()
        found = [
            DMLIV(small(NETWORKS), n_folds=2, pilot=None, random_state=0)
            .fit(**data, inference=inference)
            .predict(data["T"], data["X"])
            for inference in (None, Bootstrap(2))
        ]
        np.testing.assert_array_equal(found[0], found[1])

    def test_controls_and_clusters(self) -> None:
        data = rows()
        data |= {"X": data["X"][:, :1], "W": data["X"][:, 1:]}
        est = DMLIV(small(NETWORKS), n_folds=2, pilot=None, random_state=0)
        est.fit(**data, cluster=np.arange(N) // 4, inference=Bootstrap(6))
        lower, upper = est.ate_interval(data["X"])
        assert lower < upper
