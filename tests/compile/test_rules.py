"""Rewrite rules, each proved: both sides are one function, the rule fires on its own left side, and loses nothing.

Everything here takes the rules from the list and makes its own samples, so a new rule is tested by being in the list.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import meganeura as mg
from meganeura import dispatch
from meganeura.compile import rule as rule_module
from meganeura.compile.apply import apply
from meganeura.compile.ir import Graph, Operand, Value
from meganeura.compile.passes import inputs_of
from meganeura.compile.rule import AXES, AXIS, DTYPE, NUMBER, Rule, Traced
from meganeura.compile.verify import verify
from meganeura.dtype import dtype as as_dtype
from meganeura.ops.table import REGISTRY
from meganeura.reference import Reference
from meganeura.storage import Layout
from meganeura.tensor import Tensor

LISTED = importlib.import_module("meganeura.compile.rules")
RULES = LISTED.rules()
SHAPES = ((5,), (3, 7), (2, 3, 5), (2, 1, 3, 4), (1, 1))
DTYPES = ("float32", "bool", "float16", "int32")
SPECIAL = np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 1.0, -3.0, 1e-30, -200.0, 90.0], np.float32)
ATTRIBUTES: dict[str, tuple[Any, ...]] = {
    AXIS: (-1, -2),
    AXES: ((-1,), (-2, -1)),
    NUMBER: (1e-5, 0.3),
    DTYPE: tuple(map(as_dtype, ("float32", "float16", "int32"))),
}

each = pytest.mark.parametrize("rule", RULES, ids=lambda r: r.name)


class Case:
    """Arrays and attributes that a rule's guard accepts."""

    def __init__(self, arrays: dict[str, Any], attributes: dict[str, Any]) -> None:
        self.arrays, self.attributes = arrays, attributes

    def tensors(self) -> list[Tensor]:
        return [mg.tensor(a) for a in self.arrays.values()]

    def __repr__(self) -> str:
        return f"{ {n: (a.dtype.name, a.shape) for n, a in self.arrays.items()} } {self.attributes}"


def cases(rule: Rule, special: bool = False, shapes: Any = SHAPES) -> Iterator[Case]:
    """Samples of several ranks: random ones, or some of NaN, infinities, zeros and large numbers."""
    rng = np.random.default_rng(0)
    for shape, values in itertools.product(shapes, itertools.product(*(ATTRIBUTES[k] for k in rule.attributes.values()))):
        attributes = dict(zip(rule.attributes, values, strict=True))
        if any(-d > len(shape) for v in values if isinstance(v, (int, tuple)) for d in np.atleast_1d(v)):
            continue
        for dtype in DTYPES:
            arrays = {}
            for name, s in rule.sample(shape, attributes).items():
                a = rng.choice(SPECIAL, s) if special else rng.standard_normal(s) * 2
                with np.errstate(invalid="ignore"):
                    arrays[name] = np.asarray(np.where(np.isfinite(a), a, 0) if dtype == "int32" else a).astype(dtype)
                if name in rule.dtypes:
                    arrays[name] = (rng.standard_normal(s) > 0).astype(rule.dtypes[name].numpy)
            with dispatch.use(Reference()):
                tensors = [mg.tensor(a) for a in arrays.values()]
                good = rule.guard is None or rule.guard(*tensors, **attributes)
            if good:
                yield Case(arrays, attributes)
                break


def sides(rule: Rule, tensors: Any, attributes: Any) -> tuple[list[Any], list[Any]]:
    left, right = rule.fn(*tensors, **attributes)
    return [t.numpy() for t in _each(left)], [t.numpy() for t in _each(right)]


def _each(side: Any) -> Any:
    return side if isinstance(side, tuple) else (side,)


def bits(a: Any) -> Any:
    """What must agree to be the same number: NaN as NaN, and the sign of zeros."""
    a = np.asarray(a)
    a = a.astype(np.float64) if a.dtype.kind == "f" else a
    return np.where(np.isnan(a), 7e77, np.where(a == 0, np.copysign(1e-300, a), a)) if a.dtype.kind == "f" else a


# ---- both sides are one function ----


