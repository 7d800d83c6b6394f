"""Ticket demand: the low-dimensional benchmark of the DeepIV line of work.

An airline sets ticket prices. Demand depends on the price, on the time of the year and on the type of
customer; an unobserved event raises price and demand together, and the fuel cost is an instrument that moves
the price alone. With time t ~ U(0, 10), customer type s uniform on 1..7, fuel cost z ~ N(0, 1) and event
omega ~ N(0, 1)::

    psi(t) = 2 [ (t - 5)^4 / 600 + exp(-4 (t - 5)^2) + t / 10 - 2 ]
    price  = 25 + (strength z + 3) psi(t) + omega
    action = (price - 17.779) / 3.7
    h0     = ( (10 + price) s psi(t) - 2 price + 292.1 ) / 158
    outcome = h0 + e,   e = confounding omega + sqrt(1 - confounding^2) N(0, 1)

The outcome noise has unit variance and is added *after* standardisation, so signal and noise are equally
strong. Adding it to raw demand instead would shrink its standard deviation to 1/158 and with it all visible
confounding.

``h0`` is linear in the action, with a negative slope for every time in [0, 10] and every type. Hence the best
policy inside the training distribution is a constant, the lowest price on offer, and the reward of a learned
policy mostly tests the sign of its slope outside the support of the data. Judge estimators by counterfactual
error first. The distribution of the action given context and instrument is Gaussian, so conditional means are
known exactly.

References
----------
Hartford, Lewis, Leyton-Brown and Taddy, "Deep IV: A Flexible Approach for Counterfactual Prediction",
ICML 2017 (the design).

Shao, Soleymani, Quinzan and Kwiatkowska, "Learning Decision Policies with Instrumental Variables through
Double Machine Learning", ICML 2024 (the constants and the place of the noise).
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dmliv.data import FloatArray, IVData
from dmliv.errors import InputError
from dmliv.problems.arguments import (
    as_column,
    as_contexts,
    check_bounds,
    check_choice,
    check_confounding,
    check_count,
    check_not_negative,
    check_shift,
)
from dmliv.problems.protocol import ContextArray, Part

CustomerType = Literal["one-hot", "scalar"]

# Standardising constants of the code released with Shao et al. (2024): they are fixed for every sample and
# every instrument strength, so that errors and rewards of different samples share one unit.
PRICE_MEAN = 17.779
PRICE_SD = 3.7
DEMAND_MEAN = -292.1
DEMAND_SD = 158.0

N_TYPES = 7
MAX_TIME = 10.0

# The evaluation grid shared by the kernel IV, deep-feature IV and DML-IV implementations.
GRID_PRICES = (10.0, 25.0, 20)
GRID_TIMES = (0.0, 10.0, 20)
_GRID_SEED = 0


def psi(t: ArrayLike) -> FloatArray:
    """Return the seasonal price sensitivity at times of any shape, in [0, 10] where the training data are."""
    time = np.asarray(t, dtype=np.float64)
    centred = time - 5.0
    value: FloatArray = 2.0 * (centred**4 / 600.0 + np.exp(-4.0 * centred**2) + time / 10.0 - 2.0)
    return value


def to_action(price: FloatArray) -> FloatArray:
    """Return standardised actions from prices of the same shape."""
    return (price - PRICE_MEAN) / PRICE_SD


def to_price(action: FloatArray) -> FloatArray:
    """Return prices from standardised actions of the same shape."""
    return PRICE_MEAN + PRICE_SD * action


@dataclass(frozen=True)
class Demand(ABC):
    """Demand for tickets; a subclass says how learners see time and type of the customer.

    For one seed, time, type, instrument, action and outcome are the same in all subclasses. Problems that
    differ only in their parameters share all random draws of a seed, which makes comparisons across
    instrument strengths paired. For the parameters see :class:`TicketDemand`.
    """

    action_range: ClassVar[tuple[float, float]] = (-5.0, 5.0)
    """The actions a policy may choose from, unless other bounds are given."""

    instrument_strength: float = 1.0
    confounding: float = 0.9

    def __post_init__(self) -> None:
        check_not_negative("instrument_strength", self.instrument_strength)
        check_confounding(self.confounding)

    @abstractmethod
    def _show(self, time: FloatArray, kind: NDArray[np.int64], part: Part, seed: int) -> ContextArray:
        """Return contexts (n, d_X) for times and types 1 to 7, both (n,)."""

    @abstractmethod
    def _read(self, X: ArrayLike) -> tuple[FloatArray, FloatArray]:
        """Return times and types 1 to 7, both (n,), from contexts (n, d_X)."""

    # ------------------------------------------------------------------------------------------ sampling

    def sample(self, n: int, seed: int = 0) -> IVData:
        """Draw ``n`` observed rows.

        Returns
        -------
        IVData
            Outcome ``Y`` (n,), standardised price ``T`` (n,), fuel cost ``Z`` (n, 1) and context ``X``
            (n, d_X), of which time is the first column.
        """
        return self._sample(n, seed, self.confounding)

    def sample_unconfounded(self, n: int, seed: int = 0) -> IVData:
        """Draw the contexts, instruments and prices of :meth:`sample`, with noise the price knows nothing of.

        The noise has unit variance as well: what an experiment with the same prices would have recorded.
        """
        return self._sample(n, seed, 0.0)

    def contexts(self, n: int, seed: int = 1, shift: float = 0.0) -> ContextArray:
        """Draw contexts on which to evaluate policies, shape (n, d_X).

        ``shift`` is added to the time: 0 is the training distribution U(0, 10), 1 the out-of-distribution
        distribution U(1, 11).
        """
        check_count(n)
        check_shift(shift)
        time, kind = _draw_contexts(np.random.default_rng(seed), n)
        return self._show(time + shift, kind, "test", seed)

    def test_set(self) -> tuple[ContextArray, FloatArray, FloatArray]:
        """Return the grid at which counterfactual errors are reported.

        All combinations of 20 prices in [10, 25], 20 times in [0, 10] and the 7 types. More than a third of
        the points lie over two conditional standard deviations from the prices seen in their context, so the
        grid also tests extrapolation; :meth:`iid_test_set` does not.

        Returns
        -------
        X : ndarray, shape (2800, d_X)
        T : ndarray, shape (2800,)
        truth : ndarray, shape (2800,)
        """
        axes = np.linspace(*GRID_PRICES), np.linspace(*GRID_TIMES), np.arange(1.0, N_TYPES + 1)
        price, time, kind = (axis.ravel() for axis in np.meshgrid(*axes, indexing="ij"))
        action = to_action(price)
        X = self._show(time, kind.astype(np.int64), "test", _GRID_SEED)
        return X, action, _standardised_demand(time, kind, action)

    def iid_test_set(self, n: int = 10_000, seed: int = 12345) -> tuple[ContextArray, FloatArray, FloatArray]:
        """Return fresh draws from the model, the action included, with the counterfactual there.

        They are shaped like those of :meth:`test_set`. Keep the seed apart from those of training samples.
        """
        time, kind, _, action, _ = self._draw(n, seed, self.confounding)
        return self._show(time, kind, "test", seed), action, _standardised_demand(time, kind, action)

    # -------------------------------------------------------------------------------------- exact answers

    def counterfactual(self, X: ArrayLike, T: ArrayLike) -> FloatArray:
        """Return the true counterfactual h0, the mean standardised outcome under do(T) in context X.

        Parameters
        ----------
        X : array_like, shape (n, d_X)
            Contexts as this problem draws them.
        T : array_like, shape (n,) or (n, 1), or a scalar
            Standardised prices.

        Returns
        -------
        ndarray, shape (n,)
        """
        time, kind = self._read(X)
        return _standardised_demand(time, kind, as_column(T, len(time), "T"))

    def exact_action_distribution(self, X: ArrayLike, Z: ArrayLike) -> tuple[FloatArray, float]:
        """Return mean (n,) and standard deviation of the Gaussian action given context and instrument.

        The instrument is (n,), (n, 1) or a scalar. The standard deviation is the same for every row: the
        hidden event has unit variance in price units.
        """
        time, _ = self._read(X)
        return to_action(self._mean_price(time, as_column(Z, len(time), "Z"))), 1.0 / PRICE_SD

    def exact_outcome_mean(self, X: ArrayLike, Z: ArrayLike) -> FloatArray:
        """Return s0(X, Z) = E[Y | X, Z], the mean of the counterfactual under the action distribution, (n,).

        The noise has mean zero given (X, Z) and h0 is linear in the action, so this is h0 at the mean action.
        """
        time, kind = self._read(X)
        mean = to_action(self._mean_price(time, as_column(Z, len(time), "Z")))
        return _standardised_demand(time, kind, mean)

    # ------------------------------------------------------------------------------------------- policies

    def reward(self, X: ArrayLike, T: ArrayLike) -> FloatArray:
        """Return the noise-free reward of action T in context X, shape (n,): the counterfactual."""
        return self.counterfactual(X, T)

    def optimal_action(self, X: ArrayLike, low: float = -5.0, high: float = 5.0) -> FloatArray:
        """Return the best standardised action in [low, high] for every context, shape (n,).

        It is one of the bounds: h0 is linear in the action.
        """
        return _best_action(*self._read(X), low, high)

    def optimal_value(self, X: ArrayLike, low: float = -5.0, high: float = 5.0) -> float:
        """Return the mean reward of the best action in [low, high] over the contexts."""
        time, kind = self._read(X)
        return float(np.mean(_standardised_demand(time, kind, _best_action(time, kind, low, high))))

    def random_value(self, X: ArrayLike, low: float = -5.0, high: float = 5.0) -> float:
        """Return the expected mean reward of an action drawn uniformly from [low, high]."""
        check_bounds(low, high)
        # h0 is linear in the action, so the mean over the interval is the value at its centre.
        return float(np.mean(self.reward(X, (low + high) / 2.0)))

    def worst_value(self, X: ArrayLike, low: float = -5.0, high: float = 5.0) -> float:
        """Return the mean reward of the worst action in [low, high] over the contexts."""
        time, kind = self._read(X)
        worst = (low + high) - _best_action(time, kind, low, high)
        return float(np.mean(_standardised_demand(time, kind, worst)))

    # -------------------------------------------------------------------------------------------- private

    def _sample(self, n: int, seed: int, confounding: float) -> IVData:
        time, kind, instrument, action, noise = self._draw(n, seed, confounding)
        outcome = _standardised_demand(time, kind, action) + noise
        return IVData(
            Y=outcome, T=action, Z=instrument[:, np.newaxis], X=self._show(time, kind, "train", seed)
        )

    def _draw(
        self, n: int, seed: int, confounding: float
    ) -> tuple[FloatArray, NDArray[np.int64], FloatArray, FloatArray, FloatArray]:
        """Return times, types, instruments, actions and outcome noises, all (n,)."""
        check_count(n)
        rng = np.random.default_rng(seed)
        time, kind = _draw_contexts(rng, n)
        instrument, event, own_noise = (rng.standard_normal(n) for _ in range(3))
        noise = confounding * event + np.sqrt(1.0 - confounding**2) * own_noise
        return time, kind, instrument, to_action(self._mean_price(time, instrument) + event), noise

    def _mean_price(self, time: FloatArray, instrument: FloatArray) -> FloatArray:
        """Return the mean price given time and instrument, shape (n,)."""
        return 25.0 + (self.instrument_strength * instrument + 3.0) * psi(time)


@dataclass(frozen=True)
class TicketDemand(Demand):
    """The ticket demand problem.

    Contexts are (n, 8), the time and a one-hot type of the customer, or (n, 2) with a scalar type.

    Parameters
    ----------
    instrument_strength : float, default 1.0
        Factor on the instrument in the price equation, at least 0. Values near 0 make the instrument weak.
    confounding : float, default 0.9
        Correlation of the outcome noise with the hidden event that moves the price, in [-1, 1].
    customer_type : {"one-hot", "scalar"}, default "one-hot"
        Encoding of the customer type in the context: seven indicator columns, or one column with 1..7.

    Examples
    --------
    >>> problem = TicketDemand()
    >>> data = problem.sample(1_000, seed=0)
    >>> data.X.shape
    (1000, 8)
    """

    customer_type: CustomerType = "one-hot"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("customer_type", self.customer_type, get_args(CustomerType))

    def _show(self, time: FloatArray, kind: NDArray[np.int64], part: Part, seed: int) -> FloatArray:
        del part, seed
        shown = kind if self.customer_type == "scalar" else kind[:, np.newaxis] == np.arange(1, N_TYPES + 1)
        return np.column_stack([time, shown.astype(np.float64)])

    def _read(self, X: ArrayLike) -> tuple[FloatArray, FloatArray]:
        width = 1 + N_TYPES if self.customer_type == "one-hot" else 2
        context = as_contexts(X, width, f" for customer_type={self.customer_type!r}")
        time, rest = context[:, 0], context[:, 1:]
        if self.customer_type == "scalar":
            kind = rest[:, 0]
            if not np.isin(kind, np.arange(1, N_TYPES + 1)).all():
                raise InputError(
                    f"Expected the second column of X to hold types 1 to {N_TYPES}, got others; correct them."
                )
            return time, kind
        if not (np.allclose(rest.sum(axis=1), 1.0) and np.allclose(rest.max(axis=1), 1.0)):
            raise InputError(
                "Expected columns 1 to 7 of X to be one-hot customer types (a single 1 in every row), "
                "got other values. For types 1 to 7 in one column use customer_type='scalar'."
            )
        return time, rest @ np.arange(1.0, N_TYPES + 1)


def _draw_contexts(rng: np.random.Generator, n: int) -> tuple[FloatArray, NDArray[np.int64]]:
    """Return times and types 1 to 7, both (n,)."""
    return rng.uniform(0.0, MAX_TIME, size=n), rng.integers(1, N_TYPES + 1, size=n)


def _standardised_demand(
    time: FloatArray, kind: NDArray[np.integer] | FloatArray, action: FloatArray
) -> FloatArray:
    """Return h0 for times, types 1 to 7 and standardised actions, all (n,)."""
    price = to_price(action)
    demand = (10.0 + price) * kind * psi(time) - 2.0 * price
    standardised: FloatArray = (demand - DEMAND_MEAN) / DEMAND_SD
    return standardised


def _best_action(time: FloatArray, kind: FloatArray, low: float, high: float) -> FloatArray:
    """Return the bound at which h0, which is linear in the action, is higher, shape (n,)."""
    check_bounds(low, high)
    slope = kind * psi(time) - 2.0
    return np.where(slope > 0, float(high), float(low))
