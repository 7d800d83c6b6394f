"""Images in table columns: which columns they are, fixed features of them, and trainable convolutions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from dmliv.data import FloatArray, IntArray, Table, TableSchema
from dmliv.data.savable import savable
from dmliv.errors import InputError
from dmliv.nets.randomness import Draws, drawn

ImageFeatureName = Literal["gradients", "convolution"]

# Components this much smaller than the first have no variance but that of rounding.
_ROUNDING = 1e-10
_KERNEL = 3


@savable
@dataclass(frozen=True)
class ImageColumns:
    """Context columns that are the pixels of one grey image, row by row.

    Parameters
    ----------
    height, width : int
        Size of the image.
    first : int or None
        Position of the first pixel among the context columns, in the order they were given to ``fit``; the
        other pixels follow it. Use it for arrays.
    prefix : str or None
        Alternatively, the pixels are the columns whose names start with this, in the order they were given.
    features : {"gradients", "convolution"}
        ``"gradients"`` describes every image once by histograms of edge directions, reduced to their main
        components; nothing is trained, and a fit takes seconds. ``"convolution"`` trains convolutional layers
        inside every network, as the paper does, and takes many minutes.
    """

    height: int
    width: int
    first: int | None = None
    prefix: str | None = None
    features: ImageFeatureName = "gradients"

    def __post_init__(self) -> None:
        """Check sizes and that the columns are named in one way."""
        if min(self.height, self.width) < 1:
            raise InputError(f"Expected a positive image size, got {self.height} x {self.width}.")
        if (self.first is None) == (self.prefix is None):
            raise InputError("Expected either first= (a position) or prefix= (of column names), not both.")
        if self.features not in ("gradients", "convolution"):
            raise InputError(f"Expected features 'gradients' or 'convolution', got {self.features!r}.")

    @property
    def n_pixels(self) -> int:
        """Number of columns."""
        return self.height * self.width

    def positions(self, schema: TableSchema) -> IntArray:
        """Return where the pixels stand among the numeric columns of a schema, in image order."""
        if self.prefix is not None:
            names = [name for name in schema.input_order if name.startswith(self.prefix)]
            wanted = f"whose names start with {self.prefix!r}"
        else:
            names = list(schema.input_order[self.first : (self.first or 0) + self.n_pixels])
            wanted = f"from position {self.first} on"
        if len(names) != self.n_pixels:
            raise InputError(
                f"Expected {self.n_pixels} context columns {wanted} for images of {self.height} x "
                f"{self.width} pixels, got {len(names)}; name the columns and the size of the images."
            )
        numeric = {column.name: position for position, column in enumerate(schema.numeric)}
        strange = [name for name in names if name not in numeric]
        if strange:
            raise InputError(f"Expected numbers in all pixel columns, got categories in {strange[0]!r}.")
        return np.array([numeric[name] for name in names], dtype=np.int64)


@savable
@dataclass(frozen=True)
class GradientFeatures:
    """Histograms of edge directions over a grid of cells, reduced to their main components.

    Attributes
    ----------
    height, width : int
    centre : ndarray, shape (n_histogram,)
    components : ndarray, shape (n_histogram, n_components)
        Maps centred histograms to features whose largest variance is one.
    """

    height: int
    width: int
    centre: FloatArray
    components: FloatArray

    @classmethod
    def learn(
        cls, histograms: FloatArray, height: int, width: int, n_components: int = 64
    ) -> GradientFeatures:
        """Learn the main components from the histograms of training images."""
        centre = histograms.mean(axis=0)
        _, scales, directions = np.linalg.svd(histograms - centre, full_matrices=False)
        deviation = scales / np.sqrt(len(histograms))
        # Fewer images than components leave some without variance: these would be rounding errors, blown up.
        n_varying = int(np.sum(deviation > _ROUNDING * deviation[0]))
        kept = max(1, min(n_components, n_varying))
        # Between no whitening (rare shapes vanish) and full whitening (noise is blown up).
        shrink = np.sqrt(np.maximum(deviation[:kept], 1e-12) * max(deviation[0], 1e-12))
        return cls(height, width, centre, directions[:kept].T / shrink)

    def transform(self, histograms: FloatArray) -> FloatArray:
        """Return features (n, n_components) of images, given by their histograms."""
        return (histograms - self.centre) @ self.components


def _edge_histograms(
    pixels: FloatArray, height: int, width: int, n_directions: int = 8, cell: int = 4
) -> FloatArray:
    """Return edge strength by direction and cell, (n, n_directions * n_cells), each image of norm one."""
    images = pixels.reshape(len(pixels), height, width).astype(np.float32)
    rows, columns = np.gradient(images, axis=1), np.gradient(images, axis=2)
    strength = np.hypot(rows, columns)
    angle = (np.arctan2(rows, columns) / (2.0 * np.pi) % 1.0) * n_directions
    low = np.floor(angle).astype(np.int64) % n_directions
    share = (angle - np.floor(angle)).astype(np.float32)
    cells = []
    kernel = _triangle(cell)
    for direction in range(n_directions):
        weight = np.where(low == direction, 1.0 - share, 0.0)
        weight += np.where((low + 1) % n_directions == direction, share, 0.0)
        plane = torch.from_numpy((strength * weight).astype(np.float32)).unsqueeze(1)
        pooled = functional.conv2d(plane, kernel, stride=cell, padding=cell // 2)
        cells.append(pooled.flatten(1).numpy())
    histograms = np.sqrt(np.hstack(cells).astype(np.float64))
    norm = np.linalg.norm(histograms, axis=1, keepdims=True)
    return np.asarray(histograms / np.maximum(norm, 1e-12))


def _triangle(cell: int) -> Tensor:
    """Return a tent-shaped weighting of twice a cell's size, so that neighbouring cells overlap smoothly."""
    tent = 1.0 - (torch.arange(2 * cell, dtype=torch.float32) - (cell - 0.5)).abs() / cell
    return torch.outer(tent, tent).view(1, 1, 2 * cell, 2 * cell)


