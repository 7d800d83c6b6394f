"""Kernel instrumental-variable regression: two kernel ridge regressions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from dmliv.data import ActionKind, FloatArray, IntArray, TrainingData
from dmliv.errors import InputError, check_whole
from dmliv.estimators.base import DirectIV
from dmliv.estimators.kernel_fits import StageInputs, Variables, fit_learned, fit_samples
from dmliv.kernels.features import Bandwidth, FourierFeatures, KernelFeatures, LandmarkFeatures, median_scales
from dmliv.kernels.ridge import PENALTIES
from dmliv.nets.images import ImageColumns
from dmliv.progress import progress_for
from dmliv.second_stage.kernel import KernelModel
from dmliv.second_stage.structural import StructuralModel

FeatureKind = Literal["auto", "exact", "nystroem", "random"]
Tuning = Literal["published", "valid"]

# Above this many rows the decompositions of exact kernel matrices take minutes.
_MOST_EXACT_ROWS = 3000
# Shares of the rows: first stage, second stage and, for the valid rule, the choice of the second penalty.
_SHARES: dict[str, tuple[float, ...]] = {"published": (0.5, 0.5), "valid": (0.4, 0.4, 0.2)}
_PUBLISHED_PENALTIES = np.logspace(-2.0, -10.0, 50)


class KernelIV(DirectIV):
    """Kernel instrumental-variable regression (Singh, Sahani and Gretton, 2019).

    The first stage regresses features of the action on features of (instrument, context) by ridge regression,
    the second stage the outcome on the predicted features. Far from the data h falls back to the mean.

    By default every column has its own bandwidth, found by leave-one-out errors: those of instrument and
    context by how well they predict outcome and action, those of h by how well its projection predicts the
    outcome. The first stage predicts kernels of the action alone, because those of the context are known.
    Each half of the rows is predicted from the other, so that the second stage uses all rows. Its penalty is
    the largest that is not clearly worse than the best. Time grows with the rows, memory does not.

    The published estimator has no such search: ``KernelIV(bandwidth="product")`` is that of the original
    article (exact kernels, up to a few thousand rows, ``bandwidth_scale=1.0`` for its bandwidths), and
    ``KernelIV("random", n_features=100, bandwidth="joint")`` that of later comparisons. They take the first
    stage from one half of the rows, the second from the other, and predict features of action and context.

    Parameters
    ----------
    features : {"auto", "exact", "nystroem", "random"}
        Kernels with all rows (of the first stage) as landmarks, with ``n_features`` of them, or random
        Fourier features. ``"auto"`` is ``"nystroem"`` for learned bandwidths; for the others ``"exact"`` up
        to 3000 rows and ``"random"`` above. Random features need bandwidths that are not learned.
    n_features : int
        Number of landmarks or of random Fourier features; 100 in published comparisons.
    bandwidth : {"learned", "product", "joint"}
        One bandwidth per column, learned. Or a product of Gaussian kernels, one per column (per categorical
        column: one on its one-hot block), each with the median distance as bandwidth. Or one Gaussian kernel
        on the concatenated columns in the user's units, so that columns with large numbers count most; all
        others do not depend on units.
    bandwidth_scale : float, optional
        Factor on bandwidths that are not learned; 1 is the published rule. By default 1 for the joint kernel
        and the root of the number of columns for the product, which otherwise vanishes between rows of many
        columns.
    tuning : {"published", "valid"}
        How the penalty of the second stage is chosen if bandwidths are not learned. The published rule
        compares h with the observed outcomes of the first half, which are confounded. The valid rule keeps a
        fifth of the rows apart and compares their outcomes with the *projected* h, as the instruments allow.
    first_penalties, second_penalties : sequence of float, optional
        Ridge penalties to choose from, per row; default 25 values from 1 to 1e-8 for learned bandwidths and
        50 values from 1e-2 to 1e-10 for the others.
    image : ImageColumns, optional
        Context columns that are the pixels of an image, for ``features="gradients"``; without it pixels are
        numbers like others.
    action_kind : {"auto", "continuous", "discrete"}
        As for :class:`dmliv.DMLIV`.
    random_state : int, RandomState or None
        Seed of the split, of landmarks and of random features.
    verbose : bool
        Show progress bars.

    Attributes
    ----------
    first_penalty_, second_penalty_ : float
        The chosen penalties; with learned bandwidths the first is that of the first half.
    first_stage_errors_, second_stage_errors_ : ndarray, shape (number of penalties,)
        The criterion that chose each, in model units; the first without a constant.
    structural_model_ : KernelModel
        The fitted h in model units.
    counterfactual_ : Counterfactual
        The fitted h in the user's units.
    """

    first_penalty_: float
    second_penalty_: float
    first_stage_errors_: FloatArray
    second_stage_errors_: FloatArray
    structural_model_: KernelModel

    def __init__(
        self,
        features: FeatureKind = "auto",
        *,
        n_features: int = 300,
        bandwidth: Literal["learned"] | Bandwidth = "learned",
        bandwidth_scale: float | None = None,
        tuning: Tuning = "published",
        first_penalties: Sequence[float] | None = None,
        second_penalties: Sequence[float] | None = None,
        image: ImageColumns | None = None,
        action_kind: ActionKind = "auto",
        random_state: int | np.random.RandomState | None = None,
        verbose: bool = False,
    ) -> None:
        self.features = features
        self.n_features = n_features
        self.bandwidth = bandwidth
        self.bandwidth_scale = bandwidth_scale
        self.tuning = tuning
        self.first_penalties = first_penalties
        self.second_penalties = second_penalties
        self.image = image
        self.action_kind = action_kind
        self.random_state = random_state
        self.verbose = verbose

    def _learn(self, data: TrainingData, seed: int) -> tuple[StructuralModel, Mapping[str, object]]:
        default = PENALTIES if self.bandwidth == "learned" else _PUBLISHED_PENALTIES
        first_penalties = _penalties("first_penalties", self.first_penalties, default)
        second_penalties = _penalties("second_penalties", self.second_penalties, default)
        generator, progress = np.random.default_rng(seed), progress_for(self.verbose)
        inputs = StageInputs.encode(data, self.image)
        if self.bandwidth == "learned":
            n_landmarks = len(data) if self.features == "exact" else self.n_features
            solution = fit_learned(
                data, inputs, n_landmarks, (first_penalties, second_penalties), generator, progress
            )
        else:
            ends = np.cumsum(_SHARES[self.tuning])[:-1] * len(data)
            samples = np.split(generator.permutation(len(data)), ends.round().astype(int))
            features = [
                self._choose_features(variables, samples, generator)
                for variables in (inputs.structural, inputs.exogenous)
            ]
            solution = fit_samples(
                data, inputs, features, samples, (first_penalties, second_penalties), progress
            )
        penalties = {"first_penalty": solution.first_penalty, "second_penalty": solution.second_penalty}
        model = KernelModel(
            inputs.context_encoder,
            solution.features,
            solution.weights,
            {**penalties, "n_features": solution.features.width},
        )
        return model, {
            "first_penalty_": solution.first_penalty,
            "second_penalty_": solution.second_penalty,
            "first_stage_errors_": solution.first_errors,
            "second_stage_errors_": solution.second_errors,
        }

    def _choose_features(
        self, variables: Variables, samples: Sequence[IntArray], generator: np.random.Generator
    ) -> KernelFeatures:
        """Return features with bandwidths by a median rule."""
        bandwidth: Bandwidth = "joint" if self.bandwidth == "joint" else "product"
        # The product rule of the literature uses every row, the joint rule those of the first stage.
        measured = np.concatenate(samples) if bandwidth == "product" else samples[0]
        blocks = variables.blocks
        scales = median_scales(variables.columns[measured], blocks, variables.units, bandwidth, generator)
        factor = self.bandwidth_scale
        if factor is None:
            factor = np.sqrt(len(blocks)) if bandwidth == "product" else 1.0
        few = sum(map(len, samples)) <= _MOST_EXACT_ROWS
        if self.features == "exact" or (self.features == "auto" and few):
            return LandmarkFeatures.learn(variables.columns[samples[0]], scales * factor)
        if self.features == "nystroem":
            landmarks = variables.columns[samples[0][: self.n_features]]
            return LandmarkFeatures.learn(landmarks, scales * factor)
        return FourierFeatures.draw(scales * factor, self.n_features, generator)

    def _check_parameters(self) -> None:
        allowed = {
            "features": ("auto", "exact", "nystroem", "random"),
            "bandwidth": ("learned", "product", "joint"),
            "tuning": ("published", "valid"),
        }
        for name, values in allowed.items():
            value = getattr(self, name)
            if value not in values:
                raise InputError(f"Expected {name} to be one of {values}, got {value!r}; pass one of them.")
        scale = self.bandwidth_scale
        numeric = scale is None or isinstance(scale, (int, float, np.number))
        if not numeric or (scale is not None and not 0.0 < scale < np.inf):
            raise InputError(
                f"Expected a positive bandwidth_scale or None, got {scale!r}; pass 1.0 for the median rule."
            )
        if self.bandwidth == "learned" and (scale is not None or self.features == "random"):
            raise InputError(
                "Expected bandwidth_scale=None and features other than 'random' for learned bandwidths, got "
                f"{scale!r} and {self.features!r}; pass bandwidth='product' or 'joint' to use them."
            )
        if self.image is not None and not isinstance(self.image, ImageColumns):
            raise InputError(
                f"Expected ImageColumns or None, got image={self.image!r}; pass ImageColumns(...)."
            )
        check_whole(n_features=self.n_features)


def _penalties(name: str, values: Sequence[float] | None, default: FloatArray) -> FloatArray:
    """Return the penalties, the largest first."""
    if values is None:
        return default
    try:
        penalties = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        penalties = np.empty(0)
    if penalties.ndim != 1 or not penalties.size or not np.all(np.isfinite(penalties) & (penalties > 0.0)):
        raise InputError(f"Expected a sequence of positive numbers, got {name}={values!r}; pass penalties.")
    return np.sort(penalties)[::-1]
