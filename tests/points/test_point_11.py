"""Threads, finalizers, fork and Ctrl-C around eager and compiled code. tests/gpu has the raw cases."""

from __future__ import annotations

import ast
import gc
import select
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest

import meganeura as mg
from meganeura import dispatch, gpu
from meganeura.gpu.replay import Frozen
from tests.gpu.handmade import ROOT, child
from tests.style.package import sources


def _run(work: Any, count: int = 4) -> None:
    errors: list[BaseException] = []

    def guarded(k: int) -> None:
        try:
            work(k)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(k,)) for k in range(count)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for t in threads:
            t.start()
        for t in threads:
            t.join(60)
    finally:
        sys.setswitchinterval(interval)
    assert not any(t.is_alive() for t in threads)
    if errors:
        raise errors[0]
    assert gc.isenabled(), "calls stop the collector for a while, and each lets it go on"


def test_threads_compute_side_by_side() -> None:
    def work(k: int) -> None:
        for i in range(40):
            x = mg.tensor(np.full(50, k, np.float32), requires_grad=True)
            y = (x * float(i) + k).sum()
            y.backward()
            assert y.item() == 50 * (k * i + k)
            assert x.grad.tolist() == [i] * 50

    _run(work)


def test_threads_share_a_compiled_function() -> None:
    f = mg.compile(lambda x, y: (x * y).sum())

    def work(k: int) -> None:
        for i in range(30):
            assert f(mg.full((20,), float(k)), mg.full((20,), float(i))).item() == 20 * k * i

    _run(work)
    assert f.traces == 1


def test_modes_are_a_threads_own() -> None:
    def work(k: int) -> None:
        for _ in range(20):
            with mg.no_grad() if k % 2 else mg.enable_grad():
                time.sleep(0)
                x = mg.ones(2, requires_grad=True) * 2
                assert x.requires_grad is (k % 2 == 0)
        with dispatch.use(mg.Reference()):
            time.sleep(0)
            assert type(dispatch.current()).__name__ == "Reference"

    _run(work)
    assert mg.is_grad_enabled()


def _holding(lock: Any, act: Any) -> threading.Thread:
    """Run act on another thread while this one holds the lock; the thread, still running or not."""
    with lock:
        thread = threading.Thread(target=act)
        thread.start()
        thread.join(0.3)
        alive = thread.is_alive()
    thread.join(20)
    thread.was_waiting = alive  # type: ignore[attr-defined]
    return thread


def test_a_record_takes_the_lock() -> None:
    """One record at a time: scalars, slot and record belong together."""
    x = mg.ones(8)
    _ = x * 2
    device = gpu.current()
    out = x * 3
    prepared = next(p.prepared for s, p in dispatch.current().plans.items() if s[0].name == "mul" and s[1:] == (x.layout, int))
    buffers = [x._storage.buffer, None, out._storage.buffer]
    thread = _holding(device.lock, lambda: device.record(prepared, buffers, (2.0,), None, "mul"))
    assert thread.was_waiting  # type: ignore[attr-defined]
    assert out.tolist() == [2.0] * 8


def test_finalizers_take_no_lock_and_touch_nothing() -> None:
    """A tensor that dies on another thread, or inside a collection, while the lock is held: only a deque grows."""
    device = gpu.current()
    holder = [mg.ones(5000) for _ in range(3)]
    device.synchronize()
    live = device.memory().live
    thread = _holding(device.lock, holder.clear)
    assert not thread.was_waiting  # type: ignore[attr-defined]
    assert device.memory().live == live
    assert len(device.graveyard) >= 3
    kept = mg.ones(2)
    assert not device.graveyard
    del kept


def test_sessions_that_die_on_another_thread_wait_for_nobody() -> None:
    device = gpu.current()
    holder = [mg.compile(lambda x, k=k: (x * 2.5 + k).sum()) for k in range(3)]
    for f in holder:
        f(mg.ones(9))
    device.synchronize()
    thread = _holding(device.lock, lambda: (holder.clear(), gc.collect()))
    assert not thread.was_waiting  # type: ignore[attr-defined]
    assert (mg.ones(3) * 2).tolist() == [2, 2, 2]


def test_collections_in_any_thread_are_harmless() -> None:
    stop = threading.Event()

    def collect() -> None:
        while not stop.is_set():
            cycle: list[Any] = [mg.ones(30)]
            cycle.append(cycle)
            del cycle
            gc.collect()

    collector = threading.Thread(target=collect)
    collector.start()
    try:
        for i in range(60):
            cycle: list[Any] = [mg.full((30,), float(i))]
            cycle.append(cycle)
            y = cycle[0] + 1
            assert y[29].item() == i + 1
    finally:
        stop.set()
        collector.join()


def test_a_collection_inside_a_record_is_harmless() -> None:
    threshold = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for i in range(30):
            cycle: list[Any] = [mg.full((30,), float(i)), None]
            cycle[1] = cycle
            assert (cycle[0] * 2)[3].item() == 2 * i
    finally:
        gc.set_threshold(*threshold)


