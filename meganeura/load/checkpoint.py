"""Checkpoints of training: one safetensors file with the weights, the optimizer's moments and, in its metadata, a manifest.

The manifest holds the logical shape, dtype and SHA-256 of every tensor, the optimizer's groups and counts, the schedule, random
states, the loader's place in its epoch, and values of yours; and a SHA-256 of itself. A file is written beside its target
and renamed over it, so that the target is at all times a whole checkpoint; it is read in full, and compared with everything
it is to go to, before anything changes. Training that goes on from it gives the same bits as training that never stopped.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .._version import __version__
from ..dispatch import no_grad
from ..dtype import bool_, float16, float32, int8, int32, int64, uint8, uint32
from ..errors import CheckpointError, LoadError, MeganeuraError
from ..optim.checkpoint import prepare as prepare_optimizer
from ..random import Generator, default_generator
from ..tensor import Tensor, upload
from .plain import decode, encode
from .safetensors import Entry, Stored, read_array, read_entries, read_metadata, stored, write_stored

VERSION = 1
KEY = "meganeura.checkpoint"
_EXACT = {d.numpy: d for d in (float32, float16, int64, int32, int8, uint32, uint8, bool_)}  # numpy types a file holds as they are


@dataclass(frozen=True)
class Checkpoint:
    """What `load_checkpoint` found besides what it restored: `step`, `extra`, and the names of the tensors in the file."""

    step: int | None
    extra: Any
    names: tuple[str, ...]


# --- saving ---------------------------------------------------------------------------------------------------------


def save_checkpoint(
    path: str | os.PathLike[str], model: Any = None, optimizer: Any = None, scheduler: Any = None, generator: Any = None,
    step: int | None = None, extra: Any = None, loader: Any = None,
) -> None:  # fmt: skip
    """Write the state of training to one file. Atomic: whatever happens, `path` is the old file or the whole new one.

    `model` is a Module, or a dict of Modules and tensors; `scheduler` and `loader` are anything with state_dict();
    `generator` is a meganeura Generator or a dict of them. The default generator's state is always saved. `extra` is any nest
    of plain values, arrays and tensors. Every tensor is read from the device.
    """
    content = _Content(str(path))
    if model is not None:
        content.add_all("model", _model_state(model))
    if optimizer is not None:
        content.manifest["optimizer"] = _optimizer_state(optimizer, content)
    for name, part in (("scheduler", scheduler), ("loader", loader)):
        if part is not None:
            content.manifest[name] = {"class": type(part).__name__, "state": content.plain(part.state_dict(), name)}
    generators = {"default": default_generator, **_generators(generator)}
    content.manifest["generators"] = {name: [int(v) for v in g.get_state()] for name, g in generators.items()}
    content.manifest["step"] = None if step is None else int(step)
    content.manifest["extra"] = content.plain(extra, "extra")
    content.write(path)


class _Content:
    """Tensors and manifest of a checkpoint in the making."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.values: dict[str, Stored] = {}
        self.facts: dict[str, Any] = {}  # name -> dtype, shape, SHA-256
        self.shared: dict[str, str] = {}  # name -> the name whose tensor it is too
        self.manifest: dict[str, Any] = {"version": VERSION, "library": __version__}
        self._first: dict[Any, str] = {}

    def add_all(self, group: str, tensors: Mapping[str, Any]) -> None:
        for name, value in tensors.items():
            self.add(f"{group}/{name}", value)

    def add(self, name: str, value: Any) -> None:
        """Keep a tensor under a name; one that has a name already is kept once."""
        if isinstance(value, Tensor):
            place = (value._storage.uid, value.layout)
            first = self._first.setdefault(place, name)
            if first != name:
                self.shared[name] = first
                return
        held = self.values[name] = stored(name, value)
        self.facts[name] = [held.dtype.name, list(held.shape), hashlib.sha256(held.raw()).hexdigest()]

    def plain(self, value: Any, name: str) -> Any:
        """A JSON form of a value; tensors and arrays in it are kept as `name/0`, `name/1`..."""

        def keep(tensor: Any) -> str | None:
            if isinstance(tensor, np.ndarray) and (tensor.dtype not in _EXACT or tensor.size < 64):
                return None
            key = f"{name}/{sum(k.startswith(f'{name}/') for k in (*self.values, *self.shared))}"
            self.add(key, tensor)
            return f"{'array' if isinstance(tensor, np.ndarray) else 'tensor'} {key}"

        try:
            return encode(value, keep, name)
        except TypeError as e:
            raise CheckpointError(f"{self.name}: cannot save {e}") from e

    def write(self, path: str | os.PathLike[str]) -> None:
        self.manifest |= {"tensors": self.facts, "shared": self.shared}
        text = json.dumps(self.manifest)
        metadata = {KEY: text, f"{KEY}.sha256": hashlib.sha256(text.encode()).hexdigest()}
        write_stored(self.values, path, metadata)


