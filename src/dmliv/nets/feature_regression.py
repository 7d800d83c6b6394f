"""Training of deep feature IV regression: three feature maps in turn, under two ridge stages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dmliv.nets.adam import Adam
from dmliv.nets.feature_maps import FeatureMap, exact, outer_rows, ridge, ridge_loss, with_intercept


@dataclass(frozen=True, eq=False)
class FeatureRows:
    """Training rows as tensors.

    Attributes
    ----------
    action : Tensor, shape (n, d)
    exogenous : Tensor, shape (n, p)
        Instruments, contexts and pixels.
    context : Tensor, shape (n, q)
        Contexts and pixels.
    outcome : Tensor, shape (n, 1), double
    weight : Tensor, shape (n,), double
    """

    action: Tensor
    exogenous: Tensor
    context: Tensor
    outcome: Tensor
    weight: Tensor

    def take(self, rows: Tensor) -> FeatureRows:
        """Return the given rows."""
        return FeatureRows(*(values[rows.to(values.device)] for values in vars(self).values()))

    def __len__(self) -> int:
        return len(self.action)


@dataclass(frozen=True)
class FeaturePlan:
    """How the feature maps are trained.

    Attributes
    ----------
    penalties : tuple of float
        Of the first and the second ridge stage, per unit of weight.
    steps : tuple of int
        Steps per epoch on the instrument, the context and the action features.
    weight_decays : tuple of float
        In the same order.
    batch_size : int or None
        Most rows in a step on the instrument or the context features; None for all.
    """

    penalties: tuple[float, float]
    steps: tuple[int, int, int]
    weight_decays: tuple[float, float, float]
    batch_size: int | None


class FeatureRegression:
    """Feature maps psi(action), phi(instrument, context), xi(context) under two ridge regressions.

    The first stage regresses psi on [phi, 1] over the rows ``first``. The second stage regresses the outcome
    on the products of [predicted psi, 1] and [xi, 1] over the rows ``second``.

    Parameters
    ----------
    instrument_map, context_map, action_map : FeatureMap
        phi, xi and psi.
    first, second : FeatureRows
    plan : FeaturePlan
    generator : numpy.random.Generator
        Draws mini-batches.
    """

    def __init__(
        self,
        instrument_map: FeatureMap,
        context_map: FeatureMap,
        action_map: FeatureMap,
        first: FeatureRows,
        second: FeatureRows,
        plan: FeaturePlan,
        generator: np.random.Generator,
    ) -> None:
        self.instrument_map, self.context_map, self.action_map = instrument_map, context_map, action_map
        self.first, self.second, self.plan = first, second, plan
        self._generator = generator
        self._optimisers = [
            Adam(list(feature_map.parameters()), decay)
            for feature_map, decay in zip(
                (instrument_map, context_map, action_map), plan.weight_decays, strict=True
            )
        ]

    def train_epoch(self, learning_rate: float) -> float:
        """Improve the three maps in turn; return the mean loss of the second stage before the last step."""
        self._train_instrument_map(learning_rate)
        # With images these features are expensive, and both other blocks need them.
        instrument_features = self._instrument_features()
        self._train_context_map(learning_rate, *instrument_features)
        return self._train_action_map(learning_rate, *instrument_features)

    def first_loss(self, rows: FeatureRows, action_features: Tensor) -> Tensor:
        """Return the loss of the first stage, solved on ``rows``; its gradient reaches phi."""
        features = with_intercept(exact(self.instrument_map(rows.exogenous)))
        return ridge_loss(features, action_features, rows.weight, self.plan.penalties[0])[0]

    def context_loss(self, rows: FeatureRows, predicted: Tensor) -> Tensor:
        """Return the loss of the second stage for predicted psi (n, d); its gradient reaches xi."""
        features = outer_rows(predicted, exact(self.context_map(rows.context)))
        return ridge_loss(features, rows.outcome, rows.weight, self.plan.penalties[1])[0]

    def action_loss(
        self, first_instrument: Tensor, second_instrument: Tensor, context_features: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return loss and coefficients of the second stage; the gradient reaches psi through both stages.

        Parameters
        ----------
        first_instrument, second_instrument : Tensor, shape (n1, p + 1) and (n2, p + 1)
            [phi, 1] on the rows of each stage.
        context_features : Tensor, shape (n2, q)
            xi on the rows of the second stage.
        """
        action_features = exact(self.action_map(self.first.action))
        projection = ridge(first_instrument, action_features, self.first.weight, self.plan.penalties[0])
        features = outer_rows(second_instrument @ projection, context_features)
        return ridge_loss(features, self.second.outcome, self.second.weight, self.plan.penalties[1])

    @torch.no_grad()
    def solve(self) -> tuple[Tensor, Tensor]:
        """Solve both stages at the present features.

        Returns
        -------
        coefficients : Tensor, shape (d + 1, q + 1)
            u, of [psi, 1] times [xi, 1].
        heldout_losses : Tensor, shape (n1,)
            Weighted squared difference between the outcomes of the first stage's rows, which no fit has seen,
            and the projection of h on their instruments and contexts.
        """
        first, second = self.first, self.second
        phi_first, phi_second = self._instrument_features()
        _, coefficients = self.action_loss(phi_first, phi_second, self.context_map.evaluate(second.context))
        predicted = self._predict_action(phi_first, phi_first)
        projected = outer_rows(predicted, self.context_map.evaluate(first.context)) @ coefficients
        errors = (first.outcome - projected).squeeze(1) ** 2
        shape = (self.action_map.width + 1, self.context_map.width + 1)
        return coefficients.view(shape), errors * first.weight

    def _train_instrument_map(self, learning_rate: float) -> None:
        targets = self.action_map.evaluate(self.first.action)
        with _training(self.instrument_map):
            for _ in range(self.plan.steps[0]):
                batch = self._batch(len(self.first))
                loss = self.first_loss(self.first.take(batch), targets[batch])
                self._optimisers[0].descend(loss, learning_rate)

    def _train_context_map(self, learning_rate: float, phi_first: Tensor, phi_second: Tensor) -> None:
        if not self.context_map.trainable:
            return
        predicted = self._predict_action(phi_first, phi_second)
        with _training(self.context_map):
            for _ in range(self.plan.steps[1]):
                batch = self._batch(len(self.second))
                loss = self.context_loss(self.second.take(batch), predicted[batch])
                self._optimisers[1].descend(loss, learning_rate)

    def _train_action_map(self, learning_rate: float, phi_first: Tensor, phi_second: Tensor) -> float:
        fixed = phi_first, phi_second, self.context_map.evaluate(self.second.context)
        if not self.action_map.trainable:
            with torch.no_grad():
                return float(self.action_loss(*fixed)[0] / self.second.weight.sum())
        loss = torch.zeros((), dtype=torch.float32)
        with _training(self.action_map):
            for _ in range(self.plan.steps[2]):
                loss, _ = self.action_loss(*fixed)
                self._optimisers[2].descend(loss, learning_rate)
        return float(loss.detach() / self.second.weight.sum())

    def _instrument_features(self) -> tuple[Tensor, Tensor]:
        """Return [phi, 1] on the rows of the first and of the second stage."""
        return (
            with_intercept(self.instrument_map.evaluate(self.first.exogenous)),
            with_intercept(self.instrument_map.evaluate(self.second.exogenous)),
        )

    @torch.no_grad()
    def _predict_action(self, phi_first: Tensor, phi_wanted: Tensor) -> Tensor:
        """Return the first stage's prediction of psi on the rows of ``phi_wanted``."""
        psi = self.action_map.evaluate(self.first.action)
        return phi_wanted @ ridge(phi_first, psi, self.first.weight, self.plan.penalties[0])

    def _batch(self, n_rows: int) -> Tensor:
        size = self.plan.batch_size
        if size is None or n_rows <= size:
            return torch.arange(n_rows)
        return torch.from_numpy(self._generator.permutation(n_rows)[:size])


@contextmanager
def _training(feature_map: FeatureMap) -> Iterator[None]:
    """Put one map in training mode, so that batch normalisation of the others stays as it is."""
    feature_map.train()
    try:
        yield
    finally:
        feature_map.eval()
