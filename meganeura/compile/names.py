"""What traced code reads by name: globals, closure cells and attributes of plain objects, so that a changed one is traced anew.

In: a function and its arguments, before the trace. Out: `changed()`, asked before every call. The functions looked at are
the compiled one and, through names, closures, containers and methods, every function of the user's that it can reach
that way; not those of this package, of the standard library or of installed packages. Their bytecode says which names
they load. Modules found on the way are `owners`, whose attributes guard.py watches.
"""

from __future__ import annotations

import dataclasses
import dis
import functools
import operator
import sysconfig
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from ..dtype import DType
from ..provenance import is_inside
from ..tensor import Tensor
from .tree import is_record, number

MOST = 512  # names and containers a function; more are not looked at
LONGEST = 4096  # items of a container or array; a longer one is data, and not looked into
_PLAIN = (bool, int, float, complex, str, bytes, type(None), DType)
_CONTAINERS = (list, tuple, dict, set, frozenset)
_LIBRARIES = tuple({sysconfig.get_paths()[k] for k in ("stdlib", "platstdlib", "purelib", "platlib")})
_MISSING = object()


class Reads(NamedTuple):
    """What a code object and those nested in it load: globals, attributes, and attributes right off a global."""

    names: frozenset[str]
    attributes: frozenset[str]
    dotted: frozenset[tuple[str, str]]
    texts: frozenset[str]  # strings among its constants, which may be keys


_known: weakref.WeakKeyDictionary[types.CodeType, Reads] = weakref.WeakKeyDictionary()


def reads(code: types.CodeType) -> Reads:
    """What a function with this code may read by name."""
    found = _known.get(code)
    if found is None:
        names: set[str] = set()
        attributes: set[str] = set()
        dotted: set[tuple[str, str]] = set()
        texts: set[str] = set()
        for inner in _codes(code):
            texts.update(c for c in inner.co_consts if isinstance(c, str))
            last = ""
            for step in dis.get_instructions(inner):
                loads = step.opname in ("LOAD_GLOBAL", "LOAD_NAME")
                if step.opname in ("LOAD_ATTR", "LOAD_METHOD"):
                    attributes.add(step.argval)
                    if last:
                        dotted.add((last, step.argval))
                last = step.argval if loads else ""
                if loads:
                    names.add(last)
        found = _known[code] = Reads(frozenset(names), frozenset(attributes), frozenset(dotted), frozenset(texts))
    return found


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


class _Cell:
    """A closure cell that is looked up like a namespace."""

    __slots__ = ("cell",)

    def __init__(self, cell: types.CellType) -> None:
        self.cell = cell

    def get(self, name: str, default: Any) -> Any:
        try:
            return self.cell.cell_contents
        except ValueError:  # not assigned yet
            return default


