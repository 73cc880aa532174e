"""Whatever goes wrong, the process lives, the right op is blamed, and the next op works. Each case is a process of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time

import pytest

from .handmade import ROOT, child

AFTER = """
    x2, y2 = upload(d, np.full(64, 3, np.float32)), d.alloc(256)
    d.record(d.prepare(scale(64)), (x2, y2), (2.0, 1.0), None, "scale")
    assert floats(d, y2, 1)[0] == 7
    print("alive")
"""
BEFORE = """
    d = gpu.current()
    x, y = upload(d, np.full(64, 1, np.float32)), d.alloc(256)
    def attempt(f, *words):
        try:
            f()
        except DeviceError as e:
            assert all(w in str(e) for w in words), str(e)
            print("raised")
        else:
            raise SystemExit("nothing was raised")
"""


def survives(body: str, times: int = 1, **env: str) -> None:
    done = child(BEFORE + body + AFTER, **env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split() == ["raised"] * times + ["alive"], done.stdout + done.stderr


def test_a_grid_that_the_driver_refuses() -> None:
    survives("""
    z = d.alloc(256)
    d.record(d.prepare(scale(64)), (x, y), (2.0, 1.0), "u.py:1", "before")
    d.faults.skip_checks = True
    d.record(d.prepare(scale(64, (70000, 1, 1))), (x, z), (9.0, 9.0), "u.py:2", "offender")
    d.faults.skip_checks = False
    d.record(d.prepare(scale(64)), (y, z), (10.0, 0.0), "u.py:3", "after")
    attempt(d.flush, "offender", "u.py:2")
    assert "offender" in str(z.error) and y.error is None
    assert floats(d, y, 1)[0] == 3
    """)


def test_a_failure_found_inside_another_ops_record_waits_for_the_next_sync() -> None:
    survives("""
    d.faults.skip_checks = True
    d.record(d.prepare(scale(64, (70000, 1, 1))), (x, y), (9.0, 9.0), "u.py:2", "offender")
    d.faults.skip_checks = False
    p, z = d.prepare(scale(64)), d.alloc(256)
    for i in range(200):
        d.record(p, (x, z), (2.0, 1.0), "u.py:3", "innocent")
    attempt(d.synchronize, "offender", "u.py:2")
    assert floats(d, z, 1)[0] == 3
    """)


def test_aliasing_that_the_driver_refuses() -> None:
    survives("""
    d.faults.skip_checks = True
    d.record(d.prepare(copy(64)), (x, x), (), "u.py:2", "offender")
    d.faults.skip_checks = False
    attempt(d.synchronize, "offender", "u.py:2")
    """)


def test_a_bind_group_that_the_driver_refuses() -> None:
    survives("""
    d.faults.skip_checks = True
    p = d.prepare(Lowered((Launch(COPY, (0, 1), (1, 1, 1), ranges=((256, 1 << 20), (0, 256))),)))
    attempt(lambda: d.record(p, (x, y), (), "u.py:2", "offender"), "offender", "u.py:2")
    d.faults.skip_checks = False
    """)


def test_a_destroyed_buffer() -> None:
    survives(
        """
    p = d.prepare(copy(64))
    d.record(p, (x, y), (), None, "copy")
    d.free(y)
    d.pool.trim()
    d.synchronize()
    attempt(lambda: d.record(p, (x, y), (), "u.py:2", "offender"), "offender", "destroyed", "u.py:2")
    attempt(lambda: d.read(y, 0, 4), "destroyed")
    attempt(lambda: d.write(y, 0, bytes(4)), "destroyed")
    """,
        3,
    )


def test_a_shader_that_does_not_compile() -> None:
    survives(
        """
    p = Lowered((Launch(BROKEN, (0, 1), (1, 1, 1)),))
    attempt(lambda: d.prepare(p), "broken", "1i")
    attempt(lambda: d.prepare(p), "broken", "1i")
    """,
        2,
    )


def test_a_lost_device_is_one_clear_error() -> None:
    done = child(BEFORE + """
    d.record(d.prepare(scale(64)), (x, y), (2.0, 1.0), None, "scale")
    d.wgpu.destroy()
    attempt(lambda: d.read(y, 0, 4), "lost")
    attempt(lambda: d.alloc(4), "lost")
    attempt(lambda: d.record(None, ()), "lost")
    assert d.lost
    """)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split() == ["raised"] * 3, done.stdout + done.stderr


def test_a_forked_child_is_refused() -> None:
    survives(
        """
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            for f in (lambda: d.alloc(4), lambda: d.read(x, 0, 4), lambda: d.record(None, ()), d.flush, d.synchronize):
                try:
                    f()
                except DeviceError as e:
                    assert "spawn" in str(e)
                else:
                    raise SystemExit
            try:
                import meganeura.gpu.device as module
                module._current = None
                gpu.current()
            except DeviceError as e:
                assert "spawn" in str(e)
                code = 0
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    """,
        0,
    )


def test_threads_share_a_device() -> None:
    survives(
        """
    import threading
    p, q = d.prepare(scale(64)), d.prepare(twice(64))
    wrong = []
    def work(k):
        a = upload(d, np.full(64, k, np.float32))
        for i in range(150):
            b, c = d.alloc(256), d.alloc(256)
            d.record(p, (a, b), (2.0, float(i)), None, "scale")
            d.record(q, (b, c), (1.0, 1.0), None, "twice")
            if floats(d, c, 1)[0] != 2 * k + i + 2:
                wrong.append((k, i))
            d.free(b)
            d.graveyard.append(c)
    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not wrong, wrong[:5]
    """,
        0,
    )


def test_dawn_accepts_what_is_recorded() -> None:
    """Dawn's Null backend validates every call and runs none, so this needs no driver."""
    pytest.importorskip("wgpudawn")
    done = child(
        BEFORE
        + """
    d.record(d.prepare(twice(64)), (x, y), (2.0, 1.0), None, "twice")
    d.read(y, 0, 4)
    d.faults.skip_checks = True
    d.record(d.prepare(scale(64, (70000, 1, 1))), (x, y), (9.0, 9.0), "u.py:2", "offender")
    attempt(d.flush, "offender", "u.py:2")
    print(d.backend)
    """,
        MEGANEURA_BACKEND="wgpudawn-null",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split() == ["raised", "dawn"], done.stdout + done.stderr


def test_no_adapter_names_the_package_to_install() -> None:
    done = child(
        """
        import meganeura.gpu.adapter as adapter
        adapter.find = lambda config: []
        try:
            gpu.current()
        except DeviceError as e:
            assert "mesa-vulkan-drivers" in str(e) and "libvulkan1" in str(e)
            print("raised")
        """
    )
    assert done.stdout.split() == ["raised"], done.stdout + done.stderr


def test_a_requested_adapter_is_never_replaced() -> None:
    done = child(
        """
        try:
            gpu.current()
        except DeviceError as e:
            assert "MEGANEURA_DEVICE_ID=48879" in str(e)
            print("raised")
        """,
        MEGANEURA_DEVICE_ID="0xbeef",
    )
    assert done.stdout.split() == ["raised"], done.stdout + done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_ctrl_c_interrupts_a_wait_and_nothing_breaks() -> None:
    code = """
import signal, time
from meganeura import gpu
from meganeura.kernels.kernel import *
from tests.gpu.handmade import *
SLOW = "@group(0) @binding(0) var<storage, read> x: array<f32>; @group(0) @binding(1) var<storage, read_write> y: array<f32>;" \\
       "@compute @workgroup_size(1) fn main() { var a = x[0];" \\
       "for (var i = 0u; i < 60000u; i++) { a = a * 0.999 + x[i & 63u]; } y[0] = a; }"
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background shell starts us with it ignored
d = gpu.current()
x, y = upload(d, np.ones(64, np.float32)), d.alloc(256)
p = d.prepare(Lowered((Launch(Kernel(("slow",), lambda _: SLOW, ("read", "read_write"), "slow", params=False), (0, 1), (1000, 1, 1)),)))
def slow(times):
    for i in range(times):
        d.record(p, (x, y), (), None, "slow")
slow(1)
d.synchronize()
start = time.perf_counter()
slow(3)
d.synchronize()
slow(int(3 / ((time.perf_counter() - start) / 3)))  # few enough for one submit: software Vulkan makes a second one wait
print("waiting", flush=True)
try:
    d.read(y, 0, 4)
except KeyboardInterrupt:
    print("interrupted", flush=True)
start = time.perf_counter()
d.synchronize()
print("busy" if time.perf_counter() - start > 0.05 else "idle: the interrupt came after the wait")
z = d.alloc(256)
d.record(d.prepare(scale(64)), (x, z), (2.0, 1.0), None, "scale")
assert floats(d, z, 1)[0] == 3
print("alive")
"""
    for _ in range(3):  # on a busy machine the work may end before the interrupt comes, which tells nothing
        words, text = _interrupted(code)
        if words[:1] != ["idle:"]:
            break
    assert words == ["busy", "alive"], text


def _interrupted(code: str) -> tuple[list[str], str]:
    """What code prints that gets Ctrl-C a moment after it said that it waits."""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    watchdog = threading.Timer(90, process.kill)
    watchdog.start()
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        assert process.stdout.readline().strip() == "waiting"
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline().strip() == "interrupted"
        out, err = process.communicate()
    finally:
        watchdog.cancel()
        process.kill()
        process.stdout.close()
        process.stderr.close()
    return out.split(), out + err
