"""Code blocks of a Markdown file; as a script, runs all Python blocks of one file in order, in one namespace.

Lines keep their numbers, so that a traceback points into the page.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import NamedTuple


class Block(NamedTuple):
    language: str
    line: int  # of the first line of code, from 1
    code: str


def blocks(path: Path) -> list[Block]:
    """The fenced blocks of a page."""
    found: list[Block] = []
    language: str | None = None
    start, lines = 0, list[str]()
    for number, line in enumerate(path.read_text().splitlines(), 1):
        fence = re.match(r"```(\w*)", line)
        if language is None and fence:
            language, start, lines = fence[1], number + 1, []
        elif language is not None and line.startswith("```"):
            found.append(Block(language, start, "\n".join(lines)))
            language = None
        elif language is not None:
            lines.append(line)
    return found


if __name__ == "__main__":
    page = Path(sys.argv[1])
    namespace = {"__name__": "__main__"}
    for block in blocks(page):
        if block.language == "python":
            exec(compile("\n" * (block.line - 1) + block.code, str(page), "exec", dont_inherit=True), namespace)