class Names:
    """Names and containers as they were when made. `owners`: the Modules among what they hold."""

    def __init__(self, fn: Any, args: Any) -> None:
        self.names: list[tuple[Callable[[str, Any], Any], str, Any, str]] = []  # look-up, name, value, where it lies
        self.containers: list[tuple[Any, list[Any], str]] = []  # container, what it held, whose it is
        self.arrays: list[tuple[Any, bytes, str]] = []  # numpy array, its contents, whose it is
        self.owners: list[Any] = []
        self._seen: dict[int, Any] = {}  # by identity; kept alive so that an id cannot come back
        self._objects: list[tuple[Any, str]] = []
        self._attributes: set[str] = set()
        self._texts: set[str] = set()
        self._grouped: list[Any] = []  # optimizers
        self._noted: set[tuple[int, str]] = set()
        self._value(fn, "the function")
        for value in _parts(args):
            self._value(value, "an argument", watch=False)
        self._look_into_objects()
        self._look_into_groups()
        del self._seen, self._objects, self._attributes, self._texts, self._grouped, self._noted

    # ---- before every call ----

    def changed(self) -> str:
        """Which name holds another value now, '' if none does."""
        for get, name, value, where in self.names:
            now = get(name, _MISSING)
            if now is not value and not _equal(now, value):
                return f"{where} {name!r}, which is now {_text(now)} and was {_text(value)}"
        for container, held, where in self.containers:
            if not _holds(container, held):
                return f"what {where} holds"
        for array, before, where in self.arrays:
            if array.tobytes() != before:
                return f"the contents of {where}, a numpy array"
        return ""

    def settle(self) -> None:
        """After the trace: containers and arrays that the traced code itself changed (logs, caches of its own) are not watched."""
        self.containers = [c for c in self.containers if _holds(c[0], c[1])]
        self.arrays = [a for a in self.arrays if a[0].tobytes() == a[1]]

    # ---- looking ----

    def _note(self, get: Callable[[str, Any], Any], holder: int, name: str, value: Any, where: str) -> None:
        if (holder, name) in self._noted or len(self.names) >= MOST:
            return
        self._noted.add((holder, name))
        if not isinstance(value, types.ModuleType) and not _is_ours(value):
            self.names.append((get, name, value, where))
        self._value(value, f"{where} {name!r}")

    def _value(self, value: Any, where: str, watch: bool = True) -> None:
        """Look at a value once. `watch`: a container's contents are watched (those of arguments are in the signature)."""
        if value is _MISSING or isinstance(value, (*_PLAIN, Tensor)) or id(value) in self._seen:
            return
        self._seen[id(value)] = value
        if isinstance(value, _CONTAINERS):
            self._container(value, where, watch)
        elif isinstance(value, np.ndarray):
            if watch and value.size <= LONGEST and not value.dtype.hasobject and len(self.arrays) < MOST:
                self.arrays.append((value, value.tobytes(), where))
        elif isinstance(value, functools.partial):
            for part in (value.func, *value.args, *value.keywords.values()):
                self._value(part, where)
        elif isinstance(value, types.MethodType):
            self._value(value.__func__, where)
            self._value(value.__self__, where)
        elif isinstance(value, types.FunctionType):
            self._function(value)
        elif callable(inner := _fields(value).get("__wrapped__")):
            self._value(inner, where)
        elif isinstance(value, type):
            self._objects.append((value, where))
        elif "param_groups" in _fields(value):
            self._grouped.append(value)
        elif hasattr(type(value), "_fingerprint"):
            for owner in value.modules() if hasattr(value, "modules") else ():
                self._owner(owner)
        elif not isinstance(value, types.ModuleType) and not _is_ours(value):
            self._objects.append((value, where))
            self._method(type(value), "__call__")

    def _owner(self, owner: Any) -> None:
        if not any(o is owner for o in self.owners):
            self.owners.append(owner)
            self._objects.append((owner, type(owner).__name__))
            self._method(type(owner), "forward")
            for hook in (*owner.__dict__.get("_forward_pre_hooks", ()), *owner.__dict__.get("_forward_hooks", ())):
                self._value(hook, "a hook")

    def _container(self, value: Any, where: str, watch: bool) -> None:
        items = _items(value)
        if len(items) > LONGEST:
            return
        if watch and not isinstance(value, (tuple, frozenset)) and len(self.containers) < MOST:
            self.containers.append((value, items, where))
        for item in items:
            self._value(item, where, watch)

    def _function(self, fn: types.FunctionType) -> None:
        if not _is_users(fn.__code__, fn.__globals__):
            return
        found = reads(fn.__code__)
        self._attributes |= found.attributes
        self._texts |= found.texts
        for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
            holder = _Cell(cell)
            self._note(holder.get, id(cell), name, holder.get(name, _MISSING), "the closure variable")
        space = fn.__globals__
        for name in sorted(found.names):
            value = space.get(name, _MISSING)
            if value is not _MISSING or not hasattr(_builtins(space), name):
                self._note(space.get, id(space), name, value, "the global")
        for name, attribute in found.dotted:
            value = space.get(name)
            if isinstance(value, types.ModuleType) and _is_users_module(value):
                self._note(vars(value).get, id(value), attribute, vars(value).get(attribute, _MISSING), f"of {name}")
        for value in (*(fn.__defaults__ or ()), *(fn.__kwdefaults__ or {}).values()):
            self._value(value, "a default")

    def _look_into_objects(self) -> None:
        """Attributes that some function names, of objects found so far; until that leads to nothing new."""
        done: set[tuple[int, str]] = set()
        while True:
            todo = [(o, w, n) for o, w in self._objects for n in sorted(self._attributes) if (id(o), n) not in done]
            if not todo or len(self.names) >= MOST:
                return
            for obj, where, name in todo:
                done.add((id(obj), name))
                self._attribute(obj, name, where)

    def _look_into_groups(self) -> None:
        """Numbers of optimizers' groups that the code reads itself, such as opt.param_groups[0]["lr"]."""
        for group in (g for o in self._grouped if "param_groups" in self._attributes for g in o.param_groups):
            for name in sorted(self._texts & group.keys()):
                if isinstance(group[name], _PLAIN):
                    self.names.append((group.get, name, group[name], "the group's"))

    def _attribute(self, obj: Any, name: str, where: str) -> None:
        is_class = isinstance(obj, type)
        own, is_module = {} if is_class else _fields(obj), hasattr(type(obj), "_fingerprint")
        if name in own:
            if not is_module:
                self._note(own.get, id(own), name, own[name], f"the attribute of {type(obj).__name__}")
            else:
                self._value(own[name], f"{name!r} of a {where}")
        elif self._method(obj if is_class else type(obj), name) and own and not is_module:
            self._note(own.get, id(own), name, _MISSING, f"the attribute of {type(obj).__name__}")

    def _method(self, kind: type, name: str) -> bool:
        """An attribute of a class: functions are looked into, constants are watched. Whether a class of the user's has it."""
        bases = [c for c in kind.__mro__ if name in c.__dict__ and not _is_ours(c) and c.__module__ != "builtins"]
        for base in bases:  # those further up may be reached through super()
            self._note(base.__dict__.get, id(base), name, base.__dict__[name], f"the attribute of {base.__name__}")
            value = base.__dict__[name]
            self._value(value.fget if isinstance(value, property) else getattr(value, "__func__", value), f"{base.__name__}.{name}")
        return bool(bases)


