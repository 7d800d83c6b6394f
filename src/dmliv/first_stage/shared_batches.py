"""Stacked nuisances on shared batches: every member sees the same rows and skips those that are not its own.

A batch is read and encoded once for all members, whether it comes from memory or from a file. A member of K
folds skips one row in K, which costs less than fetching every member its own rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from dmliv.first_stage.blocks import BlockSource, batches, member_weights, weighted_means
from dmliv.first_stage.encoding_choice import ChosenInputs
from dmliv.first_stage.exogenous import ExogenousColumns, ExogenousEncoder
from dmliv.nets.heads import Head, MeanHead, MixtureHead, bounded_log_scales
from dmliv.nets.settings import NetworkSettings
from dmliv.nets.stacked import StackedMLP
from dmliv.nets.training import TrainingRecord, descend
from dmliv.parallel.runtime import Runtime


@dataclass(frozen=True)
class SharedRows:
    """What members of a stack learn from.

    Attributes
    ----------
    source : BlockSource
    uses : Tensor, shape (M, n_parts)
        One where a member learns from the rows of a part, else zero.
    target : {"outcome", "action"}
        What is learned.
    """

    source: BlockSource
    uses: Tensor
    target: Literal["outcome", "action"]

    def of_members(self, members: Sequence[int]) -> SharedRows:
        """Return the same rows for some of the members."""
        return replace(self, uses=self.uses[list(members)])

    def train(
        self,
        encoder: ExogenousEncoder,
        inputs: ChosenInputs,
        head: Head,
        settings: NetworkSettings,
        label: str,
        generator: np.random.Generator,
        runtime: Runtime,
    ) -> tuple[StackedMLP, TrainingRecord]:
        """Train one network per member on all rows."""
        n_rows, n_members = self.source.n_rows, len(self.uses)
        columns = ExogenousColumns(encoder, runtime.device)
        plan = settings.plan(n_rows)
        net = StackedMLP(
            n_members,
            (columns.width(inputs.encoding), *settings.hidden, head.width),
            dropout=settings.dropout_rates(n_rows),
            generator=generator,
            device=runtime.device,
        )
        net.tall = True

        def epoch_losses() -> Iterator[Tensor]:
            for batch in batches(self.source, plan.batch_size, generator):
                features = columns.encode(batch.context, batch.instrument, inputs.encoding)
                target = batch.outcome if self.target == "outcome" else batch.action
                raw = net(features.unsqueeze(0))
                yield mean_losses(head, raw, target, member_weights(batch, self.uses))

        record = descend(
            net,
            epoch_losses,
            math.ceil(n_rows / plan.batch_size),
            plan,
            progress=runtime.progress,
            label=label,
            rate_factors=[inputs.rate_factor] * n_members,
            shows_steps=True,
        )
        return net, record


def mean_losses(head: Head, raw: Tensor, target: Tensor, weights: Tensor) -> Tensor:
    """Return each member's weighted mean loss, (M,), zero for a member without rows in the batch.

    Parameters
    ----------
    head : Head
    raw : Tensor, shape (M, B, width)
        Outputs; columns should be contiguous.
    target : Tensor, shape (B,) or (B, d)
        The same for all members.
    weights : Tensor, shape (M, B)
    """
    shares = weights / weights.sum(dim=1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)
    if isinstance(head, MeanHead):
        means: Tensor = _SquaredError.apply(raw, target, shares)  # type: ignore[no-untyped-call]
    elif isinstance(head, MixtureHead) and head.dimension == 1:
        means = _MixtureLoss.apply(raw, target, shares)  # type: ignore[no-untyped-call]
    else:
        return weighted_means(head.row_loss(raw, target.expand(len(raw), *target.shape)), weights)
    return means


class _SquaredError(torch.autograd.Function):
    """Weighted mean of squared errors."""

    @staticmethod
    def forward(ctx: Any, raw: Tensor, target: Tensor, shares: Tensor) -> Tensor:
        errors = raw[..., 0] - target
        weighted = errors * shares
        ctx.save_for_backward(weighted)
        means: Tensor = torch.linalg.vecdot(errors, weighted)
        return means

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None]:
        (weighted,) = ctx.saved_tensors
        return (weighted * (2.0 * grad_outputs[0][:, None])).unsqueeze(-1), None, None


class _MixtureLoss(torch.autograd.Function):
    """Weighted mean of the negative log-likelihood of mixtures in one dimension.

    With responsibilities r, component weights p and whitened targets w, the gradient is p - r in the logits,
    -r w / scale in the means and r (1 - w^2) in the log scales.
    """

    @staticmethod
    def forward(ctx: Any, raw: Tensor, target: Tensor, shares: Tensor) -> Tensor:
        columns = raw.transpose(1, 2)
        logits, means, free_scales = columns.chunk(3, dim=1)
        log_scales, slope = bounded_log_scales(free_scales)
        precision = torch.exp(-log_scales)
        whitened = (target.T - means).mul_(precision)
        squared = whitened.square()
        log_density = torch.sub(logits, log_scales).sub_(squared, alpha=0.5)
        losses = torch.logsumexp(logits, dim=1) - torch.logsumexp(log_density, dim=1)
        gradient = torch.empty_like(columns)
        in_logits, in_means, in_scales = gradient.chunk(3, dim=1)
        responsibility = torch.softmax(log_density, dim=1).mul_(shares.unsqueeze(1))
        torch.mul(torch.softmax(logits, dim=1), shares.unsqueeze(1), out=in_logits).sub_(responsibility)
        torch.mul(responsibility, whitened, out=in_means).mul_(precision).neg_()
        torch.mul(responsibility, squared.neg_().add_(1.0), out=in_scales).mul_(slope)
        ctx.save_for_backward(gradient)
        constant = 0.5 * math.log(2.0 * math.pi) * shares.sum(dim=1)
        averages: Tensor = torch.linalg.vecdot(losses, shares) + constant
        return averages

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return (gradient * grad_outputs[0][:, None, None]).transpose(1, 2), None, None
