"""One fact, one place: op names live in rows and rules, the environment is read in config.py, files stay readable."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import meganeura
from meganeura.ops.archetype import Pointwise, Reduce, View
from meganeura.ops.table import COMPOSITES, REGISTRY, Op
from tests.style.package import PACKAGE, ROOT, project_files, sources

assert meganeura.__name__  # importing it fills the table
_MAY_NAME_OPS = ("meganeura.ops", "meganeura.compile.rules")


def _is_op_name(node: ast.expr) -> bool:
    """An expression such as op.name, call.op.name or row.name."""
    if not (isinstance(node, ast.Attribute) and node.attr == "name"):
        return False
    owner = node.value
    return isinstance(owner, ast.Name) and owner.id in ("op", "row") or isinstance(owner, ast.Attribute) and owner.attr in ("op", "row")


def _named(node: ast.AST) -> set[str]:
    return {n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)} & set(REGISTRY)


def _op_comparisons(tree: ast.AST) -> list[tuple[int, set[str]]]:
    """Lines where the name of an op is compared, matched or looked up against literal names."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
        elif isinstance(node, ast.Match):
            sides = [node.subject]
        elif isinstance(node, ast.Subscript):
            sides = [node.slice]
        else:
            continue
        if any(_is_op_name(s) for s in sides) and (names := _named(node)):
            found.append((getattr(node, "lineno", 0), names))
    return found


def test_ops_are_not_told_apart_by_name() -> None:
    wrong = [
        f"{module}:{line} asks for {', '.join(sorted(names))}; give the row a field instead"
        for module, tree in sources().items()
        if not module.startswith(_MAY_NAME_OPS)
        for line, names in _op_comparisons(tree)
    ]
    assert not wrong, "\n".join(wrong)


def _environment_reads(tree: ast.AST) -> list[int]:
    """Lines that use os.environ or os.getenv, but for os.environ.setdefault, which hands a value to a driver."""
    given = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Attribute) and n.attr == "setdefault"}
    names = ("os.environ", "os.getenv", "environ", "getenv")
    return [n.lineno for n in ast.walk(tree) if isinstance(n, (ast.Attribute, ast.Name)) and id(n) not in given and ast.unparse(n) in names]


def test_environment_is_read_in_config_only() -> None:
    wrong = {f"{m}:{line}" for m, tree in sources().items() if m != "meganeura.config" for line in _environment_reads(tree)}
    assert not wrong, "the environment is read at " + ", ".join(sorted(wrong))


_PUBLIC = [r for r in REGISTRY.values() if r.public]
_SHAPES = re.compile(r"\[.*\]\s*->\s*\(?\[|->\s*\[")


@pytest.mark.parametrize("row", _PUBLIC, ids=lambda r: r.name)
def test_row_is_complete(row: Op) -> None:
    """Docstring with shapes, a reference, and inputs to test with (given, or made from the archetype and domain)."""
    assert row.doc, f"{row.name} has no docstring"
    assert _SHAPES.search(row.doc), f"{row.name}: the docstring gives no shapes ('[B, N] -> [B]')"
    assert row.ref is not None or row.random, f"{row.name} has no numpy reference"
    generated = isinstance(row.archetype, (Pointwise, Reduce))
    assert row.samples is not None or generated or row.random, f"{row.name}: archetype {type(row.archetype).__name__} needs samples"
    assert not isinstance(row.archetype, View) or row.layout is not None, f"{row.name}: a view needs a layout rule"


@pytest.mark.parametrize("name", sorted(COMPOSITES))
def test_composite_is_documented(name: str) -> None:
    doc = COMPOSITES[name].__doc__ or ""
    assert doc.strip(), f"{name} has no docstring"


def test_files_are_short() -> None:
    long = [(len(p.read_text().splitlines()), p) for p in project_files(".py", ".wgsl")]
    assert not [f"{n} lines: {p.relative_to(ROOT)}" for n, p in long if n > 600]


def test_no_drawer_for_odds_and_ends() -> None:
    names = {p.stem for p in PACKAGE.rglob("*.py")} | {p.name for p in PACKAGE.rglob("*") if p.is_dir()}
    assert not names & {"utils", "util", "helpers", "helper", "common", "misc"}


def test_packages_say_what_they_are() -> None:
    """Every package opens with a docstring of at most 15 lines."""
    for path in PACKAGE.rglob("__init__.py"):
        doc = ast.get_docstring(ast.parse(path.read_text()))
        assert doc, f"{path.relative_to(ROOT)} has no docstring"
        assert len(doc.splitlines()) <= 15, f"{path.relative_to(ROOT)} opens with {len(doc.splitlines())} lines"


# Folders of the machine that a file was written on, and words about who wrote it, belong in no file but this.
_FOREIGN = re.compile(r"(?<![\w.])/(?:work|tmp|root|home)/\w|\b(?:agents?|workplace)\b", re.IGNORECASE)


def test_no_foreign_words() -> None:
    wrong = []
    for path in [*project_files(".py", ".md", ".toml", ".wgsl", ".sh", ".cff", ""), ROOT / "dev"]:
        if path == Path(__file__):
            continue
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            if found := _FOREIGN.search(line):
                wrong.append(f"{path.relative_to(ROOT)}:{number} says {found[0]!r}")
    assert not wrong, "\n".join(wrong)


def test_the_searches_find_what_they_look_for() -> None:
    caught = (
        'if op.name == "add": pass\nx = {"mul": 1}[call.op.name]\ny = row.name in ("exp", "log")\nmatch node.op.name:\n    case "sum": pass'
    )
    assert len(_op_comparisons(ast.parse(caught))) >= 3
    assert not _op_comparisons(ast.parse('if kind.name == "sum": pass\nif op.name == other.name: pass'))
    assert _environment_reads(ast.parse('import os\nos.environ["X"]\nos.getenv("Y")')) == [2, 3]
    assert not _environment_reads(ast.parse('import os\nos.environ.setdefault("X", "1")'))
    assert _FOREIGN.search("see /" + "tmp/notes")
    assert not _FOREIGN.search("a/tmp/notes, https://host/work")
