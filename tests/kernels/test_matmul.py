"""Matrix products of both kernel families against numpy in float64: sizes, layouts, batches, dtypes, limits."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from meganeura import dtype as D
from meganeura.dtype import DType
from meganeura.kernels import choices, matmul_cpu, matmul_gpu
from meganeura.kernels.kernel import Lowered, Profile
from meganeura.kernels.matmul import cut, lower
from meganeura.kernels.matmul_problem import problem
from meganeura.kernels.matmul_teams import Shares, shares_memory
from meganeura.ops.archetype import Matmul
from meganeura.shape import contiguous_strides
from meganeura.storage import Layout

from .run_call import STORED, download, eight_lanes, make_call, profile, run, strided, upload

TOLERANCE = {"float32": 2e-6, "float16": 2e-3, "bfloat16": 8e-3}
DEVICES = {
    "cpu": ("cpu", {}),
    "portable": ("cpu", {"subgroup_size": 4}),
    "gpu": ("gpu", {}),
    "small": ("gpu", {"subgroups": False, "subgroup_size": 0, "max_workgroup_memory": 16384, "max_workgroup_size": 256}),
}


def device(name: str, **changes: Any) -> Profile:
    family, own = DEVICES[name]
    return profile(family, **{**own, **changes})


def layout(shape: tuple[int, ...], kind: str, dtype: DType = D.float32) -> tuple[Layout, int]:
    """A layout by name, and the elements its storage needs: rows, columns (transposed), offset, padded rows, every second
    element, repeated rows."""
    if kind == "repeated":
        return Layout(dtype, shape, (0,) * (len(shape) - 1) + (1,)), shape[-1]
    sizes = list(shape)
    step = 1
    offset = {"offset": 3, "columns+offset": 4, "second": 1}.get(kind, 0)
    if kind == "padded":
        sizes[-1] += 3
    if kind == "second":
        sizes[-2:] = [2 * n for n in sizes[-2:]]
        step = 2
    if kind.startswith("columns"):
        sizes[-2:] = sizes[:-3:-1]
    strides = list(contiguous_strides(tuple(sizes)))
    strides[-2:] = [step * s for s in strides[-2:]]
    if kind.startswith("columns"):
        strides[-2:] = strides[:-3:-1]
    return Layout(dtype, shape, tuple(strides), offset), int(np.prod(sizes)) + offset


def values(rng: np.random.Generator, where: Layout, size: int) -> np.ndarray:
    """Storage with random values in the layout's elements and NaN in all others."""
    stored = STORED[where.dtype.storage]
    if where.dtype.kind != "f":
        return rng.integers(-50 if where.dtype.kind == "i" else 0, 50, max(size, 1)).astype(stored)
    flat = rng.standard_normal(max(size, 1)).astype(stored)
    if where.dtype is D.bfloat16:
        flat = (flat.view(np.uint32) & 0xFFFF0000).view(np.float32)
    used = np.zeros(flat.size, bool)
    if where.numel:
        used[strided(np.arange(flat.size), where).reshape(-1)] = True
    flat[~used] = np.nan
    return flat


def check(
    where: Profile,
    a: tuple[int, ...],
    b: tuple[int, ...],
    kinds: tuple[str, str, str] = ("rows",) * 3,
    dtype: DType = D.float32,
    seed: int = 0,
) -> Lowered:
    """Multiply on the device and compare with float64; the result's storage starts as NaN or 77."""
    rng = np.random.default_rng(seed)
    shape = (*np.broadcast_shapes(a[:-2], b[:-2]), a[-2], b[-1])
    (la, na), (lb, nb), (lo, no) = (layout(s, k, dtype) for s, k in zip((a, b, shape), kinds, strict=True))
    fa, fb = values(rng, la, na), values(rng, lb, nb)
    lowered = lower(make_call(Matmul(), {"a": la, "b": lb}, (lo,)), where)
    target = upload(np.full(max(no, 1), np.nan if dtype.kind == "f" else 77), dtype)
    run(lowered, [upload(fa, dtype), upload(fb, dtype), target])
    if lo.numel == 0:
        return lowered
    got = strided(download(target, dtype, no), lo).astype(np.float64)
    left, right = (strided(x, w).astype(np.float64) if w.numel else np.zeros(w.shape) for x, w in ((fa, la), (fb, lb)))
    scale = max(1e-30, float(np.max(np.abs(left) @ np.abs(right), initial=0)))
    error = float(np.max(np.abs(got - left @ right))) / scale
    assert error <= TOLERANCE.get(dtype.name, 0), (a, b, kinds, dtype, error, [x.kernel.key for x in lowered.launches])
    return lowered