@each
def test_sides_are_equal(rule: Rule) -> None:
    found = list(cases(rule))
    assert found, "no sample satisfies the guard"
    for case in found:
        with dispatch.use(Reference(precise=True)):
            left, right = sides(rule, case.tensors(), case.attributes)
        for a, b in zip(left, right, strict=True):
            assert a.shape == b.shape, case
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9, err_msg=str(case))


@each
def test_sides_agree_on_special_numbers(rule: Rule) -> None:
    """NaN and infinities come out at the same places; exact rules keep every bit that counts."""
    for case in cases(rule, special=True):
        with dispatch.use(Reference(precise=not rule.exact)):
            left, right = sides(rule, case.tensors(), case.attributes)
        for a, b in zip(left, right, strict=True):
            if rule.exact:
                np.testing.assert_array_equal(bits(a), bits(b), err_msg=str(case))
            else:
                np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-9, err_msg=str(case))


# ---- in graphs ----


@each
def test_fires_and_computes_the_same(rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    """On its own left side, alone; the compiled error is at most twice the eager one."""
    monkeypatch.setattr(LISTED, "rules", lambda: (rule,))
    for case in cases(rule, shapes=((2, 3, 5),)):
        fn = _consumed(rule, case)
        compiled = mg.compile(fn, debug=True)
        tensors = case.tensors()
        got = [t.numpy() for t in _each(compiled(*tensors))]
        assert compiled.report(*tensors)[0].count(rule.name) == 1, case
        eager = [t.numpy() for t in _each(fn(*tensors))]
        with dispatch.use(Reference(precise=True)):
            want = [t.numpy() for t in _each(fn(*case.tensors()))]
        for a, b, w in zip(got, eager, want, strict=True):
            assert a.dtype == b.dtype
            if a.dtype.kind == "f":
                known = ~np.isnan(w)
                np.testing.assert_array_equal(np.isnan(a), ~known, err_msg=str(case))
                room = 2 * np.abs(b - w).max(where=known, initial=0) + 4e-7 * np.abs(w).max(where=known, initial=0)
                assert np.abs(a - w).max(where=known, initial=0) <= room, case
            else:
                np.testing.assert_array_equal(a, b)


def _consumed(rule: Rule, case: Case) -> Any:
    """The left side with its results moved, so that what they lie in need not be handed out."""

    def fn(*tensors: Any) -> Any:
        return tuple(mg.roll(t, 1, -1) for t in _each(rule.fn(*tensors, **case.attributes)[0]))

    return fn


@each
def test_the_list_leaves_no_more_than_the_right_side(rule: Rule) -> None:
    """With all rules: the left side becomes at most what the right side becomes."""
    case = next(cases(rule, shapes=((2, 3, 5),)))

    def nodes(k: int) -> int:
        moved = mg.compile(lambda *ts: tuple(mg.roll(t, 1, -1) for t in _each(rule.fn(*ts, **case.attributes)[k])))
        return len(moved.graph(*case.tensors()).nodes)

    assert nodes(0) <= nodes(1)


@each
def test_nothing_is_lost(rule: Rule) -> None:
    """Whatever else is kept of the left side: the same values are there afterwards, in the same cells."""
    for case in cases(rule, shapes=((3, 7), (2, 3, 5))):
        count = len(_graph(rule, case)[0].nodes)
        for kept in [(), *((i,) for i in range(count)), tuple(range(count))]:
            graph, arrays = _graph(rule, case)
            graph.kept += [o.value for i in kept for o in graph.nodes[i].outputs if o.value not in graph.kept]
            graph.outputs = [v.cell for v in graph.kept]
            names = [v.cell.id for v in graph.kept]
            before = evaluate(graph, arrays)
            fired = apply(graph, [rule])
            graph.inputs = inputs_of(graph.nodes)
            verify(graph)
            assert [v.cell.id for v in graph.kept] == names
            assert all(v.node in graph.nodes for v in graph.kept)
            if not kept and not _is_forwarding(rule, case):
                assert fired == 1, case
            for a, b in zip(before, evaluate(graph, arrays), strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9, err_msg=f"{case}, keeping {kept}")


def _leaves(rule: Rule, case: Case) -> dict[str, Operand]:
    return {n: Operand(Value(None), Layout(as_dtype(a.dtype), a.shape)) for n, a in case.arrays.items()}  # type: ignore[arg-type]


def _is_forwarding(rule: Rule, case: Case) -> bool:
    """Whether some right side is a tensor that is there already."""
    traced = Traced.of(rule, _leaves(rule, case), case.attributes)
    assert traced is not None
    return any(traced.makers.get(o.value) not in traced.right for o in traced.new)


def _graph(rule: Rule, case: Case) -> tuple[Graph, dict[Any, Any]]:
    """The left side as a graph of its own, and what its inputs hold."""
    traced = Traced.of(rule, _leaves(rule, case), case.attributes)
    assert traced is not None
    arrays = {traced.leaves[n].value.cell: a for n, a in case.arrays.items()}
    return Graph(rule.name, traced.left, list(arrays), kept=[o.value for o in traced.old]), arrays


def evaluate(graph: Graph, arrays: dict[Any, Any]) -> list[Any]:
    """The kept values of a graph, by the references in float64."""
    reference = Reference(precise=True)
    with dispatch.use(reference), dispatch.no_grad():
        held = {c: mg.tensor(a)._storage for c, a in arrays.items()}

        def tensor(v: Any) -> Any:
            if isinstance(v, Operand):
                return Tensor._make(held[v.value.cell], v.layout)
            return [tensor(x) for x in v] if isinstance(v, tuple) and v and isinstance(v[0], Operand) else v

        for node in graph.nodes:
            made = reference.apply(node.op, [tensor(v) for v in node.args], None)
            held.update((o.value.cell, t._storage) for o, t in zip(node.outputs, made if isinstance(made, tuple) else (made,), strict=True))
        return [np.array(held[v.cell].buffer) for v in graph.kept]


# ---- the engine ----

X = np.linspace(-3, 3, 30, dtype=np.float32).reshape(5, 6)


def fired(f: Any, *args: Any) -> list[str]:
    """Names of the rules that fired, after comparing compiled with eager."""
    g = mg.compile(f, debug=True)
    got, want = g(*args), f(*args)
    for a, b in zip(_each(got), _each(want), strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-5, atol=1e-6)
    names = {r.name for r in RULES}
    return [name for (name, _), n in g.report(*args)[0].fired.items() for _ in range(n) if name in names]


def test_operands_may_change_places() -> None:
    x = mg.tensor(X)
    assert fired(lambda x: mg.sigmoid(x) * x, x) == ["silu_from_sigmoid"]


def test_views_are_compared() -> None:
    """The same op on another view of the same memory is another value."""
    x = mg.tensor(X[:, :5].copy())
    assert fired(lambda x: x * mg.sigmoid(x.T), x) == []
    assert fired(lambda x: x.T * mg.sigmoid(x.T), x) == ["silu_from_sigmoid"]
    assert fired(lambda x: x[1:, ::2] * mg.sigmoid(x[1:, ::2]), x) == ["silu_from_sigmoid"]
    assert fired(lambda x: x[1:] * mg.sigmoid(x[:-1]), x) == []


def test_a_norm_over_another_dimension_is_none() -> None:
    """Statistics kept in a shape that broadcasts along other rows than they are of."""
    x = mg.tensor(X[:5, :5].copy())

    def f(x: Any) -> Any:
        return x * mg.rsqrt((x * x).mean(-1) + 1e-5)

    assert fired(f, x) == []
    assert fired(lambda x: x * mg.rsqrt((x * x).mean(-1).unsqueeze(-1) + 1e-5), x) == ["rms_norm_from_rsqrt"]


def test_whole_norms() -> None:
    x, w, b = mg.tensor(X), mg.tensor(X[0]), mg.tensor(X[1])

    def layer(x: Any) -> Any:
        m = x.mean(-1, keepdim=True)
        v = ((x - m) ** 2).mean(-1, keepdim=True)
        return w * ((x - m) / mg.sqrt(v + 1e-5)) + b

    assert fired(layer, x) == ["layer_norm_from_square_sqrt", "weight_into_layer_norm", "bias_into_layer_norm"]
    g = mg.compile(layer)
    assert len(g.graph(x).nodes) == 1
    assert fired(lambda x: (x * mg.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)) * w, x)[-1] == "weight_into_rms_norm"