@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="No module named fork")
def test_a_forked_child_gets_an_error_and_may_die_in_peace() -> None:
    """Tensors, tapes and sessions copied into the child: using one raises, dropping all of them does nothing."""
    done = child("""
        import gc, signal
        import meganeura as mg
        x = mg.ones(4, requires_grad=True)
        f = mg.compile(lambda t: (t * 2).sum())
        y, z = (x * 3).sum(), f(x)
        mg.synchronize()
        pid = os.fork()
        if pid == 0:
            signal.alarm(10)
            code = 1
            try:
                wrong = []
                for act in (lambda: x.detach().numpy(), lambda: x * 2, lambda: y.backward(), lambda: f(x), lambda: mg.ones(3),
                            lambda: mg.tensor([1.0]), mg.synchronize, lambda: y.item()):
                    try:
                        act()
                        wrong.append(act)
                    except DeviceError as e:
                        if "spawn" not in str(e):
                            wrong.append(e)
                del x, y, z, f
                gc.collect()
                code = len(wrong)
            finally:
                os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0
        y.backward()
        assert x.grad.tolist() == [3.0] * 4
        print("alive")
    """)
    assert (done.returncode, done.stdout.split()) == (0, ["alive"]), done.stdout + done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="No module named signal here")
def test_ctrl_c_ends_a_loop_of_ops_and_nothing_breaks() -> None:
    """The interrupt may strike anywhere: in bind, in a record, in a flush, in a wait."""
    code = """
import signal, sys
import meganeura as mg
signal.signal(signal.SIGINT, signal.default_int_handler)
f = mg.compile(lambda t: (t * 2).sum())
x = mg.ones(100)
f(x).item()
caught = 0
print("ready", flush=True)
while caught < 6:
    try:
        while True:
            y = (x * 3 + 1).exp().sum()
            f(x)
            y.item()
    except KeyboardInterrupt:
        caught += 1
        print("caught", flush=True)
signal.signal(signal.SIGINT, signal.SIG_IGN)
assert (x * 2).sum().item() == 200 and f(x).item() == 200
print("alive", flush=True)
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    watchdog = threading.Timer(60, process.kill)
    watchdog.start()
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        assert process.stdout.readline().strip() == "ready"
        for _ in range(6):
            time.sleep(0.05)
            for _ in range(3):  # Python swallows an interrupt that strikes inside a finalizer: press again
                process.send_signal(signal.SIGINT)
                if select.select([process.stdout], [], [], 5)[0]:
                    break
            assert process.stdout.readline().strip() == "caught"
        out, err = process.stdout.read(), process.stderr.read()  # not communicate(), which passes over what readline() buffered
        process.wait()
    finally:
        watchdog.cancel()
        process.kill()
        process.stdout.close()
        process.stderr.close()
    assert (process.returncode, out.split()) == (0, ["alive"]), out + err


def test_loader_threads_make_numpy_only() -> None:
    """The worker side of data/ knows no tensor: they are made where the loader is iterated."""
    from meganeura.data import DataLoader, TensorDataset

    made: list[str] = []
    upload = type(dispatch.current()).upload

    def spy(self: Any, dtype: Any, array: Any) -> Any:
        made.append(threading.current_thread().name)
        return upload(self, dtype, array)

    dataset = TensorDataset(np.arange(64, dtype=np.float32).reshape(32, 2), np.arange(32))
    type(dispatch.current()).upload = spy  # type: ignore[method-assign]
    try:
        batches = list(DataLoader(dataset, batch_size=8, num_workers=2))
    finally:
        type(dispatch.current()).upload = upload  # type: ignore[method-assign]
    assert len(batches) == 4
    assert set(made) == {threading.current_thread().name}


def test_finalizers_call_nothing_but_an_append() -> None:
    """Every __del__ of the package: no lock, no call into the driver. A SimpleQueue's `put` is made for finalizers."""
    allowed = {"put", "append", "extend", "release", "bury", "pop", "getattr", "list", "values"}
    for name, tree in sources().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and node.name == "__del__":
                calls = {
                    c.func.attr if isinstance(c.func, ast.Attribute) else getattr(c.func, "id", "?")
                    for c in ast.walk(node)
                    if isinstance(c, ast.Call)
                }
                assert calls <= allowed, (name, calls - allowed)
                assert not [n for n in ast.walk(node) if isinstance(n, ast.With)], name


