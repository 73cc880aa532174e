"""state_dict and load_state_dict of optimizers, in torch.optim's format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import dispatch
from ..dtype import float32
from ..errors import CheckpointError
from ..serialization import as_array
from ..tensor import Tensor, state_epoch, upload
from . import arena

if TYPE_CHECKING:
    from .optimizer import Optimizer


def state_dict(optimizer: Optimizer) -> dict[str, Any]:
    """{'state': {number: {...}}, 'param_groups': [{..., 'params': [numbers]}]}; tensors are the optimizer's own."""
    numbers: dict[int, int] = {}
    groups = []
    for group in optimizer.param_groups:
        members = [numbers.setdefault(id(p), len(numbers)) for p in group["params"]]
        groups.append({**{k: v for k, v in group.items() if k != "params"}, "params": members})
    state = {numbers[id(p)]: dict(s) for p, s in optimizer.state.items() if s and id(p) in numbers}
    return {"state": state, "param_groups": groups}


def load_state_dict(optimizer: Optimizer, saved: Mapping[str, Any]) -> None:
    """Check all of `saved` against the optimizer, then take it over."""
    order = _match_groups(optimizer, saved["param_groups"])
    states = {order[number]: _checked(number, s, order[number]) for number, s in saved["state"].items() if number in order}
    for group, new in zip(optimizer.param_groups, saved["param_groups"], strict=True):
        group.update({k: v for k, v in new.items() if k != "params"})
    with dispatch.no_grad():
        for p in order.values():
            _restore(optimizer, p, states.get(p, {}))
    state_epoch[0] += 1


def _match_groups(optimizer: Optimizer, groups: Any) -> dict[Any, Tensor]:
    """Saved parameter number -> parameter."""
    if len(groups) != len(optimizer.param_groups):
        raise CheckpointError(f"the saved optimizer has {len(groups)} parameter groups, this one {len(optimizer.param_groups)}")
    order: dict[Any, Tensor] = {}
    for i, (new, group) in enumerate(zip(groups, optimizer.param_groups, strict=True)):
        if len(new["params"]) != len(group["params"]):
            raise CheckpointError(f"group {i}: {len(new['params'])} parameters were saved, this optimizer has {len(group['params'])}")
        order.update(zip(new["params"], group["params"], strict=True))
    return order


def _checked(number: Any, saved: Mapping[str, Any], p: Tensor) -> dict[str, Any]:
    """Numbers as Python numbers, moments as arrays of the parameter's shape. A moment without a step count was used once at least."""
    out: dict[str, Any] = {}
    for name, value in saved.items():
        if value is None:
            continue
        if name == "step":
            out["step"] = int(value)
            continue
        if isinstance(value, (int, float, str)):
            out[name] = value
            continue
        array = as_array(value)
        if array.shape != p.shape:
            raise CheckpointError(f"state {name!r} of parameter {number} has shape {list(array.shape)}, the parameter {list(p.shape)}")
        out[name] = array
    if "step" not in out and any(isinstance(v, np.ndarray) for v in out.values()):
        out["step"] = 1
    return out


def _restore(optimizer: Optimizer, p: Tensor, new: dict[str, Any]) -> None:
    """Write into moments that exist (a compiled step may hold them); pack new ones into an arena."""
    old = optimizer.state.get(p, {})
    kept = {n: t for n, t in old.items() if isinstance(t, Tensor) and n in new}
    fresh = [n for n, v in new.items() if isinstance(v, np.ndarray) and n not in kept]
    if fresh:
        kept.update(zip(fresh, arena.zeros([p.shape] * len(fresh), float32), strict=True))
    for name, tensor in kept.items():
        tensor.copy_(upload(np.ascontiguousarray(new[name], dtype=np.float32), float32))
    if new:
        optimizer.state[p] = {n: kept.get(n, v) for n, v in new.items()}
    else:
        optimizer.state.pop(p, None)
