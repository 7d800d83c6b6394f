"""Support of an action in the data: its probability under the estimated action distribution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from dmliv.data import FloatArray, Table
from dmliv.data.controls import joined
from dmliv.first_stage.crossfit import FirstStage
from dmliv.first_stage.nuisances import Exogenous

# An action counts as observed where an action this near to it was: in standard deviations, per column.
RADIUS = 0.25
_DRAWS_PER_INSTRUMENT = 10
# Comparisons (rows x candidates x draws) held at once for actions of several columns.
_CHUNK_COMPARISONS = 20_000_000


class ActionSupport(Protocol):
    """Says how likely actions are in a context, whatever the instrument."""

    def probability(self, context: Table, actions: FloatArray) -> FloatArray:
        """Return the probability of every action in every context, shape (n, m).

        For a continuous action it is the probability of landing within a quarter of a standard deviation.
        The actions, in model units, are the same for all contexts, (m, d), or each context's own, (n, m, d).
        """
        ...


@dataclass(frozen=True, eq=False)
class DistributionSupport:
    """Support under the action distribution of a first stage, averaged over instruments of training rows.

    The instruments are drawn without regard to the context: where the instrument depends on the context,
    actions count as supported that only instruments of other contexts would bring about.

    Attributes
    ----------
    first_stage : FirstStage
    instruments : Table
        Rows of the instrument to average over.
    controls : Table or None
        Controls of the same rows, where the first stage learned from some.
    """

    first_stage: FirstStage
    instruments: Table
    controls: Table | None = None

    def probability(self, context: Table, actions: FloatArray) -> FloatArray:
        """Return the probability of every action in every context."""
        n_rows, n_instruments = len(context), len(self.instruments)
        actions = np.broadcast_to(actions, (n_rows, *actions.shape[-2:]))
        if not n_rows:
            return np.empty(actions.shape[:2])
        asking = np.tile(np.arange(n_instruments), n_rows)
        repeated = context.take(np.repeat(np.arange(n_rows), n_instruments))
        if self.controls is not None:
            repeated = joined(repeated, self.controls.take(asking))
        exogenous = Exogenous(repeated, self.instruments.take(asking))
        # Each instrument asks one of the fold models, so that all of them have a say at the price of one.
        folds = self.first_stage.fold_members
        asked = np.tile(np.asarray(folds)[np.arange(n_instruments) % len(folds)], n_rows)
        row_sets = [np.flatnonzero(asked == member) for member in range(self.first_stage.n_members)]
        distributions = self.first_stage.action_model.distributions(exogenous, row_sets)
        parts, owners, finite = [], [], False
        for member, rows in enumerate(row_sets):
            if not rows.size:
                continue
            distribution = distributions[member]
            indices = torch.arange(rows.size, device=distribution.mean().device)
            finite = distribution.is_finite
            if finite:
                parts.append(distribution.mean())
            else:
                generator = torch.Generator(device=indices.device).manual_seed(member)
                parts.append(distribution.sample(indices, _DRAWS_PER_INSTRUMENT, generator).actions)
            owners.append(rows // n_instruments)
        order = np.argsort(np.concatenate(owners), kind="stable")
        draws = torch.cat(parts)[torch.from_numpy(order).to(parts[0].device)]
        if finite:
            # The mean of a one-hot action is the vector of its probabilities.
            chance = draws.view(n_rows, n_instruments, -1).mean(1).cpu().double().numpy()
            return np.asarray(np.einsum("nl,nml->nm", chance, actions))
        return _share_near(draws.reshape(n_rows, -1, draws.shape[-1]).cpu().double(), actions)


def _share_near(draws: torch.Tensor, actions: FloatArray) -> FloatArray:
    """Return the share of draws (n, D, d) within the radius of each action (n, m, d), shape (n, m)."""
    n_rows, n_draws, width = draws.shape
    n_actions = actions.shape[1]
    result = np.empty((n_rows, n_actions))
    step = max(1, _CHUNK_COMPARISONS // (n_actions * (1 if width == 1 else n_draws)))
    for start in range(0, n_rows, step):
        part = draws[start : start + step]
        wanted = torch.from_numpy(actions[start : start + step].copy())
        if width == 1:
            ordered = part[..., 0].sort(dim=1).values.contiguous()
            below = torch.searchsorted(ordered, (wanted[..., 0] - RADIUS).contiguous())
            up_to = torch.searchsorted(ordered, (wanted[..., 0] + RADIUS).contiguous(), right=True)
            near = (up_to - below).double() / n_draws
        else:
            gap = (part[:, None] - wanted[:, :, None]).abs()
            near = (gap <= RADIUS).all(dim=-1).double().mean(dim=-1)
        result[start : start + step] = near.numpy()
    return result
