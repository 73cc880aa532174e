"""Attention kernels of both families, of parts, and with little workgroup memory, against float64; results start as NaN."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from meganeura import dtype as D
from meganeura.kernels import attention, attention_gpu, attention_grad, attention_parts, rotary
from meganeura.kernels.attention_problem import find
from meganeura.kernels.attention_tile import Tile
from meganeura.kernels.call import make_call
from meganeura.kernels.kernel import Call, Lowered
from meganeura.ops import REGISTRY
from meganeura.ops.attention import _grad_ref, _ref
from meganeura.ops.infer import infer
from meganeura.storage import Layout
from tests import tint
from tests.kernels.run_call import STORED, download, eight_lanes, profile, run, upload

F, H = D.float32, D.float16
RNG = np.random.default_rng(1)
FORWARD, BACKWARD = REGISTRY["attention_row"], REGISTRY["attention_grad_row"]


class Case:
    """Inputs of one attention, their layouts, and what is expected."""

    def __init__(
        self, q: tuple[int, ...], k: tuple[int, ...], width: int, dtype: Any = F, mask: Any = None, position: Any = None, **attrs: Any
    ):
        self.values = [RNG.standard_normal(s).astype(STORED[dtype.storage]) for s in (q, k, (*k[:3], width))]
        self.layouts: list[Layout] = [Layout(dtype, x.shape) for x in self.values]
        self.dtype, self.mask, self.position = dtype, mask, position
        self.attrs = {"causal": False, "window": 0, "offset": 0, "undefined": False, **attrs}
        self.scale = 0.3

    def extra(self) -> tuple[dict[str, Any], list[Any]]:
        """Mask and position: layouts by name, buffers."""
        layouts: dict[str, Any] = {"mask": None, "position": None}
        buffers = []
        for name, x in (("mask", self.mask), ("position", self.position)):
            if x is not None:
                dtype = D.bool_ if x.dtype == np.bool_ else D.int64 if x.dtype.kind == "i" else F
                layouts[name] = Layout(dtype, x.shape)
                buffers.append(upload(x, dtype))
        return layouts, buffers

    def expected(self) -> Any:
        args = (self.mask, self.position, self.scale, *self.attrs.values())
        with np.errstate(all="ignore"):
            return _ref([x.astype(np.float64) for x in self.values], *args)

    def call(self, op: Any, **more: Any) -> Call:
        args = {"qkv": tuple(self.layouts), **self.extra()[0], "scale": self.scale, **self.attrs, **more}
        args = {n: args[n] for n in op.names}
        inferred = infer(op, args)
        return make_call(op, args, inferred, [Layout(s.dtype, s.shape) for s in inferred.outputs])


def close(got: Any, want: Any, half: bool, what: str) -> None:
    assert np.isfinite(got[np.isfinite(want)]).all(), f"{what}: not everything was written"
    tolerance = 4e-3 if half else 2e-5
    scale = np.abs(want[np.isfinite(want)]).max(initial=1.0)
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance * scale, err_msg=what)


def outputs(call: Call) -> list[Any]:
    return [upload(np.full(x.numel, np.nan), x.dtype) for x in call.outputs]


def execute(case: Case, lower: Any) -> None:
    """Forward and backward by `lower(call)`, compared with float64."""
    half = case.dtype is H
    call = case.call(FORWARD)
    inputs, more = [upload(x, case.dtype) for x in case.values], case.extra()[1]
    outs = outputs(call)
    run(lower(call), [*inputs, *more, *outs], (case.scale,))
    want = case.expected()
    for o, layout, w, what in zip(outs, call.outputs, want, ("result", "log of the sum"), strict=True):
        close(download(o, layout.dtype, layout.numel).reshape(layout.shape), w, half, what)
    grad = RNG.standard_normal(want[0].shape).astype(STORED[case.dtype.storage])
    kept = [want[0].astype(grad.dtype), want[1].astype(np.float32)]
    layouts = {"grad": Layout(case.dtype, grad.shape), "out": Layout(case.dtype, grad.shape), "lse": Layout(F, want[1].shape)}
    call = case.call(BACKWARD, **layouts)
    outs = outputs(call)
    run(lower(call), [upload(grad, case.dtype), *inputs, upload(kept[0], case.dtype), upload(kept[1], F), *more, *outs], (case.scale,))
    args = (case.mask, case.position, case.scale, *(case.attrs[n] for n in ("causal", "window", "offset")))
    wanted = _grad_ref(grad.astype(np.float64), [x.astype(np.float64) for x in case.values], want[0], want[1], *args)
    for o, layout, w, what in zip(outs, call.outputs, wanted, "qkv", strict=True):
        close(download(o, layout.dtype, layout.numel).reshape(layout.shape), w, half, f"gradient of {what}")


def by_parts(call: Call) -> Lowered:
    p, operands = find(call)
    made = attention_parts.backward if call.op is BACKWARD else attention_parts.forward
    return made(p, operands, profile("cpu"))


LOWERINGS: dict[str, Any] = {
    "cpu": lambda call: attention.lower(call, profile("cpu")),
    "gpu": lambda call: attention.lower(call, profile("gpu", max_workgroup_memory=49152)),
    "small": lambda call: attention.lower(call, profile("gpu", max_workgroup_memory=16384, subgroups=False)),
    "parts": by_parts,
}


def mask(*shape: int) -> Any:
    out = RNG.integers(0, 3, shape) > 0
    out[..., 0, :] = False
    return out


CASES: dict[str, Any] = {
    "square": lambda: Case((1, 3, 70, 64), (1, 1, 70, 64), 64, causal=True),
    "long": lambda: Case((1, 2, 120, 64), (1, 1, 301, 64), 64, causal=True, offset=181, window=150),
    "band": lambda: Case((1, 2, 61, 20), (1, 2, 280, 20), 20, window=70, offset=100),
    "masked": lambda: Case((1, 2, 62, 32), (1, 1, 150, 32), 36, mask=mask(2, 62, 150)),
    "wide": lambda: Case((1, 2, 9, 128), (1, 2, 40, 128), 96),
    "widest": lambda: Case((1, 1, 10, 256), (1, 1, 21, 256), 256, causal=True, offset=11),
    "odd": lambda: Case((2, 2, 7, 5), (2, 1, 13, 5), 3, mask=mask(2, 1, 7, 13)),
    "half": lambda: Case((2, 2, 33, 40), (2, 2, 40, 40), 48, dtype=H, window=9),
    "added": lambda: Case((1, 4, 21, 32), (1, 2, 36, 32), 32, mask=RNG.standard_normal((4, 21, 36)).astype(np.float32)),
    "padding": lambda: Case((2, 2, 11, 16), (2, 2, 40, 16), 16, mask=mask(2, 1, 1, 40)),
    "position": lambda: Case((2, 4, 3, 16), (2, 2, 50, 16), 16, position=np.array([4, 47]), causal=True, window=20),
}


@pytest.mark.parametrize("how", LOWERINGS)
@pytest.mark.parametrize("name", CASES)
def test_against_float64(name: str, how: str) -> None:
    execute(CASES[name](), LOWERINGS[how])


@pytest.mark.parametrize("how", LOWERINGS)
@pytest.mark.parametrize("keys", [20, 2100])
def test_rows_without_keys(how: str, keys: int) -> None:
    """0, or NaN where they are undefined; the others are as they were."""
    seen = mask(2, 1, 3, keys)
    for undefined in (False, True):
        case = Case((2, 2, 3, 16), (2, 2, keys, 16), 16, mask=seen, undefined=undefined)
        call = case.call(FORWARD)
        outs = outputs(call)
        run(LOWERINGS[how](call), [*(upload(x, F) for x in case.values), *case.extra()[1], *outs], (case.scale,))
        got, want = download(outs[0], F, call.outputs[0].numel).reshape(2, 2, 3, 16), case.expected()[0]
        assert np.isnan(want[:, :, 0]).all() == undefined
        np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("how", ["cpu", "gpu", "parts"])
@pytest.mark.parametrize(("rows", "keys", "group"), [(1, 1500, 3), (1, 2100, 1), (4, 1300, 2)])
def test_decoding_over_parts(rows: int, keys: int, group: int, how: str) -> None:
    """Keys beyond the position hold NaN, as a cache that was never written may."""
    case = Case((1, 2 * group, rows, 32), (1, 2, keys, 32), 32, position=np.array(keys // 2), causal=True)
    call = case.call(FORWARD)
    lowered = LOWERINGS[how](call)
    assert len(lowered.launches) == 2 or how == "parts" or (how == "cpu" and not eight_lanes())
    want = case.expected()
    for x in case.values[1:]:
        x[:, :, keys // 2 + rows :] = np.nan
    outs = outputs(call)
    run(lowered, [*(upload(x, F) for x in case.values), *case.extra()[1], *outs], (case.scale,))
    for o, layout, w in zip(outs, call.outputs, want, strict=True):
        close(download(o, layout.dtype, layout.numel).reshape(layout.shape), w, False, "decoding")


def test_position_and_sizes_share_pipelines() -> None:
    """Other lengths, offsets and windows are numbers of the uniform; on GPUs whole tiles of queries are one pipeline, others another."""

    def built(how: str, *sizes: tuple[int, int, int, int]) -> set[Any]:
        keys = set()
        for rows, length, offset, window in sizes:
            case = Case((1, 2, rows, 32), (1, 2, length, 32), 32, causal=True, offset=offset, window=window)
            keys.add(tuple(x.kernel.key for x in LOWERINGS[how](case.call(FORWARD)).launches))
        return keys

    odd, whole = ((41, 99, 58, 9), (43, 43, 0, 3), (47, 65, 1, 30)), ((40, 40, 0, 3), (48, 65, 1, 30))
    assert len(built("gpu", *odd)) == len(built("gpu", *whole)) == 1
    assert len(built("gpu", *odd, *whole)) == 2
    assert not eight_lanes() or len(built("cpu", *odd, *whole)) == 1


@pytest.mark.parametrize("name", ["square", "added", "odd"])
def test_gradients_without_kept_scores_and_over_groups(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_grad, "FEW", 0)
    execute(CASES[name](), LOWERINGS["gpu"])
    monkeypatch.setattr(attention_grad, "KEPT", 0)
    execute(CASES[name](), LOWERINGS["gpu"])
    monkeypatch.setattr(attention_grad, "ENOUGH", 1)
    execute(CASES[name](), LOWERINGS["gpu"])


@pytest.mark.full
def test_other_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every tile of the tables."""
    for tile in {*attention_gpu.TILES, *attention_gpu.SHORT, *attention_gpu.FEW}:
        for name in ("TILES", "SHORT", "FEW"):
            monkeypatch.setattr(attention_gpu, name, (tile,))
        case = Case((1, 2, 19, 64), (1, 2, 70, 64), 64, causal=True, offset=40)
        call = case.call(FORWARD)
        lowered = attention.lower(call, profile("gpu", max_workgroup_memory=49152))
        outs = outputs(call)
        run(lowered, [*(upload(x, F) for x in case.values), *outs], (case.scale,))
        close(download(outs[0], F, call.outputs[0].numel).reshape(call.outputs[0].shape), case.expected()[0], False, repr(tile))


