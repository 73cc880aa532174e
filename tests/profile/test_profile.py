"""What a profile sees of eager and compiled training steps: rows, phases, modules, names, spans, and that it closes whatever happens."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

import pytest

import meganeura as mg
from meganeura import gpu, nn, optim, provenance, spans
from meganeura.gpu import timing
from meganeura.gpu.timing import PAIRS
from meganeura.profile import Profile


class Block(nn.Module):
    """Two layers, one of them in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.ModuleList([nn.Linear(16, 32)])
        self.out = nn.Linear(32, 4)

    def forward(self, x: Any) -> Any:
        hidden = mg.named(self.inner[0](x).tanh(), "blk.hidden")
        return self.out(hidden)


def training(compiled: bool) -> Callable[[], Any]:
    """A warm step of a small model."""
    model = nn.Sequential(Block(), nn.Softplus())
    optimizer = optim.Adam(model.parameters(), lr=1e-3)
    x, y = mg.randn(8, 16), mg.randn(8, 4)

    def step() -> Any:
        optimizer.zero_grad()
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        optimizer.step()
        return loss

    step()  # the moments exist
    found = mg.compile(step) if compiled else step
    found()
    mg.synchronize()
    return found


@pytest.fixture(params=[False, True], ids=["eager", "compiled"])
def step(request: pytest.FixtureRequest) -> Callable[[], Any]:
    return training(request.param)


def is_off() -> bool:
    """Nothing listens, nothing is timed, every hot path is the plain one."""
    plain = spans.listener is None and provenance.WATCHERS[0] == 0 and gpu.current().recorder.timer is None
    return plain and "apply" not in vars(mg.eager.default()) and type(provenance.site()) is provenance.Site


def test_rows_of_a_step(step: Callable[[], Any]) -> None:
    with mg.profile() as p:
        step()
        step()
    assert p.gpu
    assert len(p.dispatches) % 2 == 0
    assert len(p.dispatches) > 10
    half = len(p.dispatches) // 2
    assert [r.op for r in p.dispatches[:half]] == [r.op for r in p.dispatches[half:]]
    phases = [r.phase.split("+") for r in p.dispatches[:half]]
    assert phases[0] == ["forward"]
    assert phases[-1] == ["optimizer"]
    assert {"forward", "backward", "optimizer"} == {x for names in phases for x in names}
    first = [min(i for i, names in enumerate(phases) if x in names) for x in ("forward", "backward", "optimizer")]
    assert first == sorted(first)
    assert all("test_profile.py:" in r.line for r in p.dispatches)
    assert all(r.ns >= 0 and r.nbytes >= 0 for r in p.dispatches)
    assert all(min(r.grid) >= 1 and r.workgroup and r.family and r.variant for r in p.dispatches)
    assert is_off()


def test_every_dispatch_lies_behind_its_submission(step: Callable[[], Any]) -> None:
    with mg.profile() as p:
        for _ in range(3):
            step()
    assert all(p.begin <= r.submitted <= r.begin <= r.end <= p.end for r in p.dispatches)
    assert p.clock is not None
    assert p.clock.error < 5e6


def test_products_count_their_work(step: Callable[[], Any]) -> None:
    with mg.profile() as p:
        step()
    products = [r for r in p.dispatches if r.family == "matmul" and r.path.startswith("0.inner.0") and r.phase == "forward"]
    assert products
    assert products[0].flops == pytest.approx(2 * 8 * 16 * 32)
    assert products[0].nbytes >= 4 * (8 * 16 + 16 * 32 + 8 * 32)


def test_modules_have_their_paths(step: Callable[[], Any]) -> None:
    with mg.profile() as p:
        step()
    forward = {part for r in p.dispatches if "forward" in r.phase for part in r.path.split("+")}
    backward = {part for r in p.dispatches if r.phase == "backward" for part in r.path.split("+")}
    assert {"0.inner.0", "0.out"} <= forward
    assert {"0.inner.0", "0.out"} <= backward  # of the forward op that is differentiated
    assert all(r.path == "" for r in p.dispatches if r.phase == "optimizer")


def test_named_values_show(step: Callable[[], Any]) -> None:
    with mg.profile() as p:
        step()
    (makes,) = [r for r in p.dispatches if "blk.hidden" in r.value.split("+")]
    assert "tanh" in makes.op
    assert "forward" in makes.phase


