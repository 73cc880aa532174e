"""The demo: networks learn to read 8,500 MNIST digits and are tested on 1,500 others: a small one, once eagerly and once
compiled, then a convolutional one of 10 layers, compiled.

In: the digits that come with the package. Out: numbers on the terminal and two pictures (with matplotlib, if it is there).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import meganeura as mg
from meganeura import nn, optim

Array = np.ndarray[Any, Any]
_REPORT = 17  # steps between two readings of the loss; the steps between them only queue work


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


@dataclass(frozen=True)
class Recipe:
    """A network and how it is trained: `batch` digits a step, `lr` the highest learning rate; `goal` is what `epochs` passes reach."""

    network: Callable[[], nn.Module]
    shape: tuple[int, ...]  # of one digit
    epochs: int
    batch: int
    lr: float
    goal: float


def dense() -> nn.Module:
    """784 -> 256 -> 256 -> 10, ReLU between."""
    return nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))


def convolutional() -> nn.Module:
    """Nine 3x3 convolutions with batch norm and ReLU, on 28x28, 14x14 and 7x7, and a linear layer on their mean."""

    def unit(channels: int, out: int) -> list[nn.Module]:
        return [nn.Conv2d(channels, out, 3, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU()]

    def stage(channels: int, out: int) -> list[nn.Module]:
        return [*unit(channels, out), *unit(out, out), *unit(out, out)]

    parts = [*stage(1, 8), nn.MaxPool2d(2), *stage(8, 24), nn.MaxPool2d(2), *stage(24, 48)]
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, 10))


DENSE = Recipe(dense, (784,), epochs=12, batch=100, lr=3e-3, goal=0.96)
CONVOLUTIONAL = Recipe(convolutional, (1, 28, 28), epochs=5, batch=50, lr=1e-2, goal=0.985)


def moved(images: Array, rng: np.random.Generator) -> Array:
    """Digits [B, 28, 28] moved by up to one pixel each way at random, so that 8,500 of them teach like more."""
    wide = np.pad(images, ((0, 0), (1, 1), (1, 1)))
    down, right = rng.integers(0, 3, (2, len(images), 1, 1))
    rows = down + np.arange(28)[None, :, None]
    columns = right + np.arange(28)[None, None, :]
    picked: Array = wide[np.arange(len(images))[:, None, None], rows, columns]
    return picked


def batches(images: Array, labels: Array, epochs: int, size: int, seed: int) -> Iterator[tuple[Array, Array]]:
    """Shuffled batches: digits [B, 28, 28] float32 and labels [B] int64."""
    rng = np.random.default_rng(seed)
    for _ in range(epochs):
        order = rng.permutation(len(images))
        for start in range(0, len(images) - size + 1, size):
            pick = order[start : start + size]
            yield moved(images[pick], rng), labels[pick]


def train(data: Any, recipe: Recipe, epochs: int, size: int, compiled: bool, title: str) -> Training:
    """Train from a fixed seed. Eager and compiled draw the same weights and the same batches."""
    from tqdm import tqdm

    mg.manual_seed(0)
    model = recipe.network()
    optimizer = optim.AdamW(model.parameters(), lr=recipe.lr)

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
    with tqdm(total=total, desc=title, unit="step", mininterval=0.2) as bar:
        for i, (x, y) in enumerate(batches(images, labels, epochs, size, seed=0)):
            optimizer.param_groups[0]["lr"] = recipe.lr * min(1, (i + 1) / 50) * 0.5 * (1 + math.cos(math.pi * i / total))
            pending.append(run(mg.tensor(x.reshape(size, *recipe.shape)), mg.tensor(y)).detach())
            if len(pending) == _REPORT or i == total - 1:
                result.losses += [loss.item() for loss in pending]
                result.chunks.append((time.perf_counter() - start) * 1e3 / len(pending))
                bar.update(len(pending))
                bar.set_postfix(loss=f"{np.mean(result.losses[-_REPORT:]):.4f}", refresh=False)
                pending, start = [], time.perf_counter()
    result.predicted = predict(model, test_images.reshape(-1, *recipe.shape))
    result.accuracy = float((result.predicted == test_labels).mean())
    return result


def predict(model: nn.Module, images: Array) -> Array:
    """The digits that a network reads, 500 at a time."""
    read = mg.compile(model.eval())
    with mg.no_grad():
        return np.concatenate([read(mg.tensor(part)).argmax(-1).numpy() for part in np.split(images, range(500, len(images), 500))])


def draw(folder: Path, runs: dict[str, Training], test_images: Array, test_labels: Array) -> list[Path]:
    """Write loss.png of all runs and misread.png of the last one; an empty list where matplotlib is missing."""
    try:
        import matplotlib
    except ImportError:
        return []
    matplotlib.use("Agg")
    folder.mkdir(parents=True, exist_ok=True)
    last = list(runs.values())[-1]
    return [_draw_losses(folder / "loss.png", runs), _draw_misread(folder / "misread.png", last, test_images, test_labels)]


def _draw_losses(path: Path, runs: dict[str, Training]) -> Path:
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for (name, run), style in zip(runs.items(), ("-", "--", ":"), strict=False):
        smooth = np.convolve(run.losses, np.ones(25) / 25, "valid") if len(run.losses) > 50 else np.array(run.losses)
        axes.plot(smooth, style, label=f"{name}: {run.accuracy:.1%} of 1,500 right, {run.ms_per_step:.1f} ms a step")
    axes.set(xlabel="step", ylabel="cross-entropy (mean of 25 steps)", yscale="log", title="MNIST, 8,500 digits")
    axes.grid(alpha=0.3, which="both")
    axes.legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path


def _draw_misread(path: Path, run: Training, images: Array, labels: Array) -> Path:
    from matplotlib import pyplot as plt

    wrong = np.flatnonzero(run.predicted != labels)
    rows = min(5, max(1, -(-len(wrong) // 8)))
    figure, axes = plt.subplots(rows, 8, figsize=(8, 0.4 + 1.15 * rows), layout="constrained")
    for place in axes.flat:
        place.axis("off")
    for place, i in zip(axes.flat, wrong, strict=False):
        place.imshow(images[i], cmap="gray_r")
        place.set_title(f"{labels[i]} read as {run.predicted[i]}", fontsize=8)
    figure.suptitle(f"{len(wrong)} of {len(labels)} digits misread" + (", the first 40" if len(wrong) > 40 else ""))
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path


PLANS = {"eager": (DENSE, False), "compiled": (DENSE, True), "convolutional": (CONVOLUTIONAL, True)}


def run(epochs: int | None = None, batch: int | None = None, folder: str | Path = "demo", only: Sequence[str] | None = None) -> int:
    """Train as in PLANS, print what came of it; status 1 if a network, fully trained, reads fewer test digits than it should."""
    (images, labels), (test_images, test_labels) = mg.data.load_mnist()
    data = images[:, 0], labels, test_images[:, 0], test_labels
    print(f"device: {mg.device()}")
    print(f"{len(data[0]):,} digits to learn from, {len(data[2]):,} to be tested on")
    runs: dict[str, Training] = {}
    poor = []
    for name, (recipe, compiled) in PLANS.items():
        if only and name not in only:
            continue
        begin = time.perf_counter()
        runs[name] = result = train(data, recipe, epochs or recipe.epochs, batch or recipe.batch, compiled, f"{name:13}")
        right, seconds = round(result.accuracy * len(data[3])), time.perf_counter() - begin
        print(f"{name:14}{result.accuracy:.2%} right ({right} of {len(data[3]):,}), {result.ms_per_step:.2f} ms a step, {seconds:.0f} s")
        if (epochs or recipe.epochs) >= recipe.epochs and result.accuracy < recipe.goal:
            poor.append(f"{name}: that is below the expected {recipe.goal:.1%}")
    if {"eager", "compiled"} <= runs.keys():
        difference = np.abs(np.subtract(runs["eager"].losses, runs["compiled"].losses)).max()
        print(f"largest difference between the loss curves of eager and compiled: {difference:.1e}")
    pictures = draw(Path(folder), runs, data[2], data[3])
    print("pictures: " + ", ".join(map(str, pictures)) if pictures else "no pictures: pip install matplotlib")
    print("\n".join(poor), end="\n" if poor else "")
    return 1 if poor else 0