def _model_state(model: Any) -> Mapping[str, Any]:
    """Name -> tensor over the model's memory; those of several models have the models' names before theirs."""
    if hasattr(model, "state_dict"):
        return model.state_dict()  # type: ignore[no-any-return]
    if not isinstance(model, Mapping):
        raise TypeError(f"model must be a Module or a dict of Modules and tensors, not a {type(model).__name__}")
    found: dict[str, Any] = {}
    for name, value in model.items():
        if hasattr(value, "state_dict"):
            found.update((f"{name}.{key}", tensor) for key, tensor in value.state_dict().items())
        else:
            found[name] = value
    return found


def _optimizer_state(optimizer: Any, content: _Content) -> dict[str, Any]:
    """The optimizer's state_dict with tensors by name, in the form of JSON."""
    state = optimizer.state_dict()
    counts: dict[str, dict[str, Any]] = {}
    for number, values in state["state"].items():
        kept = {k: v for k, v in values.items() if isinstance(v, Tensor)}
        content.add_all(f"optimizer/{number}", kept)
        rest = {k: v for k, v in values.items() if k not in kept}
        counts[str(number)] = {"tensors": list(kept), "numbers": content.plain(rest, f"optimizer state {number}")}
    groups = content.plain(state["param_groups"], "param_groups")
    return {"class": type(optimizer).__name__, "groups": groups, "state": counts}


def _generators(generator: Any) -> dict[str, Generator]:
    """Generators by name; a single one is 'generator'."""
    found = generator if isinstance(generator, Mapping) else {} if generator is None else {"generator": generator}
    for name, g in found.items():
        if not isinstance(g, Generator):
            raise TypeError(f"generator {name!r} must be a meganeura.Generator, not a {type(g).__name__}")
    return dict(found)


# --- loading --------------------------------------------------------------------------------------------------------


def load_checkpoint(
    path: str | os.PathLike[str], model: Any = None, optimizer: Any = None, scheduler: Any = None, generator: Any = None,
    loader: Any = None, default_rng: bool = True,
) -> Checkpoint:  # fmt: skip
    """Restore what is given from a file that `save_checkpoint` wrote; what is not given stays as it is.

    The file is read and checked in full, then compared with all targets, then everything is restored. On any error, a
    CheckpointError that names the file and the tensor or part, nothing has changed. `default_rng=False` leaves the default
    generator (mg.manual_seed's) alone, as evaluation may want.
    """
    file = _File(Path(path))
    targets = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "loader": loader}
    restore = [file.prepared(name, target) for name, target in targets.items() if target is not None]
    generators = {**({"default": default_generator} if default_rng else {}), **_generators(generator)}
    restore.append(file.prepared("generators", generators))
    extra = file.prepared("extra", file.manifest["extra"])()
    for commit in restore:
        commit()
    return Checkpoint(file.manifest["step"], extra, (*file.entries, *file.shared))


