"""Sequential, ModuleList, ModuleDict."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from operator import index as as_index
from typing import Any, TypeVar

from ..tensor import state_epoch
from .module import Module
from .summary import _indent

Self = TypeVar("Self", bound="_Numbered")


class _Numbered(Module):
    """Submodules named '0', '1', ..."""

    def _key(self, i: int) -> str:
        i, n = as_index(i), len(self._modules)
        if not -n <= i < n:
            raise IndexError(f"index {i} is out of range for {n} modules")
        return list(self._modules)[i]

    def _refill(self, modules: Iterable[Module | None]) -> None:
        members = list(modules)
        self._modules.clear()
        for i, module in enumerate(members):
            self.add_module(str(i), module)
        state_epoch[0] += 1

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Any]:
        return iter(list(self._modules.values()))

    def __getitem__(self, i: int | slice) -> Any:
        if isinstance(i, slice):
            return self._part(list(self._modules.items())[i])
        return self._modules[self._key(i)]

    def _part(self, items: list[tuple[str, Module | None]]) -> Module:
        raise NotImplementedError

    def __setitem__(self, i: int, module: Module) -> None:
        setattr(self, self._key(i), module)

    def __delitem__(self, i: int | slice) -> None:
        gone = list(self._modules)[i] if isinstance(i, slice) else [self._key(i)]
        self._refill([m for name, m in self._modules.items() if name not in gone])

    def append(self: Self, module: Module) -> Self:
        """Add a module at the end."""
        self.add_module(str(len(self)), module)
        return self

    def extend(self: Self, modules: Iterable[Module]) -> Self:
        """Add several modules at the end."""
        for module in modules:
            self.append(module)
        return self

    def insert(self: Self, i: int, module: Module) -> Self:
        """Add a module before the i-th."""
        members = list(self._modules.values())
        members.insert(i, module)
        self._refill(members)
        return self


class Sequential(_Numbered):
    """Calls its modules one after another. Sequential(a, b), or Sequential({'first': a, 'second': b}) to name them."""

    def __init__(self, *args: Any) -> None:
        super().__init__()
        named = args[0].items() if len(args) == 1 and isinstance(args[0], Mapping) else ((str(i), m) for i, m in enumerate(args))
        for name, module in named:
            self.add_module(name, module)

    def _part(self, items: list[tuple[str, Module | None]]) -> Module:
        return type(self)(dict(items))

    def forward(self, input: Any) -> Any:
        for module in self._modules.values():
            if module is not None:
                input = module(input)
        return input


class ModuleList(_Numbered):
    """A list of modules, without a forward of its own."""

    def __init__(self, modules: Iterable[Module] | None = None) -> None:
        super().__init__()
        self.extend(modules or ())

    def _part(self, items: list[tuple[str, Module | None]]) -> Module:
        return type(self)(m for _, m in items if m is not None)

    def __add__(self, other: Iterable[Module]) -> ModuleList:
        return ModuleList([*self, *other])

    __iadd__ = _Numbered.extend

    def __repr__(self) -> str:
        """As PyTorch: runs of equal modules are shown once."""
        runs: list[tuple[int, int, str]] = []
        for i, text in enumerate(repr(m) for m in self):
            if runs and runs[-1][2] == text:
                runs[-1] = (runs[-1][0], i, text)
            else:
                runs.append((i, i, text))
        lines = [f"({a}): {_indent(t)}" if a == b else f"({a}-{b}): {b - a + 1} x {_indent(t)}" for a, b, t in runs]
        return "ModuleList(\n  " + "\n  ".join(lines) + "\n)" if lines else "ModuleList()"


class ModuleDict(Module):
    """A dict of modules, without a forward of its own."""

    def __init__(self, modules: Mapping[str, Module] | Iterable[tuple[str, Module]] | None = None) -> None:
        super().__init__()
        self.update(modules or {})

    def update(self, modules: Mapping[str, Module] | Iterable[tuple[str, Module]]) -> None:
        """Add or replace modules."""
        for name, module in modules.items() if isinstance(modules, Mapping) else modules:
            self[name] = module

    def __getitem__(self, name: str) -> Any:
        return self._modules[name]

    def __setitem__(self, name: str, module: Module) -> None:
        self.add_module(name, module)

    def __delitem__(self, name: str) -> None:
        del self._modules[name]
        state_epoch[0] += 1

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._modules))

    def __contains__(self, name: object) -> bool:
        return name in self._modules

    def pop(self, name: str) -> Any:
        """Remove a module and return it."""
        module = self[name]
        del self[name]
        return module

    def clear(self) -> None:
        """Remove all modules."""
        self._modules.clear()
        state_epoch[0] += 1

    def keys(self) -> Iterable[str]:
        return self._modules.keys()

    def values(self) -> Iterable[Any]:
        return self._modules.values()

    def items(self) -> Iterable[tuple[str, Any]]:
        return self._modules.items()
