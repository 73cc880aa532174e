"""Module state: collecting it, loading it (all checked before anything changes), and its fingerprint for compile."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .. import dispatch
from ..dtype import DType
from ..errors import LoadError, MeganeuraError
from ..serialization import as_array
from ..tensor import Tensor, upload

if TYPE_CHECKING:
    from .module import Module


_TABLES = ("_parameters", "_buffers", "_modules", "_forward_pre_hooks", "_forward_hooks")


class IncompatibleKeys(NamedTuple):
    """Names that a state dict lacks, and names it has that the module has not."""

    missing_keys: list[str]
    unexpected_keys: list[str]


def _own(module: Module) -> list[tuple[str, Tensor]]:
    """Every name of the module's state; shared tensors appear under each of their names, as in PyTorch."""
    out: list[tuple[str, Tensor]] = []
    for path, part in module.named_modules(remove_duplicate=False):
        lead = f"{path}." if path else ""
        out += [(lead + name, p) for name, p in part._parameters.items() if p is not None]
        out += [(lead + name, b) for name, b in part._buffers.items() if b is not None and name not in part._transient]
    return out


def state_dict(module: Module, prefix: str) -> dict[str, Tensor]:
    """Name -> detached tensor over the module's own memory."""
    return OrderedDict((prefix + name, tensor.detach()) for name, tensor in _own(module))


def load_state_dict(module: Module, given: Mapping[str, Any], strict: bool) -> IncompatibleKeys:
    """Raises LoadError that lists missing and unexpected names and every tensor that does not fit, with both shapes."""
    if not isinstance(given, Mapping):
        raise TypeError(f"expected a dict of tensors, got {type(given).__name__}")
    own = dict(_own(module))
    keys = IncompatibleKeys([n for n in own if n not in given], [n for n in given if n not in own])
    problems = []
    if strict and keys.missing_keys:
        problems.append(f"missing: {', '.join(keys.missing_keys)}")
    if strict and keys.unexpected_keys:
        problems.append(f"unexpected: {', '.join(keys.unexpected_keys)}")
    problems += [p for name in own if name in given and (p := _misfit(name, own[name], given[name]))]
    if problems:
        raise LoadError(f"the state dict does not fit {type(module).__name__}; nothing was loaded\n  " + "\n  ".join(problems))
    sources = {name: _source(name, own[name], given[name]) for name in own if name in given}
    with dispatch.no_grad():
        for name, source in sources.items():
            own[name].copy_(source)
    return keys


def _misfit(name: str, own: Tensor, given: Any) -> str:
    shape = getattr(given, "shape", None)
    if shape is None:
        try:
            shape = np.shape(given)
        except ValueError:
            return f"{name}: a {type(given).__name__} instead of a tensor"
        if np.asarray(given).dtype == object:
            return f"{name}: a {type(given).__name__} instead of a tensor"
    if tuple(shape) != own.shape:
        return f"{name}: shape {list(shape)} in the state dict, {list(own.shape)} in the module"
    return ""


def _source(name: str, own: Tensor, given: Any) -> Tensor:
    if isinstance(given, Tensor):
        return given.detach()
    try:
        return upload(np.ascontiguousarray(as_array(given)).reshape(own.shape), own.dtype)
    except (MeganeuraError, TypeError) as e:
        raise LoadError(f"{name}: {e}; nothing was loaded") from e


def fingerprint(module: Module) -> Any:
    """A hashable value that changes when a trace through the module may no longer hold."""
    fields = module.__dict__
    plain = tuple((k, _frozen(v)) for k, v in fields.items() if k not in _TABLES)
    hooks = tuple(id(h) for kind in ("_forward_pre_hooks", "_forward_hooks") for h in fields[kind])
    tensors = tuple(
        (name, None if t is None else (t._storage.uid, t.layout, t._leaf))
        for table in ("_parameters", "_buffers")
        for name, t in fields[table].items()
    )
    return type(module).__name__, plain, hooks, tensors, tuple((name, id(m)) for name, m in fields["_modules"].items())


def _frozen(value: Any) -> Any:
    """A hashable stand-in: the value itself where it is plain, containers item by item, identity for anything else."""
    if value is None or isinstance(value, (bool, int, str, bytes, DType)):
        return type(value).__name__, value
    if isinstance(value, (float, complex)):
        return type(value).__name__, repr(value)  # -0.0 is another number than 0.0, NaN the same as NaN
    if isinstance(value, (list, tuple)):
        return tuple(_frozen(v) for v in value)
    if isinstance(value, dict):
        return tuple((_frozen(k), _frozen(v)) for k, v in value.items())
    if isinstance(value, (set, frozenset)):
        return frozenset(_frozen(v) for v in value)
    return id(value)
