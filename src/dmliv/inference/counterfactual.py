"""A fitted h in the user's units: rows of any supported frame in, outcomes in their own scale out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dmliv.data import ActionSpec, FloatArray, OutcomeSpec, Table, TableSchema, TrainingData
from dmliv.data.savable import savable
from dmliv.errors import InputError
from dmliv.inference.functionals import Band, Functional, Uncertainty, check_alpha, check_smoothing
from dmliv.second_stage.averaged import AveragedModel
from dmliv.second_stage.structural import StructuralModel

# Rows of the controls that stand for all of them: the mean over so many is exact to a few percent of the
# spread that controls bring about, at the price of as many evaluations.
_CONTROL_ROWS = 200
# A derivative with an interval is a difference over this part of a standard deviation of the action, on both
# sides: wide enough for single precision.
_STEP = 0.05


@savable
@dataclass(frozen=True)
class Counterfactual:
    """h(c, a) = E[outcome | do(action), context], with everything needed to read and write user units.

    Attributes
    ----------
    model : StructuralModel
    outcome : OutcomeSpec
    action : ActionSpec
    context : TableSchema
    uncertainty : Uncertainty or None
        What intervals are made of, if they were asked for.
    """

    model: StructuralModel
    outcome: OutcomeSpec
    action: ActionSpec
    context: TableSchema
    uncertainty: Uncertainty | None = None

    @classmethod
    def learned(
        cls,
        model: StructuralModel,
        data: TrainingData,
        *,
        seed: int = 0,
        uncertainty: Uncertainty | None = None,
    ) -> Counterfactual:
        """Return h in the units of the training data, on average over controls if there were any.

        Controls are averaged over at most 200 training rows, drawn by ``seed`` and weighted as in training.
        """
        if data.controls is None:
            return cls(model, data.outcome_spec, data.action_spec, data.context_schema, uncertainty)
        used = np.flatnonzero(data.weight > 0)
        rows = np.random.default_rng(seed).permutation(used)[:_CONTROL_ROWS]
        controls = data.controls.split(data.context.take(rows))[1]
        weight = data.weight[rows] / data.weight[rows].sum()
        averaged = AveragedModel(model, controls, weight, data.controls.columns.n_levels)
        return cls(averaged, data.outcome_spec, data.action_spec, data.controls.context, uncertainty)

    def read_context(self, X: object, n_rows: int | None = None) -> Table:
        """Check and read contexts; ``X=None`` needs a model without context and a number of rows."""
        return self.context.read(X, n_rows)

    def read_action(self, T: object, n_rows: int | None = None) -> FloatArray:
        """Check and read actions as model inputs, shape (n, d); a scalar is repeated for every row."""
        return self.action.vectors(self.action.read(T, n_rows))

    def predict(self, T: object, X: object) -> FloatArray:
        """Return h row by row, shape (n,)."""
        context, action = self._read_rows(T, X)
        return np.asarray(self.outcome.to_user(self.model.predict(context, action)))

    def _read_rows(self, T: object, X: object) -> tuple[Table, FloatArray]:
        # Without context the actions say how many rows there are.
        if X is None:
            action = self.read_action(T)
            return self.read_context(None, len(action)), action
        context = self.read_context(X)
        return context, self.read_action(T, len(context))

    def effect(self, X: object, T0: object, T1: object) -> FloatArray:
        """Return h(c, T1) - h(c, T0), shape (n,)."""
        return self.plug_in(self.effect_functional(X, T0, T1)) * self.outcome.scale

    def _effect_rows(self, X: object, T0: object, T1: object) -> int:
        if X is not None:
            return len(self.read_context(X))
        for value in (T0, T1):
            if np.ndim(value) > (0 if self.action.width == 1 or self.action.kind == "discrete" else 1):  # type: ignore[arg-type]
                return len(value)  # type: ignore[arg-type]
        return 1

    def marginal_effect(self, T: object, X: object) -> FloatArray:
        """Return the derivative of h in each action column, shape (n, d)."""
        self._require_continuous("a marginal effect")
        context, action = self._read_rows(T, X)
        return self.model.gradient(context, action) * (self.outcome.scale / self.action.scale)

    def _require_continuous(self, purpose: str) -> None:
        if self.action.kind == "discrete":
            raise InputError(
                f"Expected a continuous action for {purpose}, got a discrete one with levels "
                f"{list(self.action.levels)}; use effect(X, T0=, T1=) between two levels."
            )

    # ---------------------------------------------------------------------------- functionals and intervals

    def level_functional(self, T: object, X: object, smoothing: float = 0.0) -> Functional:
        """Return h(c, T), row by row."""
        context, action = self._read_rows(T, X)
        return Functional(context, ((1.0, action),)).smoothed(self.read_smoothing(smoothing))

    def effect_functional(self, X: object, T0: object, T1: object, smoothing: float = 0.0) -> Functional:
        """Return h(c, T1) - h(c, T0), row by row."""
        n_rows = self._effect_rows(X, T0, T1)
        context = self.read_context(X, n_rows)
        terms = ((1.0, self.read_action(T1, n_rows)), (-1.0, self.read_action(T0, n_rows)))
        return Functional(context, terms).smoothed(self.read_smoothing(smoothing))

    def read_smoothing(self, smoothing: float) -> float:
        """Check a smoothing in standard deviations of the action, which is in model units."""
        return check_smoothing(smoothing, discrete=self.action.kind == "discrete")

    def shift_functional(self, T: object, X: object, delta: object) -> Functional:
        """Return h(c, T + delta) - h(c, T), row by row; ``delta`` is a number, or one per action column."""
        self._require_continuous("a shift of actions")
        context, action = self._read_rows(T, X)
        moved = np.asarray(delta, dtype=np.float64) / self.action.scale
        if moved.shape not in ((), (1,), (self.action.width,)) or not np.all(np.isfinite(moved)):
            raise InputError(
                f"Expected delta as a finite number, or one per action column ({self.action.width}), got "
                f"{delta!r}."
            )
        return Functional(context, ((1.0, action + moved), (-1.0, action)))

    def derivative_functional(self, T: object, X: object, column: int) -> Functional:
        """Return the derivative of h in one action column, per unit of the model, as a difference."""
        self._require_continuous("a marginal effect")
        context, action = self._read_rows(T, X)
        step = np.zeros(self.action.width)
        step[column] = _STEP
        return Functional(context, ((0.5 / _STEP, action + step), (-0.5 / _STEP, action - step)))

    def plug_in(self, functional: Functional) -> FloatArray:
        """Return a functional of h in model units, shape (n,), or (1,) for a mean."""

        def values(context: Table, action: FloatArray) -> FloatArray:
            return self.model.predict(context, action)[:, None]

        return functional.apply(values)[:, 0]

    def band(self, functional: Functional, alpha: float, *, scale: float = 1.0) -> Band:
        """Return a functional of h with its interval, in the user's units of the outcome times ``scale``."""
        check_alpha(alpha)
        if self.uncertainty is None:
            raise InputError(
                "Expected an estimator that was fitted for intervals, got one without; call "
                "fit(..., inference='debiased') of DMLIV."
            )
        evaluate, model = self.uncertainty.evaluate, self.model
        if isinstance(model, AveragedModel):
            width = self.uncertainty.width
            applied = functional.apply(
                lambda context, action: model.mean_of(context, action, evaluate, width)
            )
        else:
            applied = functional.apply(evaluate)
        # With controls a point of the functional is many points, most of them seen.
        hidden = isinstance(model, AveragedModel)
        unseen = np.zeros(len(applied)) if hidden else self.uncertainty.unseen(functional, applied)
        band = self.uncertainty.band(self.plug_in(functional), applied, unseen, alpha)
        return band.in_units(self.outcome.scale * scale, self.outcome.mean * functional.level * scale)

    def value_grid(self, context: Table, candidates: FloatArray) -> FloatArray:
        """Return h for every context with every candidate (m, d), shape (n, m)."""
        return np.asarray(self.outcome.to_user(self.model.predict_grid(context, candidates)))

    def action_to_user(self, chosen: FloatArray) -> npt.NDArray[Any]:
        """Return model inputs (n, d) as actions in the user's units."""
        if self.action.kind == "discrete":
            return self.action.to_user(chosen.argmax(axis=1))
        return self.action.to_user(chosen)
