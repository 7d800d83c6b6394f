"""What is saved inside a model file: values of all kinds, every learner, and trees that are looked at."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.base import clone
from sklearn.ensemble import (
    GradientBoostingRegressor,
    HistGradientBoostingRegressor,
    RandomForestRegressor,
)
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, PolynomialFeatures, SplineTransformer, StandardScaler
from sklearn.tree import DecisionTreeRegressor

from dmliv import CEDMLIV, DFIV, DMLIV, DeepGMM, DeepIV, IVData, KernelIV, TwoStageLeastSquares
from dmliv.data.savable import SAVED
from dmliv.errors import InputError
from dmliv.estimators.base import CounterfactualEstimator
from dmliv.first_stage.distributions import MixtureDistribution
from dmliv.first_stage.regressors import RegressorAction, RegressorOutcome
from dmliv.learners import (
    ImageColumns,
    Learners,
    boosting,
    forest,
    kernel,
    neural,
    paper_boosting,
    paper_forest,
    paper_neural,
)
from dmliv.nets.settings import NetworkSettings
from dmliv.persistence.codec import Decoder, Encoder
from dmliv.persistence.model_files import ESTIMATORS, FORMER_CLASSES, from_bytes, to_bytes
from dmliv.persistence.sklearn_models import check_trees, dump_learner, load_learners
from dmliv.second_stage.boosting import ProjectedBoosting
from dmliv.second_stage.regressor import RegressorStructural

RNG = np.random.default_rng(0)
X, Z, HIDDEN = RNG.standard_normal((60, 2)), RNG.standard_normal(60), RNG.standard_normal(60)
T = Z + 0.5 * X[:, 0] + HIDDEN
Y = 2.0 * T + X[:, 1] + HIDDEN


def round_trip(value: Any) -> Any:
    encoder = Encoder()
    node = json.loads(json.dumps(encoder.encode(value, "value"), allow_nan=False))
    return Decoder(encoder.arrays, [each for _, each in encoder.learners], encoder.objects, None).decode(node)


def identical(left: Any, right: Any) -> bool:
    if type(left) is not type(right):
        return False
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(identical, left, right))
    if isinstance(left, dict):
        return identical(list(left.items()), list(right.items()))
    if isinstance(left, float):
        return repr(left) == repr(right)
    return bool(left == right)


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
KEYS = st.text() | st.integers() | st.tuples(st.integers(), st.text())


@settings(max_examples=50, deadline=None)
@given(
    st.recursive(
        SCALARS,
        lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(KEYS, inner),
        max_leaves=12,
    )
)
def test_plain_values_come_back_as_they_were(value: Any) -> None:
    assert identical(round_trip(value), value)


NUMBERS = (
    hnp.boolean_dtypes()
    | hnp.integer_dtypes()
    | hnp.unsigned_integer_dtypes()
    | hnp.floating_dtypes(sizes=(16, 32, 64))
)


@settings(max_examples=100, deadline=None)
@given(hnp.arrays(NUMBERS, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)), st.booleans())
def test_arrays_keep_type_shape_and_layout(array: npt.NDArray[Any], transposed: bool) -> None:
    array = array.T if transposed else array
    found = round_trip(array)
    assert found.dtype == array.dtype.newbyteorder("=")
    assert found.shape == array.shape
    assert found.flags.writeable
    np.testing.assert_array_equal(found, array)
    assert (found.flags.c_contiguous, found.flags.f_contiguous) == (
        array.flags.c_contiguous,
        array.flags.f_contiguous,
    )


@pytest.mark.parametrize("step", [2, 25, -1, -3])
def test_columns_of_a_matrix_keep_their_distance(step: int) -> None:
    column = np.arange(100.0)[::step]
    found = round_trip(column)
    np.testing.assert_array_equal(found, column)
    assert found.strides == column.strides


def test_tensors_devices_and_generators() -> None:
    weights = torch.arange(6, dtype=torch.float64).reshape(2, 3).T
    found = round_trip(weights)
    assert torch.equal(found, weights)
    assert (found.dtype, found.stride(), found.device) == (weights.dtype, weights.stride(), weights.device)
    assert round_trip(torch.device("cpu")) == torch.device("cpu")
    assert isinstance(round_trip(np.float32(0.1)), np.float32)
    generator = np.random.RandomState(7)
    generator.standard_normal(3)
    # The copy goes on where the original stands.
    np.testing.assert_array_equal(round_trip(generator).standard_normal(4), generator.standard_normal(4))


def test_what_is_shared_stays_shared() -> None:
    array, rows = np.arange(3.0), torch.zeros(2, 1)
    distribution = MixtureDistribution(rows, rows, rows)
    first, second, distributions = round_trip([array, (array,), [distribution, distribution]])
    assert first is second[0]
    assert distributions[0] is distributions[1]
    assert distributions[0].means is distributions[0].weights


@pytest.mark.parametrize(
    "value",
    [
        print,
        lambda x: x,
        object(),
        {1, 2},
        1j,
        b"x",
        np.array(["a"]),
        np.array([None]),
        np.ma.array([1.0]),
        int,
    ],
    ids=lambda value: type(value).__name__,
)
def test_other_values_are_refused(value: Any) -> None:
    with pytest.raises(InputError, match=r"in here\[0\]\.\[1\]|in here\[0\]\[1\]"):
        Encoder().encode([[0, value]], "here")


def small(value: Any) -> Any:
    """Return learners with fewer epochs in every network: what is saved does not depend on the budget."""
    if isinstance(value, NetworkSettings):
        return replace(value, epochs=2)
    if not is_dataclass(value) or isinstance(value, type):
        return value
    changed = {each.name: small(getattr(value, each.name)) for each in fields(value)}
    return replace(value, **changed)


def few(learners: Learners) -> Learners:
    """The same for trees."""

    def fewer(model: Any) -> Any:
        names = set(model.get_params()) & {"n_estimators", "max_iter"}
        return clone(model).set_params(**dict.fromkeys(names, 2))

    outcome: Any = learners.outcome
    action: Any = learners.action
    structural: Any = learners.structural
    return Learners(
        RegressorOutcome(fewer(outcome.regressor)),
        RegressorAction(fewer(action.regressor), 2, fewer(action.classifier)),
        RegressorStructural(fewer(structural.regressor)),
    )


PIXELS = RNG.random((60, 18 * 18))
GRADIENTS, CONVOLUTIONS = (
    ImageColumns(18, 18, first=0, features="gradients"),
    ImageColumns(18, 18, first=0, features="convolution"),
)
LINEAR = RegressorOutcome(LinearRegression()), RegressorAction(LinearRegression(), 2)
POLYNOMIAL = make_pipeline(StandardScaler(), PolynomialFeatures(2), Ridge())

FITS: dict[str, tuple[CounterfactualEstimator, Any]] = {
    "neural": (DMLIV(small(neural()), n_folds=2, random_state=0), X),
    "networks without a pilot": (DMLIV(small(neural()), n_folds=2, pilot=None, random_state=0), X),
    "kernel": (CEDMLIV(small(kernel()), random_state=0), X),
    "paper": (DeepIV(small(paper_neural()), random_state=0), X),
    "boosting": (DMLIV(few(boosting()), n_folds=2, random_state=0), X),
    "forest": (DMLIV(few(forest()), n_folds=2, random_state=0), X),
    "paper boosting": (DMLIV(few(paper_boosting()), n_folds=2, random_state=0), X),
    "paper forest": (DMLIV(few(paper_forest()), n_folds=2, random_state=0), X),
    "projected boosting": (CEDMLIV(Learners(*LINEAR, ProjectedBoosting(n_rounds=3)), random_state=0), X),
    "pipeline": (CEDMLIV(Learners(*LINEAR, RegressorStructural(POLYNOMIAL)), random_state=0), X),
    "images": (CEDMLIV(small(neural(image=GRADIENTS)), random_state=0), PIXELS),
    "convolutions": (DeepIV(small(paper_neural("image", CONVOLUTIONS)), random_state=0), PIXELS),
    "DFIV": (DFIV(n_epochs=1, steps=(1, 1, 1), random_state=0), X),
    "DFIV with convolutions": (
        DFIV(CONVOLUTIONS, n_fits=1, n_epochs=1, steps=(1, 1, 1), action_layers=(4, 1), random_state=0),
        PIXELS,
    ),
    "DeepGMM": (DeepGMM(epochs=6, random_state=0), X),
    "KernelIV": (KernelIV(random_state=0), X),
    "KernelIV with images": (KernelIV(image=GRADIENTS, random_state=0), PIXELS),
    "KernelIV as published": (KernelIV("exact", bandwidth="product", random_state=0), X),
    "KernelIV with random features": (KernelIV("random", bandwidth="joint", random_state=0), X),
    "splines": (TwoStageLeastSquares(2, n_knots=2, interactions=True, covariance="robust"), X),
    "a generator as seed": (
        DeepIV(Learners(*LINEAR, RegressorStructural(Ridge())), random_state=np.random.RandomState(1)),
        X,
    ),
}


@pytest.mark.parametrize("name", FITS)
def test_every_learner_comes_back(name: str) -> None:
    """If this fails with "classes that model files know", decorate the class with savable."""
    template, context = FITS[name]
    estimator: Any = clone(template)
    estimator.fit(Y, T, Z=Z, X=context)
    loaded = from_bytes(to_bytes(estimator), "'x'")
    np.testing.assert_array_equal(loaded.predict(T, context), estimator.predict(T, context))
    slopes = estimator.marginal_effect(T, context)
    np.testing.assert_array_equal(loaded.marginal_effect(T, context), slopes)
    before, after = (each.policy(np.linspace(-1, 1, 7)).decide(context) for each in (estimator, loaded))
    np.testing.assert_array_equal(after.value, before.value)
    assert repr(loaded.get_params()) == repr(estimator.get_params()) or name == "a generator as seed"


def test_loading_knows_every_class_that_can_be_saved() -> None:
    """A process that only imports the package must know as many classes as one that imports all of it."""
    code = """
