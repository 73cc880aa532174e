"""Random programs over the op table, for any interpreter: the same steps run eagerly, compiled and in float64 numpy.

A program is drawn while it runs in the float64 Reference, twice: on its leaves and on slightly moved ones. A step whose
result jumps, grows or is not finite is drawn again, so that what is left may be compared up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import meganeura as mg
from meganeura import dispatch, nn
from meganeura.ops.archetype import Pointwise, Reduce
from meganeura.ops.table import OPERAND, REGISTRY, TENSOR, Op
from meganeura.reference import Reference

F = nn.functional
MOVE = 1e-6  # how far leaves are moved to find steps that jump
JUMP = 3e-4  # how far a result may move then
LARGE = 30.0

Step = tuple[str, Callable[..., Any], tuple[int, ...]]  # what it is, a function of values, the numbers of its values


def _smooth(op: Op) -> bool:
    """Whether a row takes floats only and has gradients for all of them."""
    operands = [p for p in op.params if p.kind in (TENSOR, OPERAND)]
    return bool(operands) and len(operands) == len(op.params) and all(op.grad.get(p.name) is not None for p in operands)


POINTWISE = [op for op in REGISTRY.values() if isinstance(op.archetype, Pointwise) and op.public and not op.random and _smooth(op)]
REDUCE = [op for op in REGISTRY.values() if isinstance(op.archetype, Reduce) and op.public and op.grad.get("input") is not None]
SCANS = ("cumsum", "logcumsumexp", "cummax", "cumprod")
ROWS = ("softmax", "log_softmax", "normalize", "layer_norm", "rms_norm")
assert len(POINTWISE) > 40 and len(REDUCE) > 3


@dataclass
class Program:
    """Leaves as arrays, steps, the numbers of the values that are results, and whether gradients may be compared too."""

    seed: int
    leaves: list[Any]
    steps: list[Step] = field(default_factory=list)
    results: list[int] = field(default_factory=list)
    smooth: bool = True

    def run(self, leaves: list[Any]) -> list[Any]:
        """All results, of tensors of any world."""
        values = list(leaves)
        for _, fn, args in self.steps:
            values.append(fn(*(values[i] for i in args)))
        return [values[i] for i in self.results]

    def train(self, leaves: list[Any]) -> list[Any]:
        """All results, and the gradients of the leaves from their mean squares."""
        for t in leaves:
            t.requires_grad_()
        outs = self.run(leaves)
        loss = sum((o * o).mean() for o in outs)
        return [o.detach() for o in outs] + [g for g in mg.grad(loss, leaves, allow_unused=True) if g is not None]

    def __str__(self) -> str:
        lines = [f"seed {self.seed}: leaves {[a.shape for a in self.leaves]}"]
        lines += [f"  v{i + len(self.leaves)} = {name}({', '.join(f'v{a}' for a in args)})" for i, (name, _, args) in enumerate(self.steps)]
        return "\n".join([*lines, f"  results {self.results}"])


def draw(seed: int, length: int = 12) -> Program:
    """A program of so many steps."""
    rng = np.random.default_rng(seed)
    n, k, m = (int(rng.choice([1, 2, 3, 4, 5, 8, 12, 17, 33])) for _ in range(3))
    shapes = [(n, k), (n, k), (k, m), (k,)] if rng.random() < 0.7 else [(2, n, k), (n, k), (2, k, m), (1, k)]
    program = Program(seed, [rng.uniform(-1.5, 1.5, s).astype(np.float32) for s in shapes])
    world = Reference(precise=True)
    with dispatch.use(world):
        values = [[world.make(a.astype(np.float64), mg.float32) for a in program.leaves]]
        moved = [world.make(a + MOVE * rng.standard_normal(a.shape), mg.float32) for a in program.leaves]
        values.append(moved)
        attempts = 0
        while len(program.steps) < length and attempts < 20 * length:
            attempts += 1
            _try(program, values, rng)
        _finish(program, rng)
        program.smooth = _is_smooth(program, [v[: len(program.leaves)] for v in values])
    return program


def _finish(program: Program, rng: np.random.Generator) -> None:
    """Results: all values that nothing reads, and one more."""
    first, count = len(program.leaves), len(program.leaves) + len(program.steps)
    used = {i for _, _, args in program.steps for i in args}
    program.results = sorted({*(i for i in range(first, count) if i not in used), int(rng.integers(first, count))})


def _is_smooth(program: Program, leaves: list[list[Any]]) -> bool:
    """Whether gradients are finite and move little when the leaves do."""
    with np.errstate(all="ignore"):
        a, b = ([t.numpy() for t in program.train(v)] for v in leaves)
    return all(
        np.isfinite(x).all() and np.abs(x - y).max(initial=0) <= JUMP * max(1, np.abs(x).max(initial=0)) for x, y in zip(a, b, strict=True)
    )


def _try(program: Program, values: list[list[Any]], rng: np.random.Generator) -> None:
    """Draw one step; keep it if it behaves."""
    drawn = DRAWS[int(rng.integers(len(DRAWS)))](values[0], rng)
    if drawn is None:
        return
    name, fn, args = drawn
    try:
        with mg.no_grad(), np.errstate(all="ignore"):
            made = [fn(*(v[i] for i in args)) for v in values]
    except mg.MeganeuraError:
        return
    a, b = (t.numpy() for t in made)
    if not a.size or a.size > 20000 or not np.isfinite(a).all() or np.abs(a).max() > LARGE or np.abs(a - b).max() > JUMP:
        return
    program.steps.append((name, fn, args))
    for v, t in zip(values, made, strict=True):
        v.append(t)


def _pick(values: list[Any], rng: np.random.Generator) -> int:
    """A value's number, later ones more often."""
    return int(len(values) * (1 - rng.random() ** 2 * 0.999)) if rng.random() < 0.7 else int(rng.integers(len(values)))


