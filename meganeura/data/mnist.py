"""Handwritten digits: 10,000 of MNIST's images come with the package (8,500 to train, 1,500 to test)."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import LoadError
from .collate import default_collate
from .dataset import Dataset
from .idx import read_idx

SHIPPED = Path(__file__).parent / "mnist10k"
Array = np.ndarray[Any, Any]


class MNIST(Dataset):
    """Digits as (image, label): image [1, 28, 28] float32 in [0, 1], label int64 0..9.

    `root` is a folder with MNIST's four IDX files (names ending in -ubyte or -ubyte.gz; also inside MNIST/raw, where
    torchvision puts them); None reads the package's own 10,000. `transform` maps an image, as numpy.
    """

    def __init__(
        self, root: str | os.PathLike[str] | None = None, train: bool = True, transform: Callable[[Array], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
    ) -> None:  # fmt: skip
        self.train, self.transform, self.target_transform = train, transform, target_transform
        self.images, self.labels = _read(SHIPPED if root is None else Path(root), "train" if train else "t10k")

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        image: Any = _scaled(self.images[index])
        label: Any = self.labels[index]
        return (
            image if self.transform is None else self.transform(image),
            label if self.target_transform is None else self.target_transform(label),
        )

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, indices: Sequence[int]) -> Any:
        """Several samples. -> images [n, 1, 28, 28], labels [n] (or what the transforms make of them)."""
        if self.transform is not None or self.target_transform is not None:
            return default_collate([self[i] for i in indices])
        rows = np.asarray(indices, np.intp)
        return _scaled(self.images[rows]), self.labels[rows]

    def __repr__(self) -> str:
        return f"MNIST({'train' if self.train else 'test'}, {len(self)} images)"


def load_mnist(root: str | os.PathLike[str] | None = None) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """All digits as numpy: ((train images, labels), (test images, labels)); images [n, 1, 28, 28] in [0, 1], labels [n] int64."""
    train, test = MNIST(root, train=True), MNIST(root, train=False)
    return (_scaled(train.images), train.labels), (_scaled(test.images), test.labels)


def _scaled(images: Array) -> Array:
    """uint8 [*, 28, 28] -> float32 [*, 1, 28, 28] in [0, 1]."""
    return np.expand_dims(images, -3).astype(np.float32) / np.float32(255)


def _read(root: Path, split: str) -> tuple[Array, Array]:
    images_file, labels_file = _find(root, f"{split}-images-idx3-ubyte"), _find(root, f"{split}-labels-idx1-ubyte")
    images, labels = read_idx(images_file), read_idx(labels_file)
    if images.ndim != 3 or images.dtype != np.uint8:
        raise LoadError(f"{images_file}: expected uint8 images [n, rows, columns], found {images.dtype}{list(images.shape)}")
    if labels.ndim != 1 or len(labels) != len(images):
        raise LoadError(f"{labels_file}: labels of shape {list(labels.shape)} do not fit the {len(images)} images of {images_file}")
    return images, labels.astype(np.int64)


def _find(root: Path, name: str) -> Path:
    for folder in (root, root / "MNIST" / "raw", root / "raw"):
        for suffix in ("", ".gz"):
            if (folder / (name + suffix)).is_file():
                return folder / (name + suffix)
    raise LoadError(f"{root}: holds neither {name} nor {name}.gz")
