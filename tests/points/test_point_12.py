"""Pinned wgpu behind one shim, provenance without frames, float64 references for gradcheck."""

from __future__ import annotations

import gc
import sys
import tomllib
import weakref
from types import CodeType, FrameType
from typing import Any

import numpy as np
import pytest

import meganeura as mg
from meganeura import dispatch, provenance
from meganeura.errors import DeviceError, MeganeuraError
from meganeura.gpu import native
from tests.style.package import PACKAGE, ROOT

# ---- the pinned package


def test_the_version_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "wgpu==0.32.*" in project["dependencies"]
    assert "wgpudawn==0.32.*" in project["optional-dependencies"]["dawn"]


def test_another_version_is_refused_at_start(monkeypatch: pytest.MonkeyPatch) -> None:
    import wgpu

    for version in ("0.31.9", "0.33.0", "1.32.0"):
        monkeypatch.setattr(wgpu, "__version__", version)
        with pytest.raises(DeviceError, match=rf"wgpu {version} is installed; meganeura needs wgpu==0\.32"):
            native.Native("wgpu")
    monkeypatch.undo()
    native.Native("wgpu")


@pytest.mark.parametrize("name", ["lib", "ffi", "libf", "GPUShaderModule"])
def test_a_missing_private_name_is_refused_at_start(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from wgpu.backends.wgpu_native import _api

    monkeypatch.delattr(_api, name)
    with pytest.raises(DeviceError, match=rf"lacks .*{name}"):
        native.Native("wgpu")


def test_a_missing_c_function_is_refused_at_start(monkeypatch: pytest.MonkeyPatch) -> None:
    from wgpu.backends.wgpu_native import _api

    class Without:
        def __init__(self, lib: Any) -> None:
            self._lib = lib

        def __getattr__(self, name: str) -> Any:
            if name == "wgpuCommandEncoderFinish":
                raise AttributeError(name)
            return getattr(self._lib, name)

    monkeypatch.setattr(_api, "libf", Without(_api.libf))
    with pytest.raises(DeviceError, match="lacks wgpuCommandEncoderFinish"):
        native.Native("wgpu")


def test_every_c_function_that_is_used_is_checked_at_start() -> None:
    import ast

    tree = ast.parse((PACKAGE / "gpu" / "native.py").read_text())
    used = {
        n.attr
        for n in ast.walk(tree)
        if isinstance(n, ast.Attribute) and n.attr.startswith("wgpu") and len(n.attr) > 4 and n.attr[4].isupper()
    }
    assert used <= set(native._NEEDED) | {n for names in native._NEEDED_BY.values() for n in names}


def test_private_names_are_in_the_shim_only() -> None:
    private = ("._internal", "wgpu.backends", "wgpudawn.backends", "wgpu_native", "_api.", ".libf", "lib.wgpu")
    allowed = {"adapter.py": ("wgpudawn.backends",)}  # its documented way to set Dawn's toggles
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.name == "native.py":
            continue
        text = path.read_text()
        found = [n for n in private if n in text and n not in allowed.get(path.name, ())]
        assert not found, (path.name, found)


def test_an_object_without_a_handle_is_refused() -> None:
    with pytest.raises(DeviceError, match="no handle"):
        native.handle_of(object())


# ---- provenance


class Marker:
    """Something that only a frame keeps alive."""


def test_recording_keeps_no_frame_alive() -> None:
    """Neither an eager op's record, nor its tape node, nor a compiled graph holds what the caller's locals held."""
    dead = []

    def work(x: Any) -> Any:
        marker = Marker()
        dead.append(weakref.ref(marker))
        return (x * 2).exp().sum()

    gc.collect()
    gc.disable()
    try:
        y = work(mg.ones(3, requires_grad=True))
        z = mg.compile(work)(mg.ones(3, requires_grad=True))
        alive = [r for r in dead if r() is not None]
    finally:
        gc.enable()
    assert y is not None
    assert z is not None
    assert not alive


def test_a_site_holds_code_and_instruction_only() -> None:
    site = provenance.site()
    assert provenance.Site.__slots__ == ("code", "instruction")
    assert isinstance(site.code, CodeType)
    assert isinstance(site.instruction, int)
    held = [o for o in gc.get_referents(site) if isinstance(o, FrameType)]
    assert not held
    frame = sys._getframe()
    for known in (provenance._INSIDE,):
        assert frame not in list(known) and frame not in list(known.values())


def test_a_site_is_the_users_line() -> None:
    node = (mg.ones(2, requires_grad=True) * 3).grad_fn
    line = sys._getframe().f_lineno - 1
    assert (node.site.file, node.site.line) == (__file__, line)
    assert "mg.ones(2, requires_grad=True) * 3" in str(node.site)


def test_code_without_a_file_is_the_users_too() -> None:
    """What `python -c` or exec runs; but not what the package generates."""
    names: dict[str, Any] = {"mg": mg, "__name__": "__main__"}
    exec("x = mg.ones(2, requires_grad=True)\ny = x * 3", names)
    assert str(names["y"].grad_fn.site).startswith("<string>:2")


def test_errors_name_the_users_line() -> None:
    with pytest.raises(MeganeuraError, match=r"test_point_12\.py:\d+"):
        mg.ones(2, 3) @ mg.ones(2, 3)
    with pytest.raises(MeganeuraError, match=r"test_point_12\.py:\d+"):
        mg.ones(2, 3).sum(5)


# ---- the numeric side of gradcheck


def test_precise_references_compute_in_float64() -> None:
    precise, plain = mg.Reference(precise=True), mg.Reference()
    results = []
    for interpreter in (precise, plain):
        with dispatch.use(interpreter):
            x = mg.tensor(np.ones(3, np.float32)) + 1e-9
            y = ((x - 1.0) * 1e9).sum()
            results.append(float(interpreter.read(y)))
    assert results[0] == pytest.approx(3, rel=1e-5)
    assert results[1] == 0


def test_differences_of_a_precise_forward_match_a_gradient_to_many_digits() -> None:
    values = np.array([0.3, -1.2, 2.0], np.float32)
    precise = mg.Reference(precise=True)

    def forward(v: Any) -> Any:
        return (v.tanh() * v).exp().sum()

    with dispatch.use(precise):
        x = mg.tensor(values, requires_grad=True)
        forward(x).backward()
        exact = precise.read(x.grad)
        eps = 1e-6
        numeric = []
        for i in range(3):
            ends = []
            for sign in (1, -1):
                shift = mg.tensor((np.arange(3) == i).astype(np.float32)) * (sign * eps)
                with mg.no_grad():
                    ends.append(float(precise.read(forward(x.detach() + shift))))
            numeric.append((ends[0] - ends[1]) / (2 * eps))
    np.testing.assert_allclose(numeric, exact, rtol=1e-7)
