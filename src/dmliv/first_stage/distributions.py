"""Action distributions: the estimated distribution of the action given context and instrument, one per row.

A distribution only has to say where the action may land and with which weight. Draws, exact sums over classes
and quadrature all come out as :class:`Nodes`, and the second stage knows nothing else about the action model.
What is computed from a distribution (means, densities, ranks, kernel mean embeddings) is a method of it, with
a default in :class:`ActionDistribution`, so that a new distribution needs one class and no change elsewhere.
Actions are in model units here: standardised columns when continuous, one-hot rows when discrete.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import ndtr, ndtri
from scipy.stats import gaussian_kde, multivariate_normal
from torch import Tensor

from dmliv.data.savable import savable
from dmliv.errors import InputError
from dmliv.kernels.features import gaussian_kernel
from dmliv.nets.heads import MixtureParameters
from dmliv.nets.randomness import Draws, drawn

# Gauss-Hermite grids grow as points ** dimension; past this many nodes per component draws are cheaper.
_MOST_NODES_PER_COMPONENT = 512
_EVALUATION_DRAWS = 64
# Ranks beyond this are as good as certain.
_LOWEST_RANK = 1e-4
# Numbers in the kernel matrix of one chunk of rows with all their components or nodes.
_CHUNK_SIZE = 1 << 20
# Residuals that stand for a pool in a density estimate: more make it slower, not better.
_MOST_RESIDUALS = 1000
# A little of a wide Gaussian in the density of residuals, so that one far action does not decide.
_WIDE_SHARE = 0.01
_WIDE_FACTOR = 3.0

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


@savable
@dataclass(frozen=True)
class Nodes:
    """Places an action may take, with weights that sum to one over the Q nodes.

    Attributes
    ----------
    actions : Tensor, shape (..., Q, d)
    weights : Tensor, shape (..., Q)
    """

    actions: Tensor
    weights: Tensor


class ActionDistribution(ABC):
    """Row-indexed distribution of the action.

    Subclasses are frozen dataclasses. Where every field is a tensor with one entry per row (leading axis),
    the defaults of :meth:`take`, :meth:`concatenate`, :meth:`columns` and :meth:`from_columns` serve; a
    subclass then only says how to draw from it, its nodes and its mean.
    """

    @property
    @abstractmethod
    def width(self) -> int:
        """Width d of an action vector."""

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.mean())

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self.mean().device

    @property
    def is_finite(self) -> bool:
        """Whether :meth:`nodes` is exact, so that nothing needs to be drawn."""
        return False

    @abstractmethod
    def sample(self, rows: Tensor, n_draws: int, generator: Draws) -> Nodes:
        """Draw ``n_draws`` independent actions for each of ``rows`` (any shape)."""

    @abstractmethod
    def nodes(self, rows: Tensor, n_points: int) -> Nodes:
        """Return deterministic nodes for ``rows``: quadrature with ``n_points`` per axis, or all classes."""

    @abstractmethod
    def mean(self) -> Tensor:
        """Return the mean action, shape (n_rows, d)."""

    def evaluation_nodes(self, rows: Tensor, n_points: int) -> Nodes:
        """Return nodes to evaluate h with: :meth:`nodes`, or draws of a fixed seed for wide actions."""
        if self.is_finite or n_points**self.width <= _MOST_NODES_PER_COMPONENT:
            return self.nodes(rows, n_points)
        return self.sample(rows, _EVALUATION_DRAWS, torch.Generator(device=rows.device).manual_seed(0))

    def log_density(self, action: FloatArray | IntArray) -> FloatArray | None:
        """Return the log density (or probability) of one action per row, shape (n_rows,); None without one.

        Actions are (n_rows, d), or level numbers (n_rows,) of a discrete action.
        """
        del action
        return None

    def held_out_log_density(
        self, action: FloatArray | IntArray, *, n_fit_rows: int, seed: int
    ) -> FloatArray | None:
        """Return log densities to compare learners by on validation rows, finite for every action.

        Parameters
        ----------
        action : ndarray
            As for :meth:`log_density`.
        n_fit_rows : int
            Rows that the model was fitted on: an action it holds for impossible counts as half of one.
        seed : int
            Of a density estimate, where one is needed.
        """
        del n_fit_rows, seed
        return self.log_density(action)

    def normal_scores(self, action: FloatArray) -> tuple[FloatArray, FloatArray] | None:
        """Return the normal score of each row's action (n, 1) in its distribution, and its spread, both (n,).

        None where the distribution has no spread of its own in each row, or more than one column.
        """
        del action
        return None

    def kernel_means(
        self, rows: IntArray, landmarks: FloatArray, scales: FloatArray, *, n_points: int
    ) -> FloatArray:
        """Return the kernel mean embedding E[k(A, landmark)] of a Gaussian kernel, shape (n, m).

        Parameters
        ----------
        rows : ndarray of int, shape (n,)
        landmarks : ndarray, shape (m, d)
        scales : ndarray, shape (d,)
            Standard deviation of the kernel in each column.
        n_points : int
            Points of the quadrature per action column, where the mean has no closed form.
        """
        return self.node_means(rows, landmarks, scales, n_points=n_points)

    def node_means(
        self, rows: IntArray, landmarks: FloatArray, scales: FloatArray, *, n_points: int
    ) -> FloatArray:
        """Return the mean of the kernel over a few quadrature nodes; arguments as for :meth:`kernel_means`.

        With few nodes and a narrow kernel it keeps steps that the exact mean smooths away. As an estimate of
        the mean it is worse; as a function of context and instrument to weight rows with it is a richer set.
        """
        device, found = self.device, np.empty((len(rows), len(landmarks)))
        n_nodes = self.n_nodes(n_points)
        step = max(1, _CHUNK_SIZE // max(1, n_nodes * len(landmarks)))
        for start in range(0, len(rows), step):
            index = torch.from_numpy(rows[start : start + step]).to(device)
            nodes = self.evaluation_nodes(index, n_points)
            actions = nodes.actions.flatten(0, 1).cpu().double().numpy()
            kernel = gaussian_kernel(actions, landmarks, scales).reshape(len(index), n_nodes, -1)
            weights = nodes.weights.cpu().double().numpy()
            found[start : start + step] = (weights[:, None, :] @ kernel)[:, 0]
        return found

    def take(self, rows: Tensor) -> Self:
        """Return the distribution of some rows (n,), re-indexed from zero."""
        return type(self)(**{name: part.index_select(0, rows) for name, part in self._parts().items()})

    @classmethod
    def concatenate(cls, distributions: Sequence[Self]) -> Self:
        """Return one distribution with the rows of several of this class, one after the other."""
        parts = [each._parts() for each in distributions]
        return cls(**{name: torch.cat([part[name] for part in parts]) for name in parts[0]})

    def columns(self) -> dict[str, Tensor]:
        """Return what a table stores of every row: tensors with the rows as their leading axis."""
        return self._parts()

    @classmethod
    def from_columns(cls, columns: dict[str, Tensor]) -> Self:
        """Return the distribution whose :meth:`columns` these are."""
        return cls(**columns)

    def n_nodes(self, n_points: int) -> int:
        """Return how many :meth:`evaluation_nodes` a row has."""
        first = torch.zeros(1, dtype=torch.long, device=self.device)
        return self.evaluation_nodes(first, n_points).weights.shape[-1]

    def _parts(self) -> dict[str, Any]:
        # Whoever has other fields than tensors by row says how to take and join them.
        return {each.name: getattr(self, each.name) for each in fields(self)}  # type: ignore[arg-type]


@savable(formerly=("MixtureLaw",))
@dataclass(frozen=True)
class MixtureDistribution(ActionDistribution):
    """Mixtures of G Gaussians in d dimensions.

    Attributes
    ----------
    weights : Tensor, shape (n_rows, G)
    means : Tensor, shape (n_rows, G, d)
    factors : Tensor, shape (n_rows, G, d, d)
        Lower Cholesky factors of the covariances.
    """

    weights: Tensor
    means: Tensor
    factors: Tensor

    @classmethod
    def from_parameters(cls, parameters: MixtureParameters) -> MixtureDistribution:
        """Make a distribution from mixture parameters with one leading row axis."""
        return cls(parameters.log_weights.exp(), parameters.means, parameters.factors)

    @property
    def width(self) -> int:
        """Width d of an action vector."""
        return self.means.shape[-1]

    def sample(self, rows: Tensor, n_draws: int, generator: Draws) -> Nodes:
        """Draw a component by its weight, then from its Gaussian."""
        device = self.weights.device
        shape = (*rows.shape, n_draws)
        uniform = drawn(torch.rand, shape, generator, device)
        cumulative = self.weights[rows].cumsum(-1)
        # The last cumulative weight may round to just below one.
        component = (cumulative.unsqueeze(-2) < uniform.unsqueeze(-1)).sum(-1)
        component = component.clamp_(max=self.weights.shape[1] - 1)
        chosen_rows = rows.unsqueeze(-1).expand(shape)
        means = self.means[chosen_rows, component]
        noise = drawn(torch.randn, tuple(means.shape), generator, device)
        factors = self.factors[chosen_rows, component]
        if means.shape[-1] == 1:
            actions = means + factors.squeeze(-1) * noise
        else:
            actions = means + (factors @ noise.unsqueeze(-1)).squeeze(-1)
        return Nodes(actions, torch.full(shape, 1.0 / n_draws, dtype=torch.float32, device=device))

    def nodes(self, rows: Tensor, n_points: int) -> Nodes:
        """Gauss-Hermite nodes of every component, ``G * n_points ** d`` per row."""
        dimension = self.means.shape[-1]
        if n_points**dimension > _MOST_NODES_PER_COMPONENT:
            raise InputError(
                f"Expected a quadrature of at most {_MOST_NODES_PER_COMPONENT} nodes per component, got "
                f"{n_points} points in each of {dimension} action columns; use a draw rule that samples "
                "(DrawRule('mean') or DrawRule('unbiased')) for actions with this many columns."
            )
        points, point_weights = np.polynomial.hermite_e.hermegauss(n_points)
        point_weights = point_weights / point_weights.sum()
        grid = np.stack(np.meshgrid(*[points] * dimension, indexing="ij"), axis=-1).reshape(-1, dimension)
        grid_weights = np.prod(
            np.stack(np.meshgrid(*[point_weights] * dimension, indexing="ij"), axis=-1), axis=-1
        ).reshape(-1)
        standard = torch.as_tensor(grid, dtype=torch.float32, device=self.means.device)
        standard_weights = torch.as_tensor(grid_weights, dtype=torch.float32, device=self.means.device)
        offsets = torch.einsum("...gij,qj->...gqi", self.factors[rows], standard)
        actions = self.means[rows].unsqueeze(-2) + offsets
        weights = self.weights[rows].unsqueeze(-1) * standard_weights
        return Nodes(actions.flatten(-3, -2), weights.flatten(-2, -1))

    def mean(self) -> Tensor:
        """Return the mean action, shape (n_rows, d)."""
        return (self.weights.unsqueeze(-1) * self.means).sum(1)

    def normal_scores(self, action: FloatArray) -> tuple[FloatArray, FloatArray] | None:
        """Return the normal scores of actions of one column, and the standard deviation of each row."""
        if self.width != 1:
            return None
        weights, means, spreads = (
            each.reshape(len(action), -1).cpu().double().numpy()
            for each in (self.weights, self.means, self.factors)
        )
        rank = np.sum(weights * ndtr((action - means) / spreads), axis=1)
        mean = np.sum(weights * means, axis=1, keepdims=True)
        variance = np.sum(weights * (spreads**2 + (means - mean) ** 2), axis=1)
        return ndtri(np.clip(rank, _LOWEST_RANK, 1.0 - _LOWEST_RANK)), np.sqrt(variance)

    def log_density(self, action: FloatArray | IntArray) -> FloatArray:
        """Return the log density of one action (n_rows, d) per row, shape (n_rows,)."""
        actions = torch.from_numpy(action.astype(np.float32)).to(self.means.device)
        offset = (actions.unsqueeze(1) - self.means).unsqueeze(-1)
        whitened = torch.linalg.solve_triangular(self.factors, offset, upper=False).squeeze(-1)
        log_determinant = torch.diagonal(self.factors, dim1=-2, dim2=-1).log().sum(-1)
        component = -0.5 * whitened.square().sum(-1) - log_determinant
        component = component - 0.5 * self.width * math.log(2 * math.pi)
        found = torch.logsumexp(self.weights.clamp_min(1e-30).log() + component, dim=-1)
        return np.asarray(found.cpu().double().numpy())

    def kernel_means(
        self, rows: IntArray, landmarks: FloatArray, scales: FloatArray, *, n_points: int
    ) -> FloatArray:
        """Return the kernel mean embedding of rows (n,) at landmarks (m, d) in closed form, shape (n, m)."""
        del n_points
        found = np.empty((len(rows), len(landmarks)))
        step = max(1, _CHUNK_SIZE // max(1, self.weights.shape[1] * len(landmarks)))
        for start in range(0, len(rows), step):
            index = torch.from_numpy(rows[start : start + step]).to(self.weights.device)
            found[start : start + step] = self._exact_kernel_means(index, landmarks, scales)
        return found

    def _exact_kernel_means(self, rows: Tensor, landmarks: FloatArray, scales: FloatArray) -> FloatArray:
        # A Gaussian kernel is a Gaussian density without its constant, so its mean over a Gaussian is one
        # too: the covariances add up.
        weights, means, factors = (
            each.index_select(0, rows).cpu().double().numpy()
            for each in (self.weights, self.means, self.factors)
        )
        # (n, G, m, d); with one action column nothing needs to be decomposed.
        apart = means[:, :, None, :] - landmarks
        if self.width == 1:
            spread = np.hypot(factors[..., 0, 0], scales[0])
            squared = (apart[..., 0] / spread[:, :, None]) ** 2
            height = scales[0] / spread
        else:
            root = np.linalg.cholesky(factors @ factors.swapaxes(-1, -2) + np.diag(scales**2))
            squared = np.sum(np.linalg.solve(root, apart.swapaxes(-1, -2)) ** 2, axis=-2)
            height = np.prod(scales) / np.prod(np.diagonal(root, axis1=-2, axis2=-1), axis=-1)
        squared *= -0.5
        return np.asarray(((weights * height)[:, None, :] @ np.exp(squared, out=squared))[:, 0])


@savable(formerly=("CategoricalLaw",))
@dataclass(frozen=True)
class CategoricalDistribution(ActionDistribution):
    """Class probabilities of a discrete action.

    Attributes
    ----------
    probabilities : Tensor, shape (n_rows, L)
    """

    probabilities: Tensor

    @property
    def width(self) -> int:
        """Width d of an action vector."""
        return self.probabilities.shape[-1]

    @property
    def is_finite(self) -> bool:
        """Whether the distribution has finitely many actions."""
        return True

    def sample(self, rows: Tensor, n_draws: int, generator: Draws) -> Nodes:
        """Draw classes, returned as one-hot rows."""
        shape = (*rows.shape, n_draws)
        n_classes = self.probabilities.shape[1]
        uniform = drawn(torch.rand, shape, generator, self.probabilities.device)
        cumulative = self.probabilities[rows].cumsum(-1)
        classes = (cumulative.unsqueeze(-2) < uniform.unsqueeze(-1)).sum(-1).clamp_(max=n_classes - 1)
        actions = torch.nn.functional.one_hot(classes, n_classes).to(self.probabilities.dtype)
        return Nodes(actions, torch.full(shape, 1.0 / n_draws, dtype=torch.float32, device=uniform.device))

    def nodes(self, rows: Tensor, n_points: int) -> Nodes:
        """Return every class with its probability: the exact sum."""
        del n_points
        weights = self.probabilities[rows]
        n_classes = weights.shape[-1]
        one_hot = torch.eye(n_classes, dtype=weights.dtype, device=weights.device)
        return Nodes(one_hot.expand(*rows.shape, n_classes, n_classes), weights)

    def mean(self) -> Tensor:
        """Return the mean one-hot action, which is the probabilities, shape (n_rows, L)."""
        return self.probabilities

    def log_density(self, action: FloatArray | IntArray) -> FloatArray:
        """Return the log probability of one level per row, shape (n_rows,)."""
        return self._log_probability(action, float(np.finfo(np.float64).tiny))

    def held_out_log_density(
        self, action: FloatArray | IntArray, *, n_fit_rows: int, seed: int
    ) -> FloatArray:
        """Return the same; a level that a classifier holds for impossible counts as half a training row."""
        del seed
        return self._log_probability(action, 0.5 / n_fit_rows)

    def _log_probability(self, action: FloatArray | IntArray, least: float) -> FloatArray:
        probabilities = self.probabilities.cpu().double().numpy()
        own = probabilities[np.arange(len(action)), action.astype(np.int64)]
        return np.asarray(np.log(np.maximum(own, least)))


@savable(formerly=("ResidualLaw",))
@dataclass(frozen=True)
class ResidualDistribution(ActionDistribution):
    """A location per row plus residuals shared by the rows of a pool (a fold).

    Attributes
    ----------
    location : Tensor, shape (n_rows, d)
    residuals : Tensor, shape (n_pools, J, d)
        Residuals of rows the location model was not fitted on.
    pool : Tensor of int, shape (n_rows,)
        Which residuals belong to a row.
    """

    location: Tensor
    residuals: Tensor
    pool: Tensor

    @property
    def width(self) -> int:
        """Width d of an action vector."""
        return self.location.shape[-1]

    def sample(self, rows: Tensor, n_draws: int, generator: Draws) -> Nodes:
        """Add residuals drawn with replacement from the row's pool."""
        shape = (*rows.shape, n_draws)
        device = self.location.device
        draw = partial(torch.randint, self.residuals.shape[1])
        index = drawn(draw, shape, generator, device, dtype=torch.long)
        actions = self.location[rows].unsqueeze(-2) + self.residuals[self.pool[rows].unsqueeze(-1), index]
        return Nodes(actions, torch.full(shape, 1.0 / n_draws, dtype=torch.float32, device=device))

    def nodes(self, rows: Tensor, n_points: int) -> Nodes:
        """Add evenly spaced order statistics of the pool (ordered by the first column), 8 per point."""
        wanted = min(8 * n_points, self.residuals.shape[1])
        # The middle of each of ``wanted`` equal slices: including the extremes would overstate the spread.
        middles = (torch.arange(wanted, dtype=torch.float32, device=self.location.device) + 0.5) * (
            self.residuals.shape[1] / wanted
        )
        order = self.residuals[..., 0].argsort(dim=1)[:, middles.long()]
        chosen = self.residuals.gather(1, order.unsqueeze(-1).expand(-1, -1, self.residuals.shape[-1]))
        # The thinned pool keeps the mean of the whole one, so that the distribution's mean stays exact.
        chosen = chosen - chosen.mean(1, keepdim=True) + self.residuals.mean(1, keepdim=True)
        actions = self.location[rows].unsqueeze(-2) + chosen[self.pool[rows]]
        return Nodes(
            actions,
            torch.full((*rows.shape, wanted), 1.0 / wanted, dtype=torch.float32, device=actions.device),
        )

    def mean(self) -> Tensor:
        """Return the mean action, shape (n_rows, d)."""
        return self.location + self.residuals.mean(1)[self.pool]

    def held_out_log_density(
        self, action: FloatArray | IntArray, *, n_fit_rows: int, seed: int
    ) -> FloatArray:
        """Return the log of a kernel density estimate of each pool: residuals have no density."""
        del n_fit_rows
        offset = action.astype(np.float64) - self.location.cpu().double().numpy()
        pool = self.pool.cpu().numpy()
        values = np.empty(len(action))
        for number, residuals in enumerate(self.residuals.cpu().double().numpy()):
            rows = np.flatnonzero(pool == number)
            if rows.size:
                values[rows] = _residual_log_density(residuals, offset[rows], seed)
        return values

    def take(self, rows: Tensor) -> ResidualDistribution:
        """Return the distribution of some rows (n,), re-indexed from zero; pools stay whole."""
        return ResidualDistribution(self.location[rows], self.residuals, self.pool[rows])

    @classmethod
    def concatenate(cls, distributions: Sequence[ResidualDistribution]) -> ResidualDistribution:
        """Return one distribution with the rows and the pools of several."""
        smallest = min(each.residuals.shape[1] for each in distributions)
        starts = np.cumsum([0, *(each.residuals.shape[0] for each in distributions[:-1])]).tolist()
        return ResidualDistribution(
            torch.cat([each.location for each in distributions]),
            torch.cat([_shortened(each.residuals, smallest) for each in distributions]),
            torch.cat([each.pool + start for each, start in zip(distributions, starts, strict=True)]),
        )

    def columns(self) -> dict[str, Tensor]:
        """Raise: residuals are shared by many rows."""
        raise TypeError("Expected a distribution that a table can store row by row, got residuals of a pool.")


