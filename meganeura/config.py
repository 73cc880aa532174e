"""Configuration: one frozen Config, resolved once from arguments and MEGANEURA_* variables. Nothing else reads them."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from .errors import MeganeuraError

PREFIX = "MEGANEURA_"
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("", "0", "false", "no", "off")


def _option(default: Any, doc: str, choices: tuple[str, ...] = (), inert: str = "") -> Any:
    """A field: its help text, its allowed words, and why it does nothing here (`inert`), if so."""
    return field(default=default, metadata={"doc": doc, "choices": choices, "inert": inert})


_NO_UNITS = "no kernel uses matrix units"
_NO_CAPS = "the device's limits choose the tiles of attention"


@dataclass(frozen=True, slots=True)
class Config:
    """Every option. The variable of a field is MEGANEURA_ + its name in capitals."""

    device_id: int | None = _option(None, "PCI device id of the adapter to open (decimal or 0x...); must open, no fallback")
    backend: str = _option("wgpu", "WebGPU implementation", ("wgpu", "wgpudawn", "dawn", "wgpu-opengl", "wgpudawn-null"))
    disable_coop: bool = _option(False, "never use matrix units", inert=_NO_UNITS)
    coop_f16: bool = _option(False, "f16 products on matrix units wherever precision allows 'medium'", inert=_NO_UNITS)
    flash_fwd_coop: bool | None = _option(
        None, "matrix units in the attention forward kernel (unset: the device table decides)", inert=_NO_UNITS
    )
    flash_bwd_coop: bool | None = _option(
        None, "matrix units in the attention backward kernels (unset: the device table decides)", inert=_NO_UNITS
    )
    no_alias: bool = _option(False, "the planner gives every value its own buffer")
    no_device_local: bool = _option(False, "keep buffers in host memory", inert="WebGPU does not expose memory types")
    serial_dispatch: bool = _option(False, "submit after every dispatch")
    no_winograd: bool = _option(False, "never use Winograd convolutions")
    pin_bufs: bool = _option(False, "the planner never reuses a buffer inside one step")
    dump_plan: str = _option("", "directory to write session plans to")
    dump_wgsl: str = _option("", "directory to write every shader to")
    optimizer: str = _option(
        "",
        "rewrite mode of compile, when its argument does not say",
        ("", "off", "greedy", "egglog-windowed", "egglog-outlined", "egglog-whole"),
    )
    egraph_cost: str = _option("tensor-traffic", "cost model of the egglog modes", ("ast-size", "tensor-traffic"))
    egraph_cutoff: int = _option(300, "most nodes of a window of the egglog modes; egglog-whole takes graphs of 4 times as many")
    greedy_pack_swiglu: bool = _option(
        True,
        "the greedy engine packs gate and up projections",
        inert="products of one input with several weights are packed without asking",
    )
    device_parameters: bool = _option(False, "keep parameters in device-local memory", inert="WebGPU does not expose memory types")
    reuse_upload: bool = _option(False, "reuse upload heaps", inert="queue.write_buffer owns its staging memory")
    tune: bool = _option(False, "tune kernels when a session is built", inert="kernels are not tuned; tables choose them")
    flash_ept_cap: int | None = _option(None, "most head elements a thread in the attention forward kernel", inert=_NO_CAPS)
    flash_grad_q_ept_cap: int | None = _option(None, "most head elements a thread in the query-gradient kernel", inert=_NO_CAPS)
    flash_grad_kv_ept_cap: int | None = _option(None, "most head elements a thread in the key/value-gradient kernel", inert=_NO_CAPS)
    flash_bwd_ept_cap: int | None = _option(None, "most head elements a thread in all attention backward kernels", inert=_NO_CAPS)
    matmul_k_stage: int | None = _option(None, "K elements staged at a time in GPU matrix products", inert="the table of tiles says it")
    interleave_columns: bool | None = _option(
        None, "interleave the columns of packed matrix products (unset: the table decides)", inert="packed products are not interleaved"
    )
    gpu_timing: bool = _option(False, "time every session step with GPU timestamps", inert="meganeura.profile() times a block")
    gpu_capture: str = _option("", "write a GPU capture", inert="WebGPU has no capture interface; use the vendor's tool")
    trace: str = _option("", "file to write a Perfetto trace to", inert="meganeura.profile() writes traces")
    plan_cache: str = _option("", "directory of the cache of rewritten and planned graphs (unset: the user's caches; off: none)")
    debug: bool = _option(False, "verify the IR after every pass and check every buffer on every dispatch")
    check: bool = _option(False, "compare every eager op with its numpy reference")
    no_robustness: bool = _option(
        False, "Dawn only: open the device without bounds checks (kernels whose indices come from data check them themselves)"
    )

    @property
    def trusted_modules(self) -> bool:
        """Whether kernels that are right by construction may run without clamps."""
        return not (self.debug or self.check)


def _parse(name: str, annotation: str, choices: tuple[str, ...], text: str) -> Any:
    """The value that a variable's text stands for."""
    word = text.strip()
    if annotation.startswith("bool"):
        if word.lower() in _TRUE:
            return True
        if word.lower() in _FALSE:
            return False
        raise MeganeuraError(f"{PREFIX}{name}={text!r}: expected 1 or 0")
    if annotation.startswith("int"):
        try:
            return int(word, 0)
        except ValueError:
            raise MeganeuraError(f"{PREFIX}{name}={text!r}: expected a whole number (decimal or 0x...)") from None
    if choices and word not in choices:
        raise MeganeuraError(f"{PREFIX}{name}={text!r}: expected one of {', '.join(repr(c) for c in choices if c)}")
    return word


