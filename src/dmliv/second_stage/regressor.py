"""h by any regressor that follows scikit-learn, fitted directly on drawn actions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from sklearn.base import clone, is_classifier
from sklearn.utils.validation import has_fit_parameter

from dmliv.data import FloatArray, IntArray, Table, TrainingData
from dmliv.data.savable import savable
from dmliv.errors import InputError, check_whole
from dmliv.first_stage.crossfit import FirstStage
from dmliv.first_stage.distributions import ActionDistribution, Nodes

# The one place that knows how a clone gets its seed and its weights; both stages must treat them alike.
from dmliv.first_stage.regressors import fit_clone, predict_rows
from dmliv.parallel.runtime import Runtime
from dmliv.second_stage.structural_encoder import StructuralEncoder

# Regressors see standardised columns and one-hot categories; the bins are not used.
_UNUSED_BINS = 2
# Numbers in one input matrix of a grid evaluation; keeps memory flat whatever the width of the context.
_CHUNK_SIZE = 1 << 23
# Half the width of the central difference, in standard deviations of the action. Shorter ones would fall
# between two splits of a tree and see a slope of zero or of a cliff.
_GRADIENT_STEP = 0.25


@savable
@dataclass(frozen=True)
class RegressorStructural:
    """Structural learner: a regressor from (context, drawn action) to the target.

    The simplest second stage, and exactly the single-draw loss: what is minimised is the projected error plus
    the variance of h under the action distribution. So h is flattened along the action wherever the
    distribution is wide compared with what the instrument moves; that is a bias, and with weak instruments a
    useful one. More draws only make the answer less noisy.
    :class:`~dmliv.second_stage.boosting.ProjectedBoosting` minimises the projected error itself.

    Parameters
    ----------
    regressor : scikit-learn regressor
        Cloned, never fitted itself. A regressor that holds out rows (early stopping) holds out pairs here:
        with several draws the same row then stands on both sides.
    n_draws : int
        Actions drawn per row. A discrete action is not drawn but summed over with its probabilities as
        weights, where the regressor takes ``sample_weight``.
    """

    regressor: Any
    n_draws: int = 1

    def __post_init__(self) -> None:
        """Check the regressor and the number of draws."""
        check_regressor(self.regressor, "h")
        check_whole(n_draws=self.n_draws)

    @property
    def needs_validation(self) -> bool:
        """Whether there is something to choose."""
        return False

    def fit(
        self, data: TrainingData, first_stage: FirstStage, *, seed: int, runtime: Runtime
    ) -> RegressorStructuralModel:
        """Fit one clone on the pairs of all rows."""
        del runtime
        draw_seed, fit_seed = (int(state) for state in np.random.SeedSequence(seed).generate_state(2))
        exact = first_stage.distribution.is_finite and has_fit_parameter(self.regressor, "sample_weight")
        rows = np.arange(len(data))
        if exact:
            nodes = first_stage.distribution.nodes(row_indices(first_stage.distribution, rows), 1)
        else:
            nodes = draw_actions(first_stage.distribution, rows, self.n_draws, draw_seed)
        encoder = learn_encoder(data)
        inputs = pair_inputs(encoder, data.context, nodes)
        n_nodes = nodes.weights.shape[-1]
        row = np.repeat(rows, n_nodes)
        weight = data.weight[row]
        if exact:
            chance = nodes.weights.cpu().double().numpy().reshape(-1)
            # Impossible actions say nothing about h, but a leaf would count them as members.
            possible = chance > 0.0
            inputs, row, weight = inputs[possible], row[possible], (weight * chance)[possible]
        scaled = _with_scaled_leaves(self.regressor, max(1, round(len(row) / len(data))))
        model = fit_clone(scaled, inputs, first_stage.target[row], weight, fit_seed)
        details = {"regressor": repr(model), "n_pairs": len(row), "sums_over_levels": exact}
        return RegressorStructuralModel(encoder, model, details)


@savable
@dataclass(frozen=True)
class RegressorStructuralModel:
    """A fitted h that predicts from standardised context columns and action vectors.

    Trees answer in steps: h is constant between two splits and beyond the outermost drawn actions.

    Attributes
    ----------
    encoder : StructuralEncoder
    regressor : fitted regressor
        Anything with ``predict(inputs)``, inputs of shape (n, context width + d).
    details : dict
        What :meth:`describe` returns.
    """

    encoder: StructuralEncoder
    regressor: Any
    details: dict[str, object] = field(default_factory=dict)

    def predict(self, context: Table, action: FloatArray) -> FloatArray:
        """Return h row by row: context of n rows, action (n, d), result (n,)."""
        return predict_rows(self.regressor, np.hstack([self.encoder.context.standardised(context), action]))

    def predict_grid(self, context: Table, actions: FloatArray) -> FloatArray:
        """Return h for every context with every action: actions (m, d), result (n, m)."""
        features = self.encoder.context.standardised(context)
        n_actions, width = len(actions), features.shape[1] + actions.shape[1]
        result = np.empty((len(features), n_actions))
        step = max(1, _CHUNK_SIZE // max(1, n_actions * width))
        for start in range(0, len(features), step):
            part = features[start : start + step]
            inputs = np.hstack([np.repeat(part, n_actions, axis=0), np.tile(actions, (len(part), 1))])
            result[start : start + step] = predict_rows(self.regressor, inputs).reshape(len(part), n_actions)
        return result

    def gradient(self, context: Table, action: FloatArray) -> FloatArray:
        """Return central differences of h over half a standard deviation of the action, shape (n, d).

        A tree has no derivative, so for trees this is the mean slope around the action, itself stepwise.
        """
        columns = []
        for column in range(action.shape[1]):
            shift = np.zeros(action.shape[1])
            shift[column] = _GRADIENT_STEP
            rise = self.predict(context, action + shift) - self.predict(context, action - shift)
            columns.append(rise / (2.0 * _GRADIENT_STEP))
        return np.column_stack(columns)

    def describe(self) -> dict[str, object]:
        """Return what was fitted, in plain values."""
        return dict(self.details)


def check_regressor(regressor: Any, purpose: str) -> None:
    """Raise an InputError unless it looks like a regressor of scikit-learn."""
    if not hasattr(regressor, "fit") or isinstance(regressor, type) or is_classifier(regressor):
        raise InputError(
            f"Expected a scikit-learn regressor for {purpose}, got {regressor!r}; pass an instance such as "
            "HistGradientBoostingRegressor()."
        )


def learn_encoder(data: TrainingData) -> StructuralEncoder:
    """Return the encoder of plain columns that regressors see."""
    return StructuralEncoder.learn(data, _UNUSED_BINS, centred=False)


def draw_actions(distribution: ActionDistribution, rows: IntArray, n_draws: int, seed: int) -> Nodes:
    """Draw ``n_draws`` actions for each of n rows from a generator of their own, nodes (n, n_draws, d)."""
    indices = row_indices(distribution, rows)
    return distribution.sample(indices, n_draws, torch.Generator(device=indices.device).manual_seed(seed))


def pair_inputs(encoder: StructuralEncoder, context: Table, nodes: Nodes) -> FloatArray:
    """Return the inputs of h at every node, row after row, shape (n * Q, context width + d)."""
    features = encoder.context.standardised(context)
    actions = nodes.actions.cpu().double().numpy()
    return np.hstack([np.repeat(features, actions.shape[1], axis=0), actions.reshape(-1, actions.shape[2])])


def row_indices(distribution: ActionDistribution, rows: IntArray) -> torch.Tensor:
    """Return row numbers (n,) where the distribution lives."""
    return torch.from_numpy(rows).to(distribution.device)


def _with_scaled_leaves(regressor: Any, n_copies: int) -> Any:
    """Return a clone whose leaves hold as many *rows* as was asked for.

    The copies of a row share one noisy target. Counted one by one they would fill a leaf between them, and
    the tree would learn the noise that the size of the leaf should average out.
    """
    model = clone(regressor)
    if n_copies == 1:
        return model
    sizes = {
        name: value * n_copies
        for name, value in model.get_params(deep=True).items()
        if name.split("__")[-1] == "min_samples_leaf" and isinstance(value, (int, np.integer))
    }
    return model.set_params(**sizes)
