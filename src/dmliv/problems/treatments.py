"""Two small problems about decisions: which of three treatments, and which price with how much advertising.

In both, whoever took the actions knew something that also moves the outcome, so that a regression of outcomes
on actions recommends the wrong action. An instrument moves the actions for reasons of its own.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dmliv.data import FloatArray, IVData
from dmliv.errors import InputError
from dmliv.problems.arguments import check_count


@dataclass(frozen=True)
class TreatmentChoice:
    """Three treatments, chosen by doctors who see how ill a patient is; the table does not.

    With contexts x1, x2 ~ U(-1, 1), illness u ~ N(0, 1) and a clinic z that favours one of the treatments::

        treatment = argmax of 1.5 [z favours it] + taste + u (0 for none, 0.7 for a drug, 1.4 for surgery)
        benefit   = 0 (none),  0.4 + 0.6 x2 (drug),  0.5 + 0.8 x1 (surgery)
        outcome   = benefit + 0.3 x1 - 1.2 u + N(0, 0.5^2)

    with Gumbel tastes. The ill are treated more, and fare worse: compared without care for the illness,
    surgery looks harmful. In truth doing nothing is the best for few.
    """

    treatments: ClassVar[tuple[str, ...]] = ("none", "drug", "surgery")
    """The actions a policy may choose from."""

    def sample(self, n: int, seed: int = 0) -> IVData:
        """Draw rows: ``Y`` (n,), labels ``T`` (n,), the clinic's label ``Z`` (n, 1) and ``X`` (n, 2)."""
        check_count(n)
        rng = np.random.default_rng(seed)
        X = rng.uniform(-1.0, 1.0, (n, 2))
        illness = rng.standard_normal(n)
        clinic = rng.integers(0, 3, n)
        utility = rng.gumbel(size=(n, 3)) + 0.7 * illness[:, None] * np.arange(3.0)
        utility[np.arange(n), clinic] += 1.5
        labels = np.array(self.treatments)
        T = labels[utility.argmax(axis=1)]
        Y = self.counterfactual(X, T) - 1.2 * illness + 0.5 * rng.standard_normal(n)
        return IVData(Y=Y, T=T, Z=labels[clinic][:, None], X=X)

    def counterfactual(self, X: ArrayLike, T: Any) -> FloatArray:
        """Return the true mean outcome of treatments (n,) or one treatment in contexts (n, 2), shape (n,)."""
        x = np.asarray(X, dtype=np.float64)
        chosen = np.broadcast_to(np.asarray(T), (len(x),))
        unknown = sorted({str(label) for label in chosen} - set(self.treatments))
        if unknown:
            raise InputError(f"Expected treatments among {self.treatments}, got {unknown}; pass known ones.")
        benefit = np.column_stack([np.zeros(len(x)), 0.4 + 0.6 * x[:, 1], 0.5 + 0.8 * x[:, 0]])
        position = np.array([self.treatments.index(str(label)) for label in chosen], dtype=np.int64)
        return np.asarray(benefit[np.arange(len(x)), position] + 0.3 * x[:, 0])

    def optimal_action(self, X: ArrayLike) -> NDArray[np.str_]:
        """Return the best treatment of each context, shape (n,)."""
        values = np.column_stack([self.counterfactual(X, label) for label in self.treatments])
        return np.asarray(np.array(self.treatments)[values.argmax(axis=1)])

    def contexts(self, n: int, seed: int = 1, shift: float = 0.0) -> FloatArray:
        """Draw contexts, shape (n, 2); ``shift`` is added to the first column."""
        check_count(n)
        return np.asarray(np.random.default_rng(seed).uniform(-1.0, 1.0, (n, 2)) + np.array([shift, 0.0]))

    def test_set(self) -> tuple[FloatArray, NDArray[np.str_], FloatArray]:
        """Return a grid of 20 x 20 contexts with every treatment, (1200, 2), (1200,) and (1200,)."""
        axis = np.linspace(-1.0, 1.0, 20)
        grid = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
        X, T = np.repeat(grid, 3, axis=0), np.tile(np.array(self.treatments), len(grid))
        return X, T, self.counterfactual(X, T)