def test_softmax_over_its_maximum() -> None:
    def f(x: Any) -> Any:
        e = (x - x.max(-1, keepdim=True).values).exp()
        return e / e.sum(-1, keepdim=True)

    assert fired(f, mg.tensor(X)) == ["amax_from_its_place", "softmax_from_exp"]


def test_what_else_reads_a_value_keeps_it() -> None:
    """A row would be computed besides the ops that stay; an elementwise op costs nothing more."""
    x = mg.tensor(X)

    def f(x: Any) -> Any:
        e = (x - mg.amax(x, -1, True)).exp()
        return e / e.sum(-1, keepdim=True), e

    assert fired(f, x) == []

    def g(x: Any) -> Any:
        s = mg.sigmoid(x)
        return x * s, s

    assert fired(g, x) == ["silu_from_sigmoid"]


def test_values_that_change_are_left_alone() -> None:
    x = mg.tensor(X)

    def inner(x: Any) -> Any:
        s = mg.sigmoid(x)
        s.mul_(2)
        return x * s

    def leaf(x: Any) -> Any:
        y = x * 2
        s = mg.sigmoid(y)
        y.add_(1)
        return y * s

    def copied(x: Any) -> Any:
        y = x * 2
        kept = y.clone()
        y.add_(1)
        return y.exp() - kept.roll(1, 0)

    def copied_early(x: Any) -> Any:
        y = x * 2
        kept = y.clone().roll(1, 0)
        y.add_(1)
        return y.exp() - kept

    assert fired(inner, x) == []
    assert fired(leaf, x) == []
    assert fired(copied, x) == []
    assert fired(copied_early, x) == ["copy_of_what_is_only_read"]


