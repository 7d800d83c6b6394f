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

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dmliv.data import FloatArray, IVData
from dmliv.errors import InputError
from dmliv.problems.checks import as_column, check_bounds, check_choice, check_count, is_finite_number
from dmliv.problems.protocol import EvaluationSet

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


def psi(t: ArrayLike) -> FloatArray:
    """Seasonal price sensitivity.

    Parameters
    ----------
    t : array_like, any shape
        Time of the year, in [0, 10] under the training distribution.

    Returns
    -------
    ndarray, the shape of ``t``
    """
    time = np.asarray(t, dtype=np.float64)
    centred = time - 5.0
    value: FloatArray = 2.0 * (centred**4 / 600.0 + np.exp(-4.0 * centred**2) + time / 10.0 - 2.0)
    return value


@dataclass(frozen=True)
class TicketDemand:
    """The ticket demand problem.

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

    action_range: ClassVar[tuple[float, float]] = (-5.0, 5.0)
    """The actions a policy may choose from, unless other bounds are given."""

    instrument_strength: float = 1.0
    confounding: float = 0.9
    customer_type: CustomerType = "one-hot"

    def __post_init__(self) -> None:
        if not (is_finite_number(self.instrument_strength) and self.instrument_strength >= 0):
            raise InputError(
                f"Expected instrument_strength to be a finite number of at least 0, "
                f"got {self.instrument_strength!r}."
            )
        if not (is_finite_number(self.confounding) and -1 <= self.confounding <= 1):
            raise InputError(f"Expected confounding to be a number in [-1, 1], got {self.confounding!r}.")
        check_choice("customer_type", self.customer_type, get_args(CustomerType))

    # ------------------------------------------------------------------------------------------ sampling

    def sample(self, n: int, seed: int = 0) -> IVData:
        """Draw observed rows.

        Problems that differ only in their parameters share all random draws of a seed, which makes
        comparisons across instrument strengths paired.

        Parameters
        ----------
        n : int
            Number of rows.
        seed : int, default 0
            Seed of the generator.

        Returns
        -------
        IVData
            Outcome ``Y`` (n,), standardised price ``T`` (n,), fuel cost ``Z`` (n, 1) and context ``X``,
            (n, 8) with a one-hot type or (n, 2) with a scalar type; time is the first column.
        """
        return self._sample(n, seed, confounding=self.confounding)

    def sample_unconfounded(self, n: int, seed: int = 0) -> IVData:
        """Draw the contexts, instruments and prices of :meth:`sample`, with noise the price knows nothing of.

        The noise has unit variance as well: what an experiment with the same prices would have recorded.

        Parameters
        ----------
        n : int
            Number of rows.
        seed : int, default 0
            Seed of the generator.

        Returns
        -------
        IVData
            As in :meth:`sample`.
        """
        return self._sample(n, seed, confounding=0.0)

    def contexts(self, n: int, seed: int = 1, shift: float = 0.0) -> FloatArray:
        """Draw contexts for judging policies.

        Parameters
        ----------
        n : int
            Number of contexts.
        seed : int, default 1
            Seed of the generator.
        shift : float, default 0.0
            Added to the time: 0 is the training distribution U(0, 10), 1 the out-of-distribution distribution
            U(1, 11).

        Returns
        -------
        ndarray, shape (n, 8) or (n, 2)
        """
        check_count(n)
        if not is_finite_number(shift):
            raise InputError(f"Expected shift to be a finite number, got {shift!r}.")
        rng = np.random.default_rng(seed)
        time = rng.uniform(0.0, MAX_TIME, size=n) + shift
        kind = rng.integers(1, N_TYPES + 1, size=n)
        return self._encode(time, kind)

    def test_set(self) -> EvaluationSet:
        """Return the grid at which counterfactual errors are reported.

        All combinations of 20 prices in [10, 25], 20 times in [0, 10] and the 7 types. More than a third of
        the points lie over two conditional standard deviations from the prices seen in their context, so the
        grid also tests extrapolation; :meth:`iid_test_set` does not.

        Returns
        -------
        X : ndarray, shape (2800, 8) or (2800, 2)
        T : ndarray, shape (2800,)
        truth : ndarray, shape (2800,)
        """
        price, time, kind = (
            axis.ravel()
            for axis in np.meshgrid(
                np.linspace(*GRID_PRICES),
                np.linspace(*GRID_TIMES),
                np.arange(1, N_TYPES + 1, dtype=np.float64),
                indexing="ij",
            )
        )
        action = _to_action(price)
        return self._encode(time, kind), action, _standardised_demand(time, kind, action)

    def iid_test_set(self, n: int = 10_000, seed: int = 12345) -> EvaluationSet:
        """Return fresh draws from the model, the action included, with the counterfactual there.

        Parameters
        ----------
        n : int, default 10_000
            Number of points.
        seed : int, default 12345
            Seed of the generator; keep it apart from the seeds of training samples.

        Returns
        -------
        X : ndarray, shape (n, 8) or (n, 2)
        T : ndarray, shape (n,)
        truth : ndarray, shape (n,)
        """
        data = self.sample(n, seed=seed)
        X = np.asarray(data.X, dtype=np.float64)
        T = np.asarray(data.T, dtype=np.float64)
        return X, T, self.counterfactual(X, T)

    # -------------------------------------------------------------------------------------- exact answers

    def counterfactual(self, X: ArrayLike, T: ArrayLike) -> FloatArray:
        """Return the true counterfactual h0, the mean standardised outcome under do(T) in context X.

        Parameters
        ----------
        X : array_like, shape (n, 8) or (n, 2)
            Contexts in the encoding of this problem.
        T : array_like, shape (n,) or (n, 1), or a scalar
            Standardised prices.

        Returns
        -------
        ndarray, shape (n,)
        """
        time, kind = self._decode(X)
        return _standardised_demand(time, kind, as_column(T, len(time), "T"))

    def exact_action_distribution(self, X: ArrayLike, Z: ArrayLike) -> tuple[FloatArray, float]:
        """Return the Gaussian distribution of the standardised action given context and instrument.

        Parameters
        ----------
        X : array_like, shape (n, 8) or (n, 2)
            Contexts.
        Z : array_like, shape (n,) or (n, 1), or a scalar
            Instrument.

        Returns
        -------
        mean : ndarray, shape (n,)
        sd : float
            The same for every row: the hidden event has unit variance in price units.
        """
        time, _ = self._decode(X)
        return _to_action(self._mean_price(time, as_column(Z, len(time), "Z"))), 1.0 / PRICE_SD

    def exact_outcome_mean(self, X: ArrayLike, Z: ArrayLike) -> FloatArray:
        """Return s0(X, Z) = E[Y | X, Z], the mean of the counterfactual under the action distribution.

        The noise has mean zero given (X, Z) and h0 is linear in the action, so this is h0 at the mean action.

        Parameters
        ----------
        X : array_like, shape (n, 8) or (n, 2)
            Contexts.
        Z : array_like, shape (n,) or (n, 1), or a scalar
            Instrument.

        Returns
        -------
        ndarray, shape (n,)
        """
        mean_action, _ = self.exact_action_distribution(X, Z)
        return self.counterfactual(X, mean_action)

    # ------------------------------------------------------------------------------------------- policies

    def reward(self, X: ArrayLike, T: ArrayLike) -> FloatArray:
        """Return the noise-free reward of action T in context X, shape (n,): the counterfactual."""
        return self.counterfactual(X, T)

    def optimal_action(self, X: ArrayLike, low: float = -5.0, high: float = 5.0) -> FloatArray:
        """Return the best action in [low, high] for every context.

        Parameters
        ----------
        X : array_like, shape (n, 8) or (n, 2)
            Contexts.
        low, high : float
            Bounds of the standardised action.

        Returns
        -------
        ndarray, shape (n,)
            One of the bounds: h0 is linear in the action.
        """
        check_bounds(low, high)
        return np.where(self._price_slope(X) > 0, float(high), float(low))

    def optimal_value(self, X: ArrayLike, low: float = -5.0, high: float = 5.0) -> float:
        """Return the mean reward of the best action in [low, high] over the contexts."""
        return float(np.mean(self.reward(X, self.optimal_action(X, low, high))))

    def random_value(self, X: ArrayLike, low: float = -5.0, high: float = 5.0) -> float:
        """Return the expected mean reward of an action drawn uniformly from [low, high]."""
        check_bounds(low, high)
        # h0 is linear in the action, so the mean over the interval is the value at its centre.
        return float(np.mean(self.reward(X, (low + high) / 2.0)))

    def worst_value(self, X: ArrayLike, low: float = -5.0, high: float = 5.0) -> float:
        """Return the mean reward of the worst action in [low, high] over the contexts."""
        worst_action = (low + high) - self.optimal_action(X, low, high)
        return float(np.mean(self.reward(X, worst_action)))

    # -------------------------------------------------------------------------------------------- private

    def _sample(self, n: int, seed: int, *, confounding: float) -> IVData:
        check_count(n)
        rng = np.random.default_rng(seed)
        time = rng.uniform(0.0, MAX_TIME, size=n)
        kind = rng.integers(1, N_TYPES + 1, size=n)
        instrument = rng.standard_normal(n)
        event = rng.standard_normal(n)
        own_noise = rng.standard_normal(n)

        price = self._mean_price(time, instrument) + event
        action = _to_action(price)
        noise = confounding * event + np.sqrt(1.0 - confounding**2) * own_noise
        outcome = _standardised_demand(time, kind, action) + noise
        return IVData(Y=outcome, T=action, Z=instrument[:, np.newaxis], X=self._encode(time, kind))

    def _mean_price(self, time: FloatArray, instrument: FloatArray) -> FloatArray:
        """Return the mean price given time and instrument, shape (n,)."""
        return 25.0 + (self.instrument_strength * instrument + 3.0) * psi(time)

    def _price_slope(self, X: ArrayLike) -> FloatArray:
        """Return the change of raw demand per unit of price, shape (n,)."""
        time, kind = self._decode(X)
        return kind * psi(time) - 2.0

    def _encode(self, time: FloatArray, kind: NDArray[np.integer] | FloatArray) -> FloatArray:
        """Return contexts in the encoding of this problem from times and types 1..7, both (n,)."""
        if self.customer_type == "scalar":
            return np.column_stack([time, kind.astype(np.float64)])
        indicators = kind[:, np.newaxis] == np.arange(1, N_TYPES + 1)
        return np.column_stack([time, indicators.astype(np.float64)])

    def _decode(self, X: ArrayLike) -> tuple[FloatArray, FloatArray]:
        """Return times and types 1..7, both (n,), from encoded contexts."""
        context = np.asarray(X, dtype=np.float64)
        width = 1 + N_TYPES if self.customer_type == "one-hot" else 2
        if context.ndim != 2 or context.shape[1] != width:
            raise InputError(
                f"Expected X of shape (n, {width}) for customer_type={self.customer_type!r}, "
                f"got shape {context.shape}."
            )
        time, rest = context[:, 0], context[:, 1:]
        if self.customer_type == "scalar":
            kind = rest[:, 0]
            if not np.isin(kind, np.arange(1, N_TYPES + 1)).all():
                raise InputError(f"Expected the second column of X to hold types 1 to {N_TYPES}, got others.")
            return time, kind
        if not (np.allclose(rest.sum(axis=1), 1.0) and np.allclose(rest.max(axis=1), 1.0)):
            raise InputError(
                "Expected columns 1 to 7 of X to be one-hot customer types (a single 1 in every row), "
                "got other values. For types 1 to 7 in one column use customer_type='scalar'."
            )
        return time, rest @ np.arange(1.0, N_TYPES + 1)


def _to_action(price: FloatArray) -> FloatArray:
    """Return the standardised action of a raw price."""
    return (price - PRICE_MEAN) / PRICE_SD


def _standardised_demand(
    time: FloatArray, kind: NDArray[np.integer] | FloatArray, action: FloatArray
) -> FloatArray:
    """Return h0 for times, types 1..7 and standardised actions, all (n,)."""
    price = PRICE_MEAN + PRICE_SD * action
    demand = (10.0 + price) * kind * psi(time) - 2.0 * price
    standardised: FloatArray = (demand - DEMAND_MEAN) / DEMAND_SD
    return standardised
