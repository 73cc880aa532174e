"""The benchmarks' own code: the protocol's oracle, the table, and our side of the comparison, briefly."""

from __future__ import annotations

import importlib
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from meganeura.gpu import Device, current
from meganeura.kernels.kernel import Profile

FOLDER = Path(__file__).parents[2] / "benchmarks"


def _run(script: str, *args: str, **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, str(FOLDER / script), *args],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_our_losses_agree_with_float64_and_every_case_runs() -> None:
    lines = [json.loads(line) for line in _run("bench_meganeura.py", BENCH_N="1", BENCH_WARM="1").splitlines()]
    assert not [line["error"] for line in lines if "error" in line and not line["error"].startswith("left out")]
    assert len(lines) == 16
    assert {line["peer"] for line in lines} == {"meganeura", "meganeura compiled"}
    assert all(line["err"] < (1e-4 if line["case"].startswith(("mlp", "block")) else 1e-3) for line in lines if "err" in line)


def test_table_gives_ratios_and_problems(tmp_path: Path) -> None:
    lines = [
        {"peer": "meganeura compiled", "case": "mlp_train_b32", "median_ms": 2.0, "err": 1e-7, "device": "d"},
        {"peer": "other", "case": "mlp_train_b32", "median_ms": 5.0, "err": 1e-2, "device": "d"},
        {"peer": "third", "case": "matmul", "error": "the process died"},
    ]
    (tmp_path / "lines").write_text("\n".join(map(json.dumps, lines)))
    text = _run("peers_table.py", str(tmp_path / "lines"))
    assert "| mlp_train_b32 | 2 ms (1.00x), err 1e-07 | 5 ms (2.50x), err 1e-02 |  |" in text
    assert "other mlp_train_b32: losses are off by 1.0e-02" in text
    assert "third matmul: the process died" in text


@pytest.mark.parametrize(
    "script",
    [
        "dispatch.py",
        pytest.param("rows.py", marks=pytest.mark.full),
        pytest.param("norms_pool.py", marks=pytest.mark.full),
        pytest.param("floors.py", marks=pytest.mark.full),
        pytest.param("rnn.py", marks=pytest.mark.full),
        pytest.param("attention.py", marks=pytest.mark.full),
        pytest.param("cross_entropy.py", marks=pytest.mark.full),
    ],
)
def test_script_prints_a_table_and_writes_json(script: str, tmp_path: Path) -> None:
    text = _run(script, "--json", str(tmp_path / "out.json"))
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["rows"]
    assert found["rows"][0]["case"] in text


def test_first_result_of_a_transformer_is_told_by_stages() -> None:
    found = json.loads(_run("transformer.py", "--layers", "1", "--first", "1greedy").splitlines()[-1])
    assert {"trace", "rewrite", "plan", "pipelines", "first result"} <= found.keys()
    assert 0 < found["plan"] < found["first result"]