import importlib, pkgutil
import dmliv
from dmliv.data.savable import SAVED
known = set(SAVED)
for module in pkgutil.walk_packages(dmliv.__path__, "dmliv."):
    importlib.import_module(module.name)
assert not set(SAVED) - known, sorted(set(SAVED) - known)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_names_that_files_know_are_unique() -> None:
    names = [name for saving in SAVED.values() for name in (saving.cls.__name__, *saving.formerly)]
    assert len(names) == len(set(names))
    assert not set(names) & (set(ESTIMATORS) | FORMER_CLASSES)


def test_every_estimator_can_be_saved() -> None:
    import dmliv  # noqa: PLC0415

    public = {
        name
        for name in dmliv.__all__
        if isinstance(getattr(dmliv, name), type)
        and issubclass(getattr(dmliv, name), CounterfactualEstimator)
    }
    assert set(ESTIMATORS) == public


def test_splits_that_only_chose_settings_are_left_out() -> None:
    estimator = clone(FITS["neural"][0]).set_params(pilot=None).fit(Y, T, Z=Z, X=X)
    assert len(estimator.first_stage_.splits) == 2
    loaded: Any = from_bytes(to_bytes(estimator), "'x'")
    assert loaded.first_stage_.splits == ()


def _damage_forest(tree: Any, **changes: Any) -> Any:
    state = tree.__getstate__()
    nodes = state["nodes"].copy()
    for name, value in changes.items():
        if name in nodes.dtype.names:
            nodes[name][0] = value
        else:
            state[name] = value
    damaged = type(tree)(tree.n_features, np.array([1], dtype=np.intp), 1)
    damaged.__setstate__(state | {"nodes": nodes})
    return damaged