def test_arguments_and_results_are_never_one() -> None:
    x = mg.tensor(X)
    g = mg.compile(lambda x: (x.clone(), x * 1), debug=True)
    a, b = g(x)
    a.add_(1)
    np.testing.assert_array_equal(x.numpy(), X)
    np.testing.assert_array_equal(b.numpy(), X)


def test_random_ops_never_match() -> None:
    mg.manual_seed(0)
    g = mg.compile(lambda x: mg.nn.functional.dropout(x, 0.5) * mg.sigmoid(mg.nn.functional.dropout(x, 0.5)))
    x = mg.tensor(X)
    g(x)
    assert not g.report(x)[0].fired or g.report(x)[0].count("silu_from_sigmoid") == 0


def test_numbers_from_the_host_are_the_same_number_only() -> None:
    same = rule_module.same_number
    a, b = (dispatch.HostScalar(lambda: (0.0,), i) for i in range(2))
    assert same(a, a, True) and not same(a, b, True) and not same(a, 0.0, True)
    assert same(1, 1.0, True) and same(0.1, np.float32(0.1), True)
    assert not same(0.0, -0.0, True) and not same(1, 2, False) and same(float("nan"), float("nan"), True)


def test_rules_that_cannot_be_are_refused() -> None:
    def unbound(x: Any, y: Any) -> Any:
        return x + 1, x

    def drawn(x: Any) -> Any:
        return mg.nn.functional.dropout(x, 0.5), x

    for fn in (unbound, drawn):
        with pytest.raises(TypeError, match="rule"):
            _ = Rule(fn).pattern


def test_rows_that_commute() -> None:
    rng = np.random.default_rng(0)
    rows = [r for r in REGISTRY.values() if r.commutes]
    assert len(rows) > 8
    for row in rows:
        a, b = (rng.integers(0, 3, 50) for _ in range(2))
        assert row.ref is not None
        np.testing.assert_array_equal(row.ref(a, b), row.ref(b, a))


def test_off_means_off() -> None:
    x = mg.tensor(X)
    g = mg.compile(lambda x: x * mg.sigmoid(x), rewrite="off")
    g(x)
    assert not g.report(x)[0].fired
