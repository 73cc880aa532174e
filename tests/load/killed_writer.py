"""Kills writers of a checkpoint at COUNT random moments or more. python killed_writer.py FOLDER COUNT

A writer saves one checkpoint after another, all values of the n-th being n. After each kill -9, what is at the path must load,
whole, and be as new as anything seen before. Everything is in numpy, so that processes can be forked.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

import numpy as np

import meganeura as mg
from meganeura import dispatch
from meganeura.nn import Parameter
from meganeura.optim import SGD

SHAPES = [(200, 300), (7,), (300, 400), ()]


def parts() -> tuple[dict[str, mg.Tensor], SGD]:
    tensors = {str(i): mg.zeros(*shape) for i, shape in enumerate(SHAPES)}
    return tensors, SGD([Parameter(mg.zeros(3))], lr=1.0)


def write(path: Path, number: int) -> None:
    tensors, optimizer = parts()
    while True:
        number += 1
        for t in tensors.values():
            t.fill_(number)
        optimizer.param_groups[0]["lr"] = float(number)
        mg.save_checkpoint(path, tensors, optimizer, step=number)


def check(path: Path) -> int:
    """The number of the checkpoint at the path."""
    tensors, optimizer = parts()
    step = mg.load_checkpoint(path, tensors, optimizer).step
    assert step is not None
    assert all((t.numpy() == step).all() for t in tensors.values())
    assert optimizer.param_groups[0]["lr"] == step
    return step


def main(folder: Path, count: int) -> None:
    path, seen, torn = folder / "state.safetensors", 0, 0
    tensors, optimizer = parts()
    mg.save_checkpoint(path, tensors, optimizer, step=0)
    start = time.perf_counter()
    for _ in range(3):
        mg.save_checkpoint(path, tensors, optimizer, step=0)
    longest = time.perf_counter() - start + 0.02  # of a writer's life: about three saves
    draw = random.Random(0)
    kills = 0
    while kills < count or (torn < 2 and kills < 600):  # until some writers were struck while a file was half written
        kills += 1
        child = os.fork()
        if child == 0:
            try:
                write(path, seen)
            finally:
                os._exit(1)
        time.sleep(draw.uniform(0.0, longest))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        assert os.WTERMSIG(status) == signal.SIGKILL, status
        number = check(path)
        assert number >= seen, f"checkpoint {number} after {seen}"
        seen = number
        leftovers = [p for p in folder.iterdir() if p != path]
        torn += bool(leftovers)
        for p in leftovers:
            os.utime(p, (1, 1))  # old enough to be swept
    mg.save_checkpoint(path, tensors, optimizer, step=seen)
    assert [p.name for p in folder.iterdir()] == [path.name], "leftovers of killed writers stay"
    print(seen, torn)


if __name__ == "__main__":
    np.seterr(all="ignore")
    with dispatch.use(mg.Reference()):
        main(Path(sys.argv[1]), int(sys.argv[2]))