def test_ctrl_c_at_any_call_of_a_submit_neither_loses_nor_repeats_work() -> None:
    """Interrupts a flush, then a replay of three submits, at every call and return inside, one after the other."""
    done = child("""
        from meganeura.gpu.replay import Frozen
        d = gpu.current()
        p = d.prepare(scale(64))
        a, b = upload(d, np.zeros(64, np.float32)), d.alloc(256)
        d.record(p, (a, b), (1.0, 0.0), None, "first")
        d.synchronize()
        at, total = 0, 0.0
        while True:
            at += 1
            d.record(p, (a, b), (1.0, float(at)), None, "there")
            d.record(p, (b, a), (1.0, 1.0), None, "back")
            total += at + 1
            came = struck(d.flush, at)
            d.record(p, (a, b), (1.0, 0.0), None, "after")
            assert floats(d, a, 1)[0] == total, (at, floats(d, a, 1)[0], total)
            if not came:
                break
        assert at > 8, at

        pair = (a, b)  # to and fro, so that every second step shows in a
        steps = [(scale_launch(64), (pair[i % 2], pair[1 - i % 2]), None) for i in range(4)]
        frozen = Frozen(d, steps, [("step", None)] * 4, chunk=1)
        for i in range(4):
            frozen.set_scalars(i, (1.0, 1.0))
        frozen.run()
        total, at, runs = floats(d, a, 1)[0], 0, set()
        while True:
            at += 1
            came = struck(frozen.run, at)
            now = floats(d, a, 1)[0]
            assert now - total in (0, 4), (at, now, total)
            runs.add((came, now - total))
            total = now
            if not came:
                break
        assert runs == {(True, 0), (True, 4), (False, 4)}, runs
        print("alive", at)
    """)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split()[:1] == ["alive"], done.stdout + done.stderr


def test_ctrl_c_in_a_compiled_call_leaves_it_whole() -> None:
    """At every call inside a call whose arguments change: the state is that of before or after, and later calls are right."""
    done = child("""
        import gc
        import meganeura as mg
        d = gpu.current()
        state = mg.zeros(64)
        @mg.compile
        def step(x):
            state.add_(x)
            return x * 2
        xs = [mg.full((64,), float(i)) for i in range(3)]
        for x in xs:
            step(x)
        mg.synchronize()
        at, rounds, total = 0, 0, state[0].item()
        live = []
        while rounds < 2:  # in the second round the bind groups are there, and other calls are struck
            at += 1
            x, left = xs[at % 2], at  # never the argument of the call before, so that there is something to rebind
            def profile(frame, event, argument):
                global left
                name = frame.f_code.co_filename
                if event in ("call", "c_return") and ("/gpu/" in name or "/session.py" in name) and "meganeura" in name:
                    left -= 1
                    if left == 0:
                        sys.setprofile(None)
                        raise KeyboardInterrupt
            came = False
            sys.setprofile(profile)
            try:
                out = step(x)
            except KeyboardInterrupt:
                came = True
            finally:
                sys.setprofile(None)
            out = None
            gc.collect()
            now = state[0].item()
            assert now - total in (0, at % 2), (at, now, total)
            y = step(xs[2])
            assert (y[0].item(), state[0].item()) == (4, now + 2), (at, y[0].item(), state[0].item(), now)
            total = now + 2
            y = None
            live.append(d.memory().live)
            if not came:
                most, at, rounds = at, 0, rounds + 1
        assert most > 30, most
        print("alive", live[-1] <= live[5] + 4096)
    """)
    assert (done.returncode, done.stdout.split()) == (0, ["alive", "True"]), done.stdout + done.stderr


@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="No module named fork")
def test_a_child_forked_while_a_thread_holds_the_lock_is_told_too() -> None:
    done = child("""
        import signal, threading
        import meganeura as mg
        x = mg.ones(4)
        f = mg.compile(lambda t: (t * 2).sum())
        f(x).item()
        held, end = threading.Event(), threading.Event()
        def hold():
            with gpu.current().lock:
                held.set()
                end.wait()
        thread = threading.Thread(target=hold)
        thread.start()
        held.wait()
        pid = os.fork()
        if pid == 0:
            signal.alarm(10)
            code = 1
            try:
                f(x)
            except DeviceError as e:
                code = 0 if "spawn" in str(e) else 2
            finally:
                os._exit(code)
        code = os.waitpid(pid, 0)[1]
        end.set()
        thread.join()
        assert code == 0, code
        print("alive")
    """)
    assert (done.returncode, done.stdout.split()) == (0, ["alive"]), done.stdout + done.stderr


def test_ctrl_c_in_a_rebinding_leaves_no_half_bound_session(monkeypatch: pytest.MonkeyPatch) -> None:
    f = mg.compile(lambda x: x * 2)
    xs = [mg.full((9,), float(k)) for k in range(3)]
    assert f(xs[0]).tolist() == [0] * 9

    def struck(*_: Any) -> None:
        raise KeyboardInterrupt

    for name in ("_follow", "_group", "rebind_all"):
        with monkeypatch.context() as patch:
            patch.setattr(Frozen, name, struck)
            with pytest.raises(KeyboardInterrupt):
                f(xs[1])
        for k in (1, 2, 0):
            assert f(xs[k]).tolist() == [2 * k] * 9
