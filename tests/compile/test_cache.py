"""The plan cache: what it loads is what the passes and the planner would have made, and anything else is a miss."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meganeura as mg
from benchmarks.transformer import Block
from meganeura import config, gpu, nn, optim
from meganeura.compile import cache
from meganeura.compile.ir import show
from meganeura.compile.plain import Packing, Unpacking
from meganeura.compile.verify import verify
from meganeura.compile.verify_plan import verify_plan
from meganeura.ops.archetype import Pointwise
from meganeura.ops.table import REGISTRY, Operand, op
from tests.compile.agree import arrays
from tests.compile.training import batch, setup
from tests.fuzz.graphs import draw

F = nn.functional
Use = Callable[..., None]


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Use:
    """Sets the option plan_cache, and others; to begin with a folder that is empty. Graphs of all sizes are kept."""

    def choose(folder: Any = tmp_path / "plans", **options: Any) -> None:
        monkeypatch.setattr(config, "_current", dataclasses.replace(config.current(), plan_cache=str(folder), **options))

    monkeypatch.setattr(cache, "SMALLEST", 1)
    monkeypatch.setattr(cache, "_sources", lambda: "these")  # others may be edited while a test runs
    choose()
    return choose


def files(folder: Path) -> list[Path]:
    """What the cache holds."""
    return sorted((folder / "plans").glob("*")) if (folder / "plans").exists() else []


def launches(session: Any) -> list[Any]:
    """All that a session will do."""
    return [
        [(x.kernel.key, x.kernel.label, x.bindings, x.grid, x.params, x.scalars, x.ranges) for x in s.lowered.launches]
        + [s.lowered.temps, s.call, list(map(show, s.scalars)), {repr(a): repr(b) for a, b in s.over.items()}]
        for s in session.steps
    ]


def facts(program: Any) -> list[Any]:
    """Everything about a program's graphs and sessions that can be compared."""
    out: list[Any] = []
    for session in program.sessions():
        graph, plan = session.graph, session.plan
        verify(graph)
        verify_plan(graph, plan)
        sites = [(str(n.site), str(n.place), n.parts, n.region) for n in graph.nodes]
        derived = [(repr(c), list(map(repr, d.sources)), d.layouts, d.dim) for c, d in graph.derived.items()]
        out += [str(graph), str(plan), plan.blocks, plan.temps, plan.demanded, plan.bound, sites, derived, session.export()]
        out += [launches(session), dict(graph.traced.items()).keys(), [str(s) for s in graph.traced.values()], session.value_names]
        out.append({repr(c): (c.role, c.label, c.elements) for c in (*graph.inputs, *graph.outputs, *graph.cells())})
    return [*out, *map(str, program.reports)]


def run(make: Any, args: tuple[Any, ...]) -> tuple[list[Any], list[Any], Any]:
    """Results of two calls, facts, and the compiled function, from the start."""
    mg.manual_seed(0)
    made: Any = make()
    compiled, call = made if isinstance(made, tuple) else (mg.compile(made), None)
    call = call or compiled
    results = [arrays(call(*map(mg.tensor, args))) for _ in range(2)]
    inner: Any = getattr(compiled, "compiled", compiled)
    (program,) = next(iter(inner.programs.values()))
    return results, facts(program), inner


def check(use: Use, make: Callable[[], Any], *args: Any) -> None:
    """Fresh, written and loaded are the same; everything is loaded the third time."""
    use("off")
    fresh = run(make, args)
    use()
    written, loaded = run(make, args), run(make, args)
    graphs = sum(bool(s.graph.nodes) for s in next(iter(fresh[2].programs.values()))[0].sessions())
    assert fresh[2].cache_hits == written[2].cache_hits == 0 and graphs
    assert loaded[2].cache_hits >= graphs
    assert all(s.plan_loaded for s in next(iter(loaded[2].programs.values()))[0].sessions())
    for got in (written, loaded):
        assert got[1] == fresh[1]
        for a, b in zip(_leaves(got[0]), _leaves(fresh[0]), strict=True):
            np.testing.assert_array_equal(a, b)


def _leaves(tree: Any) -> list[Any]:
    return [x for t in tree for x in _leaves(t)] if isinstance(tree, list) else [tree]


