"""state_dict and load_state_dict of optimizers, in torch.optim's format."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import dispatch
from ..dtype import float32
from ..errors import CheckpointError
from ..serialization import as_array
from ..tensor import Tensor, upload
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
    prepare(optimizer, saved)()


def prepare(optimizer: Optimizer, saved: Mapping[str, Any]) -> Callable[[], None]:
    """Check all of `saved` and bring it to the device, changing nothing; the function returned takes it over."""
    order = _match_groups(optimizer, saved["param_groups"])
    groups = [
        _merged(optimizer, i, group, new) for i, (group, new) in enumerate(zip(optimizer.param_groups, saved["param_groups"], strict=True))
    ]
    group_of = {id(p): new for group, new in zip(optimizer.param_groups, groups, strict=True) for p in group["params"]}
    states = {order[n]: _checked(optimizer, n, s, order[n]) for n, s in saved["state"].items() if n in order}
    values: dict[tuple[Tensor, str], Tensor] = {}
    for p, new in states.items():
        for name, value in new.items():
            if isinstance(value, np.ndarray):
                values[p, name] = upload(np.asarray(value, np.float32, order="C"), float32)
    made = _allocate(optimizer, list(values))

    def commit() -> None:
        for group, new in zip(optimizer.param_groups, groups, strict=True):
            group.update(new)
        for (p, name), moment in made.items():
            optimizer.state[p][name] = moment
        with dispatch.no_grad():
            for p in order.values():
                if p in states or p in optimizer.state:
                    new = {n: v for n, v in states.get(p, {}).items() if not isinstance(v, np.ndarray)}
                    optimizer.state[p].update({**optimizer.numbers, **new})
                    _fill(optimizer, group_of[id(p)], p, values)

    return commit


def pack(optimizer: Optimizer) -> None:
    """Bring moments that lie in storages of their own (as copying leaves them) together."""
    moments = [(p, n, t) for p, state in optimizer.state.items() for n, t in state.items() if isinstance(t, Tensor)]
    with dispatch.no_grad():
        for (p, name, old), new in zip(moments, arena.zeros([t.shape for _, _, t in moments], float32), strict=True):
            optimizer.state[p][name] = new.copy_(old)


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


def _merged(optimizer: Optimizer, number: int, group: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """The group with its saved options, which must have a meaning."""
    options = {k: tuple(v) if isinstance(v, list) and isinstance(group.get(k), tuple) else v for k, v in new.items() if k != "params"}
    merged = {**group, **options}
    try:
        optimizer.validate(merged)
    except (ValueError, TypeError, KeyError) as e:
        raise CheckpointError(f"group {number} of the saved optimizer: {e}") from e
    return merged


def _checked(optimizer: Optimizer, number: Any, saved: Mapping[str, Any], p: Tensor) -> dict[str, Any]:
    """Numbers as Python numbers, moments as arrays of the parameter's shape. A moment without a step count was used once at least."""
    out: dict[str, Any] = {}
    for name, value in saved.items():
        if value is None:
            continue
        if name in optimizer.numbers:
            out[name] = type(optimizer.numbers[name])(value)
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


def _allocate(optimizer: Optimizer, wanted: list[tuple[Tensor, str]]) -> dict[tuple[Tensor, str], Tensor]:
    """Moments that do not exist yet; those that do stay in their memory, which a compiled step may hold."""
    missing = [(p, n) for p, n in wanted if p not in optimizer.state or not isinstance(optimizer.state[p].get(n), Tensor)]
    return dict(zip(missing, arena.zeros([p.shape for p, _ in missing], float32), strict=True))


def _fill(optimizer: Optimizer, group: dict[str, Any], p: Tensor, values: Mapping[tuple[Tensor, str], Tensor]) -> None:
    """Write saved values into a parameter's moments; what was not saved starts anew."""
    for name, tensor in optimizer.state[p].items():
        if isinstance(tensor, Tensor):
            value = values.get((p, name))
            if value is not None:
                tensor.copy_(value)
            else:
                tensor.fill_(optimizer.initial(group, name))
