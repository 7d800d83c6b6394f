"""Action distributions: the estimated distribution of the action given context and instrument, one per row.

A distribution only has to say where the action may land and with which weight. Draws, exact sums over classes
and quadrature all come out as :class:`Nodes`, and the second stage knows nothing else about the action model.
Actions are in model units here: standardised columns when continuous, one-hot rows when discrete.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import ndtr, ndtri
from torch import Tensor

from dmliv.data.savable import savable
from dmliv.errors import InputError
from dmliv.nets.heads import MixtureParameters
from dmliv.nets.randomness import Draws, drawn

# Gauss-Hermite grids grow as points ** dimension; past this many nodes per component draws are cheaper.
_MOST_NODES_PER_COMPONENT = 512
_EVALUATION_DRAWS = 64
# Ranks beyond this are as good as certain.
_LOWEST_RANK = 1e-4

FloatArray = npt.NDArray[np.float64]


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


class ActionDistribution(Protocol):
    """Row-indexed distribution of the action."""

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        ...

    @property
    def is_finite(self) -> bool:
        """Whether :meth:`nodes` is exact, so that nothing needs to be drawn."""
        ...

    def sample(self, rows: Tensor, n_draws: int, generator: Draws) -> Nodes:
        """Draw ``n_draws`` independent actions for each of ``rows`` (any shape)."""
        ...

    def nodes(self, rows: Tensor, n_points: int) -> Nodes:
        """Return deterministic nodes for ``rows``: quadrature with ``n_points`` per axis, or all classes."""
        ...

    def mean(self) -> Tensor:
        """Return the mean action, shape (n_rows, d)."""
        ...

    def normal_scores(self, action: FloatArray) -> tuple[FloatArray, FloatArray] | None:
        """Return the normal score of each row's action (n, 1) in its distribution, and its spread, both (n,).

        None where the distribution has no spread of its own in each row, or more than one column.
        """
        ...

    @property
    def width(self) -> int:
        """Width d of an action vector."""
        ...


@savable(formerly=("MixtureLaw",))
@dataclass(frozen=True)
class MixtureDistribution:
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
    def n_rows(self) -> int:
        """Number of rows."""
        return self.weights.shape[0]

    @property
    def width(self) -> int:
        """Width d of an action vector."""
        return self.means.shape[-1]

    @property
    def is_finite(self) -> bool:
        """Whether the distribution has finitely many actions."""
        return False

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


@savable(formerly=("CategoricalLaw",))
@dataclass(frozen=True)
class CategoricalDistribution:
    """Class probabilities of a discrete action.

    Attributes
    ----------
    probabilities : Tensor, shape (n_rows, L)
    """

    probabilities: Tensor

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return self.probabilities.shape[0]

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

    def normal_scores(self, action: FloatArray) -> None:
        """Return None: levels have no rank."""
        del action


@savable(formerly=("ResidualLaw",))
@dataclass(frozen=True)
class ResidualDistribution:
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
    def n_rows(self) -> int:
        """Number of rows."""
        return self.location.shape[0]

    @property
    def width(self) -> int:
        """Width d of an action vector."""
        return self.location.shape[-1]

    @property
    def is_finite(self) -> bool:
        """Whether the distribution has few enough actions to sum over all of them."""
        return False

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

    def normal_scores(self, action: FloatArray) -> None:
        """Return None: all rows of a pool have the same spread, so that ranks say no more than residuals."""
        del action


def evaluation_nodes(distribution: ActionDistribution, rows: Tensor, n_points: int) -> Nodes:
    """Return nodes to evaluate h with: quadrature, or many draws of a fixed seed for wide actions."""
    if distribution.is_finite or n_points**distribution.width <= _MOST_NODES_PER_COMPONENT:
        return distribution.nodes(rows, n_points)
    generator = torch.Generator(device=rows.device).manual_seed(0)
    return distribution.sample(rows, _EVALUATION_DRAWS, generator)


def distribution_at(distribution: ActionDistribution, rows: Tensor) -> ActionDistribution:
    """Return the distribution of some rows (n,), re-indexed from zero."""
    if isinstance(distribution, MixtureDistribution):
        return MixtureDistribution(
            *(
                part.index_select(0, rows)
                for part in (distribution.weights, distribution.means, distribution.factors)
            )
        )
    if isinstance(distribution, CategoricalDistribution):
        return CategoricalDistribution(distribution.probabilities[rows])
    if isinstance(distribution, ResidualDistribution):
        return ResidualDistribution(
            distribution.location[rows], distribution.residuals, distribution.pool[rows]
        )
    raise TypeError(
        f"Expected a mixture, class probabilities or residuals, got {type(distribution).__name__}."
    )


def assemble(
    n_rows: int, row_sets: Sequence[Tensor], distributions: Sequence[ActionDistribution]
) -> ActionDistribution:
    """Fill one distribution of ``n_rows`` rows from parts: part k covers exactly the rows ``row_sets[k]``."""
    order = torch.cat(list(row_sets))
    if order.numel() != n_rows:
        raise ValueError(f"Expected the parts to cover {n_rows} rows, got {order.numel()}.")

    def fill(parts: list[Tensor]) -> Tensor:
        stacked = torch.cat(parts)
        filled = torch.empty_like(stacked)
        filled[order] = stacked
        return filled

    if mixtures := [
        distribution for distribution in distributions if isinstance(distribution, MixtureDistribution)
    ]:
        return MixtureDistribution(
            fill([distribution.weights for distribution in mixtures]),
            fill([distribution.means for distribution in mixtures]),
            fill([distribution.factors for distribution in mixtures]),
        )
    if classes := [
        distribution for distribution in distributions if isinstance(distribution, CategoricalDistribution)
    ]:
        return CategoricalDistribution(fill([distribution.probabilities for distribution in classes]))
    residual = [
        distribution for distribution in distributions if isinstance(distribution, ResidualDistribution)
    ]
    smallest = min(distribution.residuals.shape[1] for distribution in residual)
    sizes = [distribution.residuals.shape[0] for distribution in residual]
    starts = [sum(sizes[:index]) for index in range(len(sizes))]
    return ResidualDistribution(
        fill([distribution.location for distribution in residual]),
        torch.cat([_shortened(distribution.residuals, smallest) for distribution in residual]),
        fill([distribution.pool + start for distribution, start in zip(residual, starts, strict=True)]),
    )


def _shortened(residuals: Tensor, length: int) -> Tensor:
    """Return the first residuals of each pool (n_pools, J, d), moved so that the pool keeps its mean."""
    if residuals.shape[1] == length:
        return residuals
    part = residuals[:, :length]
    return part - part.mean(1, keepdim=True) + residuals.mean(1, keepdim=True)
