"""Presets: which learner plays which role."""

from __future__ import annotations

from dataclasses import dataclass

from sklearn.base import BaseEstimator

from dmliv.first_stage.base import ActionLearner, OutcomeLearner
from dmliv.first_stage.regressors import RegressorAction, RegressorOutcome
from dmliv.first_stage.networks import NeuralAction, NeuralOutcome
from dmliv.nets.settings import ByRows, NetworkSettings
from dmliv.second_stage.base import StructuralLearner
from dmliv.second_stage.network import NeuralStructural
from dmliv.second_stage.projection import DrawRule


@dataclass(frozen=True)
class Learners:
    """One learner per role.

    Parameters
    ----------
    outcome : OutcomeLearner or scikit-learn regressor
        Learns E[outcome | context, instrument].
    action : ActionLearner, or scikit-learn regressor or classifier
        Learns the law of the action given context and instrument. A regressor gives the law's location, and
        its out-of-fold residuals give the spread; a discrete action takes a classifier.
    structural : StructuralLearner
        Learns h(context, action).
    """

    outcome: OutcomeLearner
    action: ActionLearner
    structural: StructuralLearner

    def __post_init__(self) -> None:
        """Wrap plain scikit-learn estimators, so that they can stand in a role as they are."""
        if isinstance(self.outcome, BaseEstimator):
            object.__setattr__(self, "outcome", RegressorOutcome(self.outcome))
        if isinstance(self.action, BaseEstimator):
            object.__setattr__(self, "action", RegressorAction(self.action))


def neural() -> Learners:
    """Return the default networks: short training, chosen encodings, unbiased projection."""
    nuisance = dict(
        dropout=ByRows(factor=1000, shift=4000, high=0.2),
        epochs=ByRows(factor=800, power=0.5, low=5, high=60),
        learning_rate=2e-3,
    )
    outcome = NetworkSettings(
        hidden=(64, 32),
        encodings=("standardised", "piecewise_context", "products"),
        **nuisance,
    )
    action = NetworkSettings(
        hidden=(64, 32),
        encodings=("standardised", "piecewise_context", "products"),
        **nuisance,
    )
    structural = NetworkSettings(
        hidden=(128, 64, 32),
        dropout=0.0,
        epochs=ByRows(factor=800, power=0.5, low=5, high=60),
        learning_rate=2e-3,
        encodings=("standardised", "piecewise"),
    )
    return Learners(
        NeuralOutcome(outcome),
        NeuralAction(action, n_components=5),
        NeuralStructural(structural, DrawRule("unbiased"), variance_weight=(0.0, 1.0), n_members=5),
    )
