"""One row times a matrix on GPUs: every way to share its work, against numpy in float64."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from meganeura import dtype as D
from meganeura.dtype import DType
from meganeura.kernels import matmul, matmul_gpu
from meganeura.kernels import matmul_gemv as gemv
from meganeura.kernels.kernel import Launch, Lowered, Profile
from meganeura.kernels.matmul import lower
from meganeura.kernels.matmul_problem import Problem, problem
from meganeura.kernels.matmul_wgsl import Form
from meganeura.ops.archetype import Matmul
from meganeura.storage import Layout

from .. import tint
from .run_call import download, make_call, run, strided, upload
from .test_matmul import TOLERANCE, check, device, layout, values

Shape = gemv.Rows | gemv.Columns
WALKS = (gemv.Walk(1, False), gemv.Walk(3, False), gemv.Walk(4, False), gemv.Walk(6, False))


def rows() -> list[gemv.Rows]:
    """Lanes of a part of a subgroup, of one, and of more."""
    return [gemv.Rows(lanes, walk, True) for lanes, walk in itertools.product((2, 8, 32), WALKS[::2])]


def columns() -> list[gemv.Columns]:
    """Teams within a subgroup, one to a subgroup, and as many as leave a second round of sums."""
    sizes = ((1, 8), (2, 4), (2, 16), (2, 64), (1, 128), (2, 256), (4, 256), (8, 64), (16, 16), (16, 256))
    return [gemv.Columns(*size, walk, True) for size, walk in zip(sizes, itertools.cycle(WALKS), strict=False)]


def test_few_pipelines_for_all_lengths() -> None:
    """The loads of a turn are part of the text, so K decides among a few texts."""
    for n in (64, 1536, 49152):
        assert len({gemv.columns(n, k, 1, Profile()) for k in range(1, 8193)}) <= 60
    assert len({gemv.rows(k, 1, Profile()) for k in range(4, 8193, 4)}) <= 30


def launch(shape: Shape, p: Problem) -> Launch:
    """The product by this shape."""
    f = Form.of(p, p.a.form(p.k), p.b.form(p.k), p.stores())
    f = replace(f, out="v1") if isinstance(shape, gemv.Rows) else replace(f, a="k1")
    return matmul_gpu._launch(("gemv", shape), f, p, shape.grid(p.n, p.matrices), lambda profile: shape.source(f, profile))


def multiply(where: Profile, shape: Shape, n: int, k: int, batch: int = 1, out: str = "rows", dtype: DType = D.float32) -> None:
    """Run one shape and compare."""
    rng, lead = np.random.default_rng(0), () if batch == 1 else (batch,)
    (la, na), (lb, nb) = (
        layout((*lead, 1, k), "rows", dtype),
        layout((*lead, k, n), "columns" if isinstance(shape, gemv.Rows) else "rows", dtype),
    )
    lo, no = layout((*lead, 1, n), out, dtype)
    a, b = values(rng, la, na), values(rng, lb, nb)
    p = problem(la, lb, lo, (0, 1, 2))
    assert p is not None
    target = upload(np.full(no, np.nan if dtype.kind == "f" else 77), dtype)
    lowered = Lowered((launch(replace(shape, single=batch == 1), p),))
    run(made_for(lowered, where), [upload(a, dtype), upload(b, dtype), target])
    left, right = strided(a, la).astype(np.float64), strided(b, lb).astype(np.float64)
    error = np.abs(strided(download(target, dtype, no), lo).astype(np.float64) - left @ right).max()
    assert error <= TOLERANCE.get(dtype.name, 0) * (np.abs(left) @ np.abs(right)).max(), (shape, n, k, batch, error)


def made_for(lowered: Lowered, where: Profile) -> Lowered:
    """The same launches with their text made for `where`, whatever device runs them."""

    def made(x: Launch) -> Launch:
        text = x.kernel.source(where)
        return replace(x, kernel=replace(x.kernel, key=(*x.kernel.key, where), source=lambda _: text))

    return replace(lowered, launches=tuple(made(x) for x in lowered.launches))


def at_once(shape: Shape, k: int) -> Shape:
    """The shape with all loads of K in one turn."""
    units, step = (k // 4, shape.lanes) if isinstance(shape, gemv.Rows) else (k, shape.size // shape.across)
    return replace(shape, walk=gemv.Walk.over(units, step, units))


@pytest.mark.parametrize("name", ["gpu", "small"])
@pytest.mark.parametrize("shape", [*rows(), *columns()], ids=str)
def test_shapes(name: str, shape: Shape) -> None:
    """Columns and steps of K that fill turns, leave a rest, and are fewer than one turn."""
    where = device(name)
    for n, k in ((36, 132), (100, 64), (4, 4)):
        multiply(where, shape, n, k)
        multiply(where, at_once(shape, k), n, k)
    multiply(where, shape, 20, 520, 3, "second")
    multiply(where, at_once(shape, 132), 36, 132, 2)


@pytest.mark.parametrize("name", ["gpu", "small"])
@pytest.mark.parametrize("dtype", [D.float16, D.bfloat16, D.int32, D.uint32], ids=str)
def test_dtypes(name: str, dtype: DType) -> None:
    for shape in (gemv.Rows(8, WALKS[1], True), gemv.Columns(4, 64, WALKS[1], True), gemv.Columns(1, 128, WALKS[1], True)):
        multiply(device(name), shape, 44, 104, dtype=dtype)
        multiply(device(name), at_once(shape, 104), 44, 104, 2, dtype=dtype)


@pytest.mark.parametrize("name", ["gpu", "small"])
@pytest.mark.parametrize("right", ["rows", "columns"])
def test_the_way_that_is_chosen(name: str, right: str) -> None:
    """One turn, several, more results than a row of workgroups has room for, and a column as the other operand."""
    for n, k in ((100, 36), (64, 1000), (52, 4100), (9000, 8)):
        label = "matmul_gemv_rows" if right == "columns" else "matmul_gemv_columns"
        assert [x.kernel.label for x in check(device(name), (1, k), (k, n), ("rows", right, "rows")).launches] == [label]
    check(device(name), (64, 100), (100, 1), (right, "rows", "rows"))
    check(device(name), (2, 1, 40), (2, 40, 24), ("rows", right, "rows"))


PROFILES = (
    Profile(), Profile(subgroup_size=64), Profile(subgroup_size=4), Profile(subgroups=False), Profile(max_workgroup_size=1000),
    Profile(max_workgroup_size=1024, max_workgroup_memory=32768),
)  # fmt: skip


@pytest.mark.parametrize("matrices", [1, 2])
def test_limits(matrices: int) -> None:
    """Workgroups that the device allows, none of them without work, and as many as it can start for the longest row."""
    for where, n, k in itertools.product(PROFILES, (4, 1024, 4096, matmul.AXIS), (4, 100, 4096)):
        shape = gemv.columns(n, k, matrices, where)
        assert max(*shape.grid(n, matrices), *gemv.rows(k, matrices, where).grid(n, matrices)) <= where.max_groups
        assert shape.size <= where.max_workgroup_size and shape.size * gemv.VEC4 <= where.max_workgroup_memory
        assert shape.size % shape.across == 0 and shape.size // shape.across <= k


def test_more_invocations_share_fewer_columns() -> None:
    def chosen(n: int, k: int, **limits: int) -> tuple[int, int]:
        shape = gemv.columns(n, k, 1, replace(Profile(max_workgroup_size=1024), **limits))
        return shape.across, shape.size

    assert [chosen(n, 576) for n in (576, 1536, 49152)] == [(2, 512), (8, 512), (16, 256)]
    assert chosen(4096, 4096) == (8, 1024) and chosen(4096, 4096, max_workgroup_size=600) == (8, 512)
    assert chosen(576, 9) == (2, 16) and chosen(4096, 4096, max_workgroup_memory=10000) == (8, 512)


@pytest.mark.parametrize("right", ["rows", "columns"])
def test_what_stands_last_is_not_taken_twice(right: str) -> None:
    """A rest of K is loaded from the last place: an infinity there must not reach results that it does not belong to."""
    n, k = 24, 36
    a, b = np.ones((1, k), np.float32), np.ones((k, n), np.float32)
    b[-1, 5], b[-1, 7] = np.inf, np.nan
    lb = Layout(D.float32, (k, n), (1, k) if right == "columns" else None)
    target = upload(np.zeros(n), D.float32)
    lowered = lower(make_call(Matmul(), {"a": Layout(D.float32, (1, k)), "b": lb}, (Layout(D.float32, (1, n)),)), device("gpu"))
    run(lowered, [upload(a, D.float32), upload(b.T if right == "columns" else b, D.float32), target])
    want = np.full(n, k, np.float32)
    want[5], want[7] = np.inf, np.nan
    assert np.array_equal(download(target, D.float32, n), want, equal_nan=True)


def test_walks() -> None:
    """Everything at once while that is little; else turns of about the same length that cover all."""
    for units, step, most in itertools.product((1, 9, 144, 1024, 100_000), (8, 32, 64), (9, 36)):
        walk, loads = gemv.Walk.over(units, step, most), -(-units // step)
        assert walk.unroll == loads <= most if walk.once else loads > most and 1 <= walk.unroll <= gemv.TURN


TINT = """
import wgpudawn
from dataclasses import replace
from meganeura import dtype as D
from meganeura.kernels.kernel import Profile
from meganeura.kernels.matmul_gemv import Rows
from meganeura.kernels.matmul_problem import problem
from meganeura.storage import Layout
from tests.kernels.test_gemv import at_once, columns, launch, rows
device = wgpudawn.gpu.request_adapter_sync().request_device_sync(required_features=["subgroups", "shader-f16"])
count = 0
for shape in (*rows(), *columns()):
    for dtype in (D.float32, D.float16, D.int32):
        b = Layout(dtype, (132, 36), (1, 132) if isinstance(shape, Rows) else None)
        p = problem(Layout(dtype, (1, 132)), b, Layout(dtype, (1, 36)), (0, 1, 2))
        for profile in (Profile(backend="dawn", subgroup_size=size, subgroups=size > 0) for size in (0, 8, 32, 64)):
            for used in (shape, at_once(replace(shape, single=False), 132)):
                device.create_shader_module(code=launch(used, p).kernel.source(profile))
                count += 1
print("accepted", count)
"""


def test_tint_accepts_them() -> None:
    assert "accepted" in tint.printed(TINT)
