"""Presets, and the learners they are made of: which learner plays which role."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

from sklearn.base import BaseEstimator, clone
from sklearn.ensemble import (
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)

from dmliv.data.savable import savable
from dmliv.errors import InputError
from dmliv.first_stage.networks import NeuralAction, NeuralOutcome
from dmliv.first_stage.nuisances import ActionLearner, OutcomeLearner
from dmliv.first_stage.regressors import RegressorAction, RegressorOutcome
from dmliv.nets.images import ImageColumns
from dmliv.nets.settings import ByRows, NetworkSettings
from dmliv.second_stage.boosting import ProjectedBoosting
from dmliv.second_stage.kernel import KernelStructural
from dmliv.second_stage.linear import LinearStructural
from dmliv.second_stage.network import NeuralStructural
from dmliv.second_stage.pilot import ControlFunction
from dmliv.second_stage.projection import DrawRule
from dmliv.second_stage.regressor import RegressorStructural
from dmliv.second_stage.regressor_pilot import RegressorPilot
from dmliv.second_stage.structural import StructuralLearner

__all__ = [
    "ControlFunction",
    "DrawRule",
    "ImageColumns",
    "KernelStructural",
    "Learners",
    "LinearStructural",
    "NetworkSettings",
    "NeuralAction",
    "NeuralOutcome",
    "NeuralStructural",
    "ProjectedBoosting",
    "RegressorAction",
    "RegressorOutcome",
    "RegressorPilot",
    "RegressorStructural",
    "boosting",
    "forest",
    "kernel",
    "neural",
    "paper_boosting",
    "paper_forest",
    "paper_neural",
]


@savable
@dataclass(frozen=True)
class Learners:
    """One learner per role.

    Parameters
    ----------
    outcome : OutcomeLearner or scikit-learn regressor
        Learns E[outcome | context, instrument].
    action : ActionLearner, or scikit-learn regressor or classifier
        Learns the distribution of the action given context and instrument. A regressor gives the
        distribution's location, and its out-of-fold residuals give the spread; a discrete action takes a
        classifier.
    structural : StructuralLearner or scikit-learn regressor
        Learns h(context, action). A plain regressor is fitted on one drawn action per row.
    with_pilot : bool
        Whether h may start from a pilot. The paper's presets do without, whatever an estimator's ``pilot``.
    """

    outcome: OutcomeLearner
    action: ActionLearner
    structural: StructuralLearner
    with_pilot: bool = True

    def __post_init__(self) -> None:
        """Wrap plain scikit-learn estimators, so that they can stand in a role as they are."""
        if isinstance(self.outcome, BaseEstimator):
            object.__setattr__(self, "outcome", RegressorOutcome(self.outcome))
        if isinstance(self.action, BaseEstimator):
            object.__setattr__(self, "action", RegressorAction(self.action))
        if isinstance(self.structural, BaseEstimator):
            object.__setattr__(self, "structural", RegressorStructural(self.structural))

    @property
    def image(self) -> ImageColumns | None:
        """The context columns that are pixels, as the networks were told; None for others."""
        settings = getattr(self.outcome, "settings", None)
        return settings.image if isinstance(settings, NetworkSettings) else None


Effort = Literal["fast", "balanced", "best"]


def neural(
    *,
    effort: Effort = "balanced",
    image: ImageColumns | None = None,
    n_members: int | None = None,
) -> Learners:
    """Return the default networks.

    Training is short and fast: a high learning rate with warm-up and cosine decay, few epochs, larger batches
    as rows grow. Encodings are chosen by held-out loss, separately for each role; that of h on rows which the
    nuisances never saw. h is the mean of a small ensemble.

    Parameters
    ----------
    effort : {"fast", "balanced", "best"}
        ``"fast"`` has a smaller ensemble for h and makes the choices on shorter trials, ``"best"`` a larger
        ensemble and trials of full length.
    image : ImageColumns, optional
        Context columns that are the pixels of an image.
    n_members : int, optional
        Networks in the ensemble for h; by default 2, 4 or 12 by effort.
    """
    if effort not in _EFFORTS:
        raise InputError(f"Expected effort among {tuple(_EFFORTS)}, got {effort!r}.")
    budget = _EFFORTS[effort]
    members = budget.n_members if n_members is None else n_members
    shared = NetworkSettings(
        batch_size=ByRows(factor=-200_000, offset=300, low=100, high=250),
        encodings=("standardised", "piecewise_context", "products"),
        n_bins=24,
        image=image,
        trial_share=budget.trial_share,
    )
    outcome = replace(
        shared,
        hidden=(64, 32),
        dropout=ByRows(factor=1000, shift=4000, high=0.2),
        epochs=ByRows(factor=19_000, offset=6, high=60),
        learning_rate=ByRows(factor=-2.0, offset=4.2e-3, low=2e-3),
        rate_factors=(1.0, 2.5),
    )
    action = replace(
        shared,
        hidden=(64, 64),
        dropout=ByRows(factor=62.5, offset=-0.0125, high=0.1),
        epochs=ByRows(factor=900, power=0.5, low=4, high=60),
        learning_rate=5e-3,
    )
    structural = replace(
        shared,
        hidden=(96, 48),
        dropout=0.0,
        epochs=ByRows(factor=800, power=0.5, low=4, high=60),
        learning_rate=4e-3,
        encodings=("standardised", "piecewise"),
    )
    return Learners(
        NeuralOutcome(outcome),
        NeuralAction(action, n_components=5),
        NeuralStructural(structural, DrawRule("unbiased"), n_members=members),
    )


@savable
@dataclass(frozen=True)
class _Effort:
    n_members: int
    trial_share: float


_EFFORTS: Final = {
    "fast": _Effort(2, 0.5),
    "balanced": _Effort(4, 0.6),
    "best": _Effort(12, 1.0),
}


def kernel(*, image: ImageColumns | None = None, n_landmarks: int = 300) -> Learners:
    """Return the default networks for the nuisances and a kernel ridge regression in closed form for h.

    h is smooth and costs no training; far from the data it falls back to the mean outcome.

    Parameters
    ----------
    image : ImageColumns, optional
        Context columns that are the pixels of an image, for ``features="gradients"``.
    n_landmarks : int
        Landmarks of the kernel.
    """
    preset = neural(image=image)
    outcome, action = preset.outcome, preset.action
    if not isinstance(outcome, NeuralOutcome) or not isinstance(action, NeuralAction):
        raise TypeError("Expected networks for the nuisances.")
    # Short trials save little here, and on few rows they choose worse inputs.
    whole = replace(outcome.settings, trial_share=1.0), replace(action.settings, trial_share=1.0)
    return Learners(
        replace(outcome, settings=whole[0]),
        replace(action, settings=whole[1]),
        KernelStructural(n_landmarks, image=image),
    )


def paper_neural(
    data_set: Literal["demand", "real", "image"] = "demand", image: ImageColumns | None = None
) -> Learners:
    """Return the networks, budgets and single draw of the paper, as in its released code.

    Three ReLU layers 128-64-32 with dropout after the first two, AdamW at a constant rate, hundreds of
    epochs, raw columns as inputs, one draw per row and step, one network for h. Expect minutes, not seconds.

    Parameters
    ----------
    data_set : {"demand", "real", "image"}
        ``"demand"`` has the low-dimensional demand settings, ``"real"`` those of IHDP and PM-CMR, ``"image"``
        those of demand with images: convolutions in every network, hours of training.
    image : ImageColumns, optional
        The pixels, for ``"image"``.
    """
    if (data_set == "image") != (image is not None):
        raise InputError(f"Expected image= exactly for data_set 'image', got {image} for {data_set!r}.")
    if data_set == "demand":
        shared = NetworkSettings(
            dropout=ByRows(factor=1000, shift=5000, high=0.5),
            dropout_layers=2,
            epochs=ByRows(factor=500_000, offset=400),
            batch_size=100,
            learning_rate=2e-4,
            weight_decay=1e-3,
            schedule="constant",
            encodings=("raw",),
        )
        n_components, structural = 10, replace(shared, dropout=0.0)
    elif data_set == "real":
        shared = NetworkSettings(
            dropout=0.1,
            dropout_layers=2,
            epochs=800,
            batch_size=50,
            learning_rate=5e-4,
            weight_decay=1e-4,
            schedule="constant",
            encodings=("raw",),
        )
        n_components, structural = 5, shared
    elif data_set == "image" and image is not None:
        shared = NetworkSettings(
            hidden=(32,),
            dropout=0.3,
            epochs=500,
            batch_size=128,
            learning_rate=1e-3,
            weight_decay=0.05,
            schedule="constant",
            encodings=("raw",),
            image=replace(image, features="convolution"),
        )
        n_components, structural = 10, shared
    else:
        raise InputError(f"Expected data_set 'demand', 'real' or 'image', got {data_set!r}.")
    return Learners(
        NeuralOutcome(shared),
        NeuralAction(shared, n_components=n_components),
        NeuralStructural(structural, DrawRule("single"), centre_action=False),
        with_pilot=False,
    )


def boosting() -> Learners:
    """Return histogram gradient boosting in all three roles; a discrete action is classified.

    h is fitted directly on five drawn actions per row. That is the single-draw loss, which flattens h where
    the action distribution is wide; :class:`ProjectedBoosting` in the structural
    role flattens it less.
    """
    # Early stopping would hold out draws of rows that are also trained on.
    settings = {"max_iter": 150, "learning_rate": 0.1, "max_leaf_nodes": 8, "early_stopping": False}
    nuisance = HistGradientBoostingRegressor(min_samples_leaf=20, **settings)
    return Learners(
        RegressorOutcome(nuisance),
        RegressorAction(nuisance, classifier=HistGradientBoostingClassifier(min_samples_leaf=20, **settings)),
        RegressorStructural(HistGradientBoostingRegressor(min_samples_leaf=10, **settings), n_draws=5),
    )


def forest() -> Learners:
    """Return random forests with leaves of 10 rows in all three roles; a discrete action is classified."""
    settings = {"n_estimators": 100, "min_samples_leaf": 10}
    trees = RandomForestRegressor(**settings)
    return Learners(
        RegressorOutcome(trees),
        RegressorAction(trees, classifier=RandomForestClassifier(**settings)),
        RegressorStructural(trees),
    )


def paper_boosting() -> Learners:
    """Return the paper's gradient boosting: 500 trees, leaves of 100 rows for the nuisances and 10 for h."""
    return _paper_trees(
        GradientBoostingRegressor(n_estimators=500), GradientBoostingClassifier(n_estimators=500)
    )


def paper_forest() -> Learners:
    """Return the paper's forests: 500 trees, leaves of 100 rows for the nuisances and 10 for h.

    Leaves of 100 rows make a strongly biased outcome model, and its bias passes into h: expect DeepIV to be
    ahead of DML-IV with these settings.
    """
    return _paper_trees(RandomForestRegressor(n_estimators=500), RandomForestClassifier(n_estimators=500))


def _paper_trees(trees: BaseEstimator, classifier: BaseEstimator) -> Learners:
    nuisance = clone(trees).set_params(min_samples_leaf=100)
    return Learners(
        RegressorOutcome(nuisance),
        RegressorAction(nuisance, classifier=clone(classifier).set_params(min_samples_leaf=100)),
        RegressorStructural(clone(trees).set_params(min_samples_leaf=10)),
        with_pilot=False,
    )
