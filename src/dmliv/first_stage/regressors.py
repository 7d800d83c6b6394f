"""Nuisances by any regressor or classifier that follows scikit-learn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from joblib import delayed
from sklearn.base import clone, is_classifier
from sklearn.model_selection import KFold
from sklearn.utils.validation import has_fit_parameter

from dmliv.data import TrainingData
from dmliv.data.savable import savable
from dmliv.errors import InputError
from dmliv.first_stage.distributions import ActionDistribution, CategoricalDistribution, ResidualDistribution
from dmliv.first_stage.exogenous import ExogenousEncoder
from dmliv.first_stage.nuisances import Exogenous, FloatArray, IntArray
from dmliv.parallel.runtime import Runtime
from dmliv.parallel.workers import jobs, together

# Trees and linear models see standardised columns and one-hot categories; the bins are not used.
_ENCODING = "standardised"
_UNUSED_BINS = 2


@savable
@dataclass(frozen=True)
class RegressorOutcome:
    """Outcome learner from a regressor.

    Parameters
    ----------
    regressor : scikit-learn regressor
        Cloned for every fold; never fitted itself.
    """

    regressor: Any

    def fit(
        self, data: TrainingData, row_sets: Sequence[IntArray], *, seed: int, runtime: Runtime
    ) -> RegressorOutcomeModel:
        """Fit one clone per row set, in parallel."""
        encoder, inputs = _encode(data)
        tasks = [
            delayed(_fit_rows)(
                fit_clone, self.regressor, inputs, data.outcome, data.weight, rows, seed + member
            )
            for member, rows in enumerate(row_sets)
        ]
        models = together(tasks, jobs(runtime))
        return RegressorOutcomeModel(encoder, tuple(models))


@savable
@dataclass(frozen=True)
class RegressorOutcomeModel:
    """Fitted regressors, one per row set."""

    encoder: ExogenousEncoder
    models: tuple[Any, ...]

    def predict(self, exogenous: Exogenous, row_sets: Sequence[IntArray]) -> list[FloatArray]:
        """Return the predictions of member m for its rows."""
        inputs = self.encoder.encode(exogenous, _ENCODING)
        return [predict_rows(model, inputs[rows]) for model, rows in zip(self.models, row_sets, strict=True)]

    def describe(self) -> dict[str, object]:
        """Return which regressor was used."""
        return {"regressor": repr(self.models[0])}


@savable
@dataclass(frozen=True)
class RegressorAction:
    """Action learner: a regressor for the location plus the residuals of rows it was not fitted on.

    Parameters
    ----------
    regressor : scikit-learn regressor, or classifier for a discrete action
        Cloned for every fold and action column; a classifier needs ``predict_proba``.
    n_residual_folds : int
        Folds inside the training rows from which residuals are taken; in-sample residuals are too small.
    classifier : scikit-learn classifier, optional
        Takes the place of ``regressor`` when the action is discrete, so that one learner serves both kinds.
    """

    regressor: Any
    n_residual_folds: int = 5
    classifier: Any = None

    def __post_init__(self) -> None:
        """Check that the classifier is one."""
        if self.classifier is not None and not is_classifier(self.classifier):
            raise InputError(
                f"Expected a scikit-learn classifier, got classifier={self.classifier!r}; pass an instance "
                "such as HistGradientBoostingClassifier(), or None."
            )

    def fit(
        self, data: TrainingData, row_sets: Sequence[IntArray], *, seed: int, runtime: Runtime
    ) -> RegressorActionModel:
        """Fit one clone per row set, in parallel."""
        discrete = data.action_spec.kind == "discrete"
        chosen = self.classifier if discrete and self.classifier is not None else self.regressor
        if discrete != is_classifier(chosen):
            wanted, got = ("classifier", "regressor") if discrete else ("regressor", "classifier")
            raise InputError(
                f"Expected a {wanted} for a {data.action_spec.kind} action, got the {got} {chosen!r}; pass "
                "another estimator or a pair, RegressorAction(regressor, classifier=...), or set action_kind."
            )
        encoder, inputs = _encode(data)
        fit_member = _fit_classifier if discrete else partial(_fit_location, self.n_residual_folds)
        tasks = [
            delayed(_fit_rows)(fit_member, chosen, inputs, data.action, data.weight, rows, seed + member)
            for member, rows in enumerate(row_sets)
        ]
        fitted = together(tasks, jobs(runtime))
        return RegressorActionModel(encoder, tuple(fitted), data.action_spec.width, discrete, runtime.device)


@savable
@dataclass(frozen=True)
class _Location:
    models: tuple[Any, ...]
    residuals: FloatArray


@savable
@dataclass(frozen=True)
class RegressorActionModel:
    """Fitted action regressors or classifiers, one per row set."""

    encoder: ExogenousEncoder
    members: tuple[Any, ...]
    width: int
    discrete: bool
    device: torch.device

    def distributions(self, exogenous: Exogenous, row_sets: Sequence[IntArray]) -> list[ActionDistribution]:
        """Return the action distribution of member m for its rows."""
        inputs = self.encoder.encode(exogenous, _ENCODING)
        make = self._categorical if self.discrete else self._residual
        return [make(member, inputs[rows]) for member, rows in zip(self.members, row_sets, strict=True)]

    def _categorical(self, model: Any, inputs: FloatArray) -> ActionDistribution:
        probabilities = np.zeros((len(inputs), self.width))
        if len(inputs):
            # A fold may lack a rare level; its probability is zero there.
            probabilities[:, model.classes_.astype(int)] = model.predict_proba(inputs)
        return CategoricalDistribution(self._tensor(probabilities))

    def _residual(self, member: _Location, inputs: FloatArray) -> ActionDistribution:
        location = np.column_stack([predict_rows(model, inputs) for model in member.models])
        pool = torch.zeros(len(inputs), dtype=torch.long, device=self.device)
        return ResidualDistribution(self._tensor(location), self._tensor(member.residuals[None]), pool)

    def _tensor(self, values: FloatArray) -> torch.Tensor:
        # What comes back from a cluster may be read-only memory, which tensors cannot share.
        return torch.from_numpy(np.array(values, dtype=np.float32)).to(self.device)

    def describe(self) -> dict[str, object]:
        """Return which estimator was used."""
        first = self.members[0]
        return {"regressor": repr(first.models[0] if isinstance(first, _Location) else first)}


def _encode(data: TrainingData) -> tuple[ExogenousEncoder, FloatArray]:
    exogenous = Exogenous(data.context, data.instrument)
    encoder = ExogenousEncoder.learn(exogenous, data.context_schema, data.instrument_schema, _UNUSED_BINS)
    return encoder, encoder.encode(exogenous, _ENCODING)


def _fit_rows(
    fit: Callable[..., Any],
    estimator: Any,
    inputs: FloatArray,
    target: Any,
    weight: FloatArray,
    rows: IntArray,
    seed: int,
) -> Any:
    # Rows are picked where the fit runs: whole arrays are sent to a worker once, not once per fold.
    return fit(estimator, inputs[rows], target[rows], weight[rows], seed)


def predict_rows(model: Any, inputs: FloatArray) -> FloatArray:
    """Return a fitted regressor's predictions, shape (n,), for inputs (n, width); n may be zero."""
    if not len(inputs):
        return np.empty(0)
    return np.asarray(model.predict(inputs), dtype=np.float64).reshape(-1)


