"""The demo: a small network learns to read 8,500 MNIST digits, once eagerly and once compiled, and is tested on 1,500 others.

In: the digits that come with the package. Out: numbers on the terminal and two pictures (with matplotlib, if it is there).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import meganeura as mg
from meganeura import nn, optim

Array = np.ndarray[Any, Any]
_REPORT = 17  # steps between two readings of the loss; the steps between them only queue work
_GOAL, _EPOCHS = 0.96, 12  # what the default number of epochs reaches


@dataclass
class Training:
    """What one training gave."""

    losses: list[float] = field(default_factory=list)  # one a step
    chunks: list[float] = field(default_factory=list)  # ms a step, averaged between two readings
    predicted: Array = field(default_factory=lambda: np.zeros(0, np.int64))  # [1500]
    accuracy: float = 0.0

    @property
    def ms_per_step(self) -> float:
        """Median, without the first readings, in which kernels are built."""
        return float(np.median(self.chunks[2:] or self.chunks))


def network() -> nn.Module:
    """784 -> 256 -> 256 -> 10, ReLU between."""
    return nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))


def moved(images: Array, rng: np.random.Generator) -> Array:
    """Digits [B, 28, 28] moved by up to one pixel each way at random, so that 8,500 of them teach like more."""
    wide = np.pad(images, ((0, 0), (1, 1), (1, 1)))
    down, right = rng.integers(0, 3, (2, len(images), 1, 1))
    rows = down + np.arange(28)[None, :, None]
    columns = right + np.arange(28)[None, None, :]
    picked: Array = wide[np.arange(len(images))[:, None, None], rows, columns]
    return picked


def batches(images: Array, labels: Array, epochs: int, size: int, seed: int) -> Iterator[tuple[Array, Array]]:
    """Shuffled batches: digits [B, 784] float32 and labels [B] int64."""
    rng = np.random.default_rng(seed)
    for _ in range(epochs):
        order = rng.permutation(len(images))
        for start in range(0, len(images) - size + 1, size):
            pick = order[start : start + size]
            yield moved(images[pick], rng).reshape(size, 784), labels[pick]


def train(data: Any, epochs: int, size: int, compiled: bool) -> Training:
    """Train from a fixed seed. Both ways draw the same weights and the same batches."""
    from tqdm import tqdm

    mg.manual_seed(0)
    model = network()
    optimizer = optim.Adam(model.parameters(), lr=3e-3)

    def step(x: mg.Tensor, y: mg.Tensor) -> mg.Tensor:
        optimizer.zero_grad()
        loss: mg.Tensor = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    run: Callable[[mg.Tensor, mg.Tensor], mg.Tensor] = mg.compile(step) if compiled else step
    images, labels, test_images, test_labels = data
    total = epochs * (len(images) // size)
    result = Training()
    pending: list[mg.Tensor] = []
    start = time.perf_counter()
    with tqdm(total=total, desc="compiled" if compiled else "eager   ", unit="step", mininterval=0.2) as bar:
        for i, (x, y) in enumerate(batches(images, labels, epochs, size, seed=0)):
            optimizer.param_groups[0]["lr"] = 3e-3 * 0.5 * (1 + math.cos(math.pi * i / total))
            pending.append(run(mg.tensor(x), mg.tensor(y)).detach())
            if len(pending) == _REPORT or i == total - 1:
                result.losses += [loss.item() for loss in pending]
                result.chunks.append((time.perf_counter() - start) * 1e3 / len(pending))
                bar.update(len(pending))
                bar.set_postfix(loss=f"{np.mean(result.losses[-_REPORT:]):.4f}", refresh=False)
                pending, start = [], time.perf_counter()
    model.eval()
    with mg.no_grad():
        result.predicted = model(mg.tensor(test_images.reshape(-1, 784))).argmax(-1).numpy()
    result.accuracy = float((result.predicted == test_labels).mean())
    return result


def draw(folder: Path, eager: Training, compiled: Training, test_images: Array, test_labels: Array) -> list[Path]:
    """Write loss.png and misread.png; an empty list where matplotlib is missing."""
    try:
        import matplotlib
    except ImportError:
        return []
    matplotlib.use("Agg")
    folder.mkdir(parents=True, exist_ok=True)
    return [_draw_losses(folder / "loss.png", eager, compiled), _draw_misread(folder / "misread.png", compiled, test_images, test_labels)]


def _draw_losses(path: Path, eager: Training, compiled: Training) -> Path:
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for name, run, style in (("eager", eager, "-"), ("compiled", compiled, "--")):
        smooth = np.convolve(run.losses, np.ones(25) / 25, "valid") if len(run.losses) > 50 else np.array(run.losses)
        axes.plot(smooth, style, label=f"{name}: {run.accuracy:.1%} of 1,500 right, {run.ms_per_step:.2f} ms a step")
    axes.set(xlabel="step", ylabel="cross-entropy (mean of 25 steps)", yscale="log", title="MNIST, 8,500 digits")
    axes.grid(alpha=0.3, which="both")
    axes.legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path


def _draw_misread(path: Path, run: Training, images: Array, labels: Array) -> Path:
    from matplotlib import pyplot as plt

    wrong = np.flatnonzero(run.predicted != labels)
    figure, axes = plt.subplots(5, 8, figsize=(8, 5.8), layout="constrained")
    for place in axes.flat:
        place.axis("off")
    for place, i in zip(axes.flat, wrong, strict=False):
        place.imshow(images[i], cmap="gray_r")
        place.set_title(f"{labels[i]} read as {run.predicted[i]}", fontsize=8)
    figure.suptitle(f"{len(wrong)} of {len(labels)} digits misread" + (", the first 40" if len(wrong) > 40 else ""))
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path


def run(epochs: int = _EPOCHS, batch: int = 100, folder: str | Path = "demo") -> int:
    """Train both ways, print what came of it; status 1 if either, fully trained, reads fewer than 96 % of the test digits."""
    (images, labels), (test_images, test_labels) = mg.data.load_mnist()
    data = images[:, 0], labels, test_images[:, 0], test_labels
    print(f"device: {mg.device()}")
    print(f"{len(data[0]):,} digits to learn from, {len(data[2]):,} to be tested on, {epochs} epochs of batches of {batch}")
    eager = train(data, epochs, batch, compiled=False)
    compiled = train(data, epochs, batch, compiled=True)
    for name, result in (("eager", eager), ("compiled", compiled)):
        right = round(result.accuracy * len(data[3]))
        print(f"{name:9}{result.accuracy:.2%} right ({right} of {len(data[3]):,}), {result.ms_per_step:.2f} ms a step")
    print(f"largest difference between the two loss curves: {np.abs(np.subtract(eager.losses, compiled.losses)).max():.1e}")
    pictures = draw(Path(folder), eager, compiled, data[2], data[3])
    print("pictures: " + ", ".join(map(str, pictures)) if pictures else "no pictures: pip install matplotlib")
    if epochs >= _EPOCHS and min(eager.accuracy, compiled.accuracy) < _GOAL:
        print(f"that is below the expected {_GOAL:.0%}")
        return 1
    return 0
