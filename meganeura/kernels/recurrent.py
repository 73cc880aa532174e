"""Recurrences (Kernel 'recurrence'): a sequence of RNN, LSTM or GRU steps as one list of launches, forwards or backwards.

In: a Call of ops.recurrent. Out: for each step the product with the output before (the kernels of Matmul, lowered once: every
step reads and writes the same small buffers) and one kernel for the gates, with a projection two more. No pipeline depends on
the number of steps, and only the gates' parameters change from step to step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import gcd
from typing import TYPE_CHECKING, Any, cast

from ..dtype import DType, float32
from ..ops.archetype import Matmul
from ..ops.recurrent import CELLS
from ..storage import Layout, padded_bytes
from . import matmul
from . import template as T
from .kernel import TEMP, Call, Kernel, Launch, Lowered, Profile
from .move import contiguous, copies
from .recurrent_wgsl import TIMED, StepForm, source

if TYPE_CHECKING:
    from ..ops.table import Op

WIDE = 1 << 18  # units of a step from which a GPU's invocations take four each
FUSED = 32  # sequences up to which a GPU's kernel for the gates makes the products, too, on an H200
PRODUCTS = 1 << 25  # and products a step; a few sequences read the weight once in any case
TOGETHER = 4  # of them that share what is read of the weight


class _Product:
    """Stands for the op of a product that no op row asked for."""

    archetype = Matmul()
    name = "recurrence"

    def __repr__(self) -> str:
        return "<recurrence>"


_PRODUCT = cast("Op", _Product())
Buffer = tuple[int, DType]  # binding number and dtype


class _Steps:
    """The launches of one call as they are put together: what runs once, and what runs every step."""

    def __init__(self, call: Call, profile: Profile, sizes: tuple[int, int, int], cell: str) -> None:
        self.call, self.profile, self.cell = call, profile, cell
        self.directions, self.length, self.n = sizes
        self.layouts: list[Layout | None] = [*call.inputs, *call.outputs]
        self.launches: list[Launch] = []
        self.temps: list[int] = []

    # ---- buffers ----

    def number(self, name: str) -> int:
        """Binding number of an input."""
        return self.call.names.index(name)

    def layout(self, number: int) -> Layout:
        found = self.layouts[number]
        assert found is not None
        return found

    def result(self, i: int) -> Buffer:
        """The i-th output."""
        number = len(self.call.inputs) + i
        return number, self.layout(number).dtype

    def temporary(self, elements: int, dtype: DType = float32) -> Buffer:
        self.temps.append(padded_bytes(elements, dtype))
        return TEMP(len(self.temps) - 1), dtype

    def dense(self, name: str) -> Buffer:
        """An input, copied first if it does not lie row by row from the start of its storage."""
        number = self.number(name)
        layout = self.layout(number)
        if layout.contiguous and layout.offset == 0:
            return number, layout.dtype
        launch, size = contiguous(layout, number, len(self.temps), self.profile)
        self.launches.append(launch)
        self.temps.append(size)
        return TEMP(len(self.temps) - 1), layout.dtype

    def copied(self, name: str, target: Buffer) -> None:
        """Copy an input into a buffer."""
        number = self.number(name)
        layout = self.layout(number)
        self.launches += copies(layout, Layout(target[1], layout.shape), (number, target[0]), self.profile)

    def running(self, name: str, i: int) -> Buffer:
        """A float32 buffer that starts as an input and ends as output i: the output itself where that is float32."""
        target = self.result(i)
        held = target if target[1] is float32 else self.temporary(self.layout(target[0]).numel)
        self.copied(name, held)
        return held

    def finish(self, held: Buffer, i: int) -> None:
        """Store a running buffer into output i."""
        target = self.result(i)
        if held[0] != target[0]:
            layout = self.layout(target[0])
            self.launches += copies(Layout(held[1], layout.shape), layout, (held[0], target[0]), self.profile)

    def nbytes(self, buffer: Buffer) -> int:
        """Bytes of a buffer, without its padding if it is an operand."""
        number = buffer[0]
        return self.temps[-1 - number] if number < 0 else self.layout(number).numel * buffer[1].itemsize

    def window(self, step: int, sizes: list[int], steps: list[int]) -> tuple[int, tuple[tuple[int, int], ...]]:
        """The step from which buffers larger than a binding are bound, and their parts: those of which all start at whole 256 bytes.
        `sizes`: bytes of each buffer; `steps`: of one step, 0 for buffers without steps."""
        unit = max((256 // gcd(256, n) for n in steps if n), default=1)
        base = step - step % unit
        count = min(unit, self.length - base)
        return base, tuple(
            (base * n, -(-count * n // 16) * 16) if n else (0, -(-size // 16) * 16) for n, size in zip(steps, sizes, strict=True)
        )

    # ---- launches ----

    def product(self, a: Buffer, shape: tuple[int, int], name: str, out: Buffer, turned: bool = False) -> list[Launch]:
        """Launches of a[d] @ weight[d], or @ weight[d].T where `turned`, for a of shape [D, *shape]. What only prepares the
        weight is launched now, once."""
        number = self.number(name)
        w = self.layout(number)
        if turned:
            w = w.with_(shape=(w.shape[0], w.shape[2], w.shape[1]), strides=(w.strides[0], w.strides[2], w.strides[1]))
        d = self.directions
        left, result = Layout(a[1], (d, *shape)), Layout(out[1], (d, shape[0], w.shape[2]))
        made = matmul.lower(Call(_PRODUCT, ("input", "other"), (left, w), (result,), (a[1], w.dtype)), self.profile)
        known = {0: a[0], 1: number, 2: out[0]}
        base = len(self.temps)
        self.temps += made.temps
        every: list[Launch] = []
        fixed = {1}
        for launch in made.launches:
            once = set(launch.bindings[:-1]) <= fixed and launch.bindings[-1] < 0
            if once:
                fixed.add(launch.bindings[-1])
            moved = replace(launch, bindings=tuple(known[b] if b >= 0 else b - base for b in launch.bindings))
            (self.launches if once else every).append(moved)
        return every

    def fuses(self, weight: Layout, count: int) -> bool:
        """Whether a kernel of `count` buffers should make the products itself: few sequences on a GPU."""
        p = self.profile
        known = p.family == "gpu" and p.subgroups and p.subgroup_size in (8, 16, 32, 64) and p.max_workgroup_size >= 256
        lies = weight.contiguous and weight.offset == 0 and weight.shape[1] % 4 == 0 and weight.shape[2] % 4 == 0
        few = self.n <= TOGETHER or (self.n <= FUSED and self.n * weight.shape[1] * weight.shape[2] <= PRODUCTS)
        return known and lies and few and count <= p.max_storage_buffers

    def maker(self, what: str, size: int, buffers: Sequence[tuple[str, Buffer | None, bool]], depth: int = 0) -> Any:
        """A function from the number of a step to the launch of one kernel over [D, N, size], which makes products of `depth`
        itself if that is not 0."""
        kind = CELLS[self.cell]
        present = [(name, b, written) for name, b, written in buffers if b is not None]
        wide = not depth and size % 4 == 0 and (self.profile.family == "cpu" or self.directions * self.n * size >= WIDE)
        width = 4 if wide else 1
        units = size // width
        most = min(self.profile.max_workgroup_size, 64 if self.profile.family == "cpu" else 256)
        workgroup = min(most, max(T.lanes(self.profile) or 32, 1 << (units - 1).bit_length()))
        form = StepForm(
            what,
            self.cell if what in ("forward", "backward") else "",
            tuple((name, b[1], written) for name, b, written in present),
            width,
            workgroup,
            kind.gates,
            kind.biases,
            kind.kept,
            min(self.n, TOGETHER) if depth else 0,
            min(32, self.profile.subgroup_size) if depth else 0,
        )
        if depth:
            form = replace(form, workgroup=256)
        access = tuple("read_write" if written else "read" for _, _, written in present)
        T.check_bindings(len(access), self.profile, "a recurrence")
        kernel = Kernel(("recurrent", form), lambda profile: source(form, profile), access, f"{self.cell} {what}", trusted=True)
        folds = 1 if self.n <= 65535 else -(-self.n // T.FOLD)
        grid = (-(-units // workgroup), self.n if folds == 1 else T.FOLD, self.directions * folds)
        if depth:
            grid = (-(-units // (256 // form.lanes)), -(-self.n // form.fused), self.directions)
        bindings = tuple(b[0] for _, b, _ in present)

        sizes = [self.nbytes(b) for _, b, _ in present]
        steps = [n // self.length if name in TIMED else 0 for (name, _, _), n in zip(present, sizes, strict=True)]
        large = self.directions == 1 and max(sizes) > self.profile.max_binding

        def launch(step: int, fresh: bool = False) -> Launch:
            base, ranges = self.window(step, sizes, steps) if large else (0, None)
            words = [self.n, units, self.length, self.directions, step, int(fresh), folds, depth // 4, base]
            return Launch(kernel, bindings, grid, T.pack(words), ranges=ranges)

        return launch

    def lowered(self) -> Lowered:
        return Lowered(tuple(self.launches), tuple(self.temps))


def lower(call: Call, profile: Profile) -> Lowered:
    """Launches of a whole recurrence, or of its backward."""
    if all(o.numel == 0 for o in call.outputs):
        return Lowered(())
    return _forward(call, profile) if "keep" in call.attrs else _backward(call, profile)


def _forward(call: Call, profile: Profile) -> Lowered:
    gates, weight = call.inputs[0], call.inputs[1]
    assert gates is not None
    assert weight is not None
    cell = call.attrs["cell"]
    kind, (d, length, n, _), (_, wide, width) = CELLS[cell], gates.shape, weight.shape
    size = wide // kind.gates
    s = _Steps(call, profile, (d, length, n), cell)
    projected = f"tensors.{4 + kind.state}" in call.names
    x, bias = s.dense("tensors.0"), s.dense("tensors.2")
    lengths = s.dense("lengths") if "lengths" in call.names else None
    fused = not projected and s.fuses(weight, 9)
    hidden = s.result(1)
    if fused:  # every workgroup reads the whole output before, so steps write two buffers by turns
        hiddens = [hidden, s.temporary(d * n * width, hidden[1])]
        s.copied("tensors.3", hiddens[length % 2])
    else:
        s.copied("tensors.3", hidden)
    state = s.running("tensors.4", 3) if kind.state else None
    kept = s.result(2) if kind.kept and call.attrs["keep"] else None
    out: list[tuple[str, Buffer | None, bool]] = [("out", s.result(0), True), ("lengths", lengths, False)]
    own: list[tuple[str, Buffer | None, bool]] = [("gates", x, False), ("bias", bias, False), ("state", state, True), ("kept", kept, True)]
    if fused:
        rows: list[tuple[str, Buffer | None, bool]] = [*own, *out, ("weight", (1, weight.dtype), False)]
        steps = [
            s.maker("forward", size, [*rows, ("past", hiddens[1 - k], False), ("hidden", hiddens[k], True)], depth=width) for k in range(2)
        ]
        s.launches += [steps[(length - 1 - i) % 2](i) for i in range(length)]
    else:
        product = s.temporary(d * n * wide)
        own.append(("product", product, False))
        multiply = s.product(hidden, (n, width), "tensors.1", product, turned=True)
        out.append(("hidden", hidden, True))
        if projected:
            made, projection = s.temporary(d * n * size, gates.dtype), s.temporary(d * n * width)
            step = s.maker("forward", size, [*own, ("made", made, True), ("lengths", lengths, False)])
            project = s.product(made, (n, size), f"tensors.{4 + kind.state}", projection, turned=True)
            store = s.maker("store", width, [("arrived", projection, False), *out])
            s.launches += [x for i in range(length) for x in (*multiply, step(i), *project, store(i))]
        else:
            step = s.maker("forward", size, [*own, *out])
            s.launches += [x for i in range(length) for x in (*multiply, step(i))]
    if state is not None:
        s.finish(state, 3)
    return s.lowered()


def _backward(call: Call, profile: Profile) -> Lowered:
    grad, cell = call.inputs[0], call.attrs["cell"]
    kind = CELLS[cell]
    assert grad is not None
    weight = call.inputs[call.names.index("weight")]
    assert weight is not None
    (length, n), (d, wide, width) = grad.shape[:2], weight.shape
    size = wide // kind.gates
    s = _Steps(call, profile, (d, length, n), cell)
    projected = "projection" in call.names
    given, kept = s.dense("grad"), s.dense("kept")
    lengths = s.dense("lengths") if "lengths" in call.names else None
    state = s.running("state", 2) if kind.state else None
    carry = s.temporary(d * n * width)
    s.copied("hidden", carry)
    arrived, single = s.temporary(d * n * width), s.temporary(d * n * wide, grad.dtype)
    fused = not projected and s.fuses(weight, 10)
    multiply = s.product(single, (n, wide), "weight", arrived)
    last = 2 + kind.state
    dg = s.result(last) if cell == "gru" else None
    source: list[tuple[str, Buffer | None, bool]] = [("grad", given, False), ("carry", carry, True), ("arrived", arrived, False)]
    arrive: Any = None
    if projected:
        whole, made = s.temporary(d * n * width, grad.dtype), s.temporary(d * n * size)
        unproject = s.product(whole, (n, width), "projection", made)
        arrive = s.maker("arrive", width, [*source, ("whole", s.result(last), True), ("result", whole, True), ("lengths", lengths, False)])
        source = [("made", made, False)]
    own: list[tuple[str, Buffer | None, bool]] = [
        ("kept" if kind.kept else "output", kept, False),
        ("state", state, True),
        ("dx", s.result(0), True),
        ("dg", dg, True),
        ("lengths", lengths, False),
    ]
    end = s.maker("end", width, [("carry", carry, False), ("arrived", arrived, False), ("result", s.result(1), True)])
    if fused:
        turned = weight.with_(shape=(d, width, wide), strides=(wide * width, 1, width))
        flat, both = s.temporary(d * wide * width, weight.dtype), [single, s.temporary(d * n * wide, grad.dtype)]
        s.launches += copies(turned, Layout(weight.dtype, turned.shape), (s.number("weight"), flat[0]), profile)
        rows: list[tuple[str, Buffer | None, bool]] = [*own, ("grad", given, False), ("carry", carry, True), ("weight", flat, False)]
        steps = [s.maker("backward", size, [*rows, ("before", both[1 - k], False), ("step", both[k], True)], depth=wide) for k in range(2)]
        s.launches += [steps[i % 2](i, i == length - 1) for i in reversed(range(length))]
        s.launches += multiply
    else:
        back = s.maker("backward", size, [*source, *own, ("step", single, True)])
        for i in reversed(range(length)):
            before = [] if arrive is None else [arrive(i, i == length - 1), *unproject]
            s.launches += [*before, back(i, i == length - 1), *multiply]
    s.launches.append(end(0))
    if state is not None:
        s.finish(state, 2)
    return s.lowered()
