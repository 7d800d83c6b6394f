"""The estimators that ``effect_peers.py`` compares on designs with a binary instrument.

The libraries are imported by ``fit``: without them estimators can still be described, and pages written. All
of these effects are linear in the action, and what lies below an effect cancels in a contrast. So
``predict`` gives the action times its effect, and is the whole answer to a question about effects alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from importlib import import_module
from typing import Any, Self

import numpy as np
from peer_common import BOOSTED, Contender, cautious, chance, nuisance, products, with_ones
from sklearn.base import BaseEstimator
from sklearn.model_selection import StratifiedKFold
from sklearn.preprocessing import PolynomialFeatures

from dmliv.data import FloatArray

PACKAGES = ("econml", "linearmodels", "doubleml")


# --------------------------------------------------------------------------------------------------- peers


class _EffectOnly(BaseEstimator):
    """An estimator whose prediction is the action times its effect."""

    def predict(self, T: FloatArray, X: FloatArray) -> FloatArray:
        """Return how far actions (n,) move the mean outcome away from that of action 0, shape (n,)."""
        if not np.any(T):
            # Forests take their time.
            return np.zeros(len(X))
        return np.asarray(T * self._slope(X), dtype=np.float64)

    def _slope(self, X: FloatArray) -> FloatArray:
        raise NotImplementedError


class EconMLPeer(_EffectOnly):
    """An estimator of EconML.

    Parameters
    ----------
    learner : str
        Full name of its class.
    settings : mapping
        Its arguments.
    constant : bool
        Whether the effect is the same in all contexts, which are then controls alone (``W``).
    random_state : int, optional
    """

    def __init__(
        self,
        learner: str,
        settings: Mapping[str, Any],
        constant: bool = False,
        random_state: int | None = None,
    ) -> None:
        self.learner = learner
        self.settings = settings
        self.constant = constant
        self.random_state = random_state

    def fit(self, Y: FloatArray, T: FloatArray, *, Z: FloatArray, X: FloatArray) -> Self:
        """Fit the effect."""
        self.fitted_ = load(self.learner)(**self.settings, random_state=self.random_state)
        contexts = {"X": None, "W": X} if self.constant else {"X": X}
        self.fitted_.fit(Y, T, Z=Z[:, 0], **contexts)
        return self

    def _slope(self, X: FloatArray) -> FloatArray:
        if self.constant:
            return np.full(len(X), float(np.ravel(self.fitted_.const_marginal_effect())[0]))
        return np.ravel(self.fitted_.const_marginal_effect(X))


class _ConstantEffect(_EffectOnly):
    """An estimator whose effect is one number."""

    coefficient_: float

    def _slope(self, X: FloatArray) -> FloatArray:
        return np.full(len(X), self.coefficient_)


class LinearModelsPeer(_ConstantEffect):
    """An instrumental regression of linearmodels with a constant effect and linear controls.

    Parameters
    ----------
    learner : str
        Full name of its class.
    interactions : bool
        Whether products of instrument and contexts are instruments too.
    """

    def __init__(self, learner: str, interactions: bool = False) -> None:
        self.learner = learner
        self.interactions = interactions

    def fit(self, Y: FloatArray, T: FloatArray, *, Z: FloatArray, X: FloatArray) -> Self:
        """Solve."""
        controls = with_ones(X)
        instruments = products(Z, controls) if self.interactions else Z
        solved = load(self.learner)(Y, controls, T, instruments).fit(cov_type="unadjusted")
        # The endogenous column comes last.
        self.coefficient_ = float(solved.params.iloc[-1])
        return self


class DoubleMLPeer(_ConstantEffect):
    """DoubleML's interactive model for a binary instrument and action: one effect, that of compliers.

    Parameters
    ----------
    outcome, action, instrument : estimator
        For E[Y | X, Z], E[T | X, Z] and E[Z | X].
    n_folds : int
    random_state : int, optional
        Draws the folds, which have equal shares of all pairs of instrument and action, as DoubleML's own.
    """

    def __init__(
        self, outcome: Any, action: Any, instrument: Any, n_folds: int = 5, random_state: int | None = None
    ) -> None:
        self.outcome = outcome
        self.action = action
        self.instrument = instrument
        self.n_folds = n_folds
        self.random_state = random_state

    def fit(self, Y: FloatArray, T: FloatArray, *, Z: FloatArray, X: FloatArray) -> Self:
        """Fit the effect."""
        table = load("doubleml.DoubleMLData").from_arrays(X, Y, T, z=Z[:, 0])
        model = load("doubleml.DoubleMLIIVM")(
            table, self.outcome, self.instrument, self.action, draw_sample_splitting=False
        )
        # DoubleML draws folds from NumPy's global state: given folds make a trial repeatable.
        folds = StratifiedKFold(self.n_folds, shuffle=True, random_state=self.random_state)
        model.set_sample_splitting([list(folds.split(X, T + 2.0 * Z[:, 0]))])
        self.coefficient_ = float(model.fit().coef[0])
        return self


def load(name: str) -> Any:
    """Return what a full name such as ``"econml.iv.dr.ForestDRIV"`` stands for."""
    module, _, attribute = name.rpartition(".")
    return getattr(import_module(module), attribute)


# ------------------------------------------------------------------------------------------------- settings


BINARY = {"discrete_treatment": True, "discrete_instrument": True}
# Two folds, the default of some, leave the means half of the rows.
FOLDS = {"cv": 5}


def intent_to_treat(name: str, **settings: Any) -> EconMLPeer:
    """Return an estimator of EconML for a randomised offer, with boosted means."""
    means = {"model_y_xw": nuisance(), "model_t_xwz": chance()}
    return EconMLPeer(f"econml.iv.dr.{name}", {**means, **settings})


def quadratic_intent_to_treat() -> EconMLPeer:
    """Return the linear one with squares and products of contexts."""
    squares = PolynomialFeatures(2, include_bias=False)
    return intent_to_treat("LinearIntentToTreatDRIV", featurizer=squares)


def nonparametric() -> EconMLPeer:
    """Return EconML's NonParamDMLIV."""
    means = {"model_y_xw": nuisance(), "model_t_xw": chance(), "model_t_xwz": chance()}
    return EconMLPeer("econml.iv.dml.NonParamDMLIV", {**means, **FOLDS, **BINARY, "model_final": cautious()})