TILED: dict[str, Any] = {
    "causal": lambda: Case((1, 6, 64, 64), (1, 2, 192, 64), 64, causal=True, offset=128),
    "odd": lambda: Case((1, 3, 70, 64), (1, 1, 70, 64), 64, causal=True),
    "rows": lambda: Case((1, 3, 64, 64), (1, 1, 100, 64), 64, mask=mask(64, 100)),
    "free": lambda: Case((2, 2, 48, 64), (2, 2, 128, 64), 64),
    "loose": lambda: Case((1, 9, 19, 64), (1, 1, 77, 64), 64),
    "masked": lambda: Case((1, 2, 64, 32), (1, 1, 128, 32), 64, causal=True, offset=64, mask=mask(2, 64, 128)),
    "uneven": lambda: Case((1, 2, 64, 48), (1, 1, 128, 48), 64, causal=True, offset=64),
    "few": lambda: Case((2, 4, 2, 64), (2, 2, 256, 64), 64, causal=True, offset=254),
    "window": lambda: Case((1, 2, 64, 64), (1, 2, 128, 64), 64, causal=True, offset=64, window=70),
    "unwritten": lambda: Case((1, 2, 16, 16), (1, 1, 64, 16), 64, causal=True, offset=8),
    "position": lambda: Case((2, 4, 16, 16), (2, 2, 64, 16), 64, position=np.array([4, 47]), causal=True),
}
# Rows and keys are whole tiles of 8 queries and 64 keys.
WHOLE = {"causal": (True, True), "free": (True, True), "masked": (True, True), "uneven": (True, True), "few": (True, True),
         "rows": (True, False), "window": (True, False), "unwritten": (True, False), "position": (True, False)}  # fmt: skip
