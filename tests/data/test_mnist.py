"""The shipped digits, and IDX files: plain, gzipped and damaged."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meganeura as mg
from meganeura import dispatch
from meganeura.data import MNIST, DataLoader, load_mnist, read_idx


def _idx(array: Any, code: int = 8) -> bytes:
    a = np.asarray(array)
    return bytes([0, 0, code, a.ndim]) + struct.pack(f">{a.ndim}I", *a.shape) + a.tobytes()


def test_shipped_digits() -> None:
    (x, y), (tx, ty) = load_mnist()
    assert x.shape == (8500, 1, 28, 28)
    assert tx.shape == (1500, 1, 28, 28)
    assert x.dtype == np.float32
    assert y.dtype == np.int64
    assert [x.min(), x.max()] == [0.0, 1.0]
    assert set(y) == set(ty) == set(range(10))
    assert 0.12 < x.mean() < 0.14, "digits are mostly background"
    assert min(np.bincount(y)) > 700


def test_dataset() -> None:
    data = MNIST(train=False)
    image, label = data[3]
    assert image.shape == (1, 28, 28)
    assert repr(data) == "MNIST(test, 1500 images)"
    images, labels = data.batch([3, 5])
    np.testing.assert_array_equal(images[0], image)
    assert labels[0] == label
    with dispatch.use(mg.Reference()):
        batch, targets = next(iter(DataLoader(data, batch_size=32)))
        assert batch.shape == (32, 1, 28, 28)
        assert targets.dtype is mg.int64
        flat = MNIST(train=False, transform=lambda a: a.reshape(-1) * 2, target_transform=lambda t: t + 1)
        batch, targets = next(iter(DataLoader(flat, batch_size=4)))
    assert batch.shape == (4, 784)
    np.testing.assert_array_equal(targets.numpy(), data.labels[:4] + 1)
    np.testing.assert_array_equal(batch.numpy()[3], 2 * image.reshape(-1))


def test_own_folder(tmp_path: Path) -> None:
    images, labels = np.arange(2 * 4, dtype=np.uint8).reshape(2, 2, 2), np.array([3, 1], np.uint8)
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    (raw / "train-images-idx3-ubyte").write_bytes(_idx(images))
    (raw / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(_idx(labels)))
    data = MNIST(tmp_path)
    assert len(data) == 2
    np.testing.assert_allclose(data[1][0][0], images[1] / 255)
    with pytest.raises(mg.LoadError, match=r"holds neither t10k-images-idx3-ubyte nor t10k-images-idx3-ubyte\.gz"):
        MNIST(tmp_path, train=False)
    (raw / "train-labels-idx1-ubyte.gz").write_bytes(_idx(labels[:1]))
    with pytest.raises(mg.LoadError, match=r"labels of shape \[1\] do not fit the 2 images"):
        MNIST(tmp_path)
    (raw / "train-images-idx3-ubyte").write_bytes(_idx(labels))
    with pytest.raises(mg.LoadError, match=r"expected uint8 images \[n, rows, columns\], found uint8\[2\]"):
        MNIST(tmp_path)


@pytest.mark.parametrize(("code", "dtype"), [(8, "u1"), (9, "i1"), (11, ">i2"), (12, ">i4"), (13, ">f4"), (14, ">f8")])
def test_types(tmp_path: Path, code: int, dtype: str) -> None:
    array = np.arange(-3, 3).astype(dtype).reshape(2, 3)
    path = tmp_path / "a.idx"
    path.write_bytes(_idx(array, code))
    got = read_idx(path)
    np.testing.assert_array_equal(got, array)
    assert got.dtype.isnative


GOOD = _idx(np.zeros((2, 3), np.uint8))
BROKEN: list[tuple[bytes, str]] = [
    (b"", r"0 bytes \(empty\) are too few"),
    (b"\0\0", r"2 bytes \(00 00\) are too few"),
    (b"\x89PNG" + GOOD, "not an IDX file: it starts with 89 50 4e 47"),
    (b"\0\0\x07\1" + GOOD, "it starts with 00 00 07 01, expected 00 00, a type"),
    (GOOD[:9], "the header of rank 2 takes 12 bytes, the file has 9"),
    (GOOD[:-1], r"shape \[2, 3\] of uint8 takes 6 bytes after the header, the file has 5"),
    (GOOD + b"\0", r"takes 6 bytes after the header, the file has 7"),
    (gzip.compress(GOOD)[:-6], "cannot be read"),
    (gzip.compress(GOOD)[:20] + b"\xff" * 8 + gzip.compress(GOOD)[28:], "cannot be read"),
]


@pytest.mark.parametrize(("raw", "text"), BROKEN)
def test_damaged_files(tmp_path: Path, raw: bytes, text: str) -> None:
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(raw)
    with pytest.raises(mg.LoadError, match=text) as error:
        read_idx(path)
    assert str(path) in str(error.value)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(mg.LoadError, match="no such file"):
        read_idx(tmp_path / "nothing")