def forest() -> EconMLPeer:
    """Return EconML's ForestDRIV."""
    means = {"model_y_xw": nuisance(), "model_t_xw": chance(), "model_z_xw": chance()}
    size = {"model_tz_xw": nuisance(), "n_estimators": 200, "n_jobs": 1}
    return EconMLPeer("econml.iv.dr.ForestDRIV", {**means, **size, **FOLDS, **BINARY})


def orthogonal(*, constant: bool) -> EconMLPeer:
    """Return EconML's OrthoIV for a continuous action."""
    means = {"model_y_xw": nuisance(), "model_t_xw": nuisance(), "model_z_xw": chance()}
    settings = {**means, **FOLDS, "discrete_instrument": True}
    return EconMLPeer("econml.iv.dml.OrthoIV", settings, constant=constant)


def interactive() -> DoubleMLPeer:
    """Return DoubleML's IIVM."""
    return DoubleMLPeer(nuisance(), chance(), chance())


ENCOURAGEMENT_PEERS = (
    Contender(
        "econml-linear-itt",
        "EconML LinearIntentToTreatDRIV",
        partial(intent_to_treat, "LinearIntentToTreatDRIV"),
        settings=f"{BOOSTED}; effect linear in the contexts; else its defaults: 3 folds, a linear "
        "preliminary effect, the share of encouraged rows as the chance of encouragement",
    ),
    Contender(
        "econml-quadratic-itt",
        "EconML LinearIntentToTreatDRIV, squares",
        quadratic_intent_to_treat,
        settings="the same with squares and products of the contexts (`featurizer`)",
    ),
    Contender(
        "econml-itt",
        "EconML IntentToTreatDRIV",
        partial(intent_to_treat, "IntentToTreatDRIV", model_final=cautious()),
        settings=f"{BOOSTED}; boosted effect (30 rounds, 4 leaves); else its defaults, the same as above",
    ),
    Contender(
        "econml-nonparam",
        "EconML NonParamDMLIV",
        nonparametric,
        settings=f"{BOOSTED}, 5 folds in place of 2; boosted effect (30 rounds, 4 leaves), for which it has "
        "no default",
    ),
    Contender(
        "econml-forestdriv",
        "EconML ForestDRIV",
        forest,
        settings=f"{BOOSTED}, 5 folds in place of 2; 200 trees in place of 1000, to save time; else its "
        "defaults: honest trees, leaves of 5 rows, a linear preliminary effect",
    ),
    Contender(
        "doubleml-iivm",
        "DoubleML IIVM",
        interactive,
        settings=f"{BOOSTED}, that of the instrument included; else its defaults: 5 folds, one split",
    ),
)

CARD_PEERS = (
    Contender(
        "econml-orthoiv-constant",
        "EconML OrthoIV, constant effect",
        partial(orthogonal, constant=True),
        settings=f"{BOOSTED}, 5 folds in place of 2; contexts are controls (`W`); the instrument as it is, "
        "without projection, its default",
    ),
    Contender(
        "econml-orthoiv",
        "EconML OrthoIV",
        partial(orthogonal, constant=False),
        settings="the same with an effect linear in the contexts (`X`)",
    ),
    Contender(
        "linearmodels-2sls",
        "linearmodels IV2SLS",
        partial(LinearModelsPeer, "linearmodels.iv.IV2SLS"),
        settings="linear controls, one instrument, constant effect",
    ),
    Contender(
        "linearmodels-liml",
        "linearmodels IVLIML",
        partial(LinearModelsPeer, "linearmodels.iv.IVLIML"),
        settings="the same; with a single instrument LIML is two-stage least squares",
    ),
    Contender(
        "linearmodels-2sls-products",
        "linearmodels IV2SLS, 5 instruments",
        partial(LinearModelsPeer, "linearmodels.iv.IV2SLS", interactions=True),
        settings="linear controls, constant effect; the instrument and its products with the contexts",
    ),
    Contender(
        "linearmodels-liml-products",
        "linearmodels IVLIML, 5 instruments",
        partial(LinearModelsPeer, "linearmodels.iv.IVLIML", interactions=True),
        settings="the same by limited-information maximum likelihood",
    ),
)
# Estimators that give a mean alone, and none of the effects in single contexts.
MEAN_ONLY = frozenset({"doubleml-iivm"})
