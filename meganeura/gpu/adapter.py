"""Which adapter to open: the one asked for by id, else discrete before integrated before virtual before software."""

from __future__ import annotations

import os
import sys
import tempfile
from typing import Any

from ..config import Config
from ..errors import DeviceError
from . import native

_ORDER = {"DiscreteGPU": 0, "IntegratedGPU": 1, "unknown": 2, "Unknown": 2, "CPU": 3}
_BACKENDS = ("Vulkan", "Metal", "D3D12")
_LIMITS = (
    "max-buffer-size",
    "max-storage-buffer-binding-size",
    "max-storage-buffers-per-shader-stage",
    "max-compute-workgroup-storage-size",
    "max-compute-invocations-per-workgroup",
    "max-compute-workgroup-size-x",
    "max-compute-workgroup-size-y",
    "max-compute-workgroup-size-z",
    "max-compute-workgroups-per-dimension",
    "max-uniform-buffer-binding-size",
    "max-bindings-per-bind-group",
)
_FEATURES = {
    "wgpu": ("subgroup", "subgroup-barrier", "shader-f16", "timestamp-query", "timestamp-query-inside-encoders"),
    "dawn": (
        "subgroups",
        "subgroup-size-control",
        "shader-f16",
        "timestamp-query",
        "chromium-experimental-subgroup-matrix",
        "implicit-device-synchronization",
    ),
}
_INSTALL = "install a Vulkan driver (`apt install mesa-vulkan-drivers libvulkan1` gives a software one)"


def backend_name(config: Config) -> str:
    """'wgpu' or 'dawn'."""
    return "dawn" if "dawn" in config.backend else "wgpu"


def describe(adapter: Any) -> dict[str, Any]:
    """id, name, type, backend and driver of an adapter."""
    i = adapter.info
    return {"id": i["device_id"], "name": i["device"], "type": i["adapter_type"], "backend": i["backend_type"], "driver": i["description"]}


def find(config: Config) -> list[Any]:
    """The adapters that may be opened, best first. OpenGL ones only when the configuration names it."""
    shim = native.load(backend_name(config))
    _prepare_process(shim, config)
    wanted = ("OpenGL",) if config.backend == "wgpu-opengl" else _BACKENDS
    if config.backend == "wgpudawn-null":
        return [shim.package.gpu.request_adapter_sync()]
    found = [a for a in shim.package.gpu.enumerate_adapters_sync() if a.info["backend_type"] in wanted]
    return sorted(found, key=lambda a: _ORDER.get(a.info["adapter_type"], 2))


_prepared: set[str] = set()


def _prepare_process(shim: native.Native, config: Config) -> None:
    """What must be set before the first instance: a runtime directory for drivers, and Dawn's toggles."""
    if shim.backend in _prepared:
        return
    _prepared.add(shim.backend)
    if sys.platform.startswith("linux"):
        os.environ.setdefault("XDG_RUNTIME_DIR", tempfile.gettempdir())
    if config.backend == "wgpudawn-null":  # Dawn's backend that validates everything and runs nothing
        os.environ.setdefault("WGPU_BACKEND_TYPE", "Null")
    if shim.backend == "dawn":
        from wgpudawn.backends.dawn import extras

        enable = ["allow_unsafe_apis", "vulkan_enable_f16_on_nvidia"] + (["disable_robustness"] if config.no_robustness else [])
        extras.set_instance_extras(enable_toggles=enable, disable_toggles=["timestamp_quantization"])


def choose(config: Config) -> Any:
    """The adapter to open. Raises DeviceError when there is none, or when the requested one is not there."""
    found = find(config)
    if not found:
        raise DeviceError(f"no GPU adapter was found by {config.backend} (Vulkan, Metal or D3D12): {_INSTALL}")
    if config.device_id is None:
        return found[0]
    for adapter in found:
        if adapter.info["device_id"] == config.device_id:
            return adapter
    known = "; ".join(f"{d['id']} = {d['name']} ({d['backend']})" for d in map(describe, found))
    raise DeviceError(f"MEGANEURA_DEVICE_ID={config.device_id} names no adapter; there are {known}")


def open_device(config: Config) -> Any:
    """A GPUDevice of the chosen adapter with the adapter's own limits. Raises DeviceError; never falls back."""
    adapter = choose(config)
    features = [f for f in _FEATURES[backend_name(config)] if f in adapter.features]
    limits = {k: adapter.limits[k] for k in _LIMITS if k in adapter.limits}
    try:
        return adapter.request_device_sync(required_features=features, required_limits=limits)
    except Exception as error:  # the packages raise plain RuntimeError and their own errors here
        d = describe(adapter)
        raise DeviceError(f"adapter {d['id']} ({d['name']}, {d['backend']}) cannot be opened: {error}") from error
