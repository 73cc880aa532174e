"""A compiled session's dispatches with nothing of this library around them: the least that they cost through the same backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import meganeura as mg


def chain(length: int, elements: int = 1024) -> Any:
    """A compiled function of so many adds, each of the result of the last, kept apart by rewrite='off'; warm, with its argument."""
    x, y = mg.zeros(elements), mg.ones(elements)

    def run(x: mg.Tensor) -> mg.Tensor:
        for _ in range(length):
            x = x + y
        return x

    compiled = mg.compile(run, rewrite="off")
    assert abs(compiled(x)[0].item() - length) < 1e-3
    return compiled, x


def bare_loop(frozen: Any) -> Callable[[], None]:
    """The same dispatches in as many submissions, recorded, finished and submitted with nothing around the C functions."""
    n = frozen.device.native
    chunks = [[(p, g, x, y, z) for p, g, _, x, y, z in chunk] for chunk in frozen.chunks]

    def run() -> None:
        device = frozen.device  # the list, whose bind groups these are, lives as long as the loop
        null, pipe, bind, dispatch = n.NULL, n.set_pipeline, n.set_bind_group, n.dispatch
        for chunk in chunks:
            encoder = n.create_encoder(device.handle, null)
            work = n.begin_pass(encoder, null)
            for pipeline, group, x, y, z in chunk:
                if pipeline is not None:
                    pipe(work, pipeline)
                bind(work, 0, group, 0, null)
                dispatch(work, x, y, z)
            n.end_pass(work)
            n.release_pass(work)
            commands = n.finish(encoder)
            n.release_encoder(encoder)
            n.submit(device.queue, [commands], [])

    return run
