"""Storage, view, alias: one binding a storage, overlapping reads copied first, caches by uid, padding, odd neighbours."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import meganeura as mg
from meganeura import dispatch, gpu, kernels
from meganeura.dtype import ALL
from meganeura.errors import DeviceError
from meganeura.kernels import _check_reach
from meganeura.kernels.call import make_call
from meganeura.kernels.kernel import Call, Kernel, Launch, Lowered, Profile
from meganeura.ops.infer import infer, named
from meganeura.ops.table import REGISTRY
from meganeura.optim import arena
from meganeura.storage import Layout, padded_bytes

OVERLAPS: dict[str, Callable[[Any], Any]] = {
    "shifted up": lambda x: x[1:].__iadd__(x[:-1]),
    "shifted down": lambda x: x[:-1].__iadd__(x[1:]),
    "columns shifted": lambda x: x[:, 1:].__isub__(x[:, :-1]),
    "rows and columns": lambda x: x[1:, 2:].__imul__(x[:-1, :-2]),
    "transposed": lambda x: x.__iadd__(x.T),
    "transposed, written": lambda x: x.T.__isub__(x),
    "interleaved": lambda x: x[::2].__iadd__(x[: len(x) // 2]),
    "both operands": lambda x: x[2:].__imul__(x[1:-1] + 0 * x[:-2]).__iadd__(x[:-2]),
    "one row to all": lambda x: x.__iadd__(x[3]),
    "one column to all": lambda x: x.__isub__(x[:, 2:3]),
    "one element to all": lambda x: x.__imul__(x[1, 1]),
    "itself": lambda x: x.__iadd__(x),
    "disjoint rows": lambda x: x[0].__iadd__(x[1]),
}


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
@pytest.mark.parametrize("name", OVERLAPS)
def test_overlapping_reads_and_writes_copy_first(name: str, dtype: str) -> None:
    """As in numpy, which buffers an overlapping operand; PyTorch leaves it undefined. Many workgroups: some run late."""
    values = np.random.default_rng(3).integers(-4, 5, (96, 96)).astype(dtype)
    expected = values.copy()
    OVERLAPS[name](expected)
    x = mg.tensor(values)
    OVERLAPS[name](x)
    np.testing.assert_array_equal(x.numpy(), expected)


def test_overlapping_assignment_copies_first() -> None:
    values = np.arange(40, dtype=np.float32)
    for to, source in ((slice(1, None), slice(None, -1)), (slice(None, -1), slice(1, None)), (slice(4, 24), slice(0, 40, 2))):
        expected, x = values.copy(), mg.tensor(values)
        expected[to] = expected[source].copy()
        x[to] = x[source]
        np.testing.assert_array_equal(x.numpy(), expected)


ALIASED: dict[str, Callable[[Any], Any]] = {
    "same twice": lambda x: x + x,
    "view of the same": lambda x: x[0] * x[1] + x[2],
    "transposed": lambda x: x - x.T,
    "product": lambda x: x @ x.T,
    "joined": lambda x: mg.cat([x, x[1:3], x.T]),
    "row op": lambda x: mg.nn.functional.layer_norm(x, (8,), x[0], x[1]),
    "picked": lambda x: x[x.argmax(1)],
    "gathered": lambda x: x.gather(1, x.argmax(1, keepdim=True)),
    "chosen": lambda x: mg.where(x > x.T, x, x[0]),
    "in place": lambda x: x[4:].add_(x[:4]),
    "reduced": lambda x: (x * x[0]).sum(0) + x.amax(1),
}


@pytest.mark.parametrize("name", ALIASED)
def test_a_dispatch_binds_a_written_storage_once(name: str) -> None:
    """Whatever operands share: no dispatch names a buffer twice if it writes it."""
    x = mg.tensor(np.random.default_rng(3).standard_normal((8, 8)).astype(np.float32))
    device = gpu.current()
    device.synchronize()
    ALIASED[name](x)
    assert device.recorder.records
    for record in device.recorder.records:
        step, buffers = record[6], record[7]
        assert all(sum(b is buffers[i] for b in buffers) == 1 for i in step.writes)
    device.synchronize()


def test_offsets_sizes_and_strides_build_no_pipeline() -> None:
    x = mg.tensor(np.arange(4096, dtype=np.float32))

    def shapes(first: int) -> None:
        for i in range(first, first + 6):
            _ = x[4 * i : 4 * i + 40] * 2
            _ = x[: 36 * (i + 5)].view(i + 5, 36)[:, ::3] * 2
            _ = x[: 9 * (i + 5)].view(i + 5, 9).sum(1)

    shapes(1)
    before = gpu.current().counters.pipelines
    shapes(20)
    assert gpu.current().counters.pipelines == before


def test_identities_never_repeat() -> None:
    """Not an address: a storage made where another died is another storage."""
    seen: set[int] = set()
    buffers: set[int] = set()
    for i in range(64):
        t = mg.full((16,), float(i))
        seen.add(t._storage.uid)
        buffers.add(t._storage.buffer.uid)
    assert len(seen) == 64
    assert len(buffers) < 64, "memory was never reused: this test shows nothing"


def test_reused_and_destroyed_buffers_never_meet_an_old_bind_group() -> None:
    device = gpu.current()
    for i in range(60):
        n = (37, 300, 5000)[i % 3]
        a, b = mg.full((n,), float(i)), mg.full((n,), 0.5)
        c = a * b + a
        assert c[n - 1].item() == 1.5 * i
        del a, b, c
        if i % 7 == 6:  # destroyed, so that handles and addresses come back too
            gc.collect()
            device.drain()
            device.pool.trim()
            device.synchronize()


def test_bind_groups_follow_the_buffer_not_the_tensor() -> None:
    """Two tensors that take turns on few buffers: results are theirs."""
    kept = []
    for i in range(30):
        t = mg.full((100,), float(i)) + 1
        kept.append(t) if i % 3 == 0 else None
    assert [int(t[99].item()) for t in kept] == [i + 1 for i in range(0, 30, 3)]


@pytest.mark.parametrize("dtype", ALL, ids=lambda d: d.name)
def test_storages_are_padded_to_16_bytes(dtype: Any) -> None:
    for n in (0, 1, 3, 4, 5, 7, 8, 9, 1000, 1001):
        size = padded_bytes(n, dtype)
        assert size % 16 == 0
        assert size >= max(16, n * dtype.itemsize)
        assert size < max(17, n * dtype.itemsize + 16)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 7, 13, 63, 65, 255, 1023])
def test_what_lies_behind_the_end_is_never_read_into_a_result(n: int) -> None:
    for dtype in ("float32", "float16"):
        poison = [mg.full((1024,), float("nan"), dtype=dtype) for _ in range(6)]
        del poison
        x = mg.tensor(np.ones(n, dtype))
        assert (x * 2).sum().item() == 2 * n
        assert x.amax().item() == 1
        assert x.softmax(0).sum().item() == pytest.approx(1, rel=1e-2)


@pytest.mark.parametrize("dtype", ["float16", "bool", "float32", "int8", "uint8", "bfloat16", "int64"])
def test_odd_stores_leave_their_neighbours_alone(dtype: str) -> None:
    rng = np.random.default_rng(1)
    base = rng.integers(0, 2 if dtype == "bool" else 50, 48)
    expected, x = base.copy(), mg.tensor(base, dtype=dtype)
    for offset in range(6):
        for length in (1, 2, 3, 4, 5, 7, 8, 11):
            value = int(rng.integers(0, 2 if dtype == "bool" else 50))
            expected[offset * 3 : offset * 3 + length] = value
            x[offset * 3 : offset * 3 + length] = value
            if dtype == "bool":
                expected[offset : offset + length] = 1 - expected[offset : offset + length]
                x[offset : offset + length].logical_not_()
            else:
                expected[offset : offset + length] += 1
                x[offset : offset + length] += 1
    np.testing.assert_array_equal(x.float().numpy() if dtype == "bfloat16" else x.numpy(), expected)


@pytest.mark.parametrize("dtype", ["float16", "bool", "int8"])
def test_odd_columns_leave_their_neighbours_alone(dtype: str) -> None:
    """Also blocks whose widths and strides would allow vectors, were it not for where they start."""
    for width in (9, 12):
        base = np.random.default_rng(1).integers(0, 2, (7, width))
        rows = slice(1, 5)
        for key in ((slice(None), 3), (slice(1, 6, 2), slice(2, 9, 3)), (4, slice(1, 8)), (slice(2, 5), slice(0, 5)), (rows, slice(1, 5))):
            expected, x = base.copy(), mg.tensor(base, dtype=dtype)
            expected[key] = 1
            x[key] = 1
            np.testing.assert_array_equal(x.numpy(), expected)


def test_widths_of_elements_are_fixed() -> None:
    """bool takes a word and float16 a half of one that no other invocation writes as a whole."""
    assert {d.name: d.itemsize for d in ALL} == {
        "bool": 4, "uint8": 4, "int8": 4, "int32": 4, "uint32": 4, "int64": 4, "float16": 2, "bfloat16": 4, "float32": 4,
    }  # fmt: skip


def test_an_arena_is_chunked_under_the_binding_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arena, "LIMIT", 64)
    parts = arena.zeros([(5,), (7, 3), (1,), (40,), (100,), (2,)], mg.float32)
    assert all(p.storage_offset() % 4 == 0 for p in parts)
    sizes = {p._storage.uid: p._storage.elements for p in parts}
    assert sorted(sizes.values())[-1] == 100
    assert all(n <= 64 for n in sizes.values() if n != 100)
    spans = [(p._storage.uid, *p.layout.span()) for p in parts]
    for i, (uid, low, high) in enumerate(spans):
        assert all(u != uid or high < a or b < low for u, a, b in spans[:i])


@pytest.mark.parametrize("limit", [4, 8, 16])
def test_dispatches_stay_under_the_storage_buffer_count(limit: int) -> None:
    """A join of many storages splits instead of asking for more bindings than a stage has (16 on Dawn)."""
    row, values = REGISTRY["cat_tensors"], ([mg.ones(5) for _ in range(40)], 0)
    args = named(row, values)
    inferred = infer(row, args)
    call = make_call(row, args, inferred, [Layout(s.dtype, s.shape) for s in inferred.outputs])
    lowered = kernels.lower(call, Profile(max_storage_buffers=limit))
    assert lowered.launches
    assert all(len(launch.bindings) <= limit for launch in lowered.launches)


def test_small_views_of_a_storage_larger_than_a_binding() -> None:
    """Early ones are bound from the start, late ones by a range; both in place, next to neighbours that must stay."""
    device = gpu.current()
    n = device.max_binding // 4 + 1000
    if n * 4 > min(device.limits["max-buffer-size"], 1 << 28):
        n = 1000
    x = mg.zeros(n)
    early, late = x[5:9], x[n - 11 : n - 3]
    early += 2
    late += 3
    assert (early * 2).tolist() == [4] * 4
    assert (late + early.sum()).tolist() == [11] * 8
    assert x[:16].tolist() == [0] * 5 + [2] * 4 + [0] * 7
    assert x[n - 16 :].tolist() == [0] * 5 + [3] * 8 + [0] * 3
    assert mg.cat([early, late]).sum().item() == 32
    assert early.softmax(0).tolist() == [0.25] * 4
    assert (early.view(2, 2) @ early.view(2, 2)).tolist() == [[8, 8], [8, 8]]
    assert early[mg.tensor([3, 0])].tolist() == [2, 2]


def test_what_one_binding_cannot_reach_is_refused_not_read_wrong() -> None:
    """A kernel without ranges over an operand beyond the limit: an error that names the limit."""
    profile = Profile(max_binding=1 << 16)
    a = Layout(mg.float32, (200, 200))
    launch = Launch(Kernel(("k",), lambda _: "", ("read", "read_write")), (0, 1), (1, 1, 1), bytes(16))
    call = Call(REGISTRY["exp"], ("input",), (a,), (a,), (mg.float32,))
    with pytest.raises(DeviceError, match="65536 bytes"):
        _check_reach(call, Lowered((launch,)), profile)
    ranged = Launch(launch.kernel, (0, 1), (1, 1, 1), bytes(16), (), ((0, 16), (0, 16)))
    _check_reach(call, Lowered((ranged,)), profile)
    small = Call(REGISTRY["exp"], ("input",), (Layout(mg.float32, (8,)),), (Layout(mg.float32, (8,)),), (mg.float32,))
    _check_reach(small, Lowered((launch,)), profile)
    temporary = Launch(launch.kernel, (0, -1), (1, 1, 1), bytes(16))
    with pytest.raises(DeviceError, match="65536 bytes"):
        _check_reach(small, Lowered((temporary,), (1 << 17,)), profile)


def test_interpreters_agree_on_what_a_view_is() -> None:
    x = mg.tensor(np.arange(12.0, dtype=np.float32).reshape(3, 4))
    v = x.T[1:3, ::2]
    assert (v._storage is x._storage, v.storage_offset(), v.shape, v.stride()) == (True, 1, (2, 2), (1, 8))
    assert dispatch.current().read(v).tolist() == [[1, 9], [2, 10]]


def test_a_view_is_read_by_the_interpreter_that_made_it() -> None:
    """Sparse views are copied before they are read: where they live, not on the default device."""
    other = type(dispatch.current())(gpu.current())
    with dispatch.use(other):
        x = mg.tensor(np.arange(8000, dtype=np.float32).reshape(4, 2000))
    assert x[:, 1].tolist() == [1, 2001, 4001, 6001]
