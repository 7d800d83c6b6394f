"""Deep feature instrumental-variable regression: two ridge regressions on features that are learned."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from dmliv.data import ActionKind, FloatArray, TrainingData
from dmliv.errors import InputError, TrainingDivergedError, check_each_whole, check_number, check_whole
from dmliv.estimators.base import DirectIV
from dmliv.estimators.feature_model import ColumnEncoding, ColumnReader, FeatureFit, FeatureModel
from dmliv.nets.device import resolve_device, single_thread
from dmliv.nets.encoding import TableEncoder
from dmliv.nets.feature_maps import FeatureMap, Layer, exact_tensor
from dmliv.nets.feature_regression import FeaturePlan, FeatureRegression, FeatureRows
from dmliv.nets.images import ImageColumns, ImageFront
from dmliv.progress import Advance, progress_for
from dmliv.second_stage.structural import StructuralModel

Schedule = Literal["cosine", "constant"]

# Batch statistics of fewer rows are noise.
_SMALLEST_BATCH = 50
# The networks of the reference implementation; with images they follow the convolutions.
_INSTRUMENT_LAYERS = (Layer(128), Layer(64), Layer(32, normalised=True, rectified=False))
_CONTEXT_LAYERS = (Layer(128), Layer(32, normalised=True), Layer(16))
_IMAGE_LAYERS = (Layer(32, normalised=True),)
_IMAGE_DROPOUT = 0.1
# Standard errors by which a held-out loss has to be lower to count as better.
_CLEARLY = 1.0


class DFIV(DirectIV):
    """Deep feature instrumental-variable regression (Xu et al., 2021), with observed contexts.

    Three networks learn features of the action, of instrument and context, and of the context. On one half
    of the rows a ridge regression predicts the action features from those of instrument and context. On the
    other half another one regresses the outcome on products of predicted action features and context
    features. Both are solved exactly in every training step, and the networks learn through the solutions.

    The defaults learn from mini-batches, with a falling learning rate, smaller penalties, and twice: with
    each half of the rows in each role. As published, apart from units, is
    ``DFIV(n_fits=1, first_penalty=0.1, second_penalty=0.1, n_epochs=100, learning_rate=1e-3,
    schedule="constant", batch_size=None, weight_decay=(0.0, 0.1, 0.0), action_layers=(16, 1))``; with
    convolutions on images the published steps are ``(20, 20, 5)`` and the weight decays
    ``(0.1, 0.1, 0.01)``.

    Parameters
    ----------
    image : ImageColumns, optional
        Context columns that are the pixels of an image. With ``features="convolution"`` both networks that
        see the context have convolutions; ``n_fits=1, batch_size=100, action_layers=(16, 1)`` then keep the
        time within minutes.
    n_fits : int
        Fits whose mean is h. Each pair shares a random split of the rows, and exchanges its halves.
    first_penalty, second_penalty : float
        Ridge penalties per row, of features and intercepts alike.
    n_epochs : int
        Rounds over the three networks.
    steps : tuple of int
        Steps in a round on the features of the instrument, of the context and of the action.
    batch_size : int, float or None
        Most rows in a step on the features of the instrument or the context. A number below one is a share of
        the half (but at least 50 rows): few rows need small batches against overfitting. None takes the whole
        half, which with convolutions on thousands of images is slow and needs gigabytes.
    learning_rate : float
        Of Adam, at its peak.
    schedule : {"cosine", "constant"}
        ``"cosine"`` falls to zero along a half cosine.
    weight_decay : float or tuple of float
        Added to gradients; for the features of the instrument, of the context and of the action, or for all.
    encoding : {"standardised", "piecewise"}
        How networks see numeric instruments and contexts; piecewise linear on ``n_bins`` quantile bins.
    n_bins : int
        Bins of the piecewise-linear encoding.
    action_layers : tuple of int, or tuple of such tuples
        Widths of the network on a continuous action; the last is the number of action features. Several are
        candidates: all are fitted, and the one with the fewest features is kept unless, on outcomes of the
        first stage's half, the projected h of another is clearly better. Few features suit effects that are
        straight in the action, and extrapolate; many suit effects that bend. A discrete action has one
        feature per level instead.
    action_kind : {"auto", "continuous", "discrete"}
        As for :class:`dmliv.DMLIV`.
    random_state : int, RandomState or None
        Seed of everything random.
    device : str
        ``"auto"``, ``"cpu"``, ``"cuda"`` or another torch device.
    verbose : bool
        Show progress bars.

    Attributes
    ----------
    structural_model_ : FeatureModel
        The fitted h in model units.
    counterfactual_ : Counterfactual
        The fitted h in the user's units.
    """

    structural_model_: FeatureModel

    def __init__(
        self,
        image: ImageColumns | None = None,
        *,
        n_fits: int = 2,
        first_penalty: float = 0.01,
        second_penalty: float = 0.01,
        n_epochs: int = 40,
        steps: tuple[int, int, int] = (20, 20, 1),
        batch_size: int | float | None = 0.2,
        learning_rate: float = 2e-3,
        schedule: Schedule = "cosine",
        weight_decay: float | tuple[float, float, float] = 1e-3,
        encoding: ColumnEncoding = "standardised",
        n_bins: int = 20,
        action_layers: tuple[int, ...] | tuple[tuple[int, ...], ...] = ((16, 1), (32, 8)),
        action_kind: ActionKind = "auto",
        random_state: int | np.random.RandomState | None = None,
        device: str = "auto",
        verbose: bool = False,
    ) -> None:
        self.image = image
        self.n_fits = n_fits
        self.first_penalty = first_penalty
        self.second_penalty = second_penalty
        self.n_epochs = n_epochs
        self.steps = steps
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.schedule = schedule
        self.weight_decay = weight_decay
        self.encoding = encoding
        self.n_bins = n_bins
        self.action_layers = action_layers
        self.action_kind = action_kind
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    def _learn(self, data: TrainingData, seed: int) -> tuple[StructuralModel, Mapping[str, object]]:
        generator = np.random.default_rng(seed)
        device = resolve_device(self.device)
        # A discrete action has exact features: its levels.
        candidates = [()] if data.action_spec.kind == "discrete" else self._action_candidates()
        with single_thread():
            reader, rows = self._read(data, device)
            fits: dict[tuple[int, ...], list[FeatureFit]] = {layers: [] for layers in candidates}
            n_epochs = len(candidates) * self.n_fits * self.n_epochs
            halves: list[Tensor] = []
            with progress_for(self.verbose).stage("feature maps", n_epochs) as advance:
                for number in range(self.n_fits):
                    if number % 2 == 0:
                        order = torch.from_numpy(generator.permutation(len(data)))
                        halves = [order[: len(data) // 2], order[len(data) // 2 :]]
                    first, second = (rows.take(half) for half in halves)
                    fit_seed = int(generator.integers(2**31))
                    for layers in candidates:
                        # The same seed, so that candidates differ by their action features alone.
                        own = np.random.default_rng(fit_seed)
                        regression = self._regression(layers, first, second, own)
                        fits[layers].append(self._train(regression, advance))
                    halves.reverse()
        chosen, losses = _cautious_choice(
            {layers: np.concatenate([fit.heldout_losses for fit in parts]) for layers, parts in fits.items()}
        )
        return FeatureModel(reader, tuple(fits[chosen]), losses), {}

    def _read(self, data: TrainingData, device: torch.device) -> tuple[ColumnReader, FeatureRows]:
        """Learn the encodings; return the context's and the rows as tensors."""
        context, instrument = data.context, data.instrument
        encoder = TableEncoder.learn(
            context, data.context_schema.n_levels, self.n_bins, self.image, data.context_schema
        )
        reader = ColumnReader(encoder, self.encoding, device)
        levels = data.instrument_schema.n_levels
        z_reader = ColumnReader(TableEncoder.learn(instrument, levels, self.n_bins), self.encoding, device)
        columns = reader.columns(context)
        rows = FeatureRows(
            action=torch.as_tensor(data.action_spec.vectors(data.action), dtype=torch.float32, device=device),
            exogenous=torch.cat([z_reader.columns(instrument), columns], dim=1),
            context=columns,
            outcome=exact_tensor(data.outcome, device).unsqueeze(1),
            weight=exact_tensor(data.weight, device),
        )
        return reader, rows

    def _regression(
        self,
        widths: tuple[int, ...],
        first: FeatureRows,
        second: FeatureRows,
        generator: np.random.Generator,
    ) -> FeatureRegression:
        """Set up new feature maps over two halves of the rows."""
        front = None
        if self.image is not None and self.image.features == "convolution":
            front = ImageFront(self.image.height, self.image.width, dropout=_IMAGE_DROPOUT)
        n_pixels = 0 if front is None else front.n_pixels
        n_instrument, n_context = first.exogenous.shape[1] - n_pixels, first.context.shape[1] - n_pixels
        action_layers = [Layer(width, rectified=index < len(widths)) for index, width in enumerate(widths, 1)]
        instrument_layers = _INSTRUMENT_LAYERS if front is None else _IMAGE_LAYERS
        context_layers: Sequence[Layer] = _CONTEXT_LAYERS if front is None else _IMAGE_LAYERS
        if first.context.shape[1] == 0:
            context_layers = ()
        device = first.action.device
        return FeatureRegression(
            FeatureMap(n_instrument, instrument_layers, generator=generator, device=device, front=front),
            FeatureMap(n_context, context_layers, generator=generator, device=device, front=front),
            FeatureMap(first.action.shape[1], action_layers, generator=generator, device=device),
            first,
            second,
            self._plan(len(first)),
            generator,
        )

    def _train(self, regression: FeatureRegression, advance: Advance) -> FeatureFit:
        losses = []
        for epoch in range(self.n_epochs):
            fall = 0.5 * (1.0 + math.cos(math.pi * epoch / self.n_epochs))
            rate = self.learning_rate * (fall if self.schedule == "cosine" else 1.0)
            try:
                losses.append(regression.train_epoch(rate))
                if epoch == self.n_epochs - 1:
                    # The last step comes after the last loss, so its result is looked at directly.
                    coefficients, heldout = regression.solve()
                    losses[-1] += 0.0 if bool(torch.isfinite(coefficients).all()) else math.nan
            except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
                # Features that are not finite have no Cholesky factor.
                losses.append(math.nan)
            if not math.isfinite(losses[-1]):
                raise TrainingDivergedError(
                    f"Training of 'feature maps' diverged: the loss is not finite after epoch {epoch + 1}. "
                    "Lower learning_rate, raise the penalties, or look for extreme values in the data."
                )
            advance()
        return FeatureFit(
            regression.action_map, regression.context_map, coefficients, losses, heldout.cpu().numpy()
        )

    def _plan(self, n_rows: int) -> FeaturePlan:
        """Return the plan for ``n_rows`` rows in a half."""
        size, decays = self.batch_size, self.weight_decay
        if isinstance(size, float):
            size = max(_SMALLEST_BATCH, round(size * n_rows))
        if not isinstance(decays, (tuple, list)):
            decays = (decays, decays, decays)
        return FeaturePlan((self.first_penalty, self.second_penalty), self.steps, decays, size)

    def _check_parameters(self) -> None:
        for name, allowed in (
            ("encoding", ("standardised", "piecewise")),
            ("schedule", ("cosine", "constant")),
        ):
            if getattr(self, name) not in allowed:
                raise InputError(
                    f"Expected {name} to be one of {allowed}, got {getattr(self, name)!r}; pass one of them."
                )
        if self.image is not None and not isinstance(self.image, ImageColumns):
            raise InputError(f"Expected ImageColumns or None, got image={self.image!r}; name the pixels.")
        check_whole(n_fits=self.n_fits, n_epochs=self.n_epochs, n_bins=self.n_bins)
        share = isinstance(self.batch_size, float) and 0.0 < self.batch_size < 1.0
        if self.batch_size is not None and not share:
            # Batch normalisation needs at least two rows.
            check_whole(least=2, batch_size=self.batch_size)
        check_each_whole("steps", self.steps, length=3)
        self._action_candidates()
        check_number(
            above=0.0,
            first_penalty=self.first_penalty,
            second_penalty=self.second_penalty,
            learning_rate=self.learning_rate,
        )
        decays: Any = self.weight_decay
        decays = decays if isinstance(decays, (tuple, list)) else (decays, decays, decays)
        if len(decays) != 3:
            raise InputError(f"Expected 3 numbers for weight_decay, got {decays!r}; pass one or three.")
        for decay in decays:
            check_number(least=0.0, weight_decay=decay)

    def _action_candidates(self) -> list[tuple[int, ...]]:
        """Check the candidates for the action features; return them without repetition."""
        given: Any = self.action_layers
        several = (
            isinstance(given, (tuple, list))
            and given
            and all(isinstance(widths, (tuple, list)) for widths in given)
        )
        candidates = given if several else [given]
        for widths in candidates:
            check_each_whole("action_layers", widths)
        return list(dict.fromkeys(tuple(widths) for widths in candidates))


def _cautious_choice(
    row_losses: dict[tuple[int, ...], FloatArray],
) -> tuple[tuple[int, ...], dict[tuple[int, ...], float]]:
    """Return the candidate with the fewest features that no other clearly beats, and all mean losses.

    Held-out rows see h only through the instrument, where wild and tame h look alike; outside they do not.
    """
    means = {layers: float(losses.mean()) for layers, losses in row_losses.items()}
    best = min(means, key=means.__getitem__)
    acceptable = []
    for layers, losses in row_losses.items():
        excess = losses - row_losses[best]
        if excess.mean() <= _CLEARLY * excess.std() / np.sqrt(len(excess)):
            acceptable.append(layers)
    return min(acceptable, key=lambda layers: layers[-1:]), means
