"""Gradient accumulation: one optimizer step for several backward passes."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .. import dispatch
from ..errors import TraceError
from ..nn.clip import clip_grad_norm_
from ..provenance import site
from ..tensor import Tensor
from .optimizer import Optimizer, ParamGroup


class GradientAccumulation:
    """Steps an optimizer once for every `steps` backward passes; their losses count equally.

    `backward(loss)` adds the gradients of loss / steps; `step()`, after each, steps the optimizer and drops the gradients
    when it is due, and says whether it was. `flush()` at the end of an epoch makes the step of a window left incomplete.
    `max_norm` clips the gradients before a step. Both calls may be compiled, in a function that takes one micro-batch.
    """

    def __init__(self, optimizer: Optimizer, steps: int, max_norm: float | None = None) -> None:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"{type(optimizer).__name__} is not an Optimizer")
        if steps < 1:
            raise ValueError(f"steps must be at least 1, got {steps}")
        self.optimizer, self.steps, self.max_norm = optimizer, int(steps), max_norm
        self.count = 0  # backward passes in the window so far
        self._traced: weakref.ref[Any] | None = None

    @property
    def param_groups(self) -> list[ParamGroup]:
        """The optimizer's."""
        return self.optimizer.param_groups

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of loss / steps."""
        (loss / self.steps).backward()

    def step(self) -> bool:
        """Count one backward pass; at the last of a window step the optimizer. Whether it did."""
        due = self.count + 1 >= self.steps
        self._advance(lambda: 0 if self.count + 1 >= self.steps else self.count + 1)
        if due:
            self._apply()
        return due

    def flush(self) -> bool:
        """Make the step of an incomplete window, as if its passes were all there were. Whether there was one."""
        if self.count == 0:
            dispatch.current().observe(self)
            return False
        (scale,) = dispatch.current().host_scalars(lambda: (self.steps / self.count,), 1)
        with dispatch.no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is not None:
                        p.grad.mul_(scale)
        self._advance(lambda: 0)
        self._apply()
        return True

    def _advance(self, following: Callable[[], int]) -> None:
        """Move the count, now or (in a compiled function) at every run."""
        current = dispatch.current()
        if self._traced is not None and self._traced() is current:
            raise TraceError(f"a compiled function may count one backward pass a call, this is the second\n  at {site()}")
        current.observe(self)
        ran = False

        def advance() -> Sequence[float]:
            nonlocal ran
            ran = True
            self.count = following()
            return (0.0,)

        current.host_scalars(advance, 1)
        if not ran:
            self._traced = weakref.ref(current)

    def _apply(self) -> None:
        if self.max_norm is not None:
            clip_grad_norm_([p for group in self.param_groups for p in group["params"]], self.max_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def state_dict(self) -> dict[str, Any]:
        """How far the window is. Gradients are not part of it: save between windows."""
        return {"count": self.count}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self.count = int(state_dict["count"])

    def _fingerprint(self) -> Any:
        """What a compiled function depends on: whether its pass completes a window, and whether one has begun."""
        return self.optimizer._fingerprint(), self.count + 1 >= self.steps, self.count > 0
