"""What a network's raw outputs mean: a mean, class probabilities, or a mixture of Gaussians."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from dmliv.data.savable import savable

# Log standard deviations stay within these bounds (in units of the action's standard deviation): without the
# lower one a component can collapse onto a single row and its likelihood grows without limit.
_LOG_SCALE_CENTRE = -1.0
_LOG_SCALE_HALF_RANGE = 4.0


class Head(Protocol):
    """Turns raw outputs (M, B, width) and a target into one loss per row (M, B)."""

    @property
    def width(self) -> int:
        """Number of raw outputs."""
        ...

    def row_loss(self, raw: Tensor, target: Tensor) -> Tensor:
        """Return the loss of every row, shape (M, B)."""
        ...


@savable
@dataclass(frozen=True)
class MeanHead:
    """One output, squared loss."""

    @property
    def width(self) -> int:
        """Number of raw outputs."""
        return 1

    def row_loss(self, raw: Tensor, target: Tensor) -> Tensor:
        """Return squared errors; ``target`` has shape (M, B)."""
        return (raw.squeeze(-1) - target).square()


@savable
@dataclass(frozen=True)
class ClassHead:
    """Class probabilities through a softmax, cross-entropy loss."""

    n_classes: int

    @property
    def width(self) -> int:
        """Number of raw outputs."""
        return self.n_classes

    def row_loss(self, raw: Tensor, target: Tensor) -> Tensor:
        """Return negative log-likelihoods; ``target`` holds class codes, shape (M, B)."""
        log_probability = torch.log_softmax(raw, dim=-1)
        return -log_probability.gather(-1, target.long().unsqueeze(-1)).squeeze(-1)

    def probabilities(self, raw: Tensor) -> Tensor:
        """Return class probabilities, same shape as ``raw``."""
        return torch.softmax(raw, dim=-1)


@savable
@dataclass(frozen=True)
class MixtureParameters:
    """Parameters of mixtures of G Gaussians in d dimensions, one mixture per leading index.

    Attributes
    ----------
    log_weights : Tensor, shape (..., G)
    means : Tensor, shape (..., G, d)
    factors : Tensor, shape (..., G, d, d)
        Lower Cholesky factors of the covariances.
    log_determinants : Tensor, shape (..., G)
        Log determinants of ``factors``.
    """

    log_weights: Tensor
    means: Tensor
    factors: Tensor
    log_determinants: Tensor


@savable
@dataclass(frozen=True)
class MixtureHead:
    """A mixture of ``n_components`` Gaussians in ``dimension`` dimensions, negative log-likelihood loss."""

    n_components: int
    dimension: int

    @property
    def width(self) -> int:
        """Number of raw outputs."""
        triangle = self.dimension * (self.dimension + 1) // 2
        return self.n_components * (1 + self.dimension + triangle)

    def parameters(self, raw: Tensor) -> MixtureParameters:
        """Read mixture parameters from raw outputs (..., width)."""
        n, d = self.n_components, self.dimension
        weights, means, log_scales, below = torch.split(raw, [n, n * d, n * d, n * d * (d - 1) // 2], dim=-1)
        log_scales = _LOG_SCALE_CENTRE + _LOG_SCALE_HALF_RANGE * torch.tanh(
            log_scales / _LOG_SCALE_HALF_RANGE
        )
        log_scales = log_scales.reshape(*raw.shape[:-1], n, d)
        factors = torch.diag_embed(log_scales.exp())
        if d > 1:
            row, column = torch.tril_indices(d, d, offset=-1, device=raw.device)
            lower = torch.zeros_like(factors)
            lower[..., row, column] = below.reshape(*raw.shape[:-1], n, d * (d - 1) // 2)
            factors = factors + lower
        return MixtureParameters(
            log_weights=torch.log_softmax(weights, dim=-1),
            means=means.reshape(*raw.shape[:-1], n, d),
            factors=factors,
            log_determinants=log_scales.sum(-1),
        )

    def row_loss(self, raw: Tensor, target: Tensor) -> Tensor:
        """Return negative log-likelihoods; ``target`` has shape (M, B, d)."""
        if self.dimension == 1:
            return self._row_loss_one_dimension(raw, target)
        mixture = self.parameters(raw)
        offset = (target.unsqueeze(-2) - mixture.means).unsqueeze(-1)
        whitened = torch.linalg.solve_triangular(mixture.factors, offset, upper=False).squeeze(-1)
        log_density = (
            mixture.log_weights
            - mixture.log_determinants
            - 0.5 * whitened.square().sum(-1)
            - 0.5 * self.dimension * math.log(2.0 * math.pi)
        )
        return -torch.logsumexp(log_density, dim=-1)

    def _row_loss_one_dimension(self, raw: Tensor, target: Tensor) -> Tensor:
        # The same formula without matrices: actions are mostly one column, and this halves the training time.
        weights, means, log_scales = torch.split(raw, self.n_components, dim=-1)
        log_scales = _LOG_SCALE_CENTRE + _LOG_SCALE_HALF_RANGE * torch.tanh(
            log_scales / _LOG_SCALE_HALF_RANGE
        )
        whitened = (target - means) * torch.exp(-log_scales)
        log_density = weights - log_scales - 0.5 * whitened.square()
        normaliser = torch.logsumexp(weights, dim=-1) + 0.5 * math.log(2.0 * math.pi)
        return normaliser - torch.logsumexp(log_density, dim=-1)


def bounded_log_scales(free: Tensor) -> tuple[Tensor, Tensor]:
    """Return log standard deviations within their bounds, and their derivatives, for unbounded numbers."""
    bent = torch.tanh(free / _LOG_SCALE_HALF_RANGE)
    return _LOG_SCALE_CENTRE + _LOG_SCALE_HALF_RANGE * bent, 1.0 - bent.square()
