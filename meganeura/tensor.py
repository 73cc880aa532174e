"""Tensor: a storage seen through a layout, with a place on the tape. Operators, views, in-place forms, readback, repr.

Methods that are ops or composites are installed from the table (`install`); nothing here names a kernel.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from . import dispatch
from .dispatch import bind, state
from .dtype import ALL, DType, bfloat16, bool_, float16, float32, int8, int32, int64, uint8
from .dtype import dtype as as_dtype
from .errors import DeviceError, DTypeError, GradientError, IndexOutOfRangeError, MeganeuraError, ShapeError
from .ops.alias import ALIASES
from .ops.infer import named
from .ops.table import COMPOSITES, OPERAND, REGISTRY, TENSOR, Op
from .provenance import site
from .shape import Shape, normalize_dim
from .storage import Layout, Storage
from .unsupported import refuse_method

Int = int  # the class has methods of these names
Float = float
Bool = bool


class Tensor:
    """An n-dimensional array on a device, recorded for backward where asked. Behaves as torch.Tensor."""

    __slots__ = (
        "__weakref__", "_base", "_hooks", "_index", "_leaf", "_name", "_node", "_rewrites", "_seen", "_storage", "_view", "grad", "layout",
    )  # fmt: skip
    __array_priority__ = 1000  # numpy leaves `array + tensor` to the tensor
    _storage: Storage
    layout: Layout
    grad: Tensor | None
    _base: Tensor | None  # the tensor this one is a view of
    _node: Any  # the tape node that made it
    _index: Int  # its number among the node's outputs
    _leaf: Bool  # asked for a gradient
    _rewrites: Int  # how often a base's history was rewritten in place
    _seen: Int  # the base's _rewrites that this view knows
    _view: str | None
    _hooks: list[Callable[[Tensor], Tensor | None]] | None
    _name: str | None

    @staticmethod
    def _make(storage: Storage, layout: Layout) -> Tensor:
        """A tensor over a storage; the only constructor."""
        t = _new(Tensor)
        t._storage = storage
        t.layout = layout
        t._node = t._base = t.grad = t._view = t._hooks = t._name = None
        t._index = t._rewrites = t._seen = 0
        t._leaf = False
        return t

    if TYPE_CHECKING:

        def _binary(self, other: Any) -> Tensor: ...
        def _unary(self) -> Tensor: ...

        __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = _binary
        __mod__ = __rmod__ = __pow__ = __rpow__ = __matmul__ = __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = _binary
        __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = _binary
        __lt__ = __le__ = __gt__ = __ge__ = _binary
        __neg__ = __abs__ = __invert__ = __pos__ = _unary

        def __eq__(self, other: Any) -> Tensor: ...  # type: ignore[override]
        def __ne__(self, other: Any) -> Tensor: ...  # type: ignore[override]

    def __init__(self, *args: Any) -> None:
        raise TypeError(f"make tensors with meganeura.tensor(...), zeros(...), from_numpy(...)\n  at {site()}")

    # ---- facts ----
    @property
    def shape(self) -> Shape:
        return self.layout.shape

    @property
    def dtype(self) -> DType:
        return self.layout.dtype

    @property
    def ndim(self) -> int:
        return len(self.layout.shape)

    @property
    def device(self) -> Any:
        """The device the values live on; prints as its name."""
        return getattr(self._storage.world, "device", self._storage.world)

    @property
    def is_leaf(self) -> bool:
        return self.grad_fn is None

    @property
    def grad_fn(self) -> Any:
        """The tape node that made this tensor, or None."""
        edge = _edge(self)
        return None if edge is None or edge[0] is self else edge[0]

    @property
    def requires_grad(self) -> bool:
        return _edge(self) is not None

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        self.requires_grad_(value)

    @property
    def name(self) -> str | None:
        return self._name

    @property
    def T(self) -> Tensor:
        return self.permute(*reversed(range(self.ndim)))  # type: ignore[no-any-return]

    @property
    def mT(self) -> Tensor:
        return self.transpose(-2, -1)  # type: ignore[no-any-return]

    @property
    def H(self) -> Tensor:
        if self.ndim not in (0, 2):
            raise ShapeError(f"H is for matrices, got shape {list(self.shape)}; use mH\n  at {site()}")
        return self.T

    @property
    def mH(self) -> Tensor:
        return self.mT

    @property
    def data(self) -> Tensor:
        return self.detach()

    @data.setter
    def data(self, value: Tensor) -> None:
        self._storage, self.layout = value._storage, value.layout
        state_epoch[0] += 1

    @property
    def is_sparse(self) -> Bool:
        """False: there are no sparse tensors."""
        return False

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return self.layout.numel * self.dtype.itemsize

    def size(self, dim: int | None = None) -> Any:
        """The shape, or one size of it."""
        return self.shape if dim is None else self.shape[self._dimension(dim)]

    def _dimension(self, dim: int) -> int:
        """A dimension that exists, counted from the front."""
        with contextlib.suppress(ShapeError):
            if self.shape:
                return normalize_dim(dim, self.ndim)
        raise IndexOutOfRangeError(f"there is no dimension {dim!r} in a tensor of shape {list(self.shape)}\n  at {site()}")

    def dim(self) -> int:
        return self.ndim

    def numel(self) -> int:
        return self.layout.numel

    def stride(self, dim: int | None = None) -> Any:
        """Strides in elements."""
        return self.layout.strides if dim is None else self.layout.strides[self._dimension(dim)]

    def storage_offset(self) -> int:
        return self.layout.offset

    def is_contiguous(self) -> bool:
        return self.layout.contiguous

    def is_floating_point(self) -> bool:
        return self.dtype.is_floating_point

    def data_ptr(self) -> int:
        """The storage's identity (not an address) plus the offset: equal for tensors that start at the same element."""
        return self._storage.uid << 32 | self.layout.offset

    @property
    def _version(self) -> int:
        return self._storage.version

    # ---- autograd ----
    def requires_grad_(self, requires_grad: bool = True) -> Tensor:
        """Turn recording for this leaf on or off."""
        if requires_grad and not self.dtype.is_floating_point:
            raise DTypeError(f"only floating point tensors can require grad, not {self.layout}\n  at {site()}")
        if self.grad_fn is not None:
            if requires_grad:
                return self
            raise GradientError(f"requires_grad can only be turned off for leaf tensors; use detach()\n  at {site()}")
        if self._leaf != requires_grad:
            self._leaf = requires_grad
            state_epoch[0] += 1
        return self

    def backward(self, gradient: Tensor | None = None, retain_graph: bool | None = None, create_graph: bool = False) -> None:
        """Add the gradient of this tensor to `.grad` of every leaf it depends on."""
        from . import autodiff

        autodiff.backward([self], [gradient], retain_graph=retain_graph, create_graph=create_graph)

    def detach(self) -> Tensor:
        """The same memory without history."""
        return Tensor._make(self._storage, self.layout)

    def detach_(self) -> Tensor:
        self._node, self._leaf = None, False
        return self

    def retain_grad(self) -> None:
        """Keep `.grad` of a non-leaf at the next backward."""
        node = self.grad_fn
        if node is not None:
            import weakref

            node.retain = node.retain or {}
            node.retain[self._index] = weakref.ref(self)

    def register_hook(self, hook: Callable[[Tensor], Tensor | None]) -> Any:
        """Call hook(grad) when this tensor's gradient is computed; what it returns, if anything, replaces the gradient."""
        if not self.requires_grad:
            raise GradientError(f"cannot register a hook on a tensor that does not require grad ({self.layout})\n  at {site()}")
        node = self.grad_fn
        if node is None:
            dispatch.current().observe(self)
            hooks = self._hooks = [] if self._hooks is None else self._hooks
            state_epoch[0] += 1
        else:
            node.hooks = node.hooks or {}
            hooks = node.hooks.setdefault(self._index, [])
        hooks.append(hook)
        return _Handle(hooks, hook)

    # ---- readback ----
    def numpy(self) -> np.ndarray[Any, Any]:
        """The values as a new numpy array; waits for the device. Raises for tensors that require grad, as PyTorch does."""
        if self.requires_grad:
            raise GradientError(f"numpy() on a tensor that requires grad; use detach().numpy()\n  at {site()}")
        return self._read()

    def _read(self) -> np.ndarray[Any, Any]:
        if state.interpreter is not None:
            return state.interpreter.read(self)  # type: ignore[no-any-return]
        return self._storage.world.read(self)  # type: ignore[no-any-return]

    def __array__(self, dtype: Any = None, copy: Bool | None = None) -> np.ndarray[Any, Any]:
        if copy is False:
            raise ValueError(f"a tensor's values lie on the device: np.asarray must copy them, so copy=False cannot hold\n  at {site()}")
        a = self.numpy()
        return a if dtype is None else a.astype(dtype)

    def __array_wrap__(self, array: np.ndarray[Any, Any], context: Any = None, return_scalar: Bool = False) -> Tensor:
        """What a numpy function such as np.add(tensor, 1) computed on the host, as a tensor again; as torch.Tensor does."""
        return dispatch.hooks.make(array)

    def item(self) -> Any:
        """The one element as a Python number."""
        if self.numel() != 1:
            raise ShapeError(f"item() needs a tensor of one element, got shape {list(self.shape)}\n  at {site()}")
        return self._read().reshape(()).item()

    def tolist(self) -> Any:
        """The values as nested lists of Python numbers."""
        return self._read().tolist()

    def __float__(self) -> Float:
        return float(self.item())

    def __int__(self) -> Int:
        return int(self.item())

    def __index__(self) -> Int:
        if self.dtype.kind not in "iu" or self.numel() != 1:
            raise TypeError(f"only an integer tensor of one element can be an index, got {self.layout}\n  at {site()}")
        return int(self.item())

    def __bool__(self) -> Bool:
        if self.numel() != 1:
            raise ShapeError(f"the truth value of a tensor of shape {list(self.shape)} is ambiguous; use any() or all()\n  at {site()}")
        return bool(self.item())

    def __len__(self) -> Int:
        if not self.shape:
            raise TypeError(f"len() of a 0-d tensor\n  at {site()}")
        return self.shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        if not self.shape:
            raise TypeError(f"iteration over a 0-d tensor\n  at {site()}")
        return iter([self[i] for i in range(self.shape[0])])

    def __reversed__(self) -> Iterator[Tensor]:
        if not self.shape:
            raise TypeError(f"iteration over a 0-d tensor\n  at {site()}")
        return iter([self[i] for i in reversed(range(self.shape[0]))])

    def __contains__(self, element: Any) -> Bool:
        if not _accepts(element):
            raise TypeError(f"`in` a tensor asks for a number or a tensor, not {element!r}\n  at {site()}")
        return bool((self == element).any().item())

    def __format__(self, spec: str) -> str:
        if not self.shape:
            return format(self.item(), spec) if spec else str(self)
        if spec:
            raise TypeError(
                f"format {spec!r} fits numbers, not a tensor of shape {list(self.shape)}; use item() or tolist()\n  at {site()}"
            )
        return str(self)

    def __repr__(self) -> str:
        from .show import text

        return text(self)

    def _repr_html_(self) -> str:
        from .show import html

        return html(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        if self.grad_fn is not None:
            raise GradientError("only leaf tensors can be deep-copied; detach() first")
        out = memo[id(self)] = _rebuild(type(self), self._read(), self.dtype, self._leaf)
        if self.grad is not None:
            out.grad = self.grad.__deepcopy__(memo)
        return out

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self._read(), self.dtype, self._leaf)

    __hash__ = object.__hash__

    # ---- conversion ----
    def to(self, *args: Any, **kwargs: Any) -> Tensor:
        """Another dtype; devices are accepted when they are this tensor's own. copy=True always copies."""
        copy = kwargs.pop("copy", False)
        kwargs.pop("non_blocking", None)
        target = self.dtype
        for a in (*args, *kwargs.values()):
            if isinstance(a, Tensor):
                target = a.dtype
            elif isinstance(a, str):
                self._check_device(a)
            elif isinstance(a, (DType, np.dtype)) or (isinstance(a, type) and (a in (Float, Int, Bool) or issubclass(a, np.generic))):
                target = as_dtype(a)
            elif a is not None and a is not self.device and not isinstance(a, Bool):
                raise TypeError(f"to() expects a dtype, a tensor or this tensor's device, got {a!r}\n  at {site()}")
        if target is not self.dtype:
            return self.cast(target)  # type: ignore[no-any-return]
        return self.clone() if copy else self

    def _check_device(self, name: str) -> None:
        known = (str(self.device), getattr(self.device, "name", ""), "cpu")  # .to("cpu") is .cpu()
        if name not in known:
            hint = "; dtypes are mg.float16 and so on" if name in _DTYPE_NAMES else ""
            raise DeviceError(f"this tensor is on {self.device}, there is no device {name!r}{hint}\n  at {site()}")

    def type(self, dtype: Any) -> Tensor:
        return self.to(as_dtype(dtype))

    def type_as(self, other: Tensor) -> Tensor:
        return self.to(other.dtype)

    def float(self) -> Tensor:
        return self.to(float32)

    def half(self) -> Tensor:
        return self.to(float16)

    def long(self) -> Tensor:
        return self.to(int64)

    def int(self) -> Tensor:
        return self.to(int32)

    def bool(self) -> Tensor:
        return self.to(bool_)

    def cpu(self) -> Tensor:
        """This tensor: `.numpy()` is what brings values to the host."""
        return self

    def cuda(self, device: Any = None, non_blocking: Any = False) -> Tensor:
        """Refused: tensors live on the WebGPU device, which may be an NVIDIA GPU, from the start."""
        raise DeviceError(f"there is no device 'cuda': this tensor is on {self.device} already\n  at {site()}")

    def __getattr__(self, name: str) -> Any:
        """Only for names that do not exist: what PyTorch has and this package leaves out says so."""
        refuse_method(name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def contiguous(self, memory_format: Any = None) -> Tensor:
        """This tensor, or a row-major copy of it, whatever memory_format says."""
        return self if self.layout.contiguous else self.clone()

    # ---- indexing ----
    def __getitem__(self, index: Any) -> Tensor:
        from .indexing import get

        return get(self, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        from .indexing import put

        put(self, index, value)


_new = object.__new__
_DTYPE_NAMES = frozenset(d.name for d in ALL)


class _Handle:
    """Removes a hook."""

    def __init__(self, hooks: list[Any], hook: Any) -> None:
        self.hooks, self.hook = hooks, hook

    def remove(self) -> None:
        if self.hook in self.hooks:
            self.hooks.remove(self.hook)
            state_epoch[0] += 1


state_epoch = [0]  # grows when something a compiled session may have read changes; see compile's guards


def _edge(t: Tensor) -> Any:
    from .autodiff import edge_of

    return edge_of(t)


def _rebuild(cls: type, array: np.ndarray[Any, Any], dtype: DType, leaf: bool) -> Tensor:
    t = upload(array, dtype)
    if cls is not Tensor:
        return cls(t, leaf)  # type: ignore[no-any-return]
    t._leaf = leaf
    return t


def upload(array: np.ndarray[Any, Any], dtype: DType) -> Tensor:
    """A tensor of a numpy array's values, converted to `dtype`. Raises DTypeError naming the value that does not fit int32 storage."""
    return dispatch.current().upload(dtype, array)


# ---- views ------------------------------------------------------------------------------------------------------


def _apply_view(op: Op, values: Sequence[Any]) -> Tensor:
    x: Tensor = values[0]
    if not isinstance(x, Tensor):
        raise TypeError(f"{op.name} expects a tensor, got {x!r}\n  at {site()}")
    try:
        layout = op.layout(**named(op, values))  # type: ignore[misc]
    except MeganeuraError as e:
        raise dispatch.located(e, op, site()) from None
    out = Tensor._make(x._storage, layout)
    base = x if x._base is None else x._base
    out._base, out._seen = base, base._rewrites
    if state.grad:
        dispatch.hooks.record(op, values, out)
        out._view = x._view
    else:
        out._view = "no_grad"
    return out


dispatch.hooks.view = _apply_view
dispatch.hooks.tensor = Tensor


# ---- methods from the table ---------------------------------------------------------------------------------------


def _method(row: Op) -> Callable[..., Any]:
    def call(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        return bind(row, (self, *args), kwargs)

    call.__name__, call.__doc__ = row.name, row.doc
    return call


def _inplace(row: Op) -> Callable[..., Any]:
    def call(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        bind(row, (self, *args), kwargs, out=self)
        return self

    call.__name__ = row.name + "_"
    call.__doc__ = f"In-place {row.name}: the result replaces this tensor's values. {row.doc}"
    return call


# float32 stands for float64, and int32 for int16, wherever a program names them.
_CONVERSIONS = {"bfloat16": bfloat16, "byte": uint8, "char": int8, "double": float32, "short": int32}


def _conversion(dtype: DType) -> Callable[[Tensor], Tensor]:
    return lambda self: self.to(dtype)


def install() -> None:
    """Make a method of every composite and row that has one, and an in-place form of every pointwise row."""
    for name, fn in COMPOSITES.items():
        if getattr(fn, "__meganeura_method__", True) and name not in Tensor.__dict__:
            setattr(Tensor, name, fn)
    for name, row in REGISTRY.items():
        if not (row.method and row.public and row.params and row.params[0].kind in (TENSOR, OPERAND)):
            continue
        if name not in Tensor.__dict__:
            setattr(Tensor, name, _method(row))
        if row.archetype.fusable and name + "_" not in Tensor.__dict__:
            setattr(Tensor, name + "_", _inplace(row))
    for name, target in ALIASES.items():
        for end in ("", "_"):
            if target + end in Tensor.__dict__ and name + end not in Tensor.__dict__:
                setattr(Tensor, name + end, Tensor.__dict__[target + end])
    for name, dtype in _CONVERSIONS.items():
        setattr(Tensor, name, _conversion(dtype))
    _operators()


def _operators() -> None:
    table = {"add": "add", "sub": "sub", "mul": "mul", "truediv": "div", "floordiv": "floor_divide", "mod": "remainder", "pow": "pow",
             "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor", "lshift": "bitwise_left_shift",
             "rshift": "bitwise_right_shift"}  # fmt: skip
    for python, name in table.items():
        setattr(Tensor, f"__{python}__", _binary(name))
        setattr(Tensor, f"__r{python}__", _binary(name, swap=True))
        setattr(Tensor, f"__i{python}__", _assigned(name))
    for python in ("lt", "le", "gt", "ge", "eq", "ne"):
        setattr(Tensor, f"__{python}__", _binary(python))
    for python, name in {"neg": "neg", "abs": "abs", "invert": "bitwise_not"}.items():
        setattr(Tensor, f"__{python}__", _method(REGISTRY[name]))
    for python, method in {"matmul": _matmul, "pos": lambda self: self, "hash": object.__hash__}.items():
        setattr(Tensor, f"__{python}__", method)


def _matmul(self: Tensor, other: Any) -> Any:
    return COMPOSITES["matmul"](self, other) if isinstance(other, Tensor) else NotImplemented


_CHECKED = ("floor_divide", "remainder", "pow")  # their composites look at a number operand first


def _binary(name: str, swap: bool = False) -> Callable[[Tensor, Any], Any]:
    """An operator: arrays become tensors, what is no number is left to the other operand."""
    row = REGISTRY[name]
    checked = COMPOSITES[name] if name in _CHECKED else None

    def call(self: Tensor, other: Any) -> Any:
        if not _accepts(other):
            if not isinstance(other, np.ndarray):
                return NotImplemented
            other = dispatch.hooks.make(other)
        pair = (other, self) if swap else (self, other)
        return bind(row, pair, {}) if checked is None else checked(*pair)

    call.__name__ = f"__{name}__"
    return call


def _assigned(name: str) -> Callable[[Tensor, Any], Tensor]:
    """An operator with assignment, such as +=."""
    row, checked = REGISTRY[name], COMPOSITES.get(name + "_")

    def call(self: Tensor, other: Any) -> Any:
        if not _accepts(other):
            if not isinstance(other, np.ndarray):
                return NotImplemented
            other = dispatch.hooks.make(other)
        if checked is not None:
            return checked(self, other)
        bind(row, (self, other), {}, out=self)
        return self

    return call


def _accepts(other: Any) -> bool:
    return isinstance(other, (Tensor, int, float, np.number, np.bool_))
