"""The estimators that ``peers.py`` compares, each with the settings a careful user would give it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Self

import numpy as np
from econml.iv import dml
from econml.iv.dr import ForestDRIV
from econml.iv.series import SieveTSLS
from linearmodels.iv import IV2SLS
from peer_common import BOOSTED, Contender, cautious, nuisance, products, with_ones
from scipy.linalg import qr
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.linear_model import LassoCV
from sklearn.multioutput import MultiOutputRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler

from dmliv import DMLIV
from dmliv.data import FloatArray
from dmliv.learners import neural
from dmliv.second_stage.pilot import ControlFunction

# Columns that others explain up to this share of the largest are left out.
COLLINEAR = 1e-6


# ------------------------------------------------------------------------------------------------- features


def independent_columns(columns: FloatArray, given: FloatArray) -> FloatArray:
    """Return the positions of columns (n, p) that are linearly independent of each other and of ``given``."""
    basis, _ = np.linalg.qr(given)
    rest = columns - basis @ (basis.T @ columns)
    triangle, order = qr(rest / (np.linalg.norm(columns, axis=0) + 1e-12), mode="r", pivoting=True)
    sizes = np.abs(np.diag(triangle))
    return np.sort(order[: len(sizes)][sizes > COLLINEAR * max(sizes[0], COLLINEAR)])


class ContextPolynomial(TransformerMixin, BaseEstimator):
    """Standardised products of contexts up to a degree, without those that indicators make redundant.

    Parameters
    ----------
    degree : int
    """

    def __init__(self, degree: int = 3) -> None:
        self.degree = degree

    def fit(self, X: FloatArray, y: object = None) -> Self:
        """Learn scales and which products are independent."""
        del y
        self.products_ = make_pipeline(
            PolynomialFeatures(self.degree, include_bias=False), StandardScaler()
        ).fit(X)
        columns = self.products_.transform(X)
        self.kept_ = independent_columns(columns, np.ones((len(columns), 1)))
        return self

    def transform(self, X: FloatArray) -> FloatArray:
        """Return the products, shape (n, p)."""
        columns: FloatArray = self.products_.transform(X)[:, self.kept_]
        return columns


def polynomial(degree: int, *, include_bias: bool = False) -> Any:
    """Return powers and products of standardised columns."""
    return make_pipeline(StandardScaler(), PolynomialFeatures(degree, include_bias=include_bias))


# ---------------------------------------------------------------------------------------------------- peers


class EffectPeer(BaseEstimator):
    """An estimator of effects in EconML's manner, with a baseline that makes it a counterfactual.

    ``h(x, t) = b(x) + effect(x; from m(x) to t)``: ``m`` is a boosted regression of the action on the
    context, and ``b`` one of what the effect leaves of the outcome. The noise has mean zero given the
    context, so that no instrument is needed for ``b``.

    Parameters
    ----------
    learner : type
        A class of EconML.
    settings : dict
        Its arguments.
    baseline : regressor
        Unfitted, for ``m`` and ``b``.
    random_state : int, optional
        Handed to learners that take one.
    """

    def __init__(
        self, learner: type, settings: dict[str, Any], baseline: Any, random_state: int | None = None
    ) -> None:
        self.learner = learner
        self.settings = settings
        self.baseline = baseline
        self.random_state = random_state

    def fit(self, Y: FloatArray, T: FloatArray, *, Z: FloatArray, X: FloatArray) -> Self:
        """Fit the effect, then what lies below it."""
        seed = {} if self.learner is SieveTSLS else {"random_state": self.random_state}
        self.effect_ = self.learner(**self.settings, **seed)
        self.effect_.fit(Y, T[:, None], Z=Z, X=X)
        self.usual_action_ = clone(self.baseline).set_params(random_state=self.random_state).fit(X, T)
        below = Y - self._effect(T, X)
        self.below_ = clone(self.baseline).set_params(random_state=self.random_state).fit(X, below)
        return self

    def predict(self, T: FloatArray, X: FloatArray) -> FloatArray:
        """Return E[Y | do(T), X], shape (n,)."""
        level: FloatArray = self.below_.predict(X)
        return level + self._effect(T, X)

    def _effect(self, T: FloatArray, X: FloatArray) -> FloatArray:
        usual = self.usual_action_.predict(X)[:, None]
        return np.ravel(self.effect_.effect(X, T0=usual, T1=T[:, None]))


class SievePeer(BaseEstimator):
    """Two-stage least squares of linearmodels on hand-made features.

    Controls are products of contexts; the endogenous columns are functions of the action times products of
    contexts, the instruments functions of the instrument times the same products.

    Parameters
    ----------
    action, instrument : transformer
        Functions of the action and of the instruments.
    control_degree, product_degree : int
        Degrees of the products of contexts, alone and with the action.
    """

    def __init__(self, action: Any, instrument: Any, control_degree: int, product_degree: int) -> None:
        self.action = action
        self.instrument = instrument
        self.control_degree = control_degree
        self.product_degree = product_degree

    def fit(self, Y: FloatArray, T: FloatArray, *, Z: FloatArray, X: FloatArray) -> Self:
        """Make the columns and solve."""
        self.controls_ = ContextPolynomial(self.control_degree).fit(X)
        self.products_ = ContextPolynomial(self.product_degree).fit(X)
        self.action_ = clone(self.action).fit(T[:, None])
        controls, endogenous = self._columns(T, X)
        excluded = products(clone(self.instrument).fit_transform(Z), with_ones(self.products_.transform(X)))
        self.kept_ = independent_columns(endogenous, controls)
        excluded = excluded[:, independent_columns(excluded, controls)]
        solved = IV2SLS(Y, controls, endogenous[:, self.kept_], excluded).fit(cov_type="unadjusted")
        self.coefficients_ = solved.params.to_numpy()
        return self

    def predict(self, T: FloatArray, X: FloatArray) -> FloatArray:
        """Return E[Y | do(T), X], shape (n,)."""
        controls, endogenous = self._columns(T, X)
        value: FloatArray = np.column_stack([controls, endogenous[:, self.kept_]]) @ self.coefficients_
        return value

    def _columns(self, T: FloatArray, X: FloatArray) -> tuple[FloatArray, FloatArray]:
        controls = with_ones(self.controls_.transform(X))
        moved = self.action_.transform(T[:, None])
        return controls, products(moved, with_ones(self.products_.transform(X)))


class OrdinaryPeer(BaseEstimator):
    """A regression of the outcome on context and action, as if the action were random.

    Parameters
    ----------
    regressor : regressor
    random_state : int, optional
    """

    def __init__(self, regressor: Any, random_state: int | None = None) -> None:
        self.regressor = regressor
        self.random_state = random_state

    def fit(self, Y: FloatArray, T: FloatArray, *, Z: FloatArray, X: FloatArray) -> Self:
        """Fit the regression; the instrument is not used."""
        del Z
        self.fitted_ = clone(self.regressor).set_params(random_state=self.random_state)
        self.fitted_.fit(np.column_stack([X, T]), Y)
        return self

    def predict(self, T: FloatArray, X: FloatArray) -> FloatArray:
        """Return E[Y | T, X], shape (n,)."""
        value: FloatArray = self.fitted_.predict(np.column_stack([X, T]))
        return value


def effect_peer(learner: type, roles: Sequence[str], **settings: Any) -> EffectPeer:
    """Return a learner of EconML with five folds and boosting in the named roles."""
    means = {f"model_{role}": nuisance() for role in roles}
    return EffectPeer(learner, {"cv": 5, **means, **settings}, nuisance())


PROJECTED = ("y_xw", "t_xw", "t_xwz")


# A single split can cost four times the usual error; the median of three is EconML's own remedy.
REPEATED = {"mc_iters": 3, "mc_agg": "median"}


def dmliv_peer(**settings: Any) -> EffectPeer:
    """Return EconML's DMLIV, its cubic effect thinned out by a lasso."""
    final = LassoCV(fit_intercept=False, cv=3)
    return effect_peer(dml.DMLIV, PROJECTED, featurizer=ContextPolynomial(3), model_final=final, **settings)