LONG = Tile(32, 64, 8, 4, 16)  # as the one for many queries, with less workgroup memory


def written_for(backend: str, lowered: Lowered) -> Lowered:
    """Launches whose first kernel has the text for a backend's compiler; every compiler accepts it."""
    first = lowered.launches[0]
    source = first.kernel.source
    kernel = replace(first.kernel, key=(backend, *first.kernel.key), source=lambda profile: source(replace(profile, backend=backend)))
    return replace(lowered, launches=(replace(first, kernel=kernel), *lowered.launches[1:]))


@pytest.mark.parametrize("length", ["short", "long"])
@pytest.mark.parametrize("backend", ["wgpu", "dawn"])
@pytest.mark.parametrize("name", TILED)
def test_tiles_that_are_whole_and_that_are_not(name: str, backend: str, length: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both compilers' text, without clamps where rows or keys are whole tiles."""
    case = TILED[name]()
    if length == "long":
        for table in ("TILES", "SHORT", "FEW"):
            monkeypatch.setattr(attention_gpu, table, (LONG,))
    want = case.expected()
    if name == "unwritten":
        for x in case.values[1:]:
            x[:, :, 24:] = np.nan
    if name == "position":
        for x in case.values[1:]:
            x[0, :, 20:] = np.nan
    call = case.call(FORWARD)
    lowered = attention.lower(call, profile("gpu", max_workgroup_memory=49152, subgroups=False))
    form = lowered.launches[0].kernel.key[1]
    assert (form.tile.tr == 8) == (length == "long")
    assert length == "long" or form.whole == WHOLE.get(name, (False, False))
    outs = outputs(call)
    run(written_for(backend, lowered), [*(upload(x, F) for x in case.values), *case.extra()[1], *outs], (case.scale,))
    for o, layout, w in zip(outs, call.outputs, want, strict=True):
        close(download(o, layout.dtype, layout.numel).reshape(layout.shape), w, False, name)


TINT = """
import wgpudawn
from meganeura.gpu import current
from meganeura.kernels import attention, attention_gpu
from meganeura.kernels.kernel import Profile
from tests.kernels.test_attention import CASES, FORWARD, TILED
current()  # opens Dawn's instance, in which the cases make buffers
device = wgpudawn.gpu.request_adapter_sync().request_device_sync(required_features=["subgroups", "shader-f16"])
seen = set()

def accepted(profile, cases):
    for case in cases:
        for launch in attention.lower(case().call(FORWARD), profile).launches:
            if launch.kernel.key not in seen:
                seen.add(launch.kernel.key)
                device.create_shader_module(code=launch.kernel.source(profile))

accepted(Profile(backend="dawn", max_workgroup_memory=49152), (*CASES.values(), *TILED.values()))
accepted(Profile(backend="dawn", subgroups=False), (*CASES.values(), *TILED.values()))
attention_gpu.SHORT = ()  # tiles for many queries
accepted(Profile(backend="dawn", max_workgroup_memory=49152), TILED.values())
print("accepted", len(seen))
"""


def test_tint_accepts_what_naga_does() -> None:
    assert "accepted" in tint.printed(TINT, MEGANEURA_BACKEND="wgpudawn-null")


def test_strides() -> None:
    """Heads as they lie after a projection, [B, L, H, E], and keys of one head for all."""
    case = Case((2, 4, 12, 16), (2, 1, 12, 16), 16, causal=True)
    x = np.ascontiguousarray(np.swapaxes(case.values[0], 1, 2))
    case.layouts[0] = Layout(F, (2, 4, 12, 16), (12 * 64, 16, 64, 1))
    call = case.call(FORWARD)
    for how in LOWERINGS.values():
        outs = outputs(call)
        run(how(call), [upload(x, F), *(upload(y, F) for y in case.values[1:]), *outs], (case.scale,))
        close(download(outs[0], F, call.outputs[0].numel).reshape(2, 4, 12, 16), case.expected()[0], False, "strides")


def test_rotary_and_cache_use_one_pipeline() -> None:
    keys = set()
    for rows in (3, 7):
        op = REGISTRY["cache_write"]
        args = {"caches": (Layout(F, (1, 2, 9, 8)),), "values": (Layout(F, (1, 2, rows, 8)),), "position": Layout(D.int64, ())}
        inferred = infer(op, args)
        lowered = rotary.lower(make_call(op, args, inferred, [Layout(s.dtype, s.shape) for s in inferred.outputs]), replace(profile("gpu")))
        keys |= {x.kernel.key for x in lowered.launches}
    assert len(keys) == 1
