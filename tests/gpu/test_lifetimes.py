"""Native objects and callbacks outlive the Python ones they came from: nothing dangles, nothing is shared between devices.

Each case is a process of its own, because what these guard against ends the process.
"""

from __future__ import annotations

import pytest

from .handmade import child

OPEN = """
    import gc, sys, threading
    from meganeura import config
    from meganeura.gpu import adapter, Device
    def opened():
        now = config.current()
        return Device(adapter.open_device(now), now)
"""


def lives(body: str, **env: str) -> None:
    done = child(OPEN + body + "\n    print('alive')\n", timeout=120, **env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split() == ["alive"], done.stdout + done.stderr


@pytest.mark.parametrize("what", ["settle", "read"])
def test_a_callback_after_its_wait_was_given_up(what: str) -> None:
    """Ctrl-C ends a wait; the library calls back later, when nobody holds what the callback was to finish."""
    lives(
        f"""
    d = gpu.current()
    x, y = upload(d, np.ones(64, np.float32)), d.alloc(256)
    p = d.prepare(copy(64))
    wait = d.native.wait
    def interrupted(*_):
        raise KeyboardInterrupt
    for i in range(20):
        d.record(p, (x, y), (), None, "copy")
        d.native.wait = interrupted
        try:
            d.synchronize() if "{what}" == "settle" else d.read(y, 0, 16)
        except KeyboardInterrupt:
            pass
        d.native.wait = wait
        gc.collect()
        rubbish = [bytearray(96) for _ in range(1000)]
        d.synchronize()
        assert floats(d, y, 1)[0] == 1
    assert not d.native._awaited
    """
    )


def test_devices_in_threads_of_their_own() -> None:
    """Devices have a lock each and share the library: calls are put together in memory of the thread."""
    lives("""
    sys.setswitchinterval(1e-5)
    devices = [opened() for _ in range(3)]
    wrong = []
    def work(k):
        d = devices[k]
        try:
            p, q = d.prepare(scale(64)), d.prepare(twice(64))
            for i in range(120):
                a = upload(d, np.full(64, k, np.float32))
                b, c = d.alloc(256), d.alloc(256)
                d.record(p, (a, b), (2.0, float(i)), None, "scale")
                d.record(q, (b, c), (1.0, 1.0), None, "twice")
                if floats(d, c, 1)[0] != 2 * k + i + 2:
                    wrong.append((k, i))
                for x in (a, b, c):
                    d.free(x)
                d.pool.trim()
        except Exception as e:
            wrong.append(e)
    threads = [threading.Thread(target=work, args=(k,)) for k in range(3)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not wrong, wrong[:3]
    """)


def test_devices_that_come_and_go() -> None:
    """Dropped in the middle of work, with tokens that wait, collected now or later."""
    lives("""
    for i in range(12):
        d = opened()
        x, y = upload(d, np.ones(64, np.float32)), d.alloc(256)
        p = d.prepare(copy(64))
        for _ in range(40):
            d.record(p, (x, y), (), None, "copy")
            if i % 3:
                d.flush()
        d.recorder.tokens.append((0, d.native.work_done(d.queue)))
        if i % 4 == 0:
            assert floats(d, y, 1)[0] == 1
        del d, x, y, p
        if i % 2:
            gc.collect()
    gc.collect()
    """)


def test_the_process_ends_in_the_middle_of_work() -> None:
    lives("""
    d = gpu.current()
    x, y = upload(d, np.ones(1 << 20, np.float32)), d.alloc(4 << 20)
    p = d.prepare(copy(64))
    for _ in range(200):
        d.record(p, (x, y), (), None, "copy")
    d.record(p, (x, y), (), None, "copy")
    """)


def test_a_frozen_list_dies_with_its_handles() -> None:
    """Bind groups, scalars and finished command buffers go back, also when nobody closed the list."""
    lives("""
    from meganeura.gpu.replay import Frozen
    d = gpu.current()
    x, y = upload(d, np.ones(64, np.float32)), d.alloc(256)
    launch = scale(64).launches[0]
    for i in range(30):
        f = Frozen(d, [(launch, (x, y), None)] * 3, ahead=True)
        for k in range(3):
            f.set_scalars(k, (2.0, 1.0))
        f.run()
        assert f.ready
        if i % 2:
            f.close()
        del f
        d.drain()
        assert not d.graves
    assert floats(d, y, 1)[0] == 3
    d.synchronize()
    assert d.memory().bind_groups < 8, d.memory()
    """)
