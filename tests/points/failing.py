"""Eager ops that can be made to fail in the driver: `fails(op)` lets our own checks pass what it must refuse.

Bodies run one after the other in one process apart from the tests', since what they provoke may end it; then the body
that did so fails, and the next one gets a new process.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import subprocess
import sys
import textwrap

from tests.gpu.handmade import ROOT, child

HEAD = """
import gc, os, sys, time
import numpy as np
import meganeura as mg
from meganeura import dispatch, gpu
from meganeura.errors import *
from tests.gpu.handmade import *

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
    raise AssertionError("nothing was raised")
"""

_SERVER = """
import gc, json, sys, traceback
from meganeura import gpu
from tests.points.failing import HEAD
batch = gpu.current().recorder.batch
for line in sys.stdin:
    answer = ""
    try:
        names = {}
        exec(HEAD + json.loads(line), names)
        names.clear()
        gc.collect()
        gpu.current().recorder.batch = batch
        gpu.current().synchronize()
    except BaseException:
        answer = traceback.format_exc()
    print(json.dumps(answer), flush=True)
"""

SECONDS = 60
_servers: list[subprocess.Popen[str]] = []


def _server() -> subprocess.Popen[str]:
    if not _servers:
        paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "PYTHONPATH": paths}
        pipe = subprocess.PIPE
        _servers.append(subprocess.Popen([sys.executable, "-c", _SERVER], stdin=pipe, stdout=pipe, text=True, env=environment, cwd=ROOT))
    return _servers[0]


def _stop() -> None:
    while _servers:
        server = _servers.pop()
        server.kill()
        server.communicate()


atexit.register(_stop)


def survives(body: str) -> None:
    """Run a body after HEAD in the process for such things; it must end without an exception and leave the process alive."""
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(json.dumps(textwrap.dedent(body)) + "\n")
    server.stdin.flush()
    ready, _, _ = select.select([server.stdout], [], [], SECONDS)
    answer = server.stdout.readline() if ready else ""
    wrong = json.loads(answer) if answer else f"the process {'died' if ready else 'hangs'}; it said so above"
    if wrong:
        _stop()
    assert not wrong, wrong


def survives_alone(body: str) -> None:
    """The same in a process of its own, which must also end well."""
    done = child(HEAD + textwrap.dedent(body) + '\nprint("alive")\n')
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split()[-1:] == ["alive"], done.stdout + done.stderr
