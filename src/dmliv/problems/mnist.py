"""Images of handwritten digits (MNIST) and the digit that each of them shows."""

import gzip
import hashlib
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from dmliv.problems.assets import ASSETS, AssetError, DataDir, locate
from dmliv.problems.protocol import Part

ByteArray: TypeAlias = NDArray[np.uint8]

N_PIXELS = 28 * 28

# An idx file opens with two zero bytes, the code of its number type and its number of axes.
_UNSIGNED_BYTES = 0x08
_FILE_PREFIX: dict[Part, str] = {"train": "train", "test": "t10k"}


@dataclass(frozen=True, eq=False)
class DigitImages:
    """Images ``pixels`` of shape (n, 784), row after row, and the digits ``labels`` they show, shape (n,).

    Both are read-only arrays of unsigned bytes.
    """

    pixels: ByteArray
    labels: ByteArray


def read_idx(path: Path, n_axes: int) -> ByteArray:
    """Return the read-only array of unsigned bytes in a gzipped idx file, which must have so many axes."""
    try:
        content = gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise AssetError(f"Expected a gzipped file in {path}, got {error}; replace the file.") from error
    head = 4 + 4 * n_axes
    magic = bytes([0, 0, _UNSIGNED_BYTES, n_axes])
    if content[:4] != magic or len(content) < head:
        raise AssetError(
            f"Expected an idx file of unsigned bytes with {n_axes} axes (it opens with {magic.hex()}) in "
            f"{path}, got {len(content)} bytes that open with {content[:4].hex()!r}; replace the file."
        )
    shape = tuple(int(length) for length in np.frombuffer(content, dtype=">u4", count=n_axes, offset=4))
    if len(content) - head != prod(shape):
        raise AssetError(
            f"Expected {prod(shape)} values for the shape {shape} that {path} states, "
            f"got {len(content) - head}; replace the file."
        )
    return np.frombuffer(content, dtype=np.uint8, offset=head).reshape(shape)


def load_digits(part: Part, data_dir: DataDir = None) -> DigitImages:
    """Return the images of a part of MNIST; the files are looked for as `dmliv.problems.assets` says."""
    names = (f"mnist/{_FILE_PREFIX[part]}-{kind}-ubyte.gz" for kind in ("images-idx3", "labels-idx1"))
    # The checksums are part of the key: a file whose content is new is read anew.
    images, labels = ((locate(name, data_dir), ASSETS[name].sha256) for name in names)
    return _read_digits(images, labels)


@lru_cache(maxsize=4)
def _read_digits(images: tuple[Path, str], labels: tuple[Path, str]) -> DigitImages:
    pixels, digits = read_idx(images[0], 3), read_idx(labels[0], 1)
    if prod(pixels.shape[1:]) != N_PIXELS or len(pixels) != len(digits):
        raise AssetError(
            f"Expected images of 28 x 28 pixels with one label each, got shape {pixels.shape} in {images[0]} "
            f"and {len(digits)} labels in {labels[0]}; replace the files."
        )
    return DigitImages(pixels.reshape(-1, N_PIXELS), digits)


def digits_shown(pixels: ByteArray, data_dir: DataDir = None) -> NDArray[np.int64]:
    """Return the digits (n,) that images (n, 784) of either part show, by looking the images up.

    An image that is not among the 70,000 has the digit -1.
    """
    known = _labels_by_content(load_digits("train", data_dir), load_digits("test", data_dir))
    return np.array([known.get(_content_key(image), -1) for image in pixels], dtype=np.int64)


@lru_cache(maxsize=2)
def _labels_by_content(*parts: DigitImages) -> Mapping[bytes, int]:
    """Return the label of every image; no image of MNIST occurs twice, let alone with two labels."""
    known: dict[bytes, int] = {}
    for part in parts:
        for image, label in zip(part.pixels, part.labels.tolist(), strict=True):
            if known.setdefault(_content_key(image), label) != label:
                raise AssetError("Expected one label for every image, got two; replace the MNIST files.")
    return known


def _content_key(image: ByteArray) -> bytes:
    """Return a short key of an image's content; two of 70,000 images share one with a chance below 1e-28."""
    return hashlib.blake2b(image.tobytes(), digest_size=16).digest()