SHAPES = (
    ((1, 1), (1, 1)), ((1, 64), (64, 100)), ((7, 1), (1, 9)), ((33, 47), (47, 29)), ((64, 36), (36, 40)), ((5, 130), (130, 1)),
    ((32, 50), (50, 10)),
)  # fmt: skip
ORDERS = ("rows", "columns")


@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.parametrize("left", ORDERS)
@pytest.mark.parametrize("right", ORDERS)
def test_transposed_operands_are_read_as_they_lie(name: str, left: str, right: str) -> None:
    for a, b in SHAPES:
        assert len(check(device(name), a, b, (left, right, "rows")).launches) <= 2  # the product and, split, its sum


@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.parametrize(
    "kinds",
    [("offset", "columns+offset", "rows"), ("padded", "padded", "rows"), ("second", "second", "second"), ("rows", "repeated", "columns"),
     ("repeated", "offset", "padded")],
)  # fmt: skip
def test_strides_and_offsets(name: str, kinds: tuple[str, str, str]) -> None:
    for a, b in (((17, 12), (12, 20)), ((36, 33), (33, 8)), ((1, 40), (40, 12))):
        check(device(name), a, b, kinds)


@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.parametrize("dtype", [D.float16, D.bfloat16, D.int32, D.int64, D.uint32, D.int8], ids=str)
def test_dtypes(name: str, dtype: DType) -> None:
    if dtype is D.int8:  # results wrap to 8 bits
        return _check_wrapping(device(name))
    for a, b, kinds in (((20, 32), (32, 24), ("rows", "columns", "rows")), ((3, 9, 7), (7, 5), ("columns", "offset", "padded"))):
        check(device(name), a, b, kinds, dtype)


def _check_wrapping(where: Profile) -> None:
    x = np.arange(-30, 34).reshape(8, 8)
    w = Layout(D.int8, (8, 8))
    target = upload(np.zeros(64), D.int8)
    run(lower(make_call(Matmul(), {"a": w, "b": w}, (w,)), where), [upload(x, D.int8), upload(x, D.int8), target])
    assert np.array_equal(download(target, D.int8, 64).reshape(8, 8), (x @ x).astype(np.int8))


BATCHES = (
    ((3,), (3,)), ((3,), ()), ((), (2,)), ((2, 3), (2, 3)), ((2, 1), (3,)), ((2, 1, 2), (3, 1)), ((2, 1, 3, 1), (5, 1, 4)), ((70,), (1,)),
)  # fmt: skip


