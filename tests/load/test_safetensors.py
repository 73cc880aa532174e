"""safetensors: round trips with this package and PyTorch, shards, damaged files, atomic writes."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meganeura as mg
from meganeura import dispatch
from meganeura.load import load_safetensors, save_safetensors
from meganeura.load.safetensors import read_metadata


@pytest.fixture(autouse=True)
def _numpy_world() -> Iterator[None]:
    with dispatch.use(mg.Reference()):
        yield


def _tensors() -> dict[str, mg.Tensor]:
    rng = np.random.default_rng(0)
    out = {d.name: mg.tensor(rng.integers(0, 2, (3, 5)), dtype=d) for d in (mg.bool_, mg.int64, mg.int32, mg.int8, mg.uint8, mg.uint32)}
    floats = rng.standard_normal((2, 3, 4))
    return {
        **out, "float32": mg.tensor(floats), "float16": mg.tensor(floats, dtype=mg.float16),
        "bfloat16": mg.tensor(floats, dtype=mg.bfloat16),
        "scalar": mg.tensor(2.5), "empty": mg.zeros(0, 4), "strided": mg.tensor(floats).permute(2, 0, 1), "odd/name.é": mg.ones(1),
    }  # fmt: skip


def test_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    tensors = _tensors()
    save_safetensors(tensors, path, {"step": "3"})
    loaded = load_safetensors(path)
    assert sorted(loaded) == sorted(tensors)
    for name, t in tensors.items():
        assert loaded[name].dtype is t.dtype, name
        assert loaded[name].shape == t.shape, name
        np.testing.assert_array_equal(loaded[name].numpy(), t.numpy(), err_msg=name)
    assert read_metadata(path) == {"step": "3"}
    save_safetensors({}, path)
    assert load_safetensors(path) == {}


@pytest.mark.torch
def test_with_torch(torch: Any, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    path = tmp_path / "a.safetensors"
    values = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    kinds = ("float32", "float16", "bfloat16", "float64", "int64", "int32", "int16", "int8", "uint8", "bool")
    theirs = {name: (values.abs() * 3).to(getattr(torch, name)) for name in kinds}
    save_file(theirs, path)
    ours = load_safetensors(path)
    for name, t in theirs.items():
        expected = t.float().numpy() if t.is_floating_point() else t.numpy()
        np.testing.assert_array_equal(ours[name].numpy().astype(expected.dtype), expected, err_msg=name)
    assert ours["bfloat16"].dtype is mg.bfloat16
    assert ours["int16"].dtype is mg.int32
    save_safetensors({**ours, "torch": theirs["bfloat16"], "numpy": np.arange(3, dtype=">i4")}, path)
    back = load_file(path)
    assert back["bfloat16"].dtype is torch.bfloat16
    assert torch.equal(back["bfloat16"], theirs["bfloat16"])
    assert torch.equal(back["torch"], theirs["bfloat16"].float())
    assert back["numpy"].tolist() == [0, 1, 2]
    assert torch.equal(back["bool"], theirs["bool"])


def _sharded(folder: Path) -> Path:
    save_safetensors({"a": np.ones(2, np.float32), "b": np.zeros((2, 2), np.float32)}, folder / "m-00001-of-00002.safetensors")
    save_safetensors({"c": np.arange(3)}, folder / "m-00002-of-00002.safetensors")
    index = folder / "model.safetensors.index.json"
    first, second = "m-00001-of-00002.safetensors", "m-00002-of-00002.safetensors"
    index.write_text(json.dumps({"metadata": {}, "weight_map": {"a": first, "b": first, "c": second}}))
    return index


def test_shards(tmp_path: Path) -> None:
    index = _sharded(tmp_path)
    for path in (index, tmp_path):
        loaded = load_safetensors(path)
        assert {n: t.shape for n, t in loaded.items()} == {"a": (2,), "b": (2, 2), "c": (3,)}
    weights = json.loads(index.read_text())
    weights["weight_map"]["d"] = "m-00002-of-00002.safetensors"
    index.write_text(json.dumps(weights))
    with pytest.raises(mg.LoadError, match=r"m-00002-of-00002.*tensor 'd' is missing"):
        load_safetensors(index)
    index.write_text(json.dumps({"weight_map": {"a": "../elsewhere.safetensors"}}))
    with pytest.raises(mg.LoadError, match="tensor 'a' is said to lie outside the folder"):
        load_safetensors(index)
    for text in ("[]", "{}", "{", '{"weight_map": {"a": 3}}'):
        index.write_text(text)
        with pytest.raises(mg.LoadError, match="not an index of safetensors shards"):
            load_safetensors(index)
    index.unlink()
    with pytest.raises(mg.LoadError, match="holds several files"):
        load_safetensors(tmp_path)
    with pytest.raises(mg.LoadError, match="no such file"):
        load_safetensors(tmp_path / "x.safetensors")


def _file(header: Any, data: bytes) -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + data


def _entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


BROKEN: list[tuple[bytes, str]] = [
    (b"", "header too small"),
    (b"\1\0\0", "header too small"),
    (struct.pack("<Q", 1 << 60) + b"{}", "header"),
    (_file(b"{not json", b""), "header"),
    (_file({"w": _entry("F32", [2], 0, 8)}, bytes(4)), r"tensor 'w' of F32\[2\] needs 8 bytes at \[0, 8\) of 4"),
    (_file({"v": _entry("F32", [1], 0, 4), "w": _entry("F32", [3], 4, 12)}, bytes(12)), r"'w' of F32\[3\] needs 12 bytes at \[4, 12\)"),
    (_file({"w": _entry("F99", [2], 0, 8)}, bytes(8)), "tensor 'w' has dtype F99"),
    (_file({"w": _entry("F8_E4M3", [2], 0, 2)}, bytes(2)), "tensor 'w' has dtype F8_E4M3; there are F32"),
    (_file({"w": _entry("F32", [1], 0, 4)}, bytes(8)), "not fully covered"),
    (_file({"v": _entry("F32", [1], 0, 4), "w": _entry("F32", [1], 0, 4)}, bytes(4)), "w|v"),
    (_file({"w": _entry("I64", [2], 0, 16)}, struct.pack("<2q", 5, 1 << 40)), "tensor 'w'.*1099511627776"),
]


@pytest.mark.parametrize(("raw", "text"), BROKEN)
def test_damaged_files(tmp_path: Path, raw: bytes, text: str) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(raw)
    with dispatch.use(None), pytest.raises(mg.LoadError, match=text) as error:
        load_safetensors(path)
    assert str(path) in str(error.value)


def test_every_truncation_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_safetensors({"w": np.arange(6, dtype=np.float32)}, path)
    raw = path.read_bytes()
    for cut in range(len(raw)):
        path.write_bytes(raw[:cut])
        with pytest.raises(mg.LoadError):
            load_safetensors(path)


def test_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.safetensors"
    save_safetensors({"w": np.ones(3, np.float32)}, path)
    with pytest.raises(mg.LoadError, match="tensor 'bad' cannot be saved"):
        save_safetensors({"w": np.zeros(3), "bad": "text"}, path)

    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        save_safetensors({"w": np.zeros(3)}, path)
    monkeypatch.undo()
    assert load_safetensors(path)["w"].tolist() == [1, 1, 1]
    assert [p.name for p in tmp_path.iterdir()] == ["a.safetensors"]
    assert path.stat().st_mode & 0o777 == 0o666 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_state_dict_round_trip(tmp_path: Path) -> None:
    net = mg.nn.Sequential(mg.nn.Linear(3, 4), mg.nn.LayerNorm(4))
    save_safetensors(net.state_dict(), tmp_path / "net.safetensors")
    other = mg.nn.Sequential(mg.nn.Linear(3, 4), mg.nn.LayerNorm(4))
    other.load_state_dict(load_safetensors(tmp_path / "net.safetensors"))
    for a, b in zip(net.parameters(), other.parameters(), strict=True):
        np.testing.assert_array_equal(a.detach().numpy(), b.detach().numpy())
