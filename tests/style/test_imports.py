"""Imports point one way. The order is the code block 'layers' of docs/architecture.md, lowest first."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

from tests.style.package import ROOT, is_package, sources


def layers() -> dict[str, int]:
    """The layer number of every module or folder directly under the package."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    block = re.search(r"```layers\n(.*?)```", text, re.DOTALL)
    assert block, "docs/architecture.md lost its block of layers"
    return {name: i for i, line in enumerate(block[1].splitlines()) for name in re.findall(r"\w+", line.split("#")[0])}


def _type_checking(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def _imports(tree: ast.AST) -> list[ast.Import | ast.ImportFrom]:
    """Every import that runs: what stands under TYPE_CHECKING does not."""
    found: list[ast.Import | ast.ImportFrom] = []
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            found.append(node)
        elif not (isinstance(node, ast.stmt) and _type_checking(node)):
            found += _imports(node)
    return found


def _targets(module: str, node: ast.Import | ast.ImportFrom) -> list[str]:
    """Dotted names of package modules that an import statement names."""
    if isinstance(node, ast.Import):
        return [a.name for a in node.names if a.name.startswith("meganeura")]
    if node.level:
        parts = module.split(".")
        parts = parts[: len(parts) - node.level + is_package(module)]
        base = ".".join([*parts, node.module] if node.module else parts)
    else:
        base = node.module or ""
    if not base.startswith("meganeura"):
        return []
    return [f"{base}.{a.name}" for a in node.names] if base == "meganeura" else [base]


def edges() -> list[tuple[str, str, int]]:
    """(importing module, imported module, line) with both inside the package."""
    return [(m, t, n.lineno) for m, tree in sources().items() for n in _imports(tree) for t in _targets(m, n)]


def _unit(module: str) -> str:
    """The file or folder directly under the package that a module belongs to."""
    return module.split(".")[1] if "." in module else "__init__"


def test_every_module_has_a_layer() -> None:
    units = {_unit(m) for m in sources()}
    assert units <= set(layers()), "add to the layers of docs/architecture.md: " + ", ".join(sorted(units - set(layers())))


def test_no_layer_is_left_over() -> None:
    assert set(layers()) <= {_unit(m) for m in sources()}, "docs/architecture.md lists what is not there"


def test_imports_point_down() -> None:
    order = layers()
    wrong = [f"{m}:{line} imports {t}" for m, t, line in edges() if (unit := _unit(t)) in order and order[unit] > order[_unit(m)]]
    assert not wrong, "\n".join(wrong)


def test_eager_and_compile_do_not_know_each_other() -> None:
    pairs = {("eager", "compile"), ("compile", "eager")}
    wrong = [f"{m}:{line} imports {t}" for m, t, line in edges() if (_unit(m), _unit(t)) in pairs]
    assert not wrong, "\n".join(wrong)


_LIGHT = """
import sys, time
t = time.process_time()
import meganeura
spent = time.process_time() - t
names = ("wgpu", "wgpudawn", "onnx", "nnef", "torch", "matplotlib", "tqdm", "egglog", "safetensors", "scipy")
heavy = [m for m in names if m in sys.modules]
gpu = sys.modules.get("meganeura.gpu.device")
print(spent, ",".join(heavy) or "-", getattr(gpu, "_current", None))
"""


def test_import_is_light(tmp_path: Path) -> None:
    """Under 0.4 s of processor time with numpy and with byte code in place, no device, nothing heavy. Best of five: machines are busy."""
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"} | {"PYTHONPYCACHEPREFIX": str(tmp_path)}
    best = 9.0
    for _ in range(5):
        done = subprocess.run([sys.executable, "-c", _LIGHT], capture_output=True, text=True, check=True, cwd=ROOT, env=env)
        out = done.stdout.split()
        assert out[1] == "-", f"import meganeura also imports {out[1]}"
        assert out[2] == "None", "import meganeura opens a device"
        best = min(best, float(out[0]))
    assert best < 0.4, f"import meganeura takes {best:.2f} s"
