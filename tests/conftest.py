"""What every test shares: the environment of software drivers, long tests, allowed skips, and a summary of time and pipelines."""

from __future__ import annotations

import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Drivers read these when the first Vulkan instance is made, so they are set before any test module is imported.
os.environ.setdefault("LP_NUM_THREADS", "0")  # Mesa's software driver: no thread pool, whose wake-ups cost more than small kernels
os.environ.setdefault("XDG_RUNTIME_DIR", tempfile.gettempdir())
os.environ.setdefault("MESA_SHADER_CACHE_DIR", str(Path.home() / ".cache" / "meganeura-tests"))
os.environ.setdefault("MEGANEURA_PLAN_CACHE", "off")  # tests are about what is made, and replace parts that make it
# Tests that start another Python find this checkout there, installed or not.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")]))

import numpy as np
import pytest

_ALLOWED_SKIPS = ("could not import", "No module named")  # only a missing optional package may skip a test
_SOFTWARE_ONLY = "for subgroups of eight lanes"  # forms of software Vulkan, whose tests only a GPU may skip
MOST_PIPELINES = 17750  # that the whole suite may build in one process, PyTorch installed: lower it when fewer do, say why it grows
# (last: on software Vulkan short and long runs of elementwise kernels, rows one after the other, tiles side by side; and their tests)
_seconds: dict[str, float] = defaultdict(float)
_forbidden_skips: list[str] = []
_built: list[int] = []  # pipelines, by worker processes that ended


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="run the long tests too")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--full"):
        return
    long = [i for i in items if i.get_closest_marker("full")]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [i for i in items if not i.get_closest_marker("full")]


def _folder(nodeid: str) -> str:
    parts = nodeid.partition("::")[0].split("/")
    return "/".join(parts[:2]) if len(parts) > 2 else parts[0]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _seconds[_folder(report.nodeid)] += report.duration
    if report.skipped and not hasattr(report, "wasxfail"):
        _note_skip(report)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.skipped:
        _note_skip(report)


def _note_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    if not any(word in reason for word in _ALLOWED_SKIPS) and not (_SOFTWARE_ONLY in reason and _on_gpu()):
        _forbidden_skips.append(f"{report.nodeid}: {reason}")


def _on_gpu() -> bool:
    from meganeura import gpu

    return gpu.current().family == "gpu"


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["pipelines"] = _pipelines()
        return
    if (_forbidden_skips or (not _built and _pipelines() > MOST_PIPELINES)) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    _built.append(getattr(node, "workeroutput", {}).get("pipelines", 0))


def _pipelines() -> int:
    """Pipelines built by the devices of this process that still exist, and by worker processes."""
    gpu = sys.modules.get("meganeura.gpu.device")
    return sum(_built) + (sum(d.counters.pipelines for d in gpu._devices) if gpu else 0)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    write = terminalreporter.write_line
    terminalreporter.section("time per folder")
    for folder, seconds in sorted(_seconds.items(), key=lambda kv: -kv[1]):
        write(f"{seconds:8.1f} s  {folder}")
    where = f"{len(_built)} processes" if _built else f"one process, which may build {MOST_PIPELINES}"
    write(f"{_pipelines()} pipelines built in {where}")
    write(f"shader cache in {os.environ['MESA_SHADER_CACHE_DIR']}")
    for line in _forbidden_skips:
        write(f"FORBIDDEN SKIP {line} (only a missing optional package may skip a test)", red=True)


@pytest.fixture
def rng() -> np.random.Generator:
    """A numpy generator with a fixed seed."""
    return np.random.default_rng(0)


@pytest.fixture
def torch() -> Iterator[Any]:
    """PyTorch, the oracle of parity tests; the test is skipped where it is not installed."""
    yield pytest.importorskip("torch")