@dataclass(frozen=True)
class PriceAndAdvertising:
    """Two actions at once, price and advertising, both set by people who foresee demand.

    With season x ~ U(-1, 1), foreseen demand u ~ N(0, 1), cost shifters z1, z2 ~ N(0, 1)::

        price       = 0.5 x + z1 + 0.3 z2 + 0.6 u + N(0, 0.3^2)
        advertising = -0.4 x + z2 + 0.6 u + N(0, 0.3^2)
        h0      = 1 - (price - 0.5 - 0.5 x)^2 / 2 - (advertising + 0.5 x)^2 / 2 + 0.3 price advertising
        outcome = h0 + 1.5 u + N(0, 0.5^2)

    Demand that was foreseen raises price, advertising and sales together, so a regression recommends too much
    of both.
    """

    action_range: ClassVar[tuple[tuple[float, float], tuple[float, float]]] = ((-3.0, -3.0), (3.0, 3.0))
    """Lowest and highest price and advertising a policy may choose."""

    def sample(self, n: int, seed: int = 0) -> IVData:
        """Draw rows: ``Y`` (n,), price and advertising ``T`` (n, 2), shifters ``Z`` (n, 2), ``X`` (n, 1)."""
        check_count(n)
        rng = np.random.default_rng(seed)
        X = rng.uniform(-1.0, 1.0, (n, 1))
        foreseen, Z = rng.standard_normal(n), rng.standard_normal((n, 2))
        own = 0.3 * rng.standard_normal((n, 2))
        price = 0.5 * X[:, 0] + Z[:, 0] + 0.3 * Z[:, 1] + 0.6 * foreseen + own[:, 0]
        advertising = -0.4 * X[:, 0] + Z[:, 1] + 0.6 * foreseen + own[:, 1]
        T = np.column_stack([price, advertising])
        Y = self.counterfactual(X, T) + 1.5 * foreseen + 0.5 * rng.standard_normal(n)
        return IVData(Y=Y, T=T, Z=Z, X=X)

    def counterfactual(self, X: ArrayLike, T: ArrayLike) -> FloatArray:
        """Return the true mean outcome of actions (n, 2) or one pair in contexts (n, 1), shape (n,)."""
        x = np.asarray(X, dtype=np.float64)[:, 0]
        try:
            price, advertising = np.broadcast_to(np.asarray(T, dtype=np.float64), (len(x), 2)).T
        except ValueError:
            raise InputError(
                f"Expected price and advertising of {len(x)} rows, got shape {np.shape(T)}; pass (n, 2)."
            ) from None
        fit = (price - 0.5 - 0.5 * x) ** 2 + (advertising + 0.5 * x) ** 2
        return np.asarray(1.0 - fit / 2.0 + 0.3 * price * advertising)

    def optimal_action(self, X: ArrayLike) -> FloatArray:
        """Return the best price and advertising of each context, shape (n, 2)."""
        x = np.asarray(X, dtype=np.float64)[:, 0]
        # Where both derivatives vanish: price - 0.3 advertising and advertising - 0.3 price are known.
        known = np.column_stack([0.5 + 0.5 * x, -0.5 * x])
        return np.linalg.solve(np.array([[1.0, -0.3], [-0.3, 1.0]]), known.T).T

    def contexts(self, n: int, seed: int = 1, shift: float = 0.0) -> FloatArray:
        """Draw contexts, shape (n, 1); ``shift`` is added."""
        check_count(n)
        return np.random.default_rng(seed).uniform(-1.0, 1.0, (n, 1)) + shift

    def test_set(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return a grid of 10 contexts with 15 x 15 actions in [-2, 2], (2250, 1), (2250, 2), (2250,)."""
        axis = np.linspace(-2.0, 2.0, 15)
        actions = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
        X = np.repeat(np.linspace(-1.0, 1.0, 10), len(actions))[:, None]
        T = np.tile(actions, (10, 1))
        return X, T, self.counterfactual(X, T)
