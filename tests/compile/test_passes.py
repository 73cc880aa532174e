"""Passes and their checks: pointwise chains, equal and dead nodes, the verifier, the memory plan, what can be inspected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import meganeura as mg
from meganeura.compile import ir, plan, verify
from meganeura.compile.lower import lower
from meganeura.kernels.kernel import Profile
from tests.compile.training import batch, setup

A = np.linspace(-2, 2, 20, dtype=np.float32).reshape(4, 5)


def _names(graph: ir.Graph) -> list[str]:
    return ["+".join(n.parts) for n in graph.nodes]


def _same(f: Callable[..., Any], *args: Any, debug: bool = True) -> Any:
    """f compiled and eager, on the same arguments; the compiled function."""
    g = mg.compile(f, debug=debug)
    got, want = g(*args), f(*args)
    for a, b in zip(got if isinstance(got, tuple) else (got,), want if isinstance(want, tuple) else (want,), strict=True):
        assert a.dtype is b.dtype
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-6, atol=1e-6)
    return g


def test_a_chain_is_one_node() -> None:
    x = mg.tensor(A)
    g = _same(lambda x: ((x * 2 + 1).relu() - x).tanh(), x)
    assert _names(g.graph(x)) == ["mul+add+relu+sub+tanh"]


def test_a_chain_with_several_results() -> None:
    x = mg.tensor(A)

    def f(x: Any) -> Any:
        y = x.exp()
        return y, (y + 1).log(), y.sum()

    g = _same(f, x)
    assert _names(g.graph(x)) == ["exp+add+log", "sum"]


def test_what_is_overwritten_whole_need_not_be_made() -> None:
    def f(x: Any) -> Any:
        z = mg.zeros(4, 5)
        z.copy_(x)
        z[0] = 5
        y = z * 2
        return z.copy_(y + 1)

    g = _same(f, mg.tensor(A))
    assert "fill" not in g.graph(mg.tensor(A)).nodes[0].parts
    _same(lambda x: mg.empty(4, 5).copy_(x), mg.tensor(A))


def test_what_is_overwritten_whole_twice_after_it_was_read() -> None:
    """The write between is gone: the last one overwrites what was read."""

    def f(x: Any, given: Any) -> tuple[Any, ...]:
        y, was = x + 0, given.sum(0)
        total = y.sum()
        for z in (y, given):
            z.copy_(x * 2)
            z.copy_(x * 3)
        return total, was, y

    first, second = mg.tensor(A), mg.tensor(A)
    for g in (mg.compile(f, debug=True), mg.compile(f, rewrite="off", debug=True)):
        for a, b in zip(g(mg.tensor(A), first), f(mg.tensor(A), second), strict=True):
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-6)
        np.testing.assert_array_equal(first.numpy(), second.numpy())


def test_broadcasting_and_dtypes_in_a_chain() -> None:
    x, row, column = mg.tensor(A), mg.tensor(A[0]), mg.tensor(A[:, :1])
    mask = x > 0
    g = _same(lambda x, m: mg.where(m & (x < row), x * column, row).to(mg.int32).to(mg.float32) * 0.5, x, mask)
    assert len(g.graph(x, mask).nodes) == 1


@pytest.mark.parametrize("dtype", ["int8", "uint8", "bfloat16"])
def test_rounding_dtypes_stay_out_of_chains(dtype: str) -> None:
    x = mg.tensor(A * 100)
    g = _same(lambda x: (x * 3).to(getattr(mg, dtype)).to(mg.float32) * 2, x)
    assert len(g.graph(x).nodes) > 1


def test_half_in_chains() -> None:
    x = mg.tensor(A).half()
    g = mg.compile(lambda x: (x * 3 + 1).exp().half())
    np.testing.assert_allclose(g(x).numpy(), np.exp(A * 3 + 1).astype(np.float16), rtol=1e-2)


def test_transposed_read_of_a_chain_value_splits() -> None:
    x = mg.tensor(A[:, :4])
    g = _same(lambda x: (x * 2) + (x * 2 + 1).T, x)
    assert len(g.graph(x).nodes) == 2


def test_chain_does_not_cross_what_reads_it() -> None:
    x = mg.tensor(A)

    def f(x: Any) -> Any:
        y = x * 2
        return y - y.sum() + (y @ y.T).sum()

    g = _same(f, x)
    assert _names(g.graph(x))[0] == "mul"


def test_chains_respect_the_binding_limit() -> None:
    xs = [mg.tensor(A + i) for i in range(20)]

    def f(*xs: Any) -> Any:
        total = xs[0] * 1
        for x in xs[1:]:
            total = total + x.abs()
        return total

    g = _same(f, *xs)
    limit = mg.gpu.current().profile.max_storage_buffers
    for node in g.graph(*xs).nodes:
        assert len({o.value.cell for o in (*node.reads(), *node.outputs)}) <= limit
    assert len(g.graph(*xs).nodes) < 10


def test_fuzzed_chains() -> None:
    """Random programs of pointwise ops, reductions, views and in-place writes: compiled equals eager."""
    rng = np.random.default_rng(1)
    for _ in range(25):
        _same(_random_program(int(rng.integers(1 << 30))), mg.tensor(A), mg.tensor(A[:, ::-1].copy()))


def _random_program(seed: int) -> Callable[..., Any]:
    def run(a: Any, b: Any) -> Any:
        rng = np.random.default_rng(seed)
        values = [a * 1, b * 1]
        for _ in range(14):
            x, y = (values[int(rng.integers(len(values)))] for _ in range(2))
            kind = int(rng.integers(8))
            if kind < 3:
                values.append((x + y, x * y * 0.5, mg.where(x > y, x, y))[kind])
            elif kind == 3:
                values.append(x.tanh() + float(rng.integers(3)))
            elif kind == 4:
                values.append(x - y.mean(0, keepdim=True))
            elif kind == 5:
                x.mul_(0.5).add_(y)
            elif kind == 6:
                x[int(rng.integers(4))].sub_(y[int(rng.integers(4))])
            else:
                values.append(x.reshape(5, 4).T.reshape(5, 4).T.sin())
                values[-1] = values[-1].reshape(4, 5)
        return tuple(values)

    return run


def test_dead_and_equal_nodes_go() -> None:
    x = mg.tensor(A)

    def f(x: Any) -> Any:
        (x * 3).sum()
        return (x.T @ x).sum() + (x.T @ x).sum()

    g = _same(f, x)
    assert _names(g.graph(x)) == ["matmul", "sum+add"]
    off = mg.compile(f, rewrite="off")
    assert _names(off.graph(x)) == ["matmul", "sum", "matmul", "sum", "add"]


def test_random_numbers_do_not_depend_on_pruning() -> None:
    def f(x: Any) -> Any:
        mg.rand(3)
        return x + mg.rand(5) + mg.rand(5)

    x = mg.zeros(5)
    mg.manual_seed(1)
    want = [f(x).tolist() for _ in range(3)]
    g = mg.compile(f)
    mg.manual_seed(1)
    assert [g(x).tolist() for _ in range(3)] == want


def test_verifier_finds_a_moved_read() -> None:
    def f(x: Any) -> Any:
        y = x + 1
        z = y.sum()
        y.mul_(2)
        return y + z

    g = mg.compile(f, rewrite="off")
    graph = g.graph(mg.tensor(A))
    verify.verify(graph)
    order = [n.op.name for n in graph.nodes]
    i, j = order.index("sum"), order.index("mul")
    graph.nodes[i], graph.nodes[j] = graph.nodes[j], graph.nodes[i]
    with pytest.raises(verify.InvalidGraph, match="its cell holds"):
        verify.verify(graph)


def test_plan_reuses_buffers() -> None:
    """That none is bound twice in a step, and everything else that must hold: test_plan.py."""
    s = setup()
    step = mg.compile(s.step)
    x, y = batch()
    found = step.plan(x, y)
    assert found.nbytes < found.demanded
    steps = lower(step.graph(x, y).nodes, mg.gpu.current().profile)
    loose = plan.plan(step.graph(x, y), steps, reuse=False)
    assert loose.nbytes == loose.demanded == found.demanded
    assert "adam_update" in str(found)


def test_sessions_share_transient_buffers() -> None:
    s = setup()
    step = mg.compile(s.step)
    one = step.session(*batch(0, 16))
    two = step.session(*batch(0, 12))
    assert {id(b) for b in two.blocks} & {id(b) for b in one.blocks}


def test_inspection_reads_well() -> None:
    s = setup()
    step = mg.compile(s.step)
    x, y = batch()
    text = str(step.graph(x, y))
    assert "training.py" in text
    assert "cross_entropy" in text
    assert "host[" in text
    assert step.sessions == 1
    assert "dispatches" in str(step.session(x, y))
    assert "1 sessions, 1 traces" in repr(step)
    assert step.session(x, y).runs == 0


def test_lowering_needs_no_device() -> None:
    """A graph lowers for any profile."""
    graph = mg.compile(setup().step).graph(*batch())
    for profile in (Profile(), Profile(family="cpu", subgroup_size=8, max_storage_buffers=16)):
        assert len(lower(graph.nodes, profile)) == len(graph.nodes)


def test_a_cast_to_float16_rounds_inside_a_chain_too() -> None:
    special = [0.0, -0.0, 1e-8, 3e-8, 2.98e-8, 6e-8, 6.1e-5, 65504.0, 65519.0, 65520.0, -7e4, np.inf, -np.inf, np.nan, 2049.0]
    drawn = np.random.default_rng(0).standard_normal(2000) * np.exp2(np.arange(2000) % 40 - 26)
    values = np.concatenate([special, drawn]).astype(np.float32)
    compiled = mg.compile(lambda x: (x * 2.0).half().float() * 0.5)
    with np.errstate(over="ignore"):
        want = (values * np.float32(2)).astype(np.float16).astype(np.float32) * np.float32(0.5)
    x = mg.tensor(values)
    np.testing.assert_array_equal(compiled(x).numpy(), want)
    assert len(compiled.graph(x).nodes) == 1


def test_zero_and_one_are_literals_where_nothing_can_be_folded() -> None:
    """Comparisons, choices and numerators need no scalar block for them; products and sums do, where NaN, Inf and -0 would be lost."""
    x = mg.tensor([-2.0, -0.0, 0.0, 3.0, float("nan"), float("inf"), float("-inf")])
    free = (
        lambda x: mg.where(x <= 0, 0.0, x * x) + x,
        lambda x: mg.where(x > 1, 1, 0) + mg.where(x > 0, x.abs(), 1.0),
        lambda x: 1.0 / x - 1 / (x + x),
        lambda x: mg.where(x.int() >= 1, x, 0.0).abs(),
        lambda x: mg.where(x > 0, x.relu(), 1.0).relu(),
    )
    bound = (
        lambda x: mg.where(x < 1, -0.0, x) * 1.5,
        lambda x: (x * 0).abs(),
        lambda x: (0.0 / x).abs(),
        lambda x: mg.where(x < 0, 0.0, x).abs(),  # which drivers take for max
        lambda x: (x + 0.0) * 1.5,
        lambda x: mg.where(x < 0.5, x, 2.0) * 1.5,
        lambda x: (x / 0.0) * 1.5,
    )
    assert np.signbit(mg.compile(bound[0])(x).numpy()[:3]).all()
    for programs, needed in ((free, False), (bound, True)):
        for f in programs:
            compiled = mg.compile(f)
            got, want = compiled(x).numpy(), f(x).numpy()
            np.testing.assert_array_equal(got, want)
            assert any(slot is not None for slot in compiled.session(x).frozen.slots) is needed