def _at(values: list[Any], rng: np.random.Generator) -> int:
    return min(_pick(values, rng), len(values) - 1)


def _pointwise(values: list[Any], rng: np.random.Generator) -> Step | None:
    op = POINTWISE[int(rng.integers(len(POINTWISE)))]
    return op.name, op, tuple(_at(values, rng) for _ in op.params)


def _arithmetic(values: list[Any], rng: np.random.Generator) -> Step | None:
    name = str(rng.choice(["add", "sub", "mul", "scale", "shift", "relu", "gelu", "silu", "tanh", "sigmoid", "where"]))
    c = float(np.float32(rng.uniform(-1.5, 1.5)))
    i, j = _at(values, rng), _at(values, rng)
    if name == "scale":
        return f"mul {c}", lambda x: x * c, (i,)
    if name == "shift":
        return f"add {c}", lambda x: x + c, (i,)
    if name == "where":
        return "where", lambda x, y, z: mg.where(x.detach() > 7.0, y, z), (0, i, j)
    fn = getattr(F, name, None) or getattr(mg, name)
    return name, fn, (i, j) if name in ("add", "sub", "mul") else (i,)


def _reduction(values: list[Any], rng: np.random.Generator) -> Step | None:
    op = REDUCE[int(rng.integers(len(REDUCE)))]
    i = _at(values, rng)
    if not values[i].ndim:
        return None
    dim, keep = int(rng.integers(-values[i].ndim, values[i].ndim)), bool(rng.random() < 0.7)

    def fn(x: Any) -> Any:
        out = op(x, dim, keepdim=keep)
        return out[0] if isinstance(out, tuple) else out

    return f"{op.name} {dim} keepdim={keep}", fn, (i,)


def _row(values: list[Any], rng: np.random.Generator) -> Step | None:
    name, i = str(rng.choice(ROWS)), _at(values, rng)
    if not values[i].ndim or values[i].shape[-1] < 2:
        return None
    if name in ("layer_norm", "rms_norm"):
        size = (values[i].shape[-1],)
        return name, lambda x: getattr(F, name)(x, size, eps=0.1), (i,)
    if name == "normalize":
        return name, lambda x: F.normalize(x, dim=-1, eps=0.5), (i,)
    return name, lambda x: getattr(F, name)(x, -1), (i,)


def _scan(values: list[Any], rng: np.random.Generator) -> Step | None:
    name, i = str(rng.choice(SCANS)), _at(values, rng)
    if not values[i].ndim:
        return None

    def fn(x: Any) -> Any:
        out = getattr(mg, name)(x, -1)
        return out[0] if isinstance(out, tuple) else out

    return name, fn, (i,)