# --- floors: nothing here is timed ---


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """Import a file of benchmarks/ by name; it and what it imports from there are forgotten afterwards."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(FOLDER))
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(FOLDER)):
            del sys.modules[name]


@pytest.fixture
def lavapipe() -> Device:
    if current().profile.subgroup_size != 8:
        pytest.skip("these kernels are for subgroups of eight lanes")
    return current()


@pytest.mark.parametrize("backend", ["wgpu", "dawn"])
@pytest.mark.parametrize(("family", "count", "lanes"), [("gpu", 32, 32), ("cpu", 8, 8)])
def test_every_floor_with_a_kernel_can_be_launched(script: Any, family: str, count: int, lanes: int, backend: str) -> None:
    kernels = script("floor_kernels")
    found, profile = kernels.problems(family, backend), Profile(family=family, backend=backend, subgroup_size=lanes)
    assert len(found) == count
    for problem in found.values():
        mine, theirs = kernels.ours(problem, profile)[0], kernels.references(problem, profile)
        assert theirs, problem.case
        known = {*kernels.ours(problem, profile)[1], "C", *problem.scratch, *script("floor_stand").PREPARED}
        for side in (mine, *theirs):
            assert set(side.names) <= known, (problem.case, side.label)
            for launch in side.lowered.launches:
                assert "fn main" in launch.kernel.source(profile)
        assert all("C" in side.names and "O" not in side.names for side in theirs)


def test_every_kernel_of_a_floor_has_its_line(script: Any) -> None:
    kernels = script("floor_kernels")
    lines = {line.floor.case: line for line in script("floors_gpu").lines(0)}
    for case, problem in kernels.problems("gpu", "wgpu").items():
        assert (problem.op, problem.sizes) == (lines[case].op, lines[case].sizes)
        assert lines[case].problem({}).references == ()
    assert kernels.problems("cpu", "wgpu").keys() <= {floor.case for floor in script("floors_software").FLOORS}


def test_floors_of_software_agree_with_ours(script: Any, lavapipe: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """All lines but for their times: every kernel is run once and compared."""
    software = script("floors_software")
    monkeypatch.setattr(software, "torch_calls", dict)
    monkeypatch.setattr(software, "tiny_dispatch", lambda: 2.8e-6)
    monkeypatch.setattr(software, "in_turns", lambda starts, _: ([1.0, *(2.0 for _ in starts()[1:])], None))
    rows = list(software.rows())
    assert [row["ours / its kernel"] for row in rows] == [2.0] * 7 + [None, 2.0, None]
    assert rows[-1] == rows[-1] | {"ours": "2.8 us", "of the floor": 0.5}


@pytest.mark.parametrize("case", ["matmul 1x576x1536 NN", pytest.param("matmul 128x1536x576 NT", marks=pytest.mark.full)])
def test_floor_of_a_gpu_agrees_with_ours(script: Any, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    gpu, stand, device = script("floors_gpu"), script("floor_stand"), current()
    profile = replace(device.profile, family="gpu")
    monkeypatch.setattr(gpu, "Stand", lambda device, problem: stand.Stand(device, problem, profile))
    monkeypatch.setattr(stand.Stand, "gpu_seconds", lambda self, *_: [3.0, *(1.0 for _ in self.starts()[1:])])
    monkeypatch.setattr(gpu, "WARM", 0)
    line = next(line for line in gpu.lines(0) if line.floor.case == case)
    row = gpu.row(device, None, line, line.problem(script("floor_kernels").problems("gpu", device.backend)))
    assert row["case"] == case
    assert row["ours / its kernel"] == pytest.approx(1 / 3)


def test_wrong_results_of_a_floors_kernel_are_noticed(script: Any, lavapipe: Device) -> None:
    kernels, stand = script("floor_kernels"), script("floor_stand")
    problem = kernels.problems("cpu", lavapipe.backend)["layer norm 4096x1024"]
    [reference] = problem.references
    [step] = reference.steps
    less = step._replace(grid=(step.grid[0] - 1, 1, 1))
    other = step._replace(source=step.source.replace("*g+h", "*g-h"))
    assert other.source != step.source
    for wrong in (less, other):
        changed = replace(problem, references=(replace(reference, steps=(wrong,)),))
        with pytest.raises(AssertionError, match="2 rows a subgroup and ours differ"):
            stand.Stand(lavapipe, changed).check()


def test_kernel_that_a_device_refuses_is_left_out(script: Any, lavapipe: Device, capfd: pytest.CaptureFixture[str]) -> None:
    kernels, stand = script("floor_kernels"), script("floor_stand")
    problem = kernels.problems("cpu", lavapipe.backend)["add 4 Mi"]
    first, second = problem.references
    broken = replace(first, label="broken", steps=(first.steps[0]._replace(source="fn main("),))
    changed = replace(problem, references=(broken, second))
    stand.build(lavapipe, [changed])
    assert stand.Stand(lavapipe, changed).check() == {second.label: 0.0}
    assert "left out: broken of add 4 Mi" in capfd.readouterr().err


def test_lines_of_floors_count_the_fastest_kernel(script: Any) -> None:
    lines = script("floor_lines")
    rate = lines.Floor("a", "GB/s", work=6e9, speed=4, ratio=0.5).row([2.0, 3.0, 1.0], 1.0)
    assert rate["ours"] == "3 GB/s"
    assert rate["its kernel"] == "6 GB/s"
    assert rate["floor"] == "4 GB/s, 0.5 x torch"
    assert (rate["ours / its kernel"], rate["torch / ours"], rate["of the floor"]) == (0.5, 0.5, 0.75)
    time = lines.Floor("b", "ms", ratio=2.0).row([0.001, 0.002], 0.003)
    assert (time["ours"], time["its kernel"], time["ours / its kernel"], time["of the floor"]) == ("1 ms", "2 ms", 2.0, 1.5)
    alone = lines.Floor("c", "us", speed=1.4).row([1e-6], None)
    assert (alone["its kernel"], alone["ours / its kernel"], alone["torch / ours"]) == (None, None, None)
    last = lines.summary([rate, time, alone])
    assert last["case"].startswith("2 lines")
    assert "0.500, a" in last["case"]
    assert math.isclose(last["ours / its kernel"], 1.0)
    assert "no line" in lines.summary([alone])["case"]