def curved_dmliv_peer() -> EffectPeer:
    """Return EconML's DMLIV with three powers of the action, each with means of its own."""
    powers = {f"model_{role}": MultiOutputRegressor(nuisance()) for role in ("t_xw", "t_xwz")}
    return dmliv_peer(treatment_featurizer=polynomial(3), **powers, **REPEATED)


def sieve_tsls(context_degree: int, degree: int) -> EffectPeer:
    """Return EconML's SieveTSLS; derivatives of features are for marginal effects, which nobody asks for."""
    context = make_pipeline(ContextPolynomial(context_degree), PolynomialFeatures(1))
    settings = {
        "t_featurizer": polynomial(degree, include_bias=True),
        "x_featurizer": context,
        "z_featurizer": polynomial(degree, include_bias=True),
        "dt_featurizer": None,
    }
    return EffectPeer(SieveTSLS, settings, nuisance())


FOLDED = f"{BOOSTED}, 5 folds"

# Add presets of ours here, each with its pilot spelled out: a changed pilot then makes new trials.
OURS = (
    Contender(
        "ours", "DML-IV (ours)", partial(DMLIV, neural(), pilot=ControlFunction()), settings="the default"
    ),
)

PEERS = (
    Contender(
        "econml-dmliv",
        "EconML DMLIV",
        dmliv_peer,
        settings=f"{FOLDED}; effect cubic in the contexts, lasso chosen by 3 folds; linear in the action",
    ),
    Contender(
        "econml-dmliv-repeated",
        "EconML DMLIV, 3 splits",
        partial(dmliv_peer, **REPEATED),
        settings="the same, median of three splits into folds",
    ),
    Contender(
        "econml-dmliv-cubic",
        "EconML DMLIV, 3 splits, action cubic",
        curved_dmliv_peer,
        settings="the same with three powers of the action",
    ),
    Contender(
        "econml-nonparam",
        "EconML NonParamDMLIV, 3 splits",
        partial(effect_peer, dml.NonParamDMLIV, PROJECTED, model_final=cautious(), **REPEATED),
        settings=f"{FOLDED}; boosted effect, 30 rounds, 4 leaves; linear in the action",
    ),
    Contender(
        "econml-orthoiv",
        "EconML OrthoIV, 3 splits",
        partial(
            effect_peer,
            dml.OrthoIV,
            PROJECTED,
            projection=True,
            featurizer=ContextPolynomial(2),
            **REPEATED,
        ),
        settings=f"{FOLDED}; projected instrument, effect quadratic in the contexts; linear in the action",
    ),
    Contender(
        "econml-forestdriv",
        "EconML ForestDRIV",
        partial(
            effect_peer,
            ForestDRIV,
            (*PROJECTED, "tz_xw"),
            flexible_model_effect=cautious(),
            projection=True,
            opt_reweighted=True,
            n_estimators=400,
            min_samples_leaf=20,
            n_jobs=1,
        ),
        settings=f"{FOLDED}; projected instrument, 400 trees with leaves of 20 rows; linear in the action",
    ),
    Contender(
        "econml-series",
        "EconML SieveTSLS",
        partial(sieve_tsls, 2, 1),
        settings="contexts quadratic, action and instrument linear, all products",
    ),
    Contender(
        "econml-series-cubic",
        "EconML SieveTSLS, action cubic",
        partial(sieve_tsls, 1, 3),
        settings="contexts linear, action and instrument cubic, all products",
    ),
    Contender(
        "linearmodels",
        "linearmodels IV2SLS",
        partial(SievePeer, polynomial(1), polynomial(1), 2, 1),
        settings="quadratic controls; action and instrument times linear contexts",
    ),
    Contender(
        "linearmodels-cubic",
        "linearmodels IV2SLS, action cubic",
        partial(SievePeer, polynomial(3), polynomial(3), 2, 1),
        settings="quadratic controls; three powers of action and instrument times linear contexts",
    ),
    Contender(
        "ordinary",
        "scikit-learn boosting, no instrument",
        partial(OrdinaryPeer, nuisance()),
        settings="outcome on context and action, 60 rounds, 8 leaves",
    ),
)