def _matmul(values: list[Any], rng: np.random.Generator) -> Step | None:
    matrices = [i for i, v in enumerate(values) if v.ndim >= 2]
    i, j = (matrices[int(rng.integers(len(matrices)))] for _ in range(2))
    s = float(rng.choice([1.0, 0.25]))
    if values[i].shape[-1] == values[j].shape[-2]:
        return f"matmul * {s}", lambda x, y: (x @ y) * s, (i, j)
    if values[i].shape[-1] == values[j].shape[-1]:
        return f"matmul T * {s}", lambda x, y: (x @ y.transpose(-1, -2)) * s, (i, j)
    return None


def _view(values: list[Any], rng: np.random.Generator) -> Step | None:
    i = _at(values, rng)
    x = values[i]
    if not x.ndim:
        return "unsqueeze", lambda x: x.unsqueeze(0), (i,)
    d = int(rng.integers(x.ndim))
    kind = str(rng.choice(["transpose", "flatten", "slice", "step", "unsqueeze", "flip", "roll", "narrow", "expand", "clone"]))
    calls: dict[str, Callable[[Any], Any]] = {
        "transpose": lambda x: x.transpose(0, -1),
        "flatten": lambda x: x.reshape(-1),
        "slice": lambda x: x.narrow(d, 0, max(1, x.shape[d] - 1)),
        "step": lambda x: x.transpose(0, d)[::2].transpose(0, d),
        "unsqueeze": lambda x: x.unsqueeze(d),
        "flip": lambda x: x.flip(d),
        "roll": lambda x: x.roll(1, d),
        "narrow": lambda x: x.narrow(d, x.shape[d] // 2, 1),
        "expand": lambda x: x.unsqueeze(0).expand(2, *x.shape),
        "clone": lambda x: x.clone(),
    }
    return f"{kind} {d}", calls[kind], (i,)


def _join(values: list[Any], rng: np.random.Generator) -> Step | None:
    i = _at(values, rng)
    same = [j for j, v in enumerate(values) if v.ndim and v.shape == values[i].shape]
    if not same:
        return None
    j = same[int(rng.integers(len(same)))]
    if rng.random() < 0.5:
        return "cat", lambda x, y: mg.cat([x, y, x], -1), (i, j)
    return "stack", lambda x, y: mg.stack([x, y], 0), (i, j)


def _gather(values: list[Any], rng: np.random.Generator) -> Step | None:
    i = _at(values, rng)
    if not values[i].ndim:
        return None
    d, n = int(rng.integers(values[i].ndim)), values[i].shape
    index = rng.integers(0, n[d], int(rng.integers(1, 7)))
    return f"index_select {d}", lambda x: x.index_select(d, mg.tensor(index)), (i,)


def _inplace(values: list[Any], rng: np.random.Generator) -> Step | None:
    i = _at(values, rng)
    same = [j for j, v in enumerate(values) if v.ndim and v.shape == values[i].shape]
    if not same or not values[i].ndim:
        return None
    j, c = same[int(rng.integers(len(same)))], float(np.float32(rng.uniform(-1, 1)))

    def whole(x: Any, y: Any) -> Any:
        x = x.clone()
        x.mul_(c)
        return x.add_(y)

    def part(x: Any, y: Any) -> Any:
        x = x * 1.0
        x[..., :1] = y[..., -1:] * c
        return x

    return ("in-place mul add", whole, (i, j)) if rng.random() < 0.5 else ("x[..., :1] = y", part, (i, j))


def _dropout(values: list[Any], rng: np.random.Generator) -> Step | None:
    p = float(rng.choice([0.1, 0.5]))
    return f"dropout {p}", lambda x: x + 0 * F.dropout(x, p), (_at(values, rng),)


DRAWS: list[Callable[[list[Any], np.random.Generator], Step | None]] = [
    *(_pointwise, _pointwise, _arithmetic, _arithmetic, _arithmetic, _reduction, _row, _scan, _matmul, _matmul),
    *(_view, _view, _join, _gather, _inplace, _dropout),
]