# Describing images is by far the most expensive encoding, and all models of a fit ask for the same table's.
_KNOWN_HISTOGRAMS: WeakKeyDictionary[Table, tuple[IntArray, FloatArray]] = WeakKeyDictionary()


def _histograms_of(table: Table, positions: IntArray, height: int, width: int) -> FloatArray:
    known = _KNOWN_HISTOGRAMS.get(table)
    if known is not None and np.array_equal(known[0], positions):
        return known[1]
    histograms = _edge_histograms(table.numeric[:, positions], height, width)
    _KNOWN_HISTOGRAMS[table] = (positions, histograms)
    return histograms


@savable
@dataclass(frozen=True)
class ImageEncoder:
    """Where the pixels are and, unless convolutions are trained on them, their fixed features.

    Attributes
    ----------
    positions : ndarray of int, shape (n_pixels,)
        Positions of the pixels among the numeric columns, in image order.
    gradients : GradientFeatures or None
    """

    positions: IntArray
    gradients: GradientFeatures | None

    @classmethod
    def learn(cls, table: Table, image: ImageColumns, schema: TableSchema) -> ImageEncoder:
        """Find the pixels and learn fixed features from training rows."""
        positions = image.positions(schema)
        if image.features == "convolution":
            return cls(positions, None)
        histograms = _histograms_of(table, positions, image.height, image.width)
        return cls(positions, GradientFeatures.learn(histograms, image.height, image.width))

    def features(self, table: Table) -> FloatArray | None:
        """Return fixed image features (n, n_components), or None when convolutions are trained instead."""
        if self.gradients is None:
            return None
        histograms = _histograms_of(table, self.positions, self.gradients.height, self.gradients.width)
        return self.gradients.transform(histograms)


@savable
@dataclass(frozen=True)
class ImageFront:
    """Trainable convolutions in front of a stacked perceptron: the paper's image network.

    Three 3 x 3 convolutions with ReLU, the first two followed by 2 x 2 max pooling, then one dense layer. The
    last ``height * width`` inputs are pixels; they are replaced by ``n_features`` numbers.

    Parameters
    ----------
    height, width : int
    channels : tuple of int
        Outputs of the convolutions.
    n_features : int
        Outputs of the dense layer.
    dropout : float
        Probability after each convolution.
    """

    height: int
    width: int
    channels: tuple[int, ...] = (32, 64, 64)
    n_features: int = 64
    dropout: float = 0.0

    def __post_init__(self) -> None:
        """Check that the image is large enough for the convolutions."""
        if min(self._final_size()) < 1:
            raise InputError(
                f"Expected images of at least 18 x 18 pixels for convolutions, got {self.height} x "
                f"{self.width}; use ImageColumns(features='gradients')."
            )

    @property
    def n_pixels(self) -> int:
        """Number of pixel inputs."""
        return self.height * self.width

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """(fan-in, outputs) of each layer, as in a perceptron."""
        inputs = (1, *self.channels[:-1])
        convolutions = [(n_in * _KERNEL**2, n_out) for n_in, n_out in zip(inputs, self.channels, strict=True)]
        height, width = self._final_size()
        return [*convolutions, (height * width * self.channels[-1], self.n_features)]

    def _final_size(self) -> tuple[int, int]:
        sizes = [self.height, self.width]
        for index in range(len(self.channels)):
            sizes = [size - _KERNEL + 1 for size in sizes]
            if index < len(self.channels) - 1:
                sizes = [size // 2 for size in sizes]
        return sizes[0], sizes[1]

    def apply(self, inputs: Tensor, layers: list[tuple[Tensor, Tensor]], draws: Draws | None) -> Tensor:
        """Replace the pixels of ``inputs`` (M, B, dense + pixels) by features, (M, B, dense + n_features).

        ``draws`` is the source of dropout masks while training, None otherwise.
        """
        n_members, n_rows = inputs.shape[0], inputs.shape[1]
        dense, pixels = inputs[..., : -self.n_pixels], inputs[..., -self.n_pixels :]
        # The members are the groups of one grouped convolution.
        planes = pixels.reshape(n_members, n_rows, self.height, self.width).transpose(0, 1)
        n_in = 1
        for index, (weight, bias) in enumerate(layers[:-1]):
            n_out = weight.shape[2]
            kernels = weight.transpose(1, 2).reshape(n_members * n_out, n_in, _KERNEL, _KERNEL)
            planes = functional.conv2d(planes, kernels, bias.reshape(-1), groups=n_members).relu()
            if index < len(layers) - 2:
                planes = functional.max_pool2d(planes, 2)
            if draws is not None and self.dropout > 0.0:
                uniform = drawn(torch.rand, tuple(planes.shape), draws, planes.device, axis=1)
                planes = planes * (uniform >= self.dropout) / (1.0 - self.dropout)
            n_in = n_out
        flat = planes.reshape(n_rows, n_members, -1).transpose(0, 1)
        weight, bias = layers[-1]
        return torch.cat([dense, torch.baddbmm(bias, flat, weight).relu()], dim=-1)
