"""JSON lines of peers.sh to one Markdown table: milliseconds by case and peer, ratio to ours, largest error."""

from __future__ import annotations

import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

OURS = ("meganeura compiled", "meganeura")  # the first that ran is what ratios refer to


def load(path: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """(case, peer) -> its line."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return {(line["case"], line["peer"]): line for line in lines}


def cell(line: dict[str, Any] | None, ours: float | None) -> str:
    if line is None:
        return ""
    if line.get("median_ms") is None:
        return "failed"
    ms, error = line["median_ms"], line["err"]
    ratio = f" ({ms / ours:.2f}x)" if ours else ""
    return f"{ms:.3g} ms{ratio}, err {error:.0e}"


def table(found: dict[tuple[str, str], dict[str, Any]]) -> str:
    cases = list(dict.fromkeys(case for case, _ in found if "_" in case))  # not the halves that died as a whole
    peers = list(dict.fromkeys(peer for _, peer in found))
    rows = [["case", *peers], ["---"] * (len(peers) + 1)]
    for case in cases:
        mine = next((t for o in OURS if (t := found.get((case, o), {}).get("median_ms"))), None)
        rows.append([case, *(cell(found.get((case, peer)), mine) for peer in peers)])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def problems(found: dict[tuple[str, str], dict[str, Any]]) -> list[str]:
    out = [f"{peer} {case}: {line['error']}" for (case, peer), line in found.items() if "error" in line]
    wrong = [k for k, line in found.items() if k[0].startswith("mlp") and line.get("err") is not None and not line["err"] < 1e-4]
    return out + [f"{peer} {case}: losses are off by {found[case, peer]['err']:.1e}" for case, peer in wrong]


if __name__ == "__main__":
    found = load(Path(sys.argv[1]))
    devices = sorted({line["device"] for line in found.values() if line.get("device")})
    threads = f"LP_NUM_THREADS={os.environ.get('LP_NUM_THREADS', '(unset)')}"
    print(f"Devices: {'; '.join(devices)}. Host: {platform.machine()}, {platform.system()}, {threads}.")
    print("Ratios are to ours, compiled where that ran; larger is slower.\n")
    print(table(found))
    for problem in problems(found):
        print(f"\n{problem}")
