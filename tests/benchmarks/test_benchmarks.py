"""The benchmarks' own code: the protocol's oracle, the table, and our side of the comparison, briefly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

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