class _File:
    """A checkpoint file whose every byte that counts was checked."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.entries = read_entries(path)
            metadata = read_metadata(path)
        except LoadError as e:
            raise CheckpointError(str(e)) from e
        except (OSError, ValueError, KeyError, TypeError) as e:
            raise CheckpointError(f"{path}: cannot be read ({type(e).__name__}: {e})") from e
        self.manifest = self._manifest(metadata)
        self.shared: dict[str, str] = self.manifest["shared"]
        self._check_tensors()

    def _manifest(self, metadata: Mapping[str, str]) -> dict[str, Any]:
        text = metadata.get(KEY)
        if text is None:
            raise CheckpointError(f"{self.path}: not a checkpoint: it has no manifest; load_safetensors reads plain weights")
        if hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest() != metadata.get(f"{KEY}.sha256"):
            raise CheckpointError(f"{self.path}: the manifest is damaged: it is not what its SHA-256 says")
        manifest = json.loads(text)
        if not isinstance(manifest, dict) or manifest.get("version") != VERSION:
            version, library = (manifest.get(k) for k in ("version", "library")) if isinstance(manifest, dict) else (None, None)
            raise CheckpointError(f"{self.path}: of format {version} (meganeura {library}); this reads format {VERSION}")
        return manifest

    def _check_tensors(self) -> None:
        """Every tensor of the manifest is there, and nothing else, each with the shape, dtype and bytes that were saved."""
        facts = self.manifest["tensors"]
        for name in facts:
            if name not in self.entries:
                raise CheckpointError(f"{self.path}: tensor {name!r} is missing")
        for name, target in self.shared.items():
            if target not in facts:
                raise CheckpointError(f"{self.path}: tensor {target!r} is missing, which {name!r} is too")
        for name, entry in self.entries.items():
            if name not in facts:
                raise CheckpointError(f"{self.path}: tensor {name!r} is not in the manifest")
            kind, shape, digest = facts[name]
            if entry.logical.name != kind or list(entry.shape) != shape:
                found = f"{entry.logical.name}{list(entry.shape)}"
                raise CheckpointError(f"{self.path}: tensor {name!r} is {found}, the manifest says {kind}{shape}")
            if hashlib.sha256(self._bytes(entry)).hexdigest() != digest:
                raise CheckpointError(f"{self.path}: tensor {name!r} is damaged: its bytes are not what their SHA-256 says")

    def _bytes(self, entry: Entry) -> Any:
        if entry.begin == entry.end:
            return b""
        return np.memmap(entry.file, np.uint8, "r", offset=entry.begin, shape=(entry.end - entry.begin,)).data

    def entry(self, name: str) -> Entry | None:
        """Where a tensor lies, by any of its names."""
        return self.entries.get(self.shared.get(name, name))

    def array(self, name: str) -> np.ndarray[Any, Any]:
        """A tensor's values; bfloat16 as float32."""
        entry = self.entry(name)
        if entry is None:
            raise CheckpointError(f"tensor {name!r} is missing")
        return read_array(entry)

    def prepared(self, part: str, target: Any) -> Callable[[], Any]:
        """Check a part of the file against its target; the function returned restores it."""
        try:
            if part in ("scheduler", "loader", "optimizer") and part not in self.manifest:
                raise CheckpointError(f"holds no {part}")
            return getattr(self, f"_{part}")(target)  # type: ignore[no-any-return]
        except CheckpointError as e:
            raise CheckpointError(f"{self.path}: {e}; nothing was changed") from e
        except (MeganeuraError, ValueError, KeyError, TypeError, IndexError, AttributeError) as e:
            raise CheckpointError(f"{self.path}: the {part} does not fit: {type(e).__name__}: {e}; nothing was changed") from e

    # ---- the parts ----

    def _model(self, model: Any) -> Callable[[], Any]:
        own = _model_state(model)
        saved = {n.removeprefix("model/") for n in (*self.entries, *self.shared) if n.startswith("model/")}
        problems = [f"tensor {n!r} of the model is not in the file" for n in own if n not in saved]
        problems += [f"tensor {n!r} is not in the model" for n in sorted(saved - set(own))]
        for name, tensor in own.items():
            entry = self.entry(f"model/{name}")
            if entry is not None and (entry.shape != tensor.shape or entry.logical is not tensor.dtype):
                found = f"{entry.logical.name}{list(entry.shape)} in the file, {tensor.dtype.name}{list(tensor.shape)} in the model"
                problems.append(f"tensor {name!r} is {found}")
        if problems:
            raise CheckpointError("the model does not fit: " + "; ".join(problems[:8]) + "; ..." * (len(problems) > 8))
        sources = {name: upload(self.array(f"model/{name}"), tensor.dtype) for name, tensor in own.items()}

        def commit() -> None:
            with no_grad():
                for name, source in sources.items():
                    own[name].copy_(source)

        return commit

    def _optimizer(self, optimizer: Any) -> Callable[[], Any]:
        saved = self.manifest["optimizer"]
        if saved["class"] != type(optimizer).__name__:
            raise CheckpointError(f"the saved optimizer is a {saved['class']}, this one a {type(optimizer).__name__}")
        state: dict[int, dict[str, Any]] = {}
        for number, values in saved["state"].items():
            moments = {name: self.array(f"optimizer/{number}/{name}") for name in values["tensors"]}
            state[int(number)] = {**moments, **decode(values["numbers"])}
        return prepare_optimizer(optimizer, {"state": state, "param_groups": decode(saved["groups"])})

    def _scheduler(self, scheduler: Any) -> Callable[[], Any]:
        saved = self.manifest["scheduler"]
        if saved["class"] != type(scheduler).__name__:
            raise CheckpointError(f"the saved scheduler is a {saved['class']}, this one a {type(scheduler).__name__}")
        state = decode(saved["state"], self._kept)
        before = copy.deepcopy(scheduler.state_dict())
        _same_keys(state, before, "the scheduler")
        try:
            scheduler.load_state_dict(copy.deepcopy(state))  # a trial
        finally:
            scheduler.load_state_dict(before)
        return lambda: scheduler.load_state_dict(state)

    def _loader(self, loader: Any) -> Callable[[], Any]:
        state = decode(self.manifest["loader"]["state"], self._kept)
        _same_keys(state, loader.state_dict(), "the loader")
        if hasattr(loader, "prepare_state"):
            return loader.prepare_state(state)  # type: ignore[no-any-return]
        return lambda: loader.load_state_dict(state)

    def _generators(self, generators: Mapping[str, Generator]) -> Callable[[], Any]:
        saved = self.manifest["generators"]
        for name in generators:
            if name not in saved:
                raise CheckpointError(f"holds no generator {name!r}; there are {', '.join(saved)}")
        states = {name: np.array(saved[name], np.uint64).reshape(2) for name in generators}

        def commit() -> None:
            for name, g in generators.items():
                g.set_state(states[name])

        return commit

    def _extra(self, extra: Any) -> Callable[[], Any]:
        found = decode(extra, self._kept)
        return lambda: found

    def _kept(self, key: str) -> Any:
        """A tensor or array that the manifest refers to."""
        kind, _, name = key.partition(" ")
        array = self.array(name)
        entry = self.entry(name)
        assert entry is not None
        return np.array(array) if kind == "array" else upload(array, entry.logical)


def _same_keys(saved: Any, own: Any, where: str) -> None:
    """CheckpointError unless two states have the same names, through all levels of dicts and lists of equal length."""
    if isinstance(own, dict) and isinstance(saved, dict):
        if where.startswith("the scheduler") and set(saved) != set(own):
            names = ", ".join(sorted(map(str, set(saved) ^ set(own))))
            raise CheckpointError(f"{where} does not fit: only one of file and target has {names}")
        if missing := set(own) - set(saved):
            raise CheckpointError(f"{where} does not fit: the file lacks {', '.join(sorted(map(str, missing)))}")
        if "_schedulers" in own:
            for i, (a, b) in enumerate(zip(saved["_schedulers"], own["_schedulers"], strict=True)):
                _same_keys(a, b, f"{where}, part {i},")
