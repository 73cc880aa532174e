"""The command line: info, ops, bench and demo print what they promise."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import meganeura as mg
from meganeura import __main__ as cli
from meganeura import demo
from meganeura.ops.table import COMPOSITES, REGISTRY


def test_info_names_adapter_device_profile_limits_and_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["info"]) == 0
    text = capsys.readouterr().out
    assert f"device: {mg.device().name}" in text
    assert re.search(r"subgroup_size +\d+", text)
    assert re.search(r"max-storage-buffer-binding-size +\d+", text)
    assert "MEGANEURA_DEVICE_ID" in text


def test_ops_lists_every_public_row(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["ops"]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = {line.split()[0] for line in lines[1:-2]}
    assert names == {n for n, row in REGISTRY.items() if row.public} | set(COMPOSITES)
    (add,) = [line for line in lines if line.split()[:1] == ["add"]]
    assert re.match(r"add +Pointwise +input, other +yes +promote +input \+ other", add)


def test_ops_as_markdown_has_one_width(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["ops", "--markdown"])
    rows = capsys.readouterr().out.splitlines()
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {7}


def test_errors_are_one_line_and_status_1(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_args: object) -> int:
        raise mg.DeviceError("no adapter")

    monkeypatch.setattr(cli, "info", fail)
    assert cli.main(["info"]) == 1
    assert capsys.readouterr().err == "DeviceError: no adapter\n"


def test_bench_measures(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "--quick"]) == 0
    text = capsys.readouterr().out
    assert re.search(r"matmul 512 +[\d.]+ ms +[\d.]+ GFLOP/s", text)
    assert re.search(r"eager add, host +[\d.]+ us", text)


def test_moved_digits_are_the_same_digits() -> None:
    image = np.zeros((1, 28, 28), np.float32)
    image[0, 10, 20] = 1
    many = demo.moved(np.repeat(image, 200, 0), np.random.default_rng(0))
    places = {(int(r), int(c)) for _, r, c in np.argwhere(many)}
    assert places == {(r, c) for r in (9, 10, 11) for c in (19, 20, 21)}
    assert many.sum() == 200


def test_a_short_demo_learns_the_same_both_ways(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert demo.run(epochs=1, folder=tmp_path, only=("eager", "compiled")) == 0
    text = capsys.readouterr().out
    (eager,) = re.findall(r"^eager +([\d.]+)% right", text, re.MULTILINE)
    (compiled,) = re.findall(r"^compiled +([\d.]+)% right", text, re.MULTILINE)
    assert float(eager) > 85
    assert abs(float(eager) - float(compiled)) < 0.5
    assert float(re.findall(r"eager and compiled: (\S+)", text)[0]) < 1e-2
    for name in ("loss.png", "misread.png"):
        assert (tmp_path / name).read_bytes()[:4] == b"\x89PNG"


@pytest.mark.full
def test_the_whole_demo_reads_what_it_should(tmp_path: Path) -> None:
    assert demo.run(folder=tmp_path) == 0