def resolve(environ: Mapping[str, str] | None = None, **arguments: Any) -> Config:
    """A Config from arguments, then variables, then defaults. Unknown names and options without effect warn."""
    environ = os.environ if environ is None else environ
    known = {f.name.upper(): f for f in fields(Config)}
    values: dict[str, Any] = {}
    for variable, text in sorted(environ.items()):
        if not variable.startswith(PREFIX):
            continue
        option = known.get(variable.removeprefix(PREFIX))
        if option is None:
            warnings.warn(f"{variable} is no option of meganeura; there are {', '.join(PREFIX + n for n in known)}", stacklevel=2)
            continue
        if option.metadata["inert"]:
            warnings.warn(f"{variable} has no effect: {option.metadata['inert']}", stacklevel=2)
        values[option.name] = _parse(option.name.upper(), str(option.type), option.metadata["choices"], text)
    for name, value in arguments.items():
        if name.upper() not in known:
            raise TypeError(f"no option {name!r}; there are {', '.join(n.lower() for n in known)}")
        if value is not None:
            values[name] = value
    return Config(**values)


def describe() -> list[tuple[str, Any, str]]:
    """(variable, default, text) an option, for the documentation and `python -m meganeura info`."""
    rows = []
    for f in fields(Config):
        inert = f.metadata["inert"]
        rows.append((PREFIX + f.name.upper(), f.default, f.metadata["doc"] + (f" (no effect: {inert})" if inert else "")))
    return rows


_current: Config | None = None


def current() -> Config:
    """The process's Config, resolved at the first call."""
    global _current
    if _current is None:
        _current = resolve()
    return _current


def configure(**arguments: Any) -> Config:
    """Resolve again, with arguments taking precedence; what was opened before keeps the Config it was opened with."""
    global _current
    _current = resolve(**arguments)
    return _current


def plan_folder(environ: Mapping[str, str] | None = None) -> Path | None:
    """Where compiled graphs are kept from process to process; None where they are not."""
    environ = os.environ if environ is None else environ
    said = current().plan_cache
    if said.lower() in _FALSE[1:]:
        return None
    if said:
        return Path(said)
    try:
        home = Path.home()
    except RuntimeError:
        return None
    if sys.platform == "darwin":
        caches = home / "Library" / "Caches"
    elif sys.platform == "win32":
        caches = Path(environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    else:
        caches = Path(environ.get("XDG_CACHE_HOME") or home / ".cache")
    return caches / "meganeura" / "plans"


_OUTSIDE = ("check", "debug", "dump_plan", "dump_wgsl", "gpu_capture", "gpu_timing", "plan_cache", "serial_dispatch", "trace")


def computing() -> str:
    """The options that what is computed may depend on, as text."""
    now = current()
    return repr([(f.name, getattr(now, f.name)) for f in fields(Config) if f.name not in _OUTSIDE])