def test_names_in_graphs_and_plans() -> None:
    def f(x: Any) -> Any:
        a = mg.named(x @ x, "blk3.qkv")
        b = mg.named(a @ x, "blk3.qkv")
        return (a + b).sum()

    compiled = mg.compile(f, rewrite="off")
    text = str(compiled.graph(mg.ones(4, 4)))
    assert "blk3.qkv: float32[4, 4] = " in text
    assert "blk3.qkv_1: float32[4, 4] = " in text
    assert mg.named(mg.ones(2), "x").name == "x"
    with pytest.raises(ValueError, match="without spaces"):
        mg.named(mg.ones(2), "a b")
    with pytest.raises(mg.DTypeError, match="takes a tensor"):
        mg.named(3, "x")


def test_spans_of_host_work() -> None:
    def f(x: Any) -> Any:
        return (x * 3 + 1).sum()

    with mg.profile() as p:
        with p.span("outer"), mg.profile.span("inner"):
            mg.compile(f)(mg.ones(7)).item()
        (mg.ones(9) * 2).tolist()
    kinds = {s.kind for s in p.spans}
    assert {"trace", "rewrite", "plan", "pipelines", "replay", "read", "op", "user"} <= kinds
    outer, inner = (next(s for s in p.spans if s.title == name) for name in ("outer", "inner"))
    assert outer.begin <= inner.begin <= inner.end <= outer.end
    assert all(p.begin <= s.begin <= s.end <= p.end for s in p.spans)
    assert [s.title for s in p.spans if s.kind == "op" and s.detail == "mul"]
    with mg.profile.span("nobody listens"):
        pass


def test_table_adds_up(step: Callable[[], Any]) -> None:
    with mg.profile() as p:
        step()
    total = sum(r.ns for r in p.dispatches)
    assert p.total_ns == total
    for by in (("op", "kernel"), "phase", ("path", "value"), ("line",), ("family", "grid", "workgroup")):
        groups = p.groups(by)
        assert sum(g.total for g in groups) == pytest.approx(total)
        assert sum(g.calls for g in groups) == len(p.dispatches)
        assert sum(g.nbytes for g in groups) == pytest.approx(sum(r.nbytes for r in p.dispatches))
        assert [g.total for g in groups] == sorted((g.total for g in groups), reverse=True)
    text = p.table(limit=2)
    last = text.splitlines()[-1].split()
    assert last[:2] == ["total", str(len(p.dispatches))]
    assert float(last[2]) == pytest.approx(total / 1e3, abs=0.06)
    assert "more" in text
    assert "of ceiling" in text
    calls = p.groups(sort_by="calls")
    assert calls[0].calls == max(g.calls for g in calls)
    with pytest.raises(ValueError, match="cannot sort by"):
        p.table(sort_by="size")
    with pytest.raises(ValueError, match="cannot group by"):
        p.table(by="size")


def test_json_loads(step: Callable[[], Any], tmp_path: Any) -> None:
    with mg.profile() as p:
        step()
    data = p.json(tmp_path / "p.json")
    assert json.loads((tmp_path / "p.json").read_text()) == json.loads(json.dumps(data))
    assert sum(len(d["samples"]) for d in data["dispatches"]) == len(p.dispatches)
    assert data["times"] == "GPU"
    assert data["overhead"]["estimated"] is True
    assert data["overhead"]["us_per_dispatch"] >= 0
    assert data["ceiling"]["gflops"] > 0
    assert all(0 <= b <= data["wall"] for d in data["dispatches"] for b in d["begin"])
    assert data["device"]["name"] == str(mg.device().name)


def test_html_stands_alone(step: Callable[[], Any]) -> None:
    with mg.profile() as p:
        step()
    text = p._repr_html_()
    tags = [node.tag for node in ElementTree.fromstring(text).iter()]  # it nests
    assert tags.count("table") == tags.count("svg") == 1
    assert tags.count("tr") > 5
    assert "<script" not in text
    assert "http" not in text
    assert "_update" in text
    assert "taken" in Profile()._repr_html_()


def test_it_costs_nothing_while_closed() -> None:
    assert is_off()
    with mg.profile() as p:
        assert not is_off()
        mg.ones(3) + 1
    assert is_off()
    assert p.dispatches
    before = len(p.dispatches)
    mg.ones(3) + 1
    mg.synchronize()
    assert len(p.dispatches) == before


