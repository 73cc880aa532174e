from __future__ import annotations

import pytest

from meganeura.gpu.pool import MIN_CLASS, Buffer, Pool, size_class


def make(idle_limit: int = 1 << 30, cap: int = 1 << 40) -> tuple[Pool, list[int], list[Buffer]]:
    made: list[int] = []
    destroyed: list[Buffer] = []

    def create(size: int) -> Buffer:
        made.append(size)
        return Buffer(None, object(), size, len(made))

    return Pool(create, destroyed.append, idle_limit, cap), made, destroyed


@pytest.mark.parametrize("nbytes", [1, 16, 255, 256, 257, 320, 321, 1000, 4097, 65535, 1 << 20, (1 << 20) + 1, 123456789])
def test_classes_waste_at_most_a_quarter(nbytes: int) -> None:
    size = size_class(nbytes)
    assert size >= nbytes
    assert size % 16 == 0
    assert size == MIN_CLASS or size <= nbytes * 1.25
    assert size_class(size) == size


def test_classes_stay_within_one_binding() -> None:
    pool, _, _ = make(cap=(1 << 31) - 16)
    assert pool.rounded((1 << 31) - 1000) == (1 << 31) - 16
    assert pool.rounded((1 << 31) + 1000) > 1 << 31


def test_the_hottest_is_reused_first_and_uploads_take_an_idle_one() -> None:
    pool, made, _ = make()
    a, b = pool.take(1000, 0, False), pool.take(1000, 0, False)
    a.epoch, b.epoch = 0, 1
    pool.give(a)
    pool.give(b)
    assert pool.take(1000, 1, False) is b
    pool.give(b)
    assert pool.take(1000, 1, True) is a
    c = pool.take(1000, 1, True)
    assert c not in (a, b)
    assert len(made) == 3


def test_idle_bytes_are_bounded() -> None:
    pool, _, destroyed = make(idle_limit=10_000)
    buffers = [pool.take(1024, 0, False) for _ in range(20)]
    for b in buffers:
        b.epoch = 3
        pool.give(b)
        assert pool.pooled <= 10_000
    assert pool.reap(2) == 0
    assert pool.reap(3) == 1024 * len(destroyed) > 0
    assert pool.count == 20 - len(destroyed)


def test_peak_counts_live_and_idle() -> None:
    pool, _, _ = make()
    a = pool.take(1024, 0, False)
    pool.give(a)
    pool.take(1024, 0, False)
    assert (pool.live, pool.pooled, pool.peak) == (1024, 0, 1024)
