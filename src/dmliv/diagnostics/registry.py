"""What a diagnostic is given, and the list of all diagnostics of a fit."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

from dmliv.data import FloatArray, TrainingData
from dmliv.diagnostics.contexts import ContextCell, strength_by_context
from dmliv.diagnostics.findings import Finding
from dmliv.diagnostics.held_out import plain_columns, predicted
from dmliv.diagnostics.strength import FirstStageRows, InstrumentStrength, predict_action, strength_of
from dmliv.first_stage.crossfit import FirstStage
from dmliv.parallel.runtime import Runtime
from dmliv.second_stage.structural import StructuralModel


@dataclass(frozen=True)
class DiagnosedFit:
    """A two-stage fit with what several diagnostics need, computed when it is first asked for.

    Attributes
    ----------
    data : TrainingData
        The n rows of the fit, in model units.
    first_stage : FirstStage
    model : StructuralModel
        h in model units.
    seed : int
        Draws rows and folds.
    runtime : Runtime
    """

    data: TrainingData
    first_stage: FirstStage
    model: StructuralModel
    seed: int
    runtime: Runtime

    @cached_property
    def held_out(self) -> FirstStageRows:
        """The m rows, at most 5000, on which simple models predict, and their predictions of the action."""
        return predict_action(self.data, seed=self.seed, progress=self.runtime.progress)

    @cached_property
    def strength(self) -> InstrumentStrength:
        """How strong the instrument is over all contexts."""
        return strength_of(self.data, self.held_out)

    @cached_property
    def cells(self) -> tuple[ContextCell, ...]:
        """How strong it is in groups of contexts, the weakest first."""
        return strength_by_context(self.data, self.held_out)

    @cached_property
    def context(self) -> FloatArray:
        """Context columns of the held-out rows as numbers, shape (m, p)."""
        return plain_columns(self.data.context_schema, self.data.context)[self.held_out.rows]

    @cached_property
    def instrument(self) -> FloatArray:
        """Instrument columns of the held-out rows as numbers, shape (m, q)."""
        return plain_columns(self.data.instrument_schema, self.data.instrument)[self.held_out.rows]

    @cached_property
    def outcome(self) -> FloatArray:
        """Outcome of the held-out rows, shape (m, 1)."""
        return self.data.outcome[self.held_out.rows][:, None]

    @cached_property
    def outcome_from_context(self) -> FloatArray:
        """Held-out predictions of the outcome by simple models of the context, shape (m, 1)."""
        return self.predict(self.context, self.outcome)

    def predict(self, inputs: FloatArray, targets: FloatArray) -> FloatArray:
        """Return held-out predictions of targets (m, d) from inputs (m, p) by simple models."""
        return predicted(inputs, targets, self.held_out.weight, self.seed)


Diagnostic = Callable[[DiagnosedFit], Finding | Iterable[Finding]]

_REGISTERED: dict[str, Diagnostic] = {}


def diagnostic(function: Diagnostic) -> Diagnostic:
    """Add a function to the diagnostics that ``est.diagnostics()`` computes; a decorator.

    Parameters
    ----------
    function : callable
        Takes a :class:`DiagnosedFit` and returns a :class:`Finding`, or several. Their keys have to differ
        from those of all other findings. A function of the same module and name replaces the earlier one, so
        that a notebook cell can be run again.

    Returns
    -------
    callable
        The function itself.
    """
    _REGISTERED[f"{function.__module__}.{function.__qualname__}"] = function
    return function


def registered() -> tuple[Diagnostic, ...]:
    """Return all diagnostics in the order of their registration."""
    return tuple(_REGISTERED.values())
