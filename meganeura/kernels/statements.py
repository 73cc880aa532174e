"""Statements that fusion gave a row or reduction kernel, as WGSL functions.

In: statements (name, WGSL type, expression). A statement that an expression names becomes a function of the leaves it
reads: inputs, results of stages, accumulators. Compilers inline them and compute shared parts once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from . import template as T

Statement = tuple[str, str, str]  # name, WGSL type, expression


class Functions:
    """The functions of one kernel. `known`: texts that mean the same everywhere (scalars, defaults)."""

    def __init__(self, statements: Iterable[Statement], known: Mapping[str, str]) -> None:
        self.statements = {name: (type_, expr) for name, type_, expr in statements}
        self.types = {name: type_ for name, (type_, _) in self.statements.items()}
        self.known = known
        self.called: dict[str, None] = {}
        self._needed: dict[str, tuple[list[str], list[str]]] = {}

    def names(self, expressions: Iterable[str]) -> set[str]:
        """Names that expressions use, through statements."""
        out: set[str] = set()
        for expr in expressions:
            for name in T.names_in(expr):
                out.update(self.needed(name)[1] if name in self.statements else (name,))
        return out

    def statements_of(self, expressions: Iterable[str]) -> set[str]:
        """Statements that expressions take."""
        return {s for e in expressions for n in T.names_in(e) if n in self.statements for s in self.needed(n)[0]}

    def needed(self, name: str) -> tuple[list[str], list[str]]:
        """The statements that a statement takes, in order, itself last; and the leaves they read."""
        if name not in self._needed:
            taken: dict[str, None] = {}
            leaves: dict[str, None] = {}
            for n in T.names_in(self.statements[name][1]):
                if n in self.statements:
                    statements, below = self.needed(n)
                    taken.update(dict.fromkeys(statements))
                    leaves.update(dict.fromkeys(below))
                elif n not in self.known:
                    leaves[n] = None
            self._needed[name] = [*taken, name], list(leaves)
        return self._needed[name]

    def text(self, expr: str, names: Mapping[str, str]) -> str:
        """The expression where `names` says what leaves mean."""
        calls = {n: self._call(n, names) for n in T.names_in(expr) if n in self.statements}
        return T.substitute(expr, {**names, **calls} if calls else names)

    def _call(self, name: str, names: Mapping[str, str]) -> str:
        self.called[name] = None
        return f"make_{T.identifier(name)}({', '.join(names[n] for n in self.needed(name)[1])})"

    def source(self, types: Mapping[str, str]) -> str:
        """The functions that were called; `types`: WGSL types of the leaves."""
        return "".join(self._function(name, types) for name in self.called)

    def _function(self, name: str, types: Mapping[str, str]) -> str:
        statements, leaves = self.needed(name)
        names = {**self.known, **{n: T.identifier(n) for n in (*statements, *leaves)}}
        lines = ""
        for n in statements:
            type_, expr = self.statements[n]
            lines += f"  let {names[n]}: {type_} = {T.substitute(expr, names)};\n"
        arguments = ", ".join(f"{names[n]}: {types[n]}" for n in leaves)
        return f"fn make_{T.identifier(name)}({arguments}) -> {self.types[name]} {{\n{lines}  return {names[name]};\n}}\n"
