"""Rewriting by e-graphs: every rule in every mode, random programs against eager code, costs, regions found once, limits."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import meganeura as mg
from meganeura import config, dispatch, nn
from meganeura.compile import api
from meganeura.compile.egraph import engine, terms, windows
from meganeura.compile.options import EGGLOG
from meganeura.compile.rule import Rule
from meganeura.reference import Reference
from tests.compile.test_rules import LISTED, RULES, Case, _consumed, _each, cases
from tests.fuzz.graphs import draw

pytest.importorskip("egglog")

X = np.linspace(-3, 3, 30, dtype=np.float32).reshape(5, 6)
MODES = tuple(m for m in api.REWRITES if m in EGGLOG)
modes = pytest.mark.parametrize("mode", MODES)


@pytest.fixture
def settings() -> Iterator[Callable[..., None]]:
    """Sets options for a test."""
    before = config._current

    def change(**arguments: Any) -> None:
        config.configure(**arguments)

    yield change
    config._current = before


def compiled(fn: Any, mode: str, *args: Any) -> Any:
    """A function compiled in a mode, after comparing it with eager code."""
    g = mg.compile(fn, rewrite=mode, debug=True)
    for a, b in zip(_each(g(*args)), _each(fn(*args)), strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-4, atol=1e-5)
    return g


def fired(g: Any, *args: Any) -> list[str]:
    """Names of the rules that fired, sorted."""
    names = {r.name for r in RULES}
    return sorted(name for (name, _), n in g.report(*args)[0].fired.items() for _ in range(n) if name in names)


def traffic(fn: Any, mode: str, *args: Any) -> int:
    """Bytes that a graph reads and writes once rules are applied, before anything is fused."""
    found: list[int] = []
    passes = importlib.import_module("meganeura.compile.passes")
    kept = passes.fold_constants
    row = [
        (name, (lambda graph, context: found.append(passes.traffic(graph.nodes))) if run is kept else run) for name, run in passes.GREEDY
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(passes, "GREEDY", tuple(row))
        mg.compile(fn, rewrite=mode).graph(*args)
    return found[0]


# ---- rules ----


@modes
@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.name)
def test_fires_on_its_own_left_side(rule: Rule, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone; what it computes is at most twice as far from float64 as eager code is."""
    monkeypatch.setattr(LISTED, "rules", lambda: (rule,))
    case: Case = next(cases(rule, shapes=((2, 3, 5), (2, 1, 3, 4))))
    fn = _consumed(rule, case)
    g = mg.compile(fn, rewrite=mode, debug=True)
    tensors = case.tensors()
    report = g.report(*tensors)[0]
    assert report.count(rule.name) == 1, case
    assert report.engine.startswith(mode)
    got, eager = ([t.numpy() for t in _each(f(*tensors))] for f in (g, fn))
    with dispatch.use(Reference(precise=True)):
        want = [t.numpy() for t in _each(fn(*case.tensors()))]
    for a, b, w in zip(got, eager, want, strict=True):
        assert a.dtype == b.dtype
        if a.dtype.kind == "f":
            assert np.abs(a - w).max() <= 2 * np.abs(b - w).max() + 4e-7 * np.abs(w).max(), case
        else:
            np.testing.assert_array_equal(a, b)


def _norm(x: Any, w: Any, b: Any) -> Any:
    m = x.mean(-1, keepdim=True)
    v = ((x - m) ** 2).mean(-1, keepdim=True)
    return w * ((x - m) / mg.sqrt(v + 1e-5)) + b


@modes
def test_rules_build_on_one_another(mode: str) -> None:
    args = mg.tensor(X), mg.tensor(X[0]), mg.tensor(X[1])
    g = compiled(_norm, mode, *args)
    assert fired(g, *args) == ["bias_into_layer_norm", "layer_norm_from_square_sqrt", "weight_into_layer_norm"]
    assert len(g.graph(*args).nodes) == 1


@modes
def test_views_are_compared(mode: str) -> None:
    x = mg.tensor(X[:, :5].copy())
    assert fired(compiled(lambda x: x * mg.sigmoid(x.T), mode, x), x) == []
    assert fired(compiled(lambda x: mg.sigmoid(x.T) * x.T, mode, x), x) == ["silu_from_sigmoid"]
    assert fired(compiled(lambda x: x[1:] * mg.sigmoid(x[:-1]), mode, x), x) == []
    assert fired(compiled(lambda x: x.T.clone() + x.exp(), mode, x), x) == ["copy_of_what_is_only_read"]


