import gzip
import os
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from dmliv.problems.assets import AssetError
from dmliv.problems.mnist import digits_shown, load_digits, read_idx


def test_reader_returns_what_was_written(small_files: ModuleType, tmp_path: Path) -> None:
    array = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    path = tmp_path / "array.gz"
    path.write_bytes(gzip.compress(small_files.idx_bytes(array)))
    read = read_idx(path, 3)
    np.testing.assert_array_equal(read, array)
    assert read.dtype == np.uint8
    assert not read.flags.writeable


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda b: b, "with 3 axes"),
        (lambda b: b"\x00\x00\x0d\x03" + b[4:], r"opens with 00000803.*'00000d03'"),
        (lambda b: b[:6], "6 bytes"),
        (lambda b: b"\x00\x00\x08\x03" + b[4:8] + bytes([0, 0, 0, 1] * 2) + b"abcd", "Expected 5 values"),
        (lambda b: b"", "0 bytes"),
    ],
)
def test_reader_refuses_other_content(change, message: str, small_files: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "array.gz"
    path.write_bytes(gzip.compress(change(small_files.idx_bytes(np.arange(5)))))
    with pytest.raises(AssetError, match=message):
        read_idx(path, 3)


@pytest.mark.parametrize(
    "content",
    [b"plain text", gzip.compress(b"x" * 1000, mtime=0)[:-12], b""],
    ids=["text", "cut short", "empty"],
)
def test_reader_refuses_what_is_not_gzip(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "array.gz"
    path.write_bytes(content)
    with pytest.raises(AssetError, match="replace the file"):
        read_idx(path, 1)


@pytest.mark.parametrize("shape", [(50, 5, 5), (3, 28, 28)])
def test_images_and_labels_must_fit(
    shape: tuple[int, ...], small_files: ModuleType, own_data: Path, register_own: Callable[[], None]
) -> None:
    content = gzip.compress(small_files.idx_bytes(np.zeros(shape)))
    (own_data / "mnist/t10k-images-idx3-ubyte.gz").write_bytes(content)
    register_own()
    with pytest.raises(AssetError, match=f"28 x 28 pixels with one label each.*{re.escape(str(shape))}"):
        load_digits("test", own_data)


def test_digits_are_found_by_content(small_files: ModuleType, small_data: Path) -> None:
    for part, count in (("train", small_files.N_TRAIN_IMAGES), ("test", small_files.N_TEST_IMAGES)):
        images = load_digits(part, small_data)
        assert images.pixels.shape == (10 * count, 784)
        np.testing.assert_array_equal(digits_shown(images.pixels, small_data), images.labels)
    unknown = images.pixels[:2].copy()
    unknown[1, 300] ^= 1
    np.testing.assert_array_equal(digits_shown(unknown, small_data), [images.labels[0], -1])


def test_files_are_read_once(small_data: Path) -> None:
    assert load_digits("train", small_data) is load_digits("train", small_data)


def test_one_image_with_two_labels_is_refused(
    small_files: ModuleType, own_data: Path, register_own: Callable[[], None]
) -> None:
    for kind, array in (("images-idx3", np.zeros((2, 28, 28))), ("labels-idx1", np.array([3, 4]))):
        content = gzip.compress(small_files.idx_bytes(array))
        (own_data / f"mnist/t10k-{kind}-ubyte.gz").write_bytes(content)
    register_own()
    with pytest.raises(AssetError, match="one label for every image"):
        digits_shown(np.zeros((1, 784), dtype=np.uint8), own_data)


@pytest.mark.skipif("DMLIV_DATA" not in os.environ, reason="DMLIV_DATA names no folder with the real files")
def test_real_files() -> None:
    train, test = load_digits("train"), load_digits("test")
    assert train.pixels.shape == (60_000, 784)
    assert test.pixels.shape == (10_000, 784)
    assert np.bincount(train.labels).min() == 5421
    assert np.bincount(test.labels).min() == 892
    np.testing.assert_array_equal(digits_shown(test.pixels), test.labels)
