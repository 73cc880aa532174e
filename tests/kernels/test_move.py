"""cat, pad and contiguous copies of both families."""

from __future__ import annotations

import numpy as np
import pytest

from meganeura import dtype as D
from meganeura.dtype import DType
from meganeura.errors import DeviceError
from meganeura.kernels import move
from meganeura.kernels.kernel import TEMP, Launch, Lowered
from meganeura.ops.archetype import Kernel
from meganeura.storage import Layout
from tests.kernels.run_call import FAMILIES, STORED, download, make_call, profile, run, strided, upload

F = D.float32
Pads = tuple[tuple[int, int], ...]
pytestmark = pytest.mark.parametrize("family", FAMILIES)


def numbers(count: int, dtype: DType = F) -> np.ndarray:
    values = np.random.default_rng(count).integers(0, 2 if dtype.kind == "b" else 90, count)
    return values.astype(STORED[dtype.storage])


# --- contiguous


@pytest.mark.parametrize(
    "layout",
    [
        Layout(F, (8, 12), (1, 8)),
        Layout(F, (7, 9), (1, 7), 2),
        Layout(F, (64, 32), (1, 64)),
        Layout(F, (3, 8, 16), (128, 1, 8)),
        Layout(F, (4, 6, 5, 8), (240, 8, 48, 1)),
        Layout(F, (4, 8), (0, 1)),
        Layout(D.float16, (5, 8), (1, 5)),
        Layout(D.float16, (16, 20), (1, 16), 4),
        Layout(D.bool_, (5,), (2,)),
        Layout(D.int64, (), (), 3),
    ],
)
def test_contiguous(family: str, layout: Layout) -> None:
    base = numbers(layout.span()[1] + 1, layout.dtype)
    launch, nbytes = move.contiguous(layout, 0, 1, profile(family))
    assert launch.bindings == (0, TEMP(1)) and nbytes % 16 == 0 and nbytes >= layout.numel * layout.dtype.itemsize
    shown = Launch(launch.kernel, (0, 1), launch.grid, launch.params)
    target = upload(np.zeros(max(layout.numel, 1)), layout.dtype)
    run(Lowered((shown,)), [upload(base, layout.dtype), target])
    got = download(target, layout.dtype, layout.numel).reshape(layout.shape)
    np.testing.assert_array_equal(got, strided(base, layout).astype(got.dtype))


# --- cat


@pytest.mark.parametrize(
    ("dim", "shapes"),
    [
        (0, [(2, 3), (4, 3), (0, 3)]),
        (1, [(2, 4), (2, 8)]),
        (1, [(2, 3), (2, 5), (2, 1)]),
        (2, [(3, 2, 5), (3, 2, 3)]),
        (0, [(5,), (3,), (4,)]),
        (1, [(2, 4, 3, 4), (2, 8, 3, 4)]),
    ],
)
def test_cat(family: str, dim: int, shapes: list[tuple[int, ...]]) -> None:
    arrays = [numbers(int(np.prod(s)) + i)[i:].reshape(s) for i, s in enumerate(shapes)]
    want = np.concatenate(arrays, dim)
    call = make_call(
        Kernel("cat"), {f"tensors.{i}": Layout(F, s) for i, s in enumerate(shapes)}, (Layout(F, want.shape),), attrs={"dim": dim}
    )
    target = upload(np.zeros(want.size), F)
    run(move.lower(call, profile(family)), [*(upload(a, F) for a in arrays), target])
    np.testing.assert_array_equal(download(target, F, want.size).reshape(want.shape), want)


def test_cat_converts_and_reads_views(family: str) -> None:
    a, b = numbers(12, D.int32), numbers(24)
    views = {"tensors.0": Layout(D.int32, (3, 4), (1, 3)), "tensors.1": Layout(F, (3, 4), (8, 2), 1)}
    call = make_call(Kernel("cat"), views, (Layout(F, (3, 8)),), attrs={"dim": 1}, compute=(F, F))
    target = upload(np.zeros(24), F)
    run(move.lower(call, profile(family)), [upload(a, D.int32), upload(b, F), target])
    want = np.concatenate([strided(a, views["tensors.0"]).astype(np.float32), strided(b, views["tensors.1"])], 1)
    np.testing.assert_array_equal(download(target, F, 24).reshape(3, 8), want)


def test_empty(family: str) -> None:
    nothing = Layout(F, (0, 3))
    assert move.lower(make_call(Kernel("cat"), {"tensors.0": nothing}, (nothing,), attrs={"dim": 0}), profile(family)).launches == ()


# --- pad


def pad(family: str, layout: Layout, pads: Pads, value: float = 1.5, **limits: int) -> None:
    base = numbers(max(1, layout.span()[1] + 1), layout.dtype)
    x = strided(base, layout)
    inner = x[tuple(slice(max(0, -b), n - max(0, -a)) for n, (b, a) in zip(x.shape, pads))]
    want = np.pad(inner, [(max(b, 0), max(a, 0)) for b, a in pads], constant_values=value)
    call = make_call(
        Kernel("pad"), {"input": layout}, (Layout(layout.dtype, want.shape),), attrs={"pad": pads}, scalars=(("value", "f32"),)
    )
    target = upload(np.full(max(1, want.size), 77), layout.dtype)
    run(move.lower(call, profile(family, **limits)), [upload(base, layout.dtype), target], (value,))
    got = download(target, layout.dtype, want.size).reshape(want.shape)
    np.testing.assert_array_equal(got, want.astype(got.dtype))


@pytest.mark.parametrize(
    ("shape", "pads"),
    [
        ((5,), ((1, 2),)),
        ((8,), ((4, 4),)),
        ((2, 3, 8, 8), ((0, 0), (0, 0), (1, 1), (1, 3))),
        ((2, 3, 8, 8), ((0, 0), (0, 0), (1, 1), (4, 8))),
        ((2, 3, 8), ((0, 0), (1, 2), (0, 0))),
        ((4, 6), ((-1, 2), (3, -2))),
        ((4, 6), ((-1, -1), (-2, -2))),
        ((4, 6), ((-4, 0), (0, 0))),
        ((0, 4), ((1, 1), (2, 2))),
        ((3, 4, 5), ((0, 0), (0, 0), (0, 0))),
    ],
)
def test_pad(family: str, shape: tuple[int, ...], pads: Pads) -> None:
    pad(family, Layout(F, shape), pads)


@pytest.mark.parametrize("dtype", D.ALL, ids=lambda d: d.name)
def test_pad_dtypes(family: str, dtype: DType) -> None:
    pad(family, Layout(dtype, (3, 5)), ((1, 1), (2, 2)), 1.0)


def test_pad_views(family: str) -> None:
    pad(family, Layout(F, (3, 4), (1, 3), 1), ((1, 1), (2, 2)))
    pad(family, Layout(F, (3, 4), (16, 2), 1), ((0, 1), (0, 0)))
    pad(family, Layout(F, (4, 4), (0, 1)), ((1, 1), (0, 0)))


def test_pad_over_the_limit_is_refused(family: str) -> None:
    with pytest.raises(DeviceError, match=r"bytes.*4096"):
        pad(family, Layout(F, (50, 50)), ((1, 1), (1, 1)), max_binding=4096)