def _parts(tree: Any) -> Iterator[Any]:
    """The items of an argument tree that are no containers, and the classes of its dataclasses."""
    if isinstance(tree, _CONTAINERS):
        for item in _items(tree):
            yield from _parts(item)
    elif is_record(tree):
        yield type(tree)
        for field in dataclasses.fields(tree):
            yield from _parts(getattr(tree, field.name, None))
    else:
        yield tree


def _fields(value: Any) -> Any:
    """An object's own attributes, without asking its __getattr__."""
    try:
        found = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return found if isinstance(found, dict) else {}


def _items(container: Any) -> list[Any]:
    return [*container.keys(), *container.values()] if isinstance(container, dict) else list(container)


def _holds(container: Any, held: Iterable[Any]) -> bool:
    """Whether a container still holds these items."""
    now, before = _items(container), list(held)
    return len(now) == len(before) and (all(map(operator.is_, now, before)) or all(map(_equal, now, before)))


def _equal(a: Any, b: Any) -> bool:
    return a is b or (type(a) is type(b) and isinstance(a, _PLAIN) and number(a) == number(b))


def _text(value: Any) -> str:
    if value is _MISSING:
        return "not there"
    return repr(value)[:40] if isinstance(value, _PLAIN) else f"another {type(value).__name__}"


def _builtins(space: dict[str, Any]) -> Any:
    found = space.get("__builtins__")
    return types.SimpleNamespace(**found) if isinstance(found, dict) else found


def _is_ours(value: Any) -> bool:
    """Whether a value is a class or function of this package, or an object of such a class that is no Module or Tensor."""
    kind = value if isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)) else type(value)
    module = getattr(kind, "__module__", None) or ""
    if module.partition(".")[0] != __package__.partition(".")[0]:
        return False
    return kind is value or not (isinstance(value, Tensor) or hasattr(kind, "_fingerprint") or "__wrapped__" in _fields(value))


@functools.lru_cache(maxsize=4096)
def is_library(file: str) -> bool:
    """Whether a source file belongs to Python or to an installed package."""
    return file.startswith(_LIBRARIES) or file.startswith("<frozen")


def _is_users(code: types.CodeType, space: dict[str, Any]) -> bool:
    """Whether code is the user's: not this package's, nor a library's."""
    return not is_library(code.co_filename) and not is_inside(code, space.get("__name__") or "")


def _is_users_module(module: types.ModuleType) -> bool:
    file = getattr(module, "__file__", None)
    name = module.__name__.partition(".")[0]
    return isinstance(file, str) and not is_library(file) and name != __package__.partition(".")[0]