@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.parametrize("batch", BATCHES, ids=str)
def test_batches_broadcast(name: str, batch: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    check(device(name), (*batch[0], 6, 8), (*batch[1], 8, 12))
    check(device(name), (*batch[0], 5, 7), (*batch[1], 7, 3), ("columns", "padded", "rows"))


def test_many_batch_dimensions_are_laid_out_first() -> None:
    lowered = check(device("cpu"), (9, 1, 2, 1, 4, 4), (1, 3, 1, 2, 4, 4))
    assert lowered.temps and len(lowered.launches) <= 3


@pytest.mark.parametrize("name", ["cpu", "gpu"])
def test_nothing_to_add_or_to_make(name: str) -> None:
    assert len(check(device(name), (4, 0), (0, 5)).launches) == 1
    check(device(name), (2, 3, 0), (0, 4), ("rows", "rows", "second"))
    for a, b in (((0, 3), (3, 4)), ((3, 2), (2, 0)), ((0, 3, 2), (2, 4))):
        assert check(device(name), a, b).launches == ()


@pytest.mark.parametrize("name", DEVICES)
def test_random_cases(name: str) -> None:
    rng = random.Random(5)
    kinds = ("rows", "rows", "columns", "columns", "offset", "columns+offset", "padded", "second", "repeated")
    for seed in range(60 if name in ("cpu", "portable") else 15):
        m, k, n = (rng.choice([1, 2, 3, 4, 5, 8, 10, 12, 16, 31, 32, 33, 48, 64, 65]) for _ in range(3))
        lead = rng.choice(BATCHES[:6]) if rng.random() < 0.3 else ((), ())
        chosen = (rng.choice(kinds), rng.choice(kinds), rng.choice(("rows", "rows", "columns", "padded", "second", "offset")))
        check(device(name), (*lead[0], m, k), (*lead[1], k, n), chosen, seed=seed)


def test_larger_sizes_on_cpu() -> None:
    """32 x 32 tiles, packed operands (rows a multiple of 4 KB apart), both vector forms."""
    where = device("cpu")
    for a, b, kinds in (
        ((300, 200), (200, 260), ("rows", "rows", "rows")),
        ((260, 1024), (1024, 264), ("rows", "columns", "rows")),
        ((261, 67), (67, 300), ("columns", "offset", "rows")),
        ((1, 300), (300, 1100), ("rows", "rows", "rows")),
        ((1, 1056), (1056, 37), ("rows", "columns", "rows")),
    ):
        check(where, a, b, kinds)
    check(where, (2, 260, 1024), (1024, 260), ("rows", "columns", "rows"), D.float16)
    packed = check(where, (260, 1024), (1024, 260), ("rows", "columns", "rows"))
    if eight_lanes():
        assert [x.kernel.label for x in packed.launches] == ["matmul_pack", "matmul_pack", "matmul_gemm"]


def test_tiles_side_by_side_share_a_workgroup_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of many tiles, and panels copied from either dimension, K no whole vec4s."""
    monkeypatch.setattr(matmul_cpu, "TILES", 1)
    for a, b, kinds in (
        ((2, 70, 36), (36, 256), ("rows", "rows", "rows")),
        ((33, 1024), (1024, 384), ("columns", "columns", "rows")),
        ((1026, 262), (262, 1024), ("rows", "rows", "rows")),
        ((256, 1024), (1024, 1024), ("rows", "columns", "rows")),
    ):
        made = check(device("cpu"), a, b, kinds)
    if eight_lanes():
        assert made.launches[-1].grid == (8, 8, 1)


@pytest.mark.parametrize("name", ["gpu", "small"])
def test_rows_of_odd_length_are_copied_whole(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one launch: both for a rest of K along k, else only what needs it; batches, element sizes, parts of large operands."""
    monkeypatch.setattr(matmul_gpu, "WHOLE_ROWS", 1)
    monkeypatch.setattr(matmul_gpu, "USES", 1)

    def copies(a: tuple[int, ...], b: tuple[int, ...], kinds: tuple[str, str, str], dtype: DType = D.float32) -> int:
        found = [x for x in check(device(name), a, b, kinds, dtype).launches if x.kernel.label == "matmul_rows"]
        assert len(found) <= 1
        return sum(len(x.bindings) // 2 for x in found)

    for left in ("rows", "columns", "offset", "padded", "second"):
        for right in ("rows", "columns", "columns+offset", "padded"):
            assert copies((67, 45), (45, 71), (left, right, "rows")) == 2
    for out in ("columns", "padded", "second"):
        assert copies((2, 37, 23), (2, 23, 41), ("rows", "columns", out)) == 2
        assert copies((3, 37, 23), (23, 41), ("columns", "rows", out)) == 2
    assert copies((2, 3, 37, 33), (3, 33, 39), ("rows", "columns", "rows")) == 2
    assert copies((67, 44), (44, 72), ("padded", "rows", "rows")) == 1
    assert copies((67, 44), (44, 71), ("rows", "rows", "rows")) == 1
    assert copies((72, 45), (45, 71), ("columns", "rows", "rows")) == 1
    assert copies((72, 45), (45, 72), ("rows", "rows", "rows")) == 2
    assert copies((67, 44), (44, 71), ("rows", "columns", "rows")) == 0
    for dtype in (D.float16, D.bfloat16, D.int32, D.uint32):
        assert copies((40, 33), (33, 35), ("rows", "columns", "rows"), dtype) == 2
        assert copies((41, 33), (33, 35), ("columns", "padded", "rows"), dtype) == 2
    for kinds in (("columns", "rows", "rows"), ("rows", "columns", "rows")):  # more rows than a grid has groups for
        made = check(device(name, max_groups=3), (35, 401), (401, 37), kinds)
        assert [max(x.grid) for x in made.launches if x.kernel.label == "matmul_rows"] == [3]
    check(device(name, max_binding=8192), (100, 63), (63, 101), ("rows", "columns", "rows"))
    check(device(name, max_binding=8192), (61, 63), (63, 31), ("columns", "rows", "rows"))


@pytest.mark.parametrize("tile", [choices.SQUARE, choices.SLIM, choices.SMALL4, choices.SMALL], ids=lambda t: f"{t.bm}x{t.bn}x{t.groups}")
@pytest.mark.parametrize("memory", [49152, 32768, 16384])
def test_groups_share_sums_and_store_single_elements(tile: choices.Tile, memory: int) -> None:
    """Results of odd row length within and beyond the tile, in whole memory (all parts of a sum at once) and in little (one after
    another, or stored directly); as many slices of K as there are turns."""
    rng = np.random.default_rng(1)
    for m, k, n in ((67, 70, 99), (5, 33, 7), (66, 64, 131)):
        a, b = rng.standard_normal((m, k)).astype(np.float32), rng.standard_normal((k, n)).astype(np.float32)
        for left in ORDERS:
            la, lb, lo = layout((m, k), left)[0], layout((k, n), "rows")[0], layout((m, n), "rows")[0]
            p = problem(la, lb, lo, (0, 1, 2))
            assert p is not None
            where = device("gpu", max_workgroup_memory=memory)
            if where.backend == "dawn" and memory > device("gpu").max_workgroup_memory:
                continue
            if not matmul_gpu.usable(tile, matmul_gpu.Form.of(p, p.a.form(k), p.b.form(k), "v1"), p, where):
                continue
            for split in (1, 3):
                temps: list[int] = []
                launches = matmul_gpu.tiled(p, tile, split, temps)
                sources = [replace(x.kernel, key=(*x.kernel.key, memory), source=_within(x.kernel.source, where)) for x in launches]
                launches = [replace(x, kernel=y) for x, y in zip(launches, sources, strict=True)]
                target = upload(np.full(m * n, np.nan), D.float32)
                run(Lowered(tuple(launches), tuple(temps)), [upload(a if left == "rows" else a.T, D.float32), upload(b, D.float32), target])
                assert np.abs(download(target, D.float32, m * n).reshape(m, n) - a.astype(np.float64) @ b).max() < 1e-4


def _within(source: Callable[[Profile], str], where: Profile) -> Callable[[Profile], str]:
    """The text as a device with that profile gets it."""
    return lambda _: source(where)


@pytest.mark.parametrize("memory", [49152, 24576, 16384])
def test_shares_fit_the_memory_and_cover_every_sum(memory: int) -> None:
    for tile in {x.tile for x in choices.POINTS}:
        sums = tuple(f"c{i}" for i in range(tile.tm * tile.tn // 4))
        shares = Shares(tile, sums, "f32", memory)
        if tile.groups > 1 and shares_memory(tile) <= memory:
            assert shares.bytes <= memory and set(shares.owners()) == set(sums)
            assert set(shares.owners().values()) == set(range(tile.groups))


def test_four_groups_only_while_every_tile_has_a_multiprocessor() -> None:
    def tile(m: int, n: int, k: int, stores: str = "v4", kind: str = "NN") -> choices.Tile:
        return choices.choose(kind, m, n, k, 1, "wgpu", lambda t: True, stores)[0]

    assert tile(704, 704, 704) == tile(703, 703, 703, "v1") == choices.SQUARE
    assert tile(768, 768, 768) == replace(choices.WIDE, walk="ptr") and tile(767, 767, 767, "v1") == choices.PAIR
    assert tile(50, 2048, 720) == choices.SMALL4 and tile(50, 4096, 720) != choices.SMALL4
    assert tile(128, 1536, 576, kind="TN") == choices.SLIM
    assert tile(1023, 1023, 1023, "v1") == replace(choices.PAIR, walk="ptr") and tile(1024, 1024, 1024) == choices.PAIR8


TILES = sorted({p.tile for p in choices.POINTS}, key=repr)


@pytest.mark.full
@pytest.mark.parametrize("tile", TILES, ids=lambda t: f"{t.bm}x{t.bn}x{t.groups}{t.turn_a}{t.walk}")
def test_every_tile(tile: choices.Tile) -> None:
    """Sizes beyond the tile (last tiles shifted inwards), within it (edges checked), with a rest of K, split and not."""
    rng = np.random.default_rng(0)
    for m, k, n in ((132, 84, 140), (30, 50, 36)):
        for left in ORDERS:
            for right in ORDERS:
                (la, _), (lb, _), (lo, _) = (layout(s, x) for s, x in (((m, k), left), ((k, n), right), ((m, n), "rows")))
                p = problem(la, lb, lo, (0, 1, 2))
                assert p is not None
                a, b = rng.standard_normal(m * k).astype(np.float32), rng.standard_normal(k * n).astype(np.float32)
                for split in (1, 2):
                    temps: list[int] = []
                    launches = matmul_gpu.tiled(p, tile, split, temps)
                    target = upload(np.full(m * n, np.nan), D.float32)
                    run(Lowered(tuple(launches), tuple(temps)), [upload(a, D.float32), upload(b, D.float32), target])
                    want = strided(a, la).astype(np.float64) @ strided(b, lb)
                    assert np.abs(download(target, D.float32, m * n).reshape(m, n) - want).max() < 1e-4


@pytest.mark.parametrize("name", ["cpu", "gpu"])
def test_operands_larger_than_a_binding(name: str) -> None:
    where = device(name, max_binding=8192)
    for a, b, kinds in (
        ((100, 64), (64, 100), ("rows", "columns", "rows")),
        ((12, 600), (600, 16), ("columns", "rows", "rows")),  # K is cut and summed
        ((5, 40, 40), (5, 40, 40), ("rows", "columns", "rows")),
        ((1, 64), (64, 700), ("rows", "columns", "rows")),
    ):
        lowered = check(where, a, b, kinds)
        assert all(size <= 8192 for x in lowered.launches for _, size in x.ranges or ())


def test_parts_keep_to_the_grid() -> None:
    a, b, out = Layout(D.float32, (70000, 4, 4)), Layout(D.float32, (4, 4)), Layout(D.float32, (70000, 4, 4))
    batched = problem(a, Layout(D.float32, (70000, 4, 4)), out, (0, 1, 2))
    assert batched is not None
    assert all(g[0].matrices <= 65535 for g in cut(batched, device("cpu")))
    merged = lower(make_call(Matmul(), {"a": a, "b": b}, (out,)), device("gpu"))
    assert all(max(x.grid) <= 65535 for x in merged.launches)


@pytest.mark.parametrize("name", ["cpu", "gpu"])
def test_result_over_an_operand(name: str) -> None:
    rng = np.random.default_rng(1)
    x, y = (rng.standard_normal((40, 40)).astype(np.float32) for _ in range(2))
    w = Layout(D.float32, (40, 40))
    lowered = lower(make_call(Matmul(), {"a": w, "b": w}, (w,), alias=(0, 1, 0)), device(name))
    bx, by = upload(x, D.float32), upload(y, D.float32)
    run(lowered, [bx, by, bx])
    assert np.allclose(download(bx, D.float32, 1600).reshape(40, 40), x.astype(np.float64) @ y, atol=1e-4)


@pytest.mark.parametrize("name", DEVICES)
def test_nan_and_inf_spread_as_they_should(name: str) -> None:
    rng = np.random.default_rng(2)
    a, b = rng.standard_normal((40, 34)).astype(np.float32), rng.standard_normal((34, 33)).astype(np.float32)
    a[3, 5], b[7, 2], a[9, 7], a[0, 33] = np.nan, np.inf, 0, -np.inf
    target = upload(np.zeros(40 * 33), D.float32)
    call = make_call(Matmul(), {"a": Layout(D.float32, (40, 34)), "b": Layout(D.float32, (34, 33))}, (Layout(D.float32, (40, 33)),))
    run(lower(call, device(name)), [upload(a, D.float32), upload(b, D.float32), target])
    with np.errstate(invalid="ignore"):
        want = a @ b
    got = download(target, D.float32, 40 * 33).reshape(40, 33)
    assert np.array_equal(np.isnan(got), np.isnan(want)) and np.array_equal(got[np.isinf(want)], want[np.isinf(want)])


def test_keys_hold_no_sizes() -> None:
    """Other sizes of the same kind use the same pipelines; only the parameters differ."""

    def keys(m: int, k: int, n: int, name: str) -> list[Any]:
        call = make_call(Matmul(), {"a": Layout(D.float32, (m, k)), "b": Layout(D.float32, (k, n))}, (Layout(D.float32, (m, n)),))
        return [x.kernel.key for x in lower(call, device(name)).launches]

    assert keys(320, 640, 512, "cpu") == keys(352, 768, 480, "cpu")
    assert keys(4096, 4096, 4096, "gpu") == keys(3840, 4096, 4352, "gpu")


def test_the_nearest_point_is_usable_and_sane() -> None:
    for kind in ("NN", "NT", "TN", "TT"):
        for m, n, k, matrices in ((1, 1, 1, 1), (4096, 4096, 4096, 1), (64, 64, 8192, 1), (128, 128, 64, 96), (50257, 768, 128, 1)):
            tile, split = choices.choose(kind, m, n, k, matrices, "wgpu", lambda t: t.size <= 256)
            assert tile.size <= 256 and 1 <= split <= max(1, k // tile.span)
    assert choices.choose("NN", 64, 64, 8192, 1, "wgpu", lambda t: True)[1] > 4


def test_a_wide_profile_reads_panels_only_where_rows_are_pages_apart() -> None:
    def labels(k: int) -> list[str]:
        call = make_call(
            Matmul(), {"a": Layout(D.float32, (512, k)), "b": Layout(D.float32, (k, 512), (1, k))}, (Layout(D.float32, (512, 512)),)
        )
        return [x.kernel.label for x in lower(call, replace(device("cpu"), subgroup_size=8)).launches]

    assert labels(1024) == ["matmul_pack", "matmul_pack", "matmul_gemm"] and labels(1000) == ["matmul_gemm"]