@modes
def test_values_that_change_are_left_alone(mode: str) -> None:
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

    for fn in (inner, leaf, copied):
        assert fired(compiled(fn, mode, x), x) == []


@modes
def test_what_else_reads_a_value_keeps_it(mode: str) -> None:
    """A row would be computed besides the ops that stay; results of the caller have memory of their own."""
    x = mg.tensor(X)

    def exponentials(x: Any) -> Any:
        e = (x - mg.amax(x, -1, True)).exp()
        return e / e.sum(-1, keepdim=True), e

    assert fired(compiled(exponentials, mode, x), x) == []
    compiled(lambda x: (x.relu().relu(), x.relu(), x * 1, x.neg().neg()), mode, x)


# ---- programs ----


@modes
def test_random_programs(mode: str) -> None:
    """No further from float64 than eager code is, forward and backward."""
    for seed in range(15):
        program = draw(seed)
        call = program.train if program.smooth else program.run
        results = []
        for f in (call, mg.compile(call, rewrite=mode, debug=bool(seed % 2))):
            mg.manual_seed(seed)
            results.append([t.numpy() for t in f([mg.tensor(a) for a in program.leaves])])
        with dispatch.use(Reference(precise=True)):
            mg.manual_seed(seed)
            exact = [t.numpy() for t in call([mg.tensor(a) for a in program.leaves])]
        for e, c, x in zip(*results, exact, strict=True):
            scale = np.abs(x).max(initial=1e-3)
            near, far = np.abs(c - x).max(initial=0), np.abs(e - x).max(initial=0)
            assert e.shape == c.shape and near <= 2 * far + 3e-6 * scale, program


@modes
def test_trains_as_greedy(mode: str) -> None:
    """A small network with spelled-out rows: same losses, and not more traffic."""
    rng = np.random.default_rng(0)
    x, y = (mg.tensor(rng.standard_normal((8, 6)).astype(np.float32)) for _ in range(2))
    losses: list[list[float]] = []
    for rewrite in ("greedy", mode):
        mg.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 16), nn.Linear(16, 6))
        w, b = nn.Parameter(mg.ones(16)), nn.Parameter(mg.zeros(16))
        opt = mg.optim.AdamW([*model.parameters(), w, b], lr=1e-2)

        def step(x: Any, y: Any, model: Any = model, w: Any = w, b: Any = b, opt: Any = opt) -> Any:
            h = _norm(model[0](x), w, b)
            out = model[1](h * mg.sigmoid(h))
            loss = ((out - y) ** 2).mean()
            loss.backward()
            opt.step()
            opt.zero_grad()
            return loss

        f = mg.compile(step, rewrite=rewrite)
        losses.append([float(f(x, y)) for _ in range(3)])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)


# ---- costs ----


def _order(x: Any) -> Any:
    """Greedy takes the double negation first, and then sees no sigmoid."""
    y = -x
    return (1 / (1 + mg.exp(-y))).roll(1, 0)


@modes
def test_a_choice_that_order_misses(mode: str) -> None:
    x = mg.tensor(X)
    assert fired(mg.compile(_order, rewrite="greedy"), x) == ["negated_twice"]
    assert fired(compiled(_order, mode, x), x) == ["sigmoid_from_exp"]
    assert traffic(_order, mode, x) < traffic(_order, "greedy", x)


@pytest.mark.parametrize("cost", ["ast-size", "tensor-traffic"])
def test_costs(cost: str, settings: Any) -> None:
    settings(egraph_cost=cost)
    x = mg.tensor(X)
    g = compiled(lambda x: (x * mg.sigmoid(x)).roll(1, 0), "egglog-whole", x)
    saved = "2 -> 1" if cost == "ast-size" else "600 -> 240"
    assert f"{cost} {saved}" in g.report(x)[0].engine
    assert f"by egglog-whole, {cost}" in str(g.report(x)[0])


# ---- windows ----


def _layers(x: Any, w: Any, b: Any, count: int = 6) -> Any:
    for _ in range(count):
        h = _norm(x, w, b)
        x = x + mg.roll(h / (1 + mg.exp(-h)), 1, 0)
    return x.cumsum(0)


def test_equal_layers_share_one_e_graph() -> None:
    args = mg.tensor(X), mg.tensor(X[0]), mg.tensor(X[1])
    g = compiled(_layers, "egglog-outlined", *args)
    report = g.report(*args)[0]
    assert report.count("silu_from_exp") == report.count("layer_norm_from_square_sqrt") == 6
    assert "1 e-graphs, 5 replayed" in report.engine
    whole = compiled(_layers, "egglog-whole", *args)
    assert fired(whole, *args) == fired(g, *args) and len(whole.graph(*args).nodes) == len(g.graph(*args).nodes)


