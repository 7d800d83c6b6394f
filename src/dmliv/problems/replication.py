"""One replication of a semi-synthetic problem: three parts of the real rows, with drawn actions and outcomes.

The random numbers are those of the published generator (Wu et al.), number by number, so that the ``"code"``
variant gives the published files. It draws from two streams. Python's shuffles the rows again for every
replication, starting from the order the previous one left; NumPy's legacy stream, seeded for the replication,
draws everything else, part after part.
"""

import random
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike

from dmliv.data import FloatArray, IntArray, IVData
from dmliv.errors import InputError
from dmliv.problems.arguments import as_column, as_contexts, check_bounds, check_choice, check_count
from dmliv.problems.equations import Equations
from dmliv.problems.protocol import EvaluationSet
from dmliv.problems.real_contexts import N_CONTEXTS

PartName: TypeAlias = Literal["train", "validation", "test"]

# Cumulative shares of training and validation rows.
_SHARES = (0.63, 0.90)
_SEED_STEP = 527

# The published generator draws the confounder as the last of seven correlated normals and discards the other
# six: unit variances, correlation 0.1 with each of the six. The singular vectors that NumPy's
# multivariate_normal uses give it weight on the first and the last of seven independent normals only, up to
# two signs that depend on the linear algebra library. Written out, it is the same on every machine.
_N_NORMALS = 7
_SPREAD = 0.1 * np.sqrt(6.0)
_FIRST_NORMAL = -np.sqrt((1.0 + _SPREAD) / 2.0)
_LAST_NORMAL = np.sqrt((1.0 - _SPREAD) / 2.0)


@dataclass(frozen=True, eq=False)
class Split:
    """A part of a replication: what is observed and what is not.

    Parameters
    ----------
    Y, T : ndarray, shape (n,)
        Standardised outcome and action.
    Z : ndarray, shape (n, 1)
        Instrument level.
    X : ndarray, shape (n, 6)
        Context.
    truth : ndarray, shape (n,)
        The counterfactual at the observed context and action.
    action_part : ndarray, shape (n,)
        What the action adds to the counterfactual, standardised like the outcome.
    noiseless_action : ndarray, shape (n,)
        The action without confounder and noise.
    confounder : ndarray, shape (n,)
        The hidden confounder.
    """

    Y: FloatArray
    T: FloatArray
    Z: FloatArray
    X: FloatArray
    truth: FloatArray
    action_part: FloatArray
    noiseless_action: FloatArray
    confounder: FloatArray

    def __len__(self) -> int:
        return len(self.Y)

    def data(self, n: int | None = None) -> IVData:
        """Return the observed columns of the first ``n`` rows, of all by default."""
        rows = slice(n)
        return IVData(Y=self.Y[rows], T=self.T[rows], Z=self.Z[rows], X=self.X[rows])


