"""Module: a tree of layers. Parameters, buffers and submodules register by being assigned to attributes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from ..dispatch import state
from ..dtype import DType, float16, float32
from ..dtype import dtype as as_dtype
from ..provenance import WATCHERS
from ..tensor import Tensor, _Handle, state_epoch
from . import state_dict as states
from . import summary as summaries
from .parameter import Buffer, Parameter, drop_grad
from .path import enter, leave

Self = TypeVar("Self", bound="Module")
_PLAIN = (bool, int, float, str, bytes, type(None), DType)


class Module:
    """Base of all layers, as torch.nn.Module. A subclass defines `forward` and assigns its parts in `__init__`."""

    training: bool
    _parameters: dict[str, Parameter | None]
    _buffers: dict[str, Tensor | None]
    _modules: dict[str, Module | None]
    _transient: set[str]  # names of buffers that state dicts leave out

    def __init__(self) -> None:
        self.__dict__.update(training=True, _parameters={}, _buffers={}, _modules={}, _transient=set())
        self.__dict__.update(_forward_pre_hooks=[], _forward_hooks=[])

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the layer computes."""
        raise NotImplementedError(f"{type(self).__name__} has no forward()")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if state.interpreter is not None:
            state.interpreter.observe(self)
        outside = enter(self) if WATCHERS[0] else None
        try:
            for before in self.__dict__["_forward_pre_hooks"]:
                changed = before(self, args)
                if changed is not None:
                    args = changed if isinstance(changed, tuple) else (changed,)
            result = self.forward(*args, **kwargs)
            for after in self.__dict__["_forward_hooks"]:
                changed = after(self, args, result)
                result = result if changed is None else changed
            return result
        finally:
            if outside is not None:
                leave(outside)

    def register_forward_pre_hook(self, hook: Callable[[Module, tuple[Any, ...]], Any]) -> Any:
        """Call hook(module, args) before forward; what it returns, if anything, replaces the arguments."""
        return self._add_hook("_forward_pre_hooks", hook)

    def register_forward_hook(self, hook: Callable[[Module, tuple[Any, ...], Any], Any]) -> Any:
        """Call hook(module, args, output) after forward; what it returns, if anything, replaces the output."""
        return self._add_hook("_forward_hooks", hook)

    def _add_hook(self, kind: str, hook: Callable[..., Any]) -> Any:
        state_epoch[0] += 1
        self.__dict__[kind].append(hook)
        return _Handle(self.__dict__[kind], hook)

    # ---- attributes ----
    def __setattr__(self, name: str, value: Any) -> None:
        fields = self.__dict__
        if "_parameters" not in fields:
            if isinstance(value, (Parameter, Module, Buffer)):
                raise AttributeError(f"cannot assign {name!r} before {type(self).__name__}.__init__() called super().__init__()")
            object.__setattr__(self, name, value)
            return
        tables: tuple[dict[str, Any], ...] = (fields["_parameters"], fields["_buffers"], fields["_modules"])
        parameters, buffers, modules = tables
        table: dict[str, Any] | None = None
        if isinstance(value, Parameter):
            table = parameters
        elif isinstance(value, Module):
            table = modules
        elif isinstance(value, Buffer):
            table = buffers
            self._mark(name, value.persistent)
        else:
            table = next((t for t in tables if name in t), None)
            self._check_replacement(name, value, table)
        if table is None:
            old = fields.get(name, fields)
            equal = type(old) is type(value) and isinstance(value, _PLAIN) and old == value
            if old is value or (equal and (value or repr(old) == repr(value))):  # 0.0 == -0.0, and is another number
                return
            object.__setattr__(self, name, value)
        else:
            for other in (fields, *tables):
                if other is not table:
                    other.pop(name, None)
            table[name] = value
        state_epoch[0] += 1

    def _check_replacement(self, name: str, value: Any, table: dict[str, Any] | None) -> None:
        """What takes the place of a registered value must be of its kind, or None."""
        if table is None or value is None or (table is self._buffers and isinstance(value, Tensor)):
            return
        kind = "parameter" if table is self._parameters else "buffer" if table is self._buffers else "submodule"
        raise TypeError(f"cannot assign a {type(value).__name__} as {kind} {name!r} of {type(self).__name__}; delete it first")

    def _mark(self, name: str, persistent: bool) -> None:
        (self._transient.discard if persistent else self._transient.add)(name)

    def __getattr__(self, name: str) -> Any:
        fields = self.__dict__
        for table in ("_parameters", "_buffers", "_modules"):
            found = fields.get(table)
            if found is not None and name in found:
                return found[name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __delattr__(self, name: str) -> None:
        for table in (self._parameters, self._buffers, self._modules):
            if name in table:
                del table[name]
                self._transient.discard(name)
                break
        else:
            object.__delattr__(self, name)
        state_epoch[0] += 1

    def __dir__(self) -> Iterable[str]:
        return sorted({*super().__dir__(), *self._parameters, *self._buffers, *self._modules})

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Add a parameter, or None to keep the name for one."""
        self._register("_parameters", name, param, Parameter)

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Add a tensor that is state but not trained; state dicts hold it if `persistent`."""
        self._register("_buffers", name, tensor, Tensor)
        self._mark(name, persistent)

    def add_module(self, name: str, module: Module | None) -> None:
        """Add a submodule under a name that need not be an identifier."""
        self._register("_modules", name, module, Module)

    register_module = add_module

    def _register(self, table: str, name: str, value: Any, kind: type) -> None:
        if table not in self.__dict__:
            raise AttributeError(f"{type(self).__name__}.__init__() must call super().__init__() first")
        if not isinstance(name, str) or not name or "." in name:
            raise KeyError(f"a name must be a non-empty string without dots, got {name!r}")
        if name not in self.__dict__[table] and hasattr(self, name):
            raise KeyError(f"attribute {name!r} of {type(self).__name__} already exists")
        if value is not None and not isinstance(value, kind):
            raise TypeError(f"{name!r} must be a {kind.__name__} or None, got {type(value).__name__}")
        self.__dict__[table][name] = value
        state_epoch[0] += 1

    # ---- the tree ----
    def named_children(self) -> Iterator[tuple[str, Module]]:
        """Direct submodules with their names, each module once."""
        seen: set[int] = set()
        for name, module in self._modules.items():
            if module is not None and id(module) not in seen:
                seen.add(id(module))
                yield name, module

    def children(self) -> Iterator[Module]:
        return (module for _, module in self.named_children())

    def named_modules(self, memo: set[Any] | None = None, prefix: str = "", remove_duplicate: bool = True) -> Iterator[tuple[str, Module]]:
        """This module and all below it, with dotted paths; parents first."""
        memo = set() if memo is None else memo
        if self in memo:
            return
        if remove_duplicate:
            memo.add(self)
        yield prefix, self
        for name, module in self._modules.items():
            if module is not None:
                yield from module.named_modules(memo, f"{prefix}.{name}" if prefix else name, remove_duplicate)

    def modules(self) -> Iterator[Module]:
        return (module for _, module in self.named_modules())

    def _named(self, table: str, prefix: str, recurse: bool, remove_duplicate: bool) -> Iterator[tuple[str, Any]]:
        seen: set[int] = set()
        modules = self.named_modules(prefix=prefix, remove_duplicate=remove_duplicate) if recurse else [(prefix, self)]
        for path, module in modules:
            for name, value in module.__dict__[table].items():
                if value is None or (remove_duplicate and id(value) in seen):
                    continue
                seen.add(id(value))
                yield f"{path}.{name}" if path else name, value

    def named_parameters(self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True) -> Iterator[tuple[str, Parameter]]:
        """Parameters with dotted paths; a shared one once, unless remove_duplicate=False."""
        return self._named("_parameters", prefix, recurse, remove_duplicate)

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        return (p for _, p in self.named_parameters(recurse=recurse))

    def named_buffers(self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True) -> Iterator[tuple[str, Tensor]]:
        """Buffers with dotted paths."""
        return self._named("_buffers", prefix, recurse, remove_duplicate)

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        return (b for _, b in self.named_buffers(recurse=recurse))

    def get_submodule(self, target: str) -> Module:
        """The module at a dotted path; '' is this one. AttributeError names the part that does not exist."""
        module: Module = self
        for part in target.split(".") if target else []:
            found = module._modules.get(part)
            if found is None:
                has = ", ".join(module._modules) or "none"
                raise AttributeError(f"{type(module).__name__} has no submodule {part!r} (of path {target!r}); there are: {has}")
            module = found
        return module

    def get_parameter(self, target: str) -> Parameter:
        """The parameter at a dotted path."""
        path, _, name = target.rpartition(".")
        found = self.get_submodule(path)._parameters.get(name)
        if found is None:
            raise AttributeError(f"no parameter {target!r} in {type(self).__name__}")
        return found

    # ---- modes and conversion ----
    def train(self: Self, mode: bool = True) -> Self:
        """Switch this module and all below it to training (or with False to evaluation) behaviour."""
        for module in self.modules():
            module.training = mode
        return self

    def eval(self: Self) -> Self:
        return self.train(False)

    def apply(self: Self, fn: Callable[[Module], Any]) -> Self:
        """Call fn on every module below this one, then on this one."""
        for module in self.children():
            module.apply(fn)
        fn(self)
        return self

    def requires_grad_(self: Self, requires_grad: bool = True) -> Self:
        for p in self.parameters():
            p.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop all gradients, or fill them with zeros."""
        for p in self.parameters():
            drop_grad(p, set_to_none)

    def to(self: Self, *args: Any, **kwargs: Any) -> Self:
        """Convert floating point parameters, gradients and buffers to a dtype, in place; a device must be the one in use."""
        for a in (*args, *kwargs.values()):
            if isinstance(a, Tensor):
                a = a.dtype
            if isinstance(a, DType) or (a in (float,) or hasattr(a, "itemsize")):
                self._convert(as_dtype(a))
        return self

    def half(self: Self) -> Self:
        return self.to(float16)

    def float(self: Self) -> Self:
        return self.to(float32)

    def _convert(self, dtype: DType) -> None:
        if not dtype.is_floating_point:
            raise TypeError(f"modules can be converted to floating point dtypes only, not {dtype.name}")
        for tensor in (*self.parameters(), *self.buffers()):
            if tensor.is_floating_point():
                tensor.data = tensor.detach().to(dtype)
                if tensor.grad is not None:
                    tensor.grad = tensor.grad.detach().to(dtype)

    # ---- state ----
    def state_dict(self, *, prefix: str = "") -> dict[str, Tensor]:
        """Parameters and persistent buffers by dotted path, as detached tensors over the same memory."""
        return states.state_dict(self, prefix)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> states.IncompatibleKeys:
        """Copy values (Tensors, numpy arrays, PyTorch tensors) in. Checks all first: on an error nothing has changed."""
        return states.load_state_dict(self, state_dict, strict)

    def _fingerprint(self) -> Any:
        """What a compiled session that called this module depends on: mode, plain attributes, and which tensors it has."""
        return states.fingerprint(self)

    # ---- text ----
    def extra_repr(self) -> str:
        """The arguments to show in repr."""
        return ""

    def __repr__(self) -> str:
        return summaries.module_repr(self)

    def _repr_html_(self) -> str:
        return summaries.module_html(self)

    def summary(self) -> str:
        """A table of all layers: path, class, parameters; then totals and bytes."""
        return summaries.summary(self)