def numbers(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


# ---- a hit is what would have been made ----


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_training_step(use: Use, dropout: float) -> None:
    x, y = (t.numpy() for t in batch())
    check(use, lambda: setup(dropout=dropout, clip=0.5, zero_first=True).step, x, y)


def _block_step(layers: int, lr: float = 1e-3, width: int = 32) -> Any:
    model = nn.Sequential(*(Block(width, 2) for _ in range(layers)))
    opt = optim.AdamW(model.parameters(), lr=lr)

    def step(x: Any, y: Any) -> Any:
        opt.zero_grad()
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        opt.step()
        return loss

    return step


def test_transformer_step(use: Use) -> None:
    check(use, lambda: _block_step(2), numbers(1, 16, 32), numbers(1, 16, 32, seed=1))


def test_products_of_one_input_together(use: Use) -> None:
    def make() -> Any:
        model = Block(32, 2)
        compiled = mg.compile(model)

        def call(x: Any) -> Any:
            with mg.no_grad():
                return compiled(x)

        return compiled, call

    check(use, make, numbers(1, 16, 32))


def test_backward_outside(use: Use) -> None:
    def make() -> Any:
        model = nn.Sequential(Block(32, 2), nn.Dropout(0.2))
        compiled = mg.compile(model)

        def call(x: Any) -> Any:
            out = compiled(x)
            out.square().mean().backward()
            grads = [p.grad.numpy() for p in model.parameters() if p.grad is not None]
            for p in model.parameters():
                p.grad = None
            return [out, grads]

        return compiled, call

    check(use, make, numbers(1, 16, 32))


def test_checkpoints(use: Use) -> None:
    def make() -> Any:
        layers = [nn.Linear(8, 8) for _ in range(2)]

        def step(x: Any) -> Any:
            for layer in layers:
                x = mg.checkpoint(lambda layer, x: F.dropout(layer(x).tanh(), 0.3) + x, layer, x)
            (x * x).sum().backward()
            grads = [p.grad.clone() for layer in layers for p in layer.parameters() if p.grad is not None]
            for layer in layers:
                layer.zero_grad()
            return [x, grads]

        return step

    check(use, make, numbers(4, 8))


@pytest.mark.parametrize("first", range(0, 20, 5))
def test_random_graphs(use: Use, first: int) -> None:
    for seed in range(first, first + 5):
        program = draw(seed)
        for call in (program.run, program.train) if program.smooth else (program.run,):
            check(use, lambda call=call: lambda *leaves: call(list(leaves)), *program.leaves)  # type: ignore[misc]


def test_constants_are_made_of_what_is_there_now(use: Use) -> None:
    def make(table: Any) -> Any:
        return mg.compile(lambda x: x * mg.tensor(table).cumsum(0) + mg.arange(6.0).flip(0))

    x, tables = numbers(6), [numbers(6, seed=s) for s in (1, 2)]
    for table in tables:
        compiled = make(table)
        np.testing.assert_allclose(compiled(mg.tensor(x)).numpy(), x * table.cumsum() + np.arange(6.0)[::-1], rtol=1e-5, atol=1e-6)
    assert compiled.cache_hits == 1


def test_lines_are_those_of_this_process(use: Use) -> None:
    source = "def f(x):\n    return (x.exp() + 1.0).sum(0)\n"
    texts = []
    for lines in (0, 3):
        space: dict[str, Any] = {}
        exec(compile("\n" * lines + source, f"model{lines}.py", "exec"), space)
        compiled = mg.compile(space["f"])
        texts.append(str(compiled.graph(mg.tensor(numbers(4, 3)))))
    assert compiled.cache_hits == 1
    assert "model0.py:2" in texts[0] and "model3.py:5" in texts[1] and "model0" not in texts[1]


# ---- keys ----


def test_learning_rates_share_an_entry(use: Use, tmp_path: Path) -> None:
    args = [mg.tensor(numbers(1, 8, 32, seed=s)) for s in (0, 1)]
    for lr, hits in ((1e-3, 0), (1e-2, 1)):
        compiled = mg.compile(_block_step(1, lr))
        compiled(*args)
        assert compiled.cache_hits == hits
    assert len(files(tmp_path)) == 1


def test_what_makes_another_key(use: Use, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = 0

    def another(fn: Any, x: Any) -> None:
        nonlocal count
        count += 1
        for hits in (0, 1):
            compiled = mg.compile(fn)
            compiled(mg.tensor(x))
            assert compiled.cache_hits == hits
        assert len(files(tmp_path)) == count

    x = numbers(4, 6)

    def f(x: Any) -> Any:
        return (x.exp() * 2.0).sum(0)

    another(f, x)
    another(f, numbers(6, 4))
    another(f, x.astype(np.float16))
    another(lambda x: (x.exp() * 3.0).sum(0), x)
    another(lambda x: (x.exp() * 2.0).sum(1), x)
    another(lambda x: (x.exp() * 2).sum(0), x)  # an integer
    another(lambda x: (x.exp() * np.float32(2)).sum(0), x)
    use(matmul_k_stage=16)
    another(f, x)
    use(no_alias=True)
    another(f, x)
    monkeypatch.setattr(REGISTRY["exp"], "archetype", Pointwise("exp({input}) + 0.0", types="float"))
    another(f, x)
    monkeypatch.setattr(cache, "_sources", lambda: "others")
    another(f, x)


def test_rows_from_outside_are_not_kept(use: Use, tmp_path: Path) -> None:
    @op(Pointwise("{x} + 1.0"))
    def one_more_of_mine(x: Operand) -> Any:
        """x + 1."""

    try:
        compiled = mg.compile(lambda x: one_more_of_mine(x).sum())
        assert compiled(mg.ones(3)).item() == 6.0
    finally:
        del REGISTRY["one_more_of_mine"]
    assert not files(tmp_path)


def test_what_goes_past_the_cache(use: Use, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def f(x: Any) -> Any:
        return (x.exp() * 2.0).sum(0)

    x = mg.tensor(numbers(4, 6))
    mg.compile(f, debug=True)(x)
    mg.compile(f, rewrite="off")(x)
    with mg.debug():
        mg.compile(f)(x)
    monkeypatch.setattr(cache, "_sources", lambda: "")  # files changed since they were loaded
    mg.compile(f)(x)
    monkeypatch.undo()
    monkeypatch.setattr(config, "_current", dataclasses.replace(config.current(), plan_cache=str(tmp_path / "plans")))
    mg.compile(f)(x)  # small
    assert not files(tmp_path)


def test_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    def folder(said: str, **environ: str) -> Path | None:
        monkeypatch.setattr(config, "_current", dataclasses.replace(config.current(), plan_cache=said))
        return config.plan_folder(environ)

    assert folder("off") is folder("0") is None
    assert folder("plans") == Path("plans")
    monkeypatch.setattr(sys, "platform", "linux")
    assert folder("", XDG_CACHE_HOME="/c") == Path("/c/meganeura/plans")
    assert folder("") == Path.home() / ".cache" / "meganeura" / "plans"
    monkeypatch.setattr(sys, "platform", "win32")
    assert folder("", LOCALAPPDATA="/l") == Path("/l/meganeura/plans")
    monkeypatch.setattr(sys, "platform", "darwin")
    assert folder("") == Path.home() / "Library" / "Caches" / "meganeura" / "plans"


# ---- files ----


def _flip(text: bytes) -> bytes:
    return text[:-40] + bytes([text[-40] ^ 1]) + text[-39:]


def _resealed(change: Callable[[dict[str, Any]], Any], line: int) -> Callable[[bytes], bytes]:
    """The same file with other data in one line and the right digest."""

    def damage(text: bytes) -> bytes:
        head, *lines = text.split(b"\n")
        data = json.loads(lines[line])
        lines[line] = json.dumps(change(data) or data).encode()
        body = b"\n".join(lines)
        return cache._head(head.split()[3].decode(), body) + b"\n" + body

    return damage


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda text: b"",
    "short": lambda text: text[: len(text) // 2],
    "flipped": _flip,
    "foreign": lambda text: b"something else\n" + text,
    "another version": lambda text: text.replace(cache.FORMAT.encode(), b"meganeura plan 0"),
    "another key": lambda text: text.replace(text.split()[3], b"0" * 40),
    "no table": _resealed(lambda data: data.pop("operands"), 0),
    "a list": _resealed(lambda data: [1, 2], 0),
    "a number outside": _resealed(lambda data: data["nodes"][0].__setitem__(5, [10**6]), 0),
    "a row that is not there": _resealed(lambda data: data["ops"].__setitem__(0, "no_such_row"), 0),
    "a plan without steps": _resealed(lambda data: data.pop("steps"), 1),
    "a plan with a step outside": _resealed(lambda data: data["steps"].append([10**6, []]), 1),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_damaged_files_are_misses(use: Use, tmp_path: Path, kind: str) -> None:
    def f(x: Any) -> Any:
        return ((x.exp() * 2.0).sum(0, keepdim=True) @ x.sin().T).tanh()

    x = mg.tensor(numbers(4, 6))
    want = mg.compile(f)(x).numpy()
    (path,) = files(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(DAMAGES[kind](whole))
    compiled = mg.compile(f)
    np.testing.assert_array_equal(compiled(x).numpy(), want)
    assert compiled.cache_hits == kind.startswith("a plan") and not compiled.session(x).plan_loaded
    assert files(tmp_path) == [path] and path.read_bytes() == whole
    assert mg.compile(f).session(x).plan_loaded


def test_folders_that_cannot_be_written(use: Use, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    use(tmp_path / "file" / "plans")
    assert mg.compile(lambda x: x.exp().sum())(mg.zeros(3)).item() == 3.0
    use(tmp_path / "file" / "plans", debug=True)
    with pytest.warns(UserWarning, match="cannot write"):
        cache.write(tmp_path / "file" / "plans" / "x.plan", "x", "", "")


def test_the_oldest_files_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "FILES", 3)
    now = time.time()
    for i, stem in enumerate("abcd"):
        cache.write(tmp_path / f"{stem}.plan", stem, "{}", "")
        if (path := tmp_path / f"{stem}.plan").exists():
            os.utime(path, (now - 100 + i, now - 100 + i))
    assert sorted(p.stem for p in tmp_path.iterdir()) == ["b", "c", "d"]
    assert cache.read(tmp_path / "b.plan", "b") == ("{}", "")  # used: it stays
    (tmp_path / "left.part").write_text("")
    os.utime(tmp_path / "left.part", (0, 0))
    cache.write(tmp_path / "e.plan", "e", "{}", "")
    assert sorted(p.stem for p in tmp_path.iterdir()) == ["b", "d", "e"]
    monkeypatch.setattr(cache, "BYTES", 1000)
    cache.write(tmp_path / "f.plan", "f", "x" * 900, "")
    assert sorted(p.stem for p in tmp_path.iterdir()) == ["f"]


def test_many_writers_and_readers(tmp_path: Path) -> None:
    path, wrong = tmp_path / "k.plan", []

    def work(number: int) -> None:
        text = str(number) * 20000
        for _ in range(30):
            cache.write(path, "k", text, text)
            found = cache.read(path, "k")
            if found is None or found[0] != found[1] or len(set(found[0])) != 1:
                wrong.append(found)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong and [p.name for p in tmp_path.iterdir()] == ["k.plan"]


def test_rows_of_several_reductions_come_back() -> None:
    device = gpu.current()
    own, device.profile = device.profile, dataclasses.replace(device.profile, family="gpu")
    try:
        graph = mg.compile(lambda x, y: ((x * 2).sum(0) * 3, y.amax(0))).graph(mg.randn(50, 6), mg.randn(40, 8))
    finally:
        device.profile = own
    (node,) = graph.nodes
    packing = Packing()
    number = packing.op(node.op)
    assert Unpacking(json.loads(json.dumps(packing.rows)), {}).ops[number] is node.op


SCRIPT = """
    import sys
    import numpy as np
    import meganeura as mg
    from tests.compile.test_cache import _block_step, numbers
    fn = _block_step(2)
    compiled = mg.compile(fn)
    args = [mg.tensor(numbers(1, 16, 32, seed=s)) for s in (0, 1)]
    losses = [compiled(*args).item() for _ in range(2)]
    session = compiled.session(*args)
    print(repr([compiled.cache_hits, int(session.plan_loaded), losses, str(session.graph), str(session.plan), compiled.report(*args)]))
"""


def test_another_process_loads_what_one_wrote(tmp_path: Path) -> None:
    outs = []
    for folder in ("off", tmp_path / "plans", tmp_path / "plans"):
        env = {**os.environ, "MEGANEURA_PLAN_CACHE": str(folder)}
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent("import meganeura as mg; mg.manual_seed(0)\n") + textwrap.dedent(SCRIPT)],
            env=env, capture_output=True, text=True, cwd=Path(__file__).parents[2],
        )  # fmt: skip
        assert not done.returncode, done.stderr
        outs.append(done.stdout)
    assert len(files(tmp_path)) == 1
    assert outs[0] == outs[1] and outs[0].startswith("[0, 0,") and outs[2] == outs[0].replace("[0, 0,", "[1, 1,", 1)