def test_windows_cover_every_node_once() -> None:
    args = mg.tensor(X), mg.tensor(X[0]), mg.tensor(X[1])
    nodes = mg.compile(_layers, rewrite="off").graph(*args).nodes
    for cut in (windows.windowed, windows.outlined):
        for cutoff in (4, 7, 10, 1000):
            slices = cut(nodes, cutoff)
            assert [i for a, b in slices for i in range(a, b)] == list(range(len(nodes)))
            assert max(b - a for a, b in slices) <= cutoff


def test_windows_end_where_little_crosses() -> None:
    """A window of a layer and a bit ends after the layer."""
    args = mg.tensor(X), mg.tensor(X[0]), mg.tensor(X[1])
    g = mg.compile(_layers, rewrite="off")
    nodes = g.graph(*args).nodes
    size = (len(nodes) - 1) // 6
    assert [b % size for _, b in windows.windowed(nodes, size + 2)][:5] == [0] * 5


def test_large_graphs_are_cut_with_a_warning(settings: Any) -> None:
    settings(egraph_cutoff=8)
    args = mg.tensor(X), mg.tensor(X[0]), mg.tensor(X[1])
    with pytest.warns(windows.TooLargeForOne, match="egglog-whole takes 4 times MEGANEURA_EGRAPH_CUTOFF=8"):
        compiled(_layers, "egglog-whole", *args)


@pytest.mark.parametrize("mode", ["greedy", *MODES])
def test_without_time_the_rest_is_greedy(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "SECONDS", -1.0)
    x = mg.tensor(X)
    g = compiled(_order, mode, x)
    assert fired(g, x) == ["negated_twice"]
    assert ("the rest greedily" in g.report(x)[0].engine) == (mode != "greedy")


def test_a_search_ends_at_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """With no room for new applications nothing is found, and the report says why."""
    monkeypatch.setattr(terms, "GROWTH", -1000)
    x = mg.tensor(X)
    g = compiled(lambda x: (x * mg.sigmoid(x)).roll(1, 0), "egglog-whole", x)
    assert fired(g, x) == []
    assert "1 stopped at a limit" in g.report(x)[0].engine


def test_rounds_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terms, "ROUNDS", 1)
    args = mg.tensor(X), mg.tensor(X[0]), mg.tensor(X[1])
    g = compiled(_norm, "egglog-whole", *args)
    assert fired(g, *args) in ([], ["layer_norm_from_square_sqrt"])


# ---- options ----


def test_without_the_package_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "egglog" else find(name, *rest))
    with pytest.raises(mg.MeganeuraError, match=r"pip install 'meganeura\[egglog\]'"):
        mg.compile(lambda x: x, rewrite="egglog-whole")


def test_the_option_chooses_the_mode(settings: Any) -> None:
    settings(optimizer="egglog-outlined")
    assert mg.compile(lambda x: x).options.rewrite == "egglog-outlined"
    assert mg.compile(lambda x: x, rewrite="greedy").options.rewrite == "greedy"


def test_the_plan_cache_keeps_what_was_chosen(settings: Any, tmp_path: Any) -> None:
    args = mg.tensor(X), mg.tensor(X[0]), mg.tensor(X[1])
    settings(plan_cache=str(tmp_path))
    a, b = (mg.compile(_layers, rewrite="egglog-outlined") for _ in range(2))
    first = a.report(*args)[0]
    assert str(b.report(*args)[0]) == str(first) and first.engine


# ---- time ----


def test_twelve_layers(capsys: pytest.CaptureFixture[str], settings: Any) -> None:
    """The training step of benchmarks/transformer.py with twelve layers: what each mode takes and leaves."""
    settings(plan_cache="off")
    case = importlib.import_module("benchmarks.transformer").case
    nodes = {}
    for mode in ("greedy", *MODES):
        fn, x, y = case(12, True)
        g = mg.compile(fn, rewrite=mode)
        begin = time.process_time()
        report = g.report(x, y)[0]
        seconds = time.process_time() - begin
        nodes[mode] = report.nodes
        with capsys.disabled():
            print(f"\n{mode}: {report.nodes[1]} nodes, {report.nbytes[1]} bytes, traced and rewritten in {seconds:.2f} s", file=sys.stderr)
    assert len(set(nodes.values())) == 1