@dataclass(frozen=True, eq=False)
class Replication:
    """One replication: samples, the truth and reference policies, all in the replication's own units.

    Outcomes are standardised with mean and standard deviation of the replication's raw training outcomes, so
    the counterfactual of one replication is not that of another.

    Parameters
    ----------
    number : int
        Which replication it is.
    train, validation, test : Split
        Its parts: 63, 27 and 10 percent of the rows.
    equations : Equations
        What actions and outcomes were drawn from.
    outcome_mean, outcome_sd : float
        Of the raw training outcomes.
    """

    action_range: ClassVar[tuple[float, float]] = (-3.0, 5.0)

    number: int
    train: Split
    validation: Split
    test: Split
    equations: Equations
    outcome_mean: float
    outcome_sd: float

    # ------------------------------------------------------------------------------------------------- rows

    def split(self, part: PartName) -> Split:
        """Return the part of the rows with the name "train", "validation" or "test"."""
        check_choice("part", part, get_args(PartName))
        found: Split = getattr(self, part)
        return found

    def sample(self, n: int | None = None) -> IVData:
        """Return the first ``n`` training rows, all by default; the units stay those of all training rows.

        Returns
        -------
        IVData
            Outcome ``Y`` (n,), action ``T`` (n,), instrument level ``Z`` (n, 1) and context ``X`` (n, 6).
        """
        if n is not None:
            check_count(n)
            if n > len(self.train):
                raise InputError(
                    f"Expected at most {len(self.train)} rows, the training rows there are, got n={n}; "
                    "ask for fewer, or leave n out for all."
                )
        return self.train.data(n)

    def validation_set(self) -> EvaluationSet:
        """Return ``X`` (n, 6), ``T`` (n,) and truth (n,) at the observed points of the validation rows.

        The code released with the paper reports its errors here.
        """
        return self.validation.X, self.validation.T, self.validation.truth

    def test_set(self) -> EvaluationSet:
        """Return ``X`` (n, 6), ``T`` (n,) and truth (n,) at the observed points of the test rows."""
        return self.test.X, self.test.T, self.test.truth

    def contexts(self, n: int | None = None, seed: int = 1, part: PartName = "validation") -> FloatArray:
        """Return contexts for evaluating policies, shape (n, 6).

        By default they are the rows of the part as they are; ``n`` draws so many of them with replacement.
        The code released with the paper evaluates policies on validation rows.
        """
        X = self.split(part).X
        if n is None:
            return X
        check_count(n)
        return X[np.random.default_rng(seed).integers(len(X), size=n)]

    # ---------------------------------------------------------------------------------------- exact answers

    def counterfactual(self, X: ArrayLike, T: ArrayLike) -> FloatArray:
        """Return the true counterfactual h0, the mean standardised outcome under do(T) in context X.

        Parameters
        ----------
        X : array_like, shape (n, 6)
            Contexts.
        T : array_like, shape (n,) or (n, 1), or a scalar
            Actions.

        Returns
        -------
        ndarray, shape (n,)
        """
        context = as_contexts(X, N_CONTEXTS)
        action = as_column(T, len(context), "T")
        return self._standardise(self.equations.action_part(action) + self.equations.context_part(context))

    def exact_action_distribution(self, X: ArrayLike, Z: ArrayLike) -> tuple[FloatArray, FloatArray]:
        """Return mean and standard deviation, both (n,), of the action (Gaussian) given X and Z."""
        context = as_contexts(X, N_CONTEXTS)
        level = self.equations.level(Z, len(context))
        return self.equations.noiseless_action(context, level), self.equations.action_sd(level)

    def exact_outcome_mean(self, X: ArrayLike, Z: ArrayLike) -> FloatArray:
        """Return s0(X, Z) = E[Y | X, Z], the counterfactual averaged over the action, shape (n,)."""
        mean, sd = self.exact_action_distribution(X, Z)
        part = self.equations.action_part(mean, variance=sd**2)
        return self._standardise(part + self.equations.context_part(as_contexts(X, N_CONTEXTS)))

    # --------------------------------------------------------------------------------------------- policies

    def reward(self, X: ArrayLike, T: ArrayLike) -> FloatArray:
        """Return the noise-free reward of action T in context X, shape (n,): the counterfactual."""
        return self.counterfactual(X, T)

    def optimal_action(self, X: ArrayLike, low: float = -3.0, high: float = 5.0) -> FloatArray:
        """Return the best action in [low, high] for every context, shape (n,).

        The counterfactual is convex in the action and the context only shifts it: the best action is the
        bound that lies farther from the least action, the same for all.
        """
        check_bounds(low, high)
        least = self.equations.least_action
        return np.full(len(as_contexts(X, N_CONTEXTS)), float(high if high - least >= least - low else low))

    def optimal_value(self, X: ArrayLike, low: float = -3.0, high: float = 5.0) -> float:
        """Return the mean reward of the best action in [low, high] over the contexts."""
        return float(np.mean(self.reward(X, self.optimal_action(X, low, high))))

    def random_value(self, X: ArrayLike, low: float = -3.0, high: float = 5.0) -> float:
        """Return the expected mean reward of an action drawn uniformly from [low, high]."""
        check_bounds(low, high)
        context = as_contexts(X, N_CONTEXTS)
        centre = np.full(len(context), (low + high) / 2.0)
        part = self.equations.action_part(centre, variance=(high - low) ** 2 / 12.0)
        return float(np.mean(self._standardise(part + self.equations.context_part(context))))

    def worst_value(self, X: ArrayLike, low: float = -3.0, high: float = 5.0) -> float:
        """Return the mean reward of the worst action in [low, high] over the contexts."""
        check_bounds(low, high)
        return float(np.mean(self.reward(X, float(np.clip(self.equations.least_action, low, high)))))

    def _standardise(self, raw: FloatArray) -> FloatArray:
        return (raw - self.outcome_mean) / self.outcome_sd


def draw_replication(contexts: FloatArray, equations: Equations, seed: int, number: int) -> Replication:
    """Draw replication ``number``, from 0, of all real rows (n, 6) in the order the generator starts from.

    ``seed`` is that of the published run; the replication draws from ``527 number + seed``.
    """
    X = contexts[_row_order(len(contexts), seed, number)]
    stream = np.random.RandomState(_SEED_STEP * number + seed)
    ends = [int(share * len(X)) for share in _SHARES]
    raw = [_draw_part(part, equations, stream) for part in np.split(X, ends)]
    mean, sd = float(raw[0].Y.mean()), float(raw[0].Y.std())

    def standardised(part: Split) -> Split:
        Y, truth, action_part = ((v - mean) / sd for v in (part.Y, part.truth, part.action_part))
        return Split(Y, part.T, part.Z, part.X, truth, action_part, part.noiseless_action, part.confounder)

    train, validation, test = (standardised(part) for part in raw)
    return Replication(number, train, validation, test, equations, mean, sd)


def _draw_part(X: FloatArray, equations: Equations, stream: np.random.RandomState) -> Split:
    """Draw everything but the contexts (n, 6) of a part, in raw units."""
    n = len(X)
    normals = stream.standard_normal((n, _N_NORMALS))
    # The order of the draws is that of the published generator.
    confounder = equations.confounder_sd * (_FIRST_NORMAL * normals[:, 0] + _LAST_NORMAL * normals[:, -1])
    level = stream.choice(len(equations.weights), size=n)
    action_noise = equations.noise_sd * stream.standard_normal(n)
    outcome_noise = equations.noise_sd * stream.standard_normal(n)

    noiseless = equations.noiseless_action(X, level)
    T = noiseless + equations.loadings[level] * confounder + action_noise
    action_part = equations.action_part(T)
    return Split(
        Y=equations.outcome(X, T, confounder, outcome_noise),
        T=T,
        Z=(level + equations.first_label).astype(np.float64)[:, np.newaxis],
        X=X,
        truth=action_part + equations.context_part(X),
        action_part=action_part,
        noiseless_action=noiseless,
        confounder=confounder,
    )


@lru_cache(maxsize=128)
def _row_order(n: int, seed: int, number: int) -> IntArray:
    """Return the order (n,) of the rows after the shuffles of replications 0 to ``number``."""
    shuffler = random.Random(seed)
    order = np.arange(n)
    for _ in range(number + 1):
        shuffled = list(range(n))
        shuffler.shuffle(shuffled)
        order = order[shuffled]
    return order