@pytest.mark.parametrize(
    "changes",
    [
        {"left_child": 10**6},
        {"right_child": 10**6},
        {"left_child": 0},
        {"feature": 99},
        {"feature": -9},
        {"node_count": 1},
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "make",
    [
        DecisionTreeRegressor,
        lambda: RandomForestRegressor(2),
        lambda: GradientBoostingRegressor(n_estimators=2),
    ],
)
def test_trees_that_point_outside_are_refused(make: Callable[[], Any], changes: dict[str, Any]) -> None:
    model = make().fit(X, Y)
    check_trees(model)
    first = model if isinstance(model, DecisionTreeRegressor) else np.ravel(model.estimators_)[0]
    first.tree_ = _damage_forest(first.tree_, **changes)
    with pytest.raises(ValueError, match="a tree "):
        check_trees(model)


@pytest.mark.parametrize(
    "changes",
    [{"left": 10**6}, {"right": 0}, {"feature_idx": 99}, {"feature_idx": -1}, {"is_categorical": 1}],
    ids=str,
)
def test_boosted_trees_that_point_outside_are_refused(changes: dict[str, int]) -> None:
    model = HistGradientBoostingRegressor(max_iter=2, min_samples_leaf=5).fit(X, Y)
    # A damaged file that skops itself would load: its types are right.
    for name, value in changes.items():
        model._predictors[1][0].nodes[name][0] = value
    if "is_categorical" in changes:
        model._bin_mapper.is_categorical_ = np.zeros(2, dtype=np.uint8)
    content = dump_learner("here", model)
    with pytest.raises(ValueError, match="tree"):
        load_learners(content, "'x'")


def test_boosting_of_another_shape_is_refused() -> None:
    model = GradientBoostingRegressor(n_estimators=4).fit(X, Y)
    model.estimators_ = model.estimators_.reshape(2, 2)
    with pytest.raises(ValueError, match="boosted trees of another shape"):
        check_trees(model)


def test_types_that_are_not_trusted_are_refused() -> None:
    import skops.io  # noqa: PLC0415

    strange = FunctionTransformer(test_types_that_are_not_trusted_are_refused)
    with pytest.raises(InputError, match="that can be saved in parameter learners"):
        dump_learner("parameter learners", strange)
    with pytest.raises(InputError, match="BSpline"):
        dump_learner("h", make_pipeline(SplineTransformer(), Ridge()).fit(X, Y))
    with pytest.raises(TypeError, match="Untrusted types"):
        load_learners(skops.io.dumps([strange]), "'x'")
    for foreign in ([1, 2], 3):
        with pytest.raises(ValueError, match="something else than estimators"):
            load_learners(skops.io.dumps(foreign), "'x'")


def test_a_class_of_the_package_that_cannot_be_saved_says_what_to_do() -> None:
    with pytest.raises(InputError, match=r"got dmliv\.data\.roles\.IVData in here; decorate"):
        Encoder().encode(IVData(Y, T, Z), "here")


def test_infinity_is_plain_json() -> None:
    encoder = Encoder()
    assert encoder.encode([math.inf, math.nan], "x") == [{"float": "inf"}, {"float": "nan"}]
