"""A process whose eager ops can be made to fail in the driver: `fails(op)` lets our own checks pass what it must refuse."""

from __future__ import annotations

from tests.gpu.handmade import child

HEAD = """
import gc
import meganeura as mg
from meganeura import dispatch

d = gpu.current()

def fails(*names):
    "The next runs of these ops ask for more workgroups than a dispatch may have; back() ends it."
    global changed
    changed = []
    for signature, plan in dispatch.current().plans.items():
        if signature[0].name in names and plan.prepared is not None:
            step = plan.prepared.steps[0]
            changed.append((step, step.grid))
            step.grid = (70000, 1, 1)
    assert changed, names

def back():
    for step, grid in changed:
        step.grid = grid

def raises(f, *words):
    try:
        f()
    except DeviceError as e:
        assert all(w in str(e) for w in words), str(e)
        return e
    raise SystemExit("nothing was raised")
"""


def survives(body: str) -> None:
    """Run a body after HEAD in a process of its own; it must end by itself with the word 'alive'."""
    done = child(HEAD + body.replace("\n    ", "\n") + '\nprint("alive")\n')
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split()[-1:] == ["alive"], done.stdout + done.stderr