def concatenated(distributions: Sequence[ActionDistribution]) -> ActionDistribution:
    """Return one distribution with the rows of several of one class, one after the other."""
    return type(distributions[0]).concatenate(distributions)


def assemble(
    n_rows: int, row_sets: Sequence[Tensor], distributions: Sequence[ActionDistribution]
) -> ActionDistribution:
    """Fill one distribution of ``n_rows`` rows from parts: part k covers exactly the rows ``row_sets[k]``."""
    order = torch.cat(list(row_sets))
    if order.numel() != n_rows:
        raise ValueError(f"Expected the parts to cover {n_rows} rows, got {order.numel()}.")
    return concatenated(distributions).take(order.argsort())


def _shortened(residuals: Tensor, length: int) -> Tensor:
    """Return the first residuals of each pool (n_pools, J, d), moved so that the pool keeps its mean."""
    if residuals.shape[1] == length:
        return residuals
    part = residuals[:, :length]
    return part - part.mean(1, keepdim=True) + residuals.mean(1, keepdim=True)


def _residual_log_density(residuals: FloatArray, offset: FloatArray, seed: int) -> FloatArray:
    """Return the log density (n,) of residuals (J, d) at offsets (n, d)."""
    chosen = np.random.default_rng(seed).permutation(len(residuals))[:_MOST_RESIDUALS]
    # A regressor that fits an action exactly leaves no spread at all; then the narrowest counts.
    covariance = np.atleast_2d(np.cov(residuals.T)) + np.eye(residuals.shape[1]) * 1e-12
    root = np.linalg.cholesky(covariance)
    whitened, points = (np.linalg.solve(root, part.T) for part in (residuals[chosen], offset))
    wide = multivariate_normal(cov=np.eye(len(root)) * _WIDE_FACTOR**2).logpdf(points.T)
    narrow = _kernel_log_density(whitened, points)
    mixed = np.logaddexp(np.log1p(-_WIDE_SHARE) + narrow, np.log(_WIDE_SHARE) + wide)
    return np.asarray(mixed - np.log(np.diagonal(root)).sum())


def _kernel_log_density(whitened: FloatArray, points: FloatArray) -> FloatArray:
    if whitened.shape[1] <= len(whitened) or np.allclose(whitened, whitened[:, :1]):
        # Too few residuals for an estimate of their shape: a Gaussian.
        return np.asarray(multivariate_normal(cov=np.eye(len(whitened))).logpdf(points.T))
    return np.asarray(gaussian_kde(whitened).logpdf(points))