def fit_clone(estimator: Any, inputs: FloatArray, target: Any, weight: FloatArray, seed: int) -> Any:
    """Fit a clone on inputs (n, width); unset random states get ``seed``, weights are used if not all one."""
    model = clone(estimator)
    unset = [
        name
        for name, value in model.get_params(deep=True).items()
        if name.split("__")[-1] == "random_state" and value is None
    ]
    model.set_params(**dict.fromkeys(unset, seed % (2**31)))
    if np.all(weight == 1.0):
        return model.fit(inputs, target)
    if not has_fit_parameter(model, "sample_weight"):
        raise InputError(
            f"Expected an estimator that takes sample_weight because weights were given, got {model!r}; "
            "use another estimator or fit without weights."
        )
    return model.fit(inputs, target, sample_weight=weight)


def _fit_classifier(
    classifier: Any, inputs: FloatArray, levels: IntArray, weight: FloatArray, seed: int
) -> Any:
    if len(np.unique(levels)) < 2:
        raise InputError(
            "Expected at least two levels of the action in the complement of every fold, got one; use fewer "
            "folds, or drop levels with very few rows."
        )
    return fit_clone(classifier, inputs, levels, weight, seed)


def _fit_location(
    n_folds: int, regressor: Any, inputs: FloatArray, action: FloatArray, weight: FloatArray, seed: int
) -> _Location:
    models = tuple(fit_clone(regressor, inputs, column, weight, seed) for column in action.T)
    residuals = np.empty_like(action)
    splitter = KFold(min(n_folds, len(inputs)), shuffle=True, random_state=seed % (2**31))
    for fit_rows, rows in splitter.split(inputs):
        for index, column in enumerate(action.T):
            model = fit_clone(regressor, inputs[fit_rows], column[fit_rows], weight[fit_rows], seed)
            residuals[rows, index] = column[rows] - predict_rows(model, inputs[rows])
    residuals = residuals[_rows_by_weight(weight)]
    # Centred, so that the mean of the distribution is the regressor's own prediction.
    return _Location(models, residuals - residuals.mean(axis=0))


def _rows_by_weight(weight: FloatArray) -> IntArray:
    """Return n row numbers for weights (n,), each row about as often as its weight says."""
    edges = np.cumsum(weight) / weight.sum()
    centres = (np.arange(len(weight)) + 0.5) / len(weight)
    return np.minimum(np.searchsorted(edges, centres), len(weight) - 1).astype(np.int64)