def test_no_profile_inside_a_profile() -> None:
    with mg.profile() as p:
        with pytest.raises(mg.MeganeuraError, match="do not nest"), mg.profile():
            pass
        with pytest.raises(mg.MeganeuraError, match="its block must end"):
            p.table()
        with pytest.raises(mg.DeviceError, match="timed already"), timing.timestamps(mg.device()):
            pass
        mg.ones(3) + 1
    assert len(p.dispatches) >= 1
    with pytest.raises(mg.MeganeuraError, match="was taken already"), p:
        pass
    assert is_off()


def test_an_exception_inside_still_collects() -> None:
    p = mg.profile()
    with pytest.raises(KeyError), p:
        mg.ones(3) + 1
        raise KeyError("user")
    assert "add" in [r.op for r in p.dispatches]
    assert is_off()


def test_a_failing_op_keeps_the_rows_of_others() -> None:
    x, index = mg.ones(4, 4), mg.tensor([9])
    p = mg.profile()
    with pytest.raises(mg.IndexOutOfRangeError), p:
        mg.exp(x)
        x.index_select(0, index)
        mg.tanh(x)
    assert {"exp", "tanh"} <= {r.op for r in p.dispatches}
    assert is_off()
    q = mg.profile()
    with q:
        mg.exp(x)
        with pytest.raises(mg.ShapeError):
            x @ mg.ones(5, 5)
        mg.tanh(x)
    assert {"exp", "tanh"} <= {r.op for r in q.dispatches}


def test_what_does_not_encode_leaves_no_row() -> None:
    """A dispatch whose encoding fails is dropped with its queries; the others keep theirs."""
    device = mg.device()
    x = mg.ones(64)
    p = mg.profile()
    with pytest.raises(mg.DeviceError, match="could not be recorded"), p:
        mg.exp(x)
        mg.tanh(x)
        bad = list(device.recorder.records[-1])
        bad[3] = 1 << 20  # workgroups
        bad[8] = provenance.site()
        device.recorder.records.append(tuple(bad))
        mg.sin(x)
    names = [r.op for r in p.dispatches]
    assert {"exp", "tanh", "sin"} <= set(names)
    assert len([n for n in names if n == "tanh"]) == 1
    assert is_off()


def test_thousands_of_dispatches_and_runs() -> None:
    x = mg.ones(8)
    compiled = mg.compile(lambda x: ((x + 1) @ x, x * 2))
    compiled(x)
    with mg.profile() as p:
        for _ in range(PAIRS // 2):
            compiled(x)
        for _ in range(PAIRS + 100):
            x + x
    assert len(p.dispatches) > 2 * PAIRS + 100
    assert p.groups("op")[0].calls >= PAIRS // 2
    assert all(r.begin <= r.end for r in p.dispatches)


def test_threads_are_told_apart() -> None:
    def work() -> None:
        mg.ones(5).exp().tolist()

    with mg.profile() as p:
        work()
        other = threading.Thread(target=work, name="beside")
        other.start()
        other.join()
    assert {"beside", threading.current_thread().name} <= set(p.threads.values())
    assert len({s.thread for s in p.spans}) == 2


def test_without_timestamps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "available", lambda device: False)
    with pytest.raises(mg.DeviceError, match="no timestamp queries"), mg.profile(gpu=True):
        pass
    assert is_off()
    compiled = mg.compile(lambda x: x * 2)
    compiled(mg.ones(3))
    with mg.profile() as p:
        mg.ones(3) + 1
        compiled(mg.ones(3))
    assert not p.gpu
    text = p.table()
    assert "CPU times only" in text
    assert "total CPU us" in text
    assert "GB/s" not in text
    assert {"add"} <= {r.op for r in p.dispatches}
    assert any(r.op.startswith("replay") for r in p.dispatches)
    assert "CPU us" in p._repr_html_()


def test_timestamps_that_are_never_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device may list timestamp queries and give none: times of the host then, or the error where GPU times are a must."""

    def refuse(device: Any) -> Any:
        raise mg.DeviceError("it wrote no timestamps")

    monkeypatch.setattr(timing, "clock_pair", refuse)
    with mg.profile() as p:
        mg.ones(3) + 1
    assert not p.gpu
    assert "wrote no timestamps" in p.table()
    with pytest.raises(mg.DeviceError, match="wrote no timestamps"), mg.profile(gpu=True):
        pass
    assert is_off()


def test_overhead_is_measured() -> None:
    x = mg.ones(16)

    def many() -> None:
        for _ in range(20):
            x + x

    found = mg.profile.overhead(many, steps=2)
    assert found.dispatches == 20
    assert found.with_ms > 0
    assert found.without_ms > 0
    assert not found.estimated
    assert "us for each of 20 dispatches" in str(found)
