"""Projection of h over the action distribution, and the loss of a row under the named draw rules.

With nodes a_1..a_Q and weights w, the projection is ``sum_q w_q h(c, a_q)``. All rules are one formula: the
unbiased estimate of ``(target - projection)^2`` plus ``variance_weight`` times the variance of h under the
distribution. Weight 0 is the unbiased rule; weight 1 is the loss of a single draw, whose extra variance term
flattens h wherever it moves with the action; ``1 / n_draws`` is the loss of the mean of several draws.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from torch import Tensor

from dmliv.data.savable import savable
from dmliv.errors import InputError
from dmliv.first_stage.distributions import ActionDistribution, Nodes
from dmliv.nets.randomness import Draws

DrawRuleName = Literal["single", "mean", "unbiased", "quadrature"]


@savable
@dataclass(frozen=True)
class DrawRule:
    """How the projection is estimated while training.

    Parameters
    ----------
    name : {"single", "mean", "unbiased", "quadrature"}
        ``"single"``: one draw, loss ``(y - h)^2``; biased, and what the paper's released code does.
        ``"mean"``: the mean of ``n_draws`` draws inside the square; the bias falls as ``1 / n_draws``.
        ``"unbiased"``: products of errors at different draws; no bias.
        ``"quadrature"``: deterministic nodes; no noise, more evaluations of h.
        For a discrete action every rule is evaluated exactly, as its expectation over the draws.
    n_draws : int
        Draws per row and step; at least 2 for ``"unbiased"``.
    n_points : int
        Quadrature nodes per component and action column.
    """

    name: DrawRuleName = "unbiased"
    n_draws: int = 2
    n_points: int = 5

    def __post_init__(self) -> None:
        """Check the rule."""
        if self.name not in get_args(DrawRuleName):
            raise InputError(f"Expected a draw rule among {get_args(DrawRuleName)}, got {self.name!r}.")
        if self.n_draws < (2 if self.name == "unbiased" else 1):
            raise InputError(
                f"Expected at least {2 if self.name == 'unbiased' else 1} draws for the rule "
                f"{self.name!r}, got n_draws={self.n_draws}."
            )
        if self.n_points < 1:
            raise InputError(f"Expected at least one quadrature point, got n_points={self.n_points}.")

    @property
    def _one_draw(self) -> bool:
        # One draw says nothing about the variance of h, so a weight on it has no effect.
        return self.name == "single" or (self.name == "mean" and self.n_draws == 1)

    @property
    def own_variance_weight(self) -> float:
        """Weight of the variance of h that the rule itself brings, in expectation over the draws."""
        if self.name == "single":
            return 1.0
        return 1.0 / self.n_draws if self.name == "mean" else 0.0

    def draw(self, distribution: ActionDistribution, rows: Tensor, generator: Draws) -> Nodes:
        """Return training nodes for ``rows`` (any shape)."""
        if distribution.is_finite or self.name == "quadrature":
            return distribution.nodes(rows, self.n_points)
        return distribution.sample(rows, 1 if self.name == "single" else self.n_draws, generator)

    def loss(
        self, values: Tensor, nodes: Nodes, target: Tensor, distribution: ActionDistribution, weight: Tensor
    ) -> Tensor:
        """Return the loss of every row.

        Parameters
        ----------
        values : Tensor, shape (..., Q)
            h at the nodes.
        nodes : Nodes
        target : Tensor, shape (...)
        distribution : ActionDistribution
        weight : Tensor, broadcastable to (...)
            Weight of the variance of h, on top of what the rule brings itself.
        """
        errors = target.unsqueeze(-1) - values
        mean_error = (nodes.weights * errors).sum(-1)
        if distribution.is_finite or self.name == "quadrature":
            variance = (nodes.weights * (errors - mean_error.unsqueeze(-1)).square()).sum(-1)
            extra = 0.0 if self._one_draw else weight
            return mean_error.square() + (extra + self.own_variance_weight) * variance
        if self._one_draw:
            return mean_error.square()
        n_draws = values.shape[-1]
        variance = (errors - mean_error.unsqueeze(-1)).square().sum(-1) / (n_draws - 1)
        if self.name == "mean":
            return mean_error.square() + weight * variance
        # The square of a mean of draws over-counts by the variance of that mean.
        return mean_error.square() + (weight - 1.0 / n_draws) * variance
