"""Settings of a network and its training, with budgets that depend on the number of rows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from dmliv.data.savable import savable
from dmliv.errors import InputError
from dmliv.nets.images import ImageColumns, ImageFront
from dmliv.nets.training import TrainingPlan

#: Up to this many rows every number is as if larger tables did not exist. Beyond, choices are made on as many
#: rows, columns are encoded a batch at a time, members of a stack share batches, and budgets grow more slowly
#: than the rows.
LARGE_ROWS = 50_000
# Beyond that, batches grow with the first power of the rows, and epochs fall with the second.
_BATCH_POWER = 0.5
_EPOCH_POWER = 0.15
# Larger batches are no faster.
_LARGEST_BATCH = 1024


@savable
@dataclass(frozen=True)
class ByRows:
    """A setting that depends on the number of rows n: ``offset + factor / (shift + n) ** power``, clipped.

    Examples
    --------
    >>> ByRows(factor=1000, shift=5000).at(5000)     # the paper's dropout
    0.1
    """

    factor: float
    shift: float = 0.0
    power: float = 1.0
    offset: float = 0.0
    low: float = 0.0
    high: float = math.inf

    def at(self, n_rows: int) -> float:
        """Return the value for ``n_rows`` training rows."""
        value = self.offset + self.factor / math.pow(self.shift + n_rows, self.power)
        return min(max(value, self.low), self.high)


@savable
@dataclass(frozen=True)
class NetworkSettings:
    """One network's shape, inputs and training.

    Parameters
    ----------
    hidden : tuple of int
        Widths of the hidden ReLU layers.
    dropout : float or ByRows
        Dropout probability after hidden layers.
    dropout_layers : int or None
        How many hidden layers, from the first, are followed by dropout; None means all.
    epochs, batch_size, learning_rate, weight_decay : number or ByRows
        Budget, and decoupled weight decay; see :class:`~dmliv.nets.training.TrainingPlan`.
    rate_factors : tuple of float
        Multiples of the learning rate to choose from; with more than one the choice is made by held-out loss.
        Noisy targets want the gentle ones, clean targets the brisk ones.
    schedule : {"cosine", "constant"}
        Learning-rate schedule.
    warmup : float
        Share of the steps with a rising learning rate.
    clip_norm : float
        Limit of a member's gradient norm.
    encodings : tuple of str
        Encodings of the inputs to choose from; with more than one the choice is made by held-out loss.
    n_bins : int
        Bins of the piecewise-linear encoding.
    patience : int or None
        Stop early after this many epochs without a better loss on held-out rows.
    image : ImageColumns or None
        Context columns that are the pixels of an image.
    trial_share : float
        Share of the epochs that trials get which only choose encoding and learning rate.
    validation_fraction : float
        Share of the training rows held out for early stopping and for the choice of the encoding.
    """

    hidden: tuple[int, ...] = (128, 64, 32)
    dropout: float | ByRows = 0.1
    dropout_layers: int | None = None
    epochs: int | ByRows = 40
    batch_size: int | ByRows = 100
    learning_rate: float | ByRows = 3e-3
    rate_factors: tuple[float, ...] = (1.0,)
    weight_decay: float | ByRows = 1e-3
    schedule: Literal["cosine", "constant"] = "cosine"
    warmup: float = 0.1
    clip_norm: float = 5.0
    encodings: tuple[str, ...] = ("standardised",)
    n_bins: int = 16
    patience: int | None = None
    image: ImageColumns | None = None
    trial_share: float = 1.0
    validation_fraction: float = 0.2

    def __post_init__(self) -> None:
        """Check what no later step would explain well."""
        if not self.hidden or min(self.hidden) < 1:
            raise InputError(
                f"Expected at least one hidden layer of positive width, got hidden={self.hidden}."
            )
        if not self.encodings:
            raise InputError("Expected at least one encoding, got none.")
        if not self.rate_factors or min(self.rate_factors) <= 0.0:
            raise InputError(f"Expected positive learning-rate factors, got {self.rate_factors}.")
        if not 0.0 < self.validation_fraction < 1.0:
            raise InputError(
                f"Expected a validation fraction between 0 and 1, got {self.validation_fraction}."
            )
        if not 0.0 < self.trial_share <= 1.0:
            raise InputError(f"Expected a share of epochs in (0, 1] for trials, got {self.trial_share}.")
        if not isinstance(self.dropout, ByRows) and not 0.0 <= self.dropout < 1.0:
            raise InputError(f"Expected a dropout probability in [0, 1), got {self.dropout}.")

    @property
    def adapts(self) -> bool:
        """Whether the budget follows the number of rows beyond :data:`LARGE_ROWS`.

        A batch size that is one number is the user's own, and stays. Pixels and early stopping need all rows
        of a member at hand.
        """
        return isinstance(self.batch_size, ByRows) and self.image is None and self.patience is None

    def plan(self, n_rows: int, *, trial: bool = False) -> TrainingPlan:
        """Return the training plan for ``n_rows`` training rows, of the network or of a trial."""
        share = self.trial_share if trial else 1.0
        epochs, batch_size = _at(self.epochs, n_rows), _at(self.batch_size, n_rows)
        if n_rows > LARGE_ROWS and self.adapts:
            times = n_rows / LARGE_ROWS
            epochs *= times**-_EPOCH_POWER
            batch_size = max(batch_size, min(batch_size * times**_BATCH_POWER, _LARGEST_BATCH))
        return TrainingPlan(
            epochs=max(1, round(share * epochs)),
            batch_size=max(1, round(batch_size)),
            learning_rate=_at(self.learning_rate, n_rows),
            weight_decay=_at(self.weight_decay, n_rows),
            schedule=self.schedule,
            warmup=self.warmup,
            clip_norm=self.clip_norm,
            patience=self.patience,
        )

    @property
    def convolves(self) -> bool:
        """Whether networks begin with convolutions."""
        return self.image is not None and self.image.features == "convolution"

    def front(self, n_rows: int) -> ImageFront | None:
        """Return the convolutions in front of the network, if it has any."""
        if self.image is None or not self.convolves:
            return None
        return ImageFront(self.image.height, self.image.width, dropout=self.dropout_rates(n_rows)[0])

    def dropout_rates(self, n_rows: int) -> tuple[float, ...]:
        """Return the dropout probability after each hidden layer."""
        rate = _at(self.dropout, n_rows)
        if not 0.0 <= rate < 1.0:
            raise InputError(
                f"Expected a dropout probability in [0, 1), got {rate:g} for {n_rows} rows; limit the rule."
            )
        layers = len(self.hidden) if self.dropout_layers is None else self.dropout_layers
        return tuple(rate if index < layers else 0.0 for index in range(len(self.hidden)))


def _at(setting: float | ByRows, n_rows: int) -> float:
    return setting.at(n_rows) if isinstance(setting, ByRows) else float(setting)
