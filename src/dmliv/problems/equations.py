r"""The structural equations of the semi-synthetic problems, as published in code and as printed in the text.

With a real context x of six columns, an instrument level z, a hidden confounder u and noises e1, e2, all
independent of each other given x::

    t   = w_z . x + b_z + l_z u + e1
    raw = q t^2 - 1.5 t + k(x) + 2 u + e2

The counterfactual is the raw outcome without confounder and noise. The text of Shao et al. (2024) and the
code that drew their data differ nearly everywhere; both are here. Published numbers rest on the code:

=====================  =========================================  ==========================================
part                   ``"code"``                                 ``"text"``
=====================  =========================================  ==========================================
curvature q            0.9                                        9
context part k(x)      2 mean(x) - \|x1 x2\| - sin(10 + x3^2)     mean(x) + \|x1 x2\| - sin(10 + x2 x3)
confounder u           N(0, 1)                                    N(0, 0.1), variance 0.1
noises e1, e2          N(0, 0.1^2)                                N(0, 1)
weights w              one draw from {-1, -0.9, ..., 0.9}, with   one draw from U(-1, 1)
                       the first column set by hand
intercept b_z          f_z = 0, 1, 0, -0.2, -0.8                  f_z times the sum of w_z
loading l_z of u       0.2                                        0.2 times the sum of w_z
labels of levels       0, ..., K - 1                              1, ..., K
=====================  =========================================  ==========================================

The text leaves three things open. It writes N(0, 0.1), and as its N(rho omega, 1 - rho^2) of the demand
problem has a variance in this place, 0.1 is read as one; the "different constants" f_z are those of the code;
and the weights are drawn once for all replications, as in the code. Both variants standardise their outcomes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from dmliv.data import FloatArray, IntArray
from dmliv.errors import InputError
from dmliv.problems.arguments import as_column
from dmliv.problems.real_contexts import N_CONTEXTS

Variant: TypeAlias = Literal["code", "text"]

MOST_LEVELS = 5

_LINEAR = -1.5
_CONFOUNDER_IN_OUTCOME = 2.0
_CONFOUNDER_IN_ACTION = 0.2
_LEVEL_CONSTANTS = np.array([0.0, 1.0, 0.0, -0.2, -0.8])
# The draw of the published generator, which it also stores with every replication.
_CODE_WEIGHTS = np.array(
    [
        [0.8, -0.2, -0.2, -0.4, -0.7, -0.1],
        [0.2, -0.9, 0.8, -0.9, 0.4, -0.9],
        [-0.8, 0.0, 0.8, -0.1, 0.3, 0.6],
        [-0.2, -0.8, 0.7, 0.9, 0.9, 0.4],
        [-1.0, -0.2, -0.5, -0.6, -0.9, 0.0],
    ]
)
_TEXT_WEIGHTS_SEED = 667


@dataclass(frozen=True, eq=False)
class Equations:
    """Structural equations in raw units, for ``n_levels`` levels of the instrument.

    Parameters
    ----------
    weights : ndarray, shape (n_levels, 6)
        Weights of the context in the action.
    intercepts, loadings : ndarray, shape (n_levels,)
        Constant and weight of the confounder in the action.
    curvature : float
        Factor of the squared action in the outcome.
    context_part : callable
        From contexts (n, 6) to their part (n,) of the outcome.
    confounder_sd, noise_sd : float
        Standard deviations of the confounder and of the noises in action and outcome.
    first_label : int
        Label of the first level of the instrument.
    """

    weights: FloatArray
    intercepts: FloatArray
    loadings: FloatArray
    curvature: float
    context_part: Callable[[FloatArray], FloatArray]
    confounder_sd: float
    noise_sd: float
    first_label: int

    def level(self, Z: ArrayLike, n: int) -> IntArray:
        """Return the position (n,) of instrument labels (n,), (n, 1) or one for all."""
        position = as_column(Z, n, "Z") - self.first_label
        if not np.isin(position, np.arange(len(self.weights))).all():
            last = self.first_label + len(self.weights) - 1
            raise InputError(
                f"Expected instrument levels {self.first_label} to {last} in Z, got others; "
                "pass Z as this problem draws it."
            )
        return position.astype(np.int64)

    def noiseless_action(self, X: FloatArray, level: IntArray) -> FloatArray:
        """Return the action (n,) without confounder and noise, for contexts (n, 6) and levels (n,)."""
        mean: FloatArray = (self.weights[level] * X).sum(axis=1) + self.intercepts[level]
        return mean

    def action_sd(self, level: IntArray) -> FloatArray:
        """Return the standard deviation (n,) of the action given context and level (n,)."""
        return np.hypot(self.loadings[level] * self.confounder_sd, self.noise_sd)

    def action_part(self, T: FloatArray, variance: FloatArray | float = 0.0) -> FloatArray:
        """Return the part of the raw outcome that actions (n,) have, on average if T is a mean."""
        return self.curvature * (T**2 + variance) + _LINEAR * T

    @property
    def least_action(self) -> float:
        """The action with the lowest outcome, the same in every context."""
        return -_LINEAR / (2.0 * self.curvature)

    def outcome(self, X: FloatArray, T: FloatArray, confounder: FloatArray, noise: FloatArray) -> FloatArray:
        """Return the raw outcome (n,) from contexts (n, 6) and actions, confounders and noises, all (n,)."""
        return self.action_part(T) + self.context_part(X) + _CONFOUNDER_IN_OUTCOME * confounder + noise


def equations(variant: Variant, n_levels: int) -> Equations:
    """Return the equations of a variant for the first ``n_levels`` levels, at most 5, of the instrument."""
    constants = _LEVEL_CONSTANTS[:n_levels]
    if variant == "code":
        return Equations(
            weights=_CODE_WEIGHTS[:n_levels],
            intercepts=constants,
            loadings=np.full(n_levels, _CONFOUNDER_IN_ACTION),
            curvature=0.9,
            context_part=_context_part_of_code,
            confounder_sd=1.0,
            noise_sd=0.1,
            first_label=0,
        )
    # The legacy generator: NumPy has promised never to change its stream.
    drawn = np.random.RandomState(_TEXT_WEIGHTS_SEED).uniform(-1.0, 1.0, size=(MOST_LEVELS, N_CONTEXTS))
    weights = drawn[:n_levels]
    total = weights.sum(axis=1)
    return Equations(
        weights=weights,
        intercepts=total * constants,
        loadings=total * _CONFOUNDER_IN_ACTION,
        curvature=9.0,
        context_part=_context_part_of_text,
        confounder_sd=float(np.sqrt(0.1)),
        noise_sd=1.0,
        first_label=1,
    )


def _context_part_of_code(X: FloatArray) -> FloatArray:
    part: FloatArray = 2.0 * X.mean(axis=1) - np.abs(X[:, 0] * X[:, 1]) - np.sin(10.0 + X[:, 2] ** 2)
    return part


def _context_part_of_text(X: FloatArray) -> FloatArray:
    part: FloatArray = X.mean(axis=1) + np.abs(X[:, 0] * X[:, 1]) - np.sin(10.0 + X[:, 1] * X[:, 2])
    return part
