"""What a static session does besides running its graph forward."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import MeganeuraError

MODES = ("training", "inference")


@dataclass(frozen=True)
class SessionConfig:
    """How to build a session.

    mode: 'training' (the first output is the loss, a scalar; a step differentiates it) or 'inference'.
    optimizer: makes the optimizer that runs inside every step from the list of parameter groups, for example
    `lambda groups: optim.AdamW(groups, lr=1e-3)`; None leaves gradients in `read_param_grad` and parameters alone.
    lr_multipliers: learning-rate factors by parameter name; the longest prefix counts.
    max_grad_norm: clip the norm of all gradients together. accumulate: forward and backward passes a parameter update.
    rewrite, precision: as for `meganeura.compile`. debug_values: keep every value readable by name (no fusion, no reuse).
    """

    mode: str = "training"
    optimizer: Callable[[Sequence[Any]], Any] | None = None
    lr_multipliers: Mapping[str, float] = field(default_factory=dict)
    max_grad_norm: float | None = None
    accumulate: int = 1
    rewrite: str | None = None
    precision: str = "highest"
    debug_values: bool = False

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise MeganeuraError(f"SessionConfig(mode={self.mode!r}): it must be 'training' or 'inference'")
        if type(self.accumulate) is not int or self.accumulate < 1:
            raise MeganeuraError(f"SessionConfig(accumulate={self.accumulate!r}): it must be an int of at least 1")
        if self.mode == "inference" and (self.optimizer or self.accumulate > 1 or self.max_grad_norm is not None):
            raise MeganeuraError(
                "SessionConfig(mode='inference') takes no optimizer, accumulate or max_grad_norm; nothing is differentiated"
            )
        if self.accumulate > 1 and self.optimizer is None:
            raise MeganeuraError(f"SessionConfig(accumulate={self.accumulate}) needs an optimizer, which the last pass of a window steps")
        if self.max_grad_norm is not None and not self.max_grad_norm > 0:
            raise MeganeuraError(f"SessionConfig(max_grad_norm={self.max_grad_norm!r}): it must be above 0")

    @classmethod
    def training(cls, **options: Any) -> SessionConfig:
        """Forward, backward and, given an optimizer, the update in one step."""
        return cls(mode="training", **options)

    @classmethod
    def inference(cls, **options: Any) -> SessionConfig:
        """Forward only."""
        return cls(mode="inference", **options)

    def debug(self) -> SessionConfig:
        """The same with every value kept and readable: `read_node_by_name`, `step_debug`."""
        return replace(self, debug_values=True)
