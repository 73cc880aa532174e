"""ParameterList and ParameterDict: parameters (and whatever else) by number or name, as submodules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from operator import index as as_index
from typing import Any

from ..tensor import Tensor
from .module import Module
from .parameter import Buffer, Parameter


def _kept(value: Any) -> Any:
    """A tensor becomes a parameter, as in PyTorch."""
    plain = isinstance(value, Tensor) and not isinstance(value, (Parameter, Buffer))
    return Parameter(value, requires_grad=value.is_floating_point()) if plain else value


def _line(name: Any, value: Any) -> str:
    if not isinstance(value, Tensor):
        return f"  ({name}): Object of type: {type(value).__name__}"
    kind = "Parameter" if isinstance(value, Parameter) else "Tensor"
    return f"  ({name}): {kind} containing: [{value.dtype!r} of size {'x'.join(map(str, value.shape))}]"


class ParameterList(Module):
    """A list of parameters, without a forward."""

    def __init__(self, values: Iterable[Any] | None = None) -> None:
        super().__init__()
        self._size = 0
        self.extend(values or ())

    def _key(self, i: int) -> str:
        i = as_index(i)
        if not -self._size <= i < self._size:
            raise IndexError(f"index {i} is out of range for {self._size} parameters")
        return str(i % self._size)

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Any]:
        return iter([self[i] for i in range(self._size)])

    def __getitem__(self, i: int | slice) -> Any:
        if isinstance(i, slice):
            return type(self)(list(self)[i])
        return getattr(self, self._key(i))

    def __setitem__(self, i: int, value: Any) -> None:
        setattr(self, self._key(i), _kept(value))

    def append(self, value: Any) -> ParameterList:
        """Add one at the end."""
        self._size += 1
        self[-1] = value
        return self

    def extend(self, values: Iterable[Any]) -> ParameterList:
        """Add several at the end."""
        for value in list(values):
            self.append(value)
        return self

    def __iadd__(self, values: Iterable[Any]) -> ParameterList:
        return self.extend(values)

    def __repr__(self) -> str:
        return "\n".join(["ParameterList(", *(_line(i, v) for i, v in enumerate(self)), ")"]) if self._size else "ParameterList()"


class ParameterDict(Module):
    """A dict of parameters, without a forward; in the order of insertion."""

    def __init__(self, parameters: Mapping[str, Any] | Iterable[tuple[str, Any]] | None = None) -> None:
        super().__init__()
        self._names: dict[str, None] = {}
        self.update(parameters or {})

    def update(self, parameters: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> None:
        """Add or replace several."""
        if isinstance(parameters, (Mapping, ParameterDict)):
            parameters = parameters.items()
        for name, value in parameters:
            self[name] = value

    def __getitem__(self, name: str) -> Any:
        if name not in self._names:
            raise KeyError(name)
        return getattr(self, name)

    def __setitem__(self, name: str, value: Any) -> None:
        if name not in self._names and hasattr(self, name):
            raise KeyError(f"attribute {name!r} of ParameterDict already exists")
        setattr(self, name, _kept(value))
        self._names[name] = None

    def __delitem__(self, name: str) -> None:
        del self._names[name]
        delattr(self, name)

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._names))

    def __reversed__(self) -> Iterator[str]:
        return reversed(list(self._names))

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def keys(self) -> Iterable[str]:
        return list(self._names)

    def values(self) -> Iterable[Any]:
        return [self[name] for name in self._names]

    def items(self) -> Iterable[tuple[str, Any]]:
        return [(name, self[name]) for name in self._names]

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if name in self._names else default

    def setdefault(self, name: str, default: Any = None) -> Any:
        """The value of a name, after giving it the default if it has none."""
        if name not in self:
            self[name] = default
        return self[name]

    def pop(self, name: str) -> Any:
        """Remove one and return it."""
        value = self[name]
        del self[name]
        return value

    def popitem(self) -> tuple[str, Any]:
        """Remove the last one and return its name and value."""
        name = next(reversed(self))
        return name, self.pop(name)

    def clear(self) -> None:
        """Remove all."""
        for name in list(self._names):
            del self[name]

    def copy(self) -> ParameterDict:
        """A new dict of the same parameters."""
        return ParameterDict(self.items())

    def fromkeys(self, keys: Iterable[str], default: Any = None) -> ParameterDict:
        """A new dict with these names."""
        return ParameterDict((name, default) for name in keys)

    def __or__(self, other: ParameterDict) -> ParameterDict:
        return ParameterDict([*self.items(), *other.items()])

    def __ior__(self, other: ParameterDict) -> ParameterDict:
        self.update(other.items())
        return self

    def __repr__(self) -> str:
        return "\n".join(["ParameterDict(", *(_line(k, v) for k, v in self.items()), ")"]) if self._names else "ParameterDict()"
