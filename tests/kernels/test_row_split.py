"""Few long rows shared by several workgroups: launches, values and sums against numpy, in layouts that divide and that do not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from meganeura import dtype as D
from meganeura.kernels import lower, row
from meganeura.ops import REGISTRY
from meganeura.ops.archetype import Row
from meganeura.storage import Layout

from .run_call import download, make_call, profile, run, strided, upload

SHAPES = [(2, 2, 10, 1024), (3, 1, 5, 4099), (1, 4, 1, 20480), (1, 1, 3, 9001), (2, 3, 7, 1331)]


def _apply(name: str, arrays: dict[str, Any], layouts: dict[str, Layout], dim: tuple[int, ...], outs: list[Layout], half: bool) -> Any:
    arch = REGISTRY[name].archetype
    assert isinstance(arch, Row)
    scalars = (("eps", "f32"),) if "eps" in REGISTRY[name].names else ()
    call = make_call(arch, layouts, outs, attrs={"dim": dim}, scalars=scalars, compute=(D.float32,) * len(layouts))
    targets = [upload(np.full(o.numel, 77), o.dtype) for o in outs]
    lowered = row.lower(call, profile("gpu"))
    run(lowered, [*(upload(arrays[n], x.dtype) for n, x in layouts.items()), *targets], (1e-5,) if scalars else ())
    return len(lowered.launches), [download(t, o.dtype, o.numel).reshape(o.shape) for t, o in zip(targets, outs, strict=True)]


def _close(got: Any, want: Any, half: bool) -> None:
    np.testing.assert_allclose(got, want, rtol=2e-3 if half else 2e-5, atol=2e-3 if half else 1e-5 * max(1.0, float(np.abs(want).max())))


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_group_norm(shape: tuple[int, ...], half: bool) -> None:
    rng = np.random.default_rng(0)
    kind = D.float16 if half else D.float32
    n, g, c, _ = shape
    x = (rng.normal(size=shape) + 3).astype(kind.numpy)
    w, b = (rng.normal(size=(1, g, c, 1)).astype(np.float32) for _ in range(2))
    layouts = {"input": Layout(kind, shape), "weight": Layout(D.float32, (1, g, c, 1)), "bias": Layout(D.float32, (1, g, c, 1))}
    outs = [Layout(kind, shape), Layout(D.float32, (n, g)), Layout(D.float32, (n, g))]
    count, (y, mean, rstd) = _apply("group_norm_row", {"input": x, "weight": w, "bias": b}, layouts, (2, 3), outs, half)
    assert count in (1, 3)
    assert count == (1 if shape == (1, 1, 3, 9001) else count)
    ref = REGISTRY["group_norm_row"].ref
    assert ref is not None
    want = ref(x.astype(np.float64), w, b, (2, 3), 1e-5)
    for got, w_ in zip((y, mean, rstd), want, strict=True):
        _close(got, w_, half)
    grad = rng.normal(size=shape).astype(kind.numpy)
    stats = {"mean": Layout(D.float32, (n, g)), "rstd": Layout(D.float32, (n, g))}
    layouts = {"grad": Layout(kind, shape), "input": Layout(kind, shape), "weight": layouts["weight"], **stats}
    arrays = {"grad": grad, "input": x, "weight": w, "mean": want[1], "rstd": want[2]}
    _, (dx,) = _apply("group_norm_grad", arrays, layouts, (2, 3), [Layout(kind, shape)], half)
    ref = REGISTRY["group_norm_grad"].ref
    assert ref is not None
    _close(dx, ref(grad.astype(np.float64), x.astype(np.float64), w, want[1], want[2], (2, 3)), half)


def test_the_shapes_that_matter_are_shared() -> None:
    for shape, launches in (((4, 32, 10, 4096), 3), ((32, 32, 2, 3136), 1), ((8, 32, 16, 49), 1)):
        x = Layout(D.float32, shape)
        arch = REGISTRY["group_norm_row"].archetype
        outs = [x, Layout(D.float32, shape[:2]), Layout(D.float32, shape[:2])]
        call = make_call(arch, {"input": x}, outs, attrs={"dim": (2, 3)}, scalars=(("eps", "f32"),), compute=(D.float32,))
        assert len(row.lower(call, profile("gpu")).launches) == launches, shape
        assert len(row.lower(call, profile("cpu")).launches) == 1


@pytest.mark.parametrize("name", ["layer_norm_row", "rms_norm_row", "layer_norm_grad", "rms_norm_grad", "softmax_grad"])
def test_other_rows_with_columns(name: str) -> None:
    op = REGISTRY[name]
    rng = np.random.default_rng(1)
    layout = Layout(D.float32, (3, 12000), (24001, 2), 5)
    base = {k: rng.normal(size=80000).astype(np.float32) for k in ("grad", "input", "result")}
    small = {"weight": rng.normal(size=12000), "bias": rng.normal(size=12000), "mean": rng.normal(size=3), "rstd": rng.uniform(0.5, 1, 3)}
    layouts, arrays, args = {}, {}, []
    for p in op.names:
        if p in base:
            layouts[p], arrays[p] = layout, base[p]
            args.append(strided(base[p], layout).astype(np.float64))
        elif p in small:
            arrays[p] = small[p].astype(np.float32)
            layouts[p] = Layout(D.float32, arrays[p].shape)
            args.append(arrays[p].astype(np.float64))
        else:
            args.append(1e-5 if p == "eps" else (1,))
    assert op.ref is not None
    made = op.ref(*args)
    want = made if isinstance(made, tuple) else (made,)
    outs = [Layout(D.float32, w.shape) for w in want]
    count, got = _apply(name, arrays, layouts, (1,), outs, False)
    assert count == 3
    for g, w in zip(got, want, strict=True):
        _close(g, w, False)


@pytest.mark.parametrize("family", ["cpu", "gpu"])
def test_groups_of_what_exceeds_a_binding(family: str) -> None:
    rng = np.random.default_rng(2)
    shape = (6, 2, 3, 1000)
    x, w = rng.normal(size=shape).astype(np.float32), rng.normal(size=(1, 2, 3, 1)).astype(np.float32)
    layouts = {"input": Layout(D.float32, shape), "weight": Layout(D.float32, w.shape)}
    outs = [Layout(D.float32, shape), Layout(D.float32, (6, 2)), Layout(D.float32, (6, 2))]
    op = REGISTRY["group_norm_row"]
    call = make_call(op.archetype, layouts, outs, attrs={"dim": (2, 3)}, scalars=(("eps", "f32"),))
    lowered = lower(call, profile(family, max_binding=1 << 16))
    assert len(lowered.launches) > 1
    targets = [upload(np.full(o.numel, 77), o.dtype) for o in outs]
    run(lowered, [upload(x, D.float32), upload(w, D.float32), *targets], (1e-5,))
    assert op.ref is not None
    for t, o, want in zip(targets, outs, op.ref(x.astype(np.float64), w, None, (2, 3), 1e-5), strict=True):
        _close(download(t, D.float32, o.numel).reshape(o.shape), want, False)


@pytest.mark.parametrize("family", ["cpu", "gpu"])
@pytest.mark.parametrize("shape", [(32, 5, 49), (4, 3, 4096), (3, 4, 16), (7, 2, 3001), (2, 2, 30000), (16, 3, 1)], ids=str)
def test_rows_of_several_runs(shape: tuple[int, int, int], family: str) -> None:
    """Channels of a batch, in tensors laid out in other ways too."""
    rng = np.random.default_rng(3)
    n, c, size = shape
    op, back = REGISTRY["batch_norm_row"], REGISTRY["batch_norm_grad"]
    assert op.ref is not None and back.ref is not None
    for how in ("plain", "padded", "channels last"):
        layout = Layout(D.float32, shape)
        if how == "padded":
            layout = Layout(D.float32, shape, (2 * c * size, size, 1), 3)
        elif how == "channels last":
            layout = Layout(D.float32, shape, (c * size, 1, c))
        base, gbase = (rng.normal(size=2 * n * c * size + 8).astype(np.float32) for _ in range(2))
        x, g = (strided(v, layout).astype(np.float64) for v in (base, gbase))
        w = rng.normal(size=(1, c, 1)).astype(np.float32)
        want = op.ref(x, w, None, (0, 2), 1e-5)
        outs = [Layout(D.float32, v.shape) for v in want]
        call = make_call(
            op.archetype, {"input": layout, "weight": Layout(D.float32, w.shape)}, outs, attrs={"dim": (0, 2)}, scalars=(("eps", "f32"),)
        )
        targets = [upload(np.full(o.numel, 77), o.dtype) for o in outs]
        run(row.lower(call, profile(family)), [upload(base, D.float32), upload(w, D.float32), *targets], (1e-5,))
        for t, o, v in zip(targets, outs, want, strict=True):
            _close(download(t, D.float32, o.numel).reshape(o.shape), v, False)
        stats = [np.asarray(v, np.float32) for v in want[1:3]]
        layouts = {"grad": layout, "input": layout, "weight": Layout(D.float32, w.shape)}
        layouts |= {"mean": Layout(D.float32, (c,)), "rstd": Layout(D.float32, (c,))}
        wanted = back.ref(g, x, w, *stats, (0, 2))
        outs = [Layout(D.float32, v.shape) for v in wanted]
        targets = [upload(np.full(o.numel, 77), o.dtype) for o in outs]
        call = make_call(back.archetype, layouts, outs, attrs={"dim": (0, 2)})
        buffers = [upload(v, D.float32) for v in (gbase, base, w, *stats)]
        run(row.lower(call, profile(family)), [*buffers, *targets])
        for t, o, v in zip(targets, outs, wanted, strict=True):
            np.testing.assert_allclose(
                download(t, D.float32, o.numel).reshape(o.shape), v, rtol=1e-4, atol=2e-4 * max(1, float(np.abs(v).max()))
            )
