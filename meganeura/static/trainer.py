"""Training a session over a loader: epochs, a schedule, metrics, progress and history."""

from __future__ import annotations

import contextlib
import html
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import meganeura as mg

from .. import svg
from ..errors import MeganeuraError
from ..provenance import site
from ..tensor import Tensor
from .session import StaticSession

READ_EVERY = 20  # steps between two readings of the loss for the progress bar; reading waits for the device


@dataclass(frozen=True)
class TrainConfig:
    """How to train.

    scheduler: makes a learning-rate scheduler from the session's optimizer; stepped after every update or, with
    schedule='epoch', after every epoch. metrics: functions of (outputs by name, batch by name), both tensors, that give
    a number or a 0-d tensor a step; History holds their mean an epoch. progress: show a bar (tqdm).
    on_step(step, loss) and on_epoch(epoch, row) are called as training goes; on_step reads every loss.
    """

    scheduler: Callable[[Any], Any] | None = None
    schedule: str = "step"
    metrics: Mapping[str, Callable[[Mapping[str, Tensor], Mapping[str, Tensor]], Any]] = field(default_factory=dict)
    progress: bool = True
    on_step: Callable[[int, float], None] | None = None
    on_epoch: Callable[[int, Mapping[str, float]], None] | None = None

    def __post_init__(self) -> None:
        if self.schedule not in ("step", "epoch"):
            raise MeganeuraError(f"TrainConfig(schedule={self.schedule!r}): it must be 'step' or 'epoch'")
        if "loss" in self.metrics:
            raise MeganeuraError("TrainConfig(metrics={'loss': ...}): 'loss' is the mean of the graph's first output; choose another name")


@dataclass(repr=False)
class History:
    """What training gave: `losses`, one a step; `epochs`, a row of means each."""

    losses: list[float] = field(default_factory=list)
    epochs: list[dict[str, float]] = field(default_factory=list)

    def __str__(self) -> str:
        rows = [", ".join(f"{k} {v:.4g}" for k, v in row.items()) for row in self.epochs]
        return "\n".join(f"epoch {i + 1}: {row}" for i, row in enumerate(rows))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        names = list(dict.fromkeys(k for row in self.epochs for k in row))
        head = "".join(f"<th>{html.escape(n)}</th>" for n in ("epoch", *names))
        rows = "".join(
            f"<tr><td>{i + 1}</td>" + "".join(f"<td>{row.get(n, float('nan')):.4g}</td>" for n in names) + "</tr>"
            for i, row in enumerate(self.epochs)
        )
        return f"<div>{svg.curves({'loss': self.losses})}<table><tr>{head}</tr>{rows}</table></div>"


class Trainer:
    """Steps a training session over a loader. Batches are dicts by input name, or tuples in the order of the graph's inputs."""

    def __init__(self, session: StaticSession, config: TrainConfig | None = None) -> None:
        if not isinstance(session, StaticSession) or session.config.mode != "training" or session.optimizer is None:
            raise MeganeuraError(f"a Trainer needs a session built with SessionConfig.training(optimizer=...)\n  at {site()}")
        self.session, self.config = session, config or TrainConfig()
        self.scheduler = self.config.scheduler(session.optimizer) if self.config.scheduler else None
        self.history = History()
        self.steps = 0

    def train(self, loader: Iterable[Any], epochs: int = 1) -> History:
        """Go over the loader so many times. Returns the history of all training so far."""
        for _ in range(epochs):
            row = self._epoch(loader)
            self.history.epochs.append(row)
            if self.scheduler is not None and self.config.schedule == "epoch":
                self.scheduler.step()
            if self.config.on_epoch is not None:
                self.config.on_epoch(len(self.history.epochs), row)
        return self.history

    def _epoch(self, loader: Iterable[Any]) -> dict[str, float]:
        from tqdm import tqdm

        losses: list[Tensor] = []
        metrics: dict[str, list[Any]] = {name: [] for name in self.config.metrics}
        title = f"epoch {len(self.history.epochs) + 1}"
        try:
            with tqdm(loader, title, unit="step", disable=not self.config.progress) as bar:
                for batch in bar:
                    losses.append(self._step(self._by_name(batch), metrics))
                    if self.config.progress and len(losses) % READ_EVERY == 0:
                        bar.set_postfix(loss=f"{losses[-1].item():.4f}")
        except BaseException:  # also Ctrl-C: the steps that were made stay in the history
            with contextlib.suppress(MeganeuraError):
                self._note(losses)
            raise
        if not losses:
            raise MeganeuraError(f"the loader gave no batch\n  at {site()}")
        found = self._note(losses)
        return {"loss": sum(found) / len(found), **{name: _mean(values) for name, values in metrics.items()}}

    def _note(self, losses: list[Tensor]) -> list[float]:
        found = [float(v) for v in mg.stack(losses).tolist()] if losses else []
        self.history.losses += found
        return found

    def _step(self, batch: dict[str, Tensor], metrics: dict[str, list[Any]]) -> Tensor:
        session = self.session
        outputs = session.step(**batch)
        self.steps += 1
        updated = session.accumulation is None or session.accumulation.count == 0
        if self.scheduler is not None and self.config.schedule == "step" and updated:
            self.scheduler.step()
        named = dict(zip(session.output_names, outputs, strict=True))
        for name, metric in self.config.metrics.items():
            with mg.no_grad():
                metrics[name].append(_checked(name, metric(named, session.inputs)))
        if self.config.on_step is not None:
            self.config.on_step(self.steps, outputs[0].item())
        return outputs[0]

    def _by_name(self, batch: Any) -> dict[str, Any]:
        names = list(self.session.given)
        if isinstance(batch, Mapping):
            return dict(batch)
        values = batch if isinstance(batch, (tuple, list)) else (batch,)
        if len(values) != len(names):
            raise MeganeuraError(f"a batch of {len(values)} tensors for the inputs {', '.join(map(repr, names))}\n  at {site()}")
        return dict(zip(names, values, strict=True))


def _checked(name: str, value: Any) -> Any:
    """A metric's value, at the step that gave it."""
    if isinstance(value, Tensor) and value.numel() == 1:
        return value.detach().reshape(())
    if isinstance(value, (bool, int, float, np.number, np.bool_)):
        return value
    shown = f"a tensor of shape {list(value.shape)}" if isinstance(value, Tensor) else repr(value)
    raise MeganeuraError(f"metric {name!r} gave {shown}; it must give a number, or a tensor of one element\n  at {site()}")


def _mean(values: list[Any]) -> float:
    tensors = [v for v in values if isinstance(v, Tensor)]
    numbers = [float(v) for v in (mg.stack([t.float() for t in tensors]).tolist() if tensors else ())]
    numbers += [float(v) for v in values if not isinstance(v, Tensor)]
    return sum(numbers) / len(numbers)
