"""A training run that can stop and go on: dropout, clipping, moments, schedules, averages, a shuffling loader.

As a script, goes on from the checkpoints in a folder, one a case, and prints the digest of what each training ends with.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Any

import numpy as np

import meganeura as mg
from meganeura import data, nn, optim

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((50, 6)).astype(np.float32), RNG.integers(0, 3, 50)
SCHEDULES = optim.lr_scheduler
CASES: dict[str, tuple[bool, Any, Any]] = {  # compiled, optimizer, schedule
    "eager-sgd": (False, lambda p: optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.1), lambda o: SCHEDULES.OneCycleLR(
        o, 0.2, total_steps=20)),
    "eager-nadam": (False, lambda p: optim.NAdam(p, lr=0.01), lambda o: SCHEDULES.CosineAnnealingWarmRestarts(o, 3, 2)),
    "compiled-adamw": (True, lambda p: optim.AdamW(p, lr=0.02, amsgrad=True), lambda o: SCHEDULES.SequentialLR(
        o, [SCHEDULES.LinearLR(o, 0.1, total_iters=5), SCHEDULES.CosineAnnealingLR(o, 15)], [5])),
    "compiled-lion": (True, lambda p: optim.Lion(p, lr=0.01), lambda o: SCHEDULES.WarmupCosineLR(o, 4, 20)),
}  # fmt: skip


class Training:
    """Everything that a run consists of."""

    def __init__(self, case: str) -> None:
        compiled, make_optimizer, make_schedule = CASES[case]
        mg.manual_seed(7)
        self.net = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Dropout(0.3), nn.Linear(16, 3))
        self.optimizer = make_optimizer(self.net.named_parameters())
        self.optimizer.set_lr_multipliers({"0.": 0.5})
        self.schedule = make_schedule(self.optimizer)
        self.average = optim.EMA(self.net, 0.9)
        own = 5 if case == "eager-nadam" else None  # the others draw from the default generator, between the dropouts
        self.loader = data.DataLoader(data.TensorDataset(X, Y), batch_size=8, shuffle=True, generator=own)
        self.step = mg.compile(self.plain_step) if compiled else self.plain_step
        self.losses: list[float] = []

    def plain_step(self, x: Any, y: Any) -> Any:
        loss = nn.functional.cross_entropy(self.net(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.average.update_parameters(self.net)
        return loss

    def run(self, until: int, path: Path | None = None, saved_at: int = 10) -> None:
        """Train until so many steps were taken; on the way, save to a path."""
        while len(self.losses) < until:
            for x, y in self.loader:
                self.losses.append(self.step(x, y).item())
                self.schedule.step()
                if path is not None and len(self.losses) == saved_at:
                    self.save(path)
                if len(self.losses) == until:
                    break

    def parts(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        return {
            "model": {"net": self.net, "average": self.average},
            "optimizer": self.optimizer,
            "scheduler": self.schedule,
            "loader": self.loader,
        }

    def save(self, path: Path) -> None:
        mg.save_checkpoint(path, **self.parts(), step=len(self.losses), extra={"losses": self.losses})

    def load(self, path: Path) -> None:
        found = mg.load_checkpoint(path, **self.parts())
        self.losses = found.extra["losses"]
        assert found.step == len(self.losses)

    def digest(self) -> str:
        """One number for every bit of the weights, averages, moments, losses and random states."""
        h = hashlib.sha256(np.array(self.losses).tobytes())
        tensors = [*self.net.parameters(), *self.average.parameters(), self.average.n_averaged]
        for p in self.net.parameters():
            state = self.optimizer.state[p]
            tensors += [v for _, v in sorted(state.items()) if isinstance(v, mg.Tensor)]
            h.update(repr([(k, v) for k, v in sorted(state.items()) if not isinstance(v, mg.Tensor)]).encode())
        for t in tensors:
            h.update(t.detach().numpy().tobytes())
        h.update(repr((self.schedule.get_last_lr(), mg.random.get_rng_state().tolist())).encode())
        return h.hexdigest()


if __name__ == "__main__":
    for name in CASES:
        training = Training(name)
        training.load(Path(sys.argv[1]) / f"{name}.safetensors")
        training.run(20)
        print(name, training.digest())
