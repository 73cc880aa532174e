"""Checkpoints: resuming gives the same bits, a kill loses nothing, a damaged file changes nothing and is named."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meganeura as mg
from meganeura import data, dispatch, nn, optim
from meganeura.load import checkpoint as C
from meganeura.load.plain import decode, encode
from meganeura.load.safetensors import read_metadata
from tests.load.resumable import CASES, Training

ROOT = Path(__file__).parents[2]


def _script(module: str, *args: Any) -> str:
    done = subprocess.run([sys.executable, "-m", module, *map(str, args)], cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_fresh_process_goes_on_bit_for_bit(tmp_path: Path) -> None:
    """20 steps = 10 steps, a checkpoint, another process, 10 steps: weights, averages, moments, losses and random states."""
    expected = {}
    for case in CASES:
        saving = Training(case)
        saving.run(20, tmp_path / f"{case}.safetensors")
        straight = Training(case)
        straight.run(20)
        expected[case] = straight.digest()
        assert saving.digest() == expected[case], "saving disturbed the training"
    found = dict(line.split() for line in _script("tests.load.resumable", tmp_path).splitlines())
    assert found == expected


@pytest.mark.parametrize("count", [15, pytest.param(100, marks=pytest.mark.full)])
def test_a_killed_writer_loses_nothing(tmp_path: Path, count: int) -> None:
    written, torn = map(int, _script("tests.load.killed_writer", tmp_path, count).split())
    assert written > count // 5, "the writers came to nothing"
    assert torn >= 2, "no writer was killed while it wrote"


# ---- in numpy from here on ----


@pytest.fixture
def numpy_world() -> Iterator[None]:
    with dispatch.use(mg.Reference()):
        yield


class _Net(nn.Module):
    def __init__(self, width: int = 5, seed: int = 0) -> None:
        super().__init__()
        mg.manual_seed(seed)
        self.first, self.second = nn.Linear(4, width), nn.Linear(width, 2)
        self.count = nn.Buffer(mg.tensor([seed, 3], dtype=mg.int64))


class _State:
    """A model, its optimizer, schedule, loader and generator, after a few steps."""

    def __init__(self, seed: int, steps: int, width: int = 5, make: Any = None) -> None:
        self.net = _Net(width, seed)
        self.opt = (make or (lambda p: optim.Adam(p, lr=0.1)))(self.net.parameters())
        self.schedule = optim.lr_scheduler.StepLR(self.opt, 2)
        self.loader = data.DataLoader(data.TensorDataset(np.arange(30)), 4, shuffle=True, generator=seed)
        self.generator = mg.Generator(seed)
        batches = iter(self.loader)
        for _ in range(steps):
            next(batches)
            self.net.second(self.net.first(mg.ones(3, 4))).sum().backward()
            self.opt.step()
            self.opt.zero_grad()
            self.schedule.step()
        self.generator.reserve(10 * seed)

    def parts(self) -> dict[str, Any]:
        return {"model": self.net, "optimizer": self.opt, "scheduler": self.schedule, "loader": self.loader, "generator": self.generator}

    def shown(self) -> str:
        """Every value."""
        plain = encode(
            [self.net.state_dict(), self.opt.state_dict(), self.schedule.state_dict(), self.loader.state_dict(), self.generator.get_state(),
             mg.random.get_rng_state()]
        )  # fmt: skip
        return json.dumps(plain, sort_keys=True)


@pytest.fixture
def saved(tmp_path: Path, numpy_world: None) -> tuple[Path, str]:
    """A checkpoint and what is in it."""
    state = _State(1, 3)
    path = tmp_path / "a.safetensors"
    mg.save_checkpoint(path, **state.parts(), step=3, extra={"note": "x" * 50, "table": mg.ones(9)})
    return path, state.shown()


def test_round_trip(saved: tuple[Path, str]) -> None:
    path, expected = saved
    other = _State(2, 5)
    assert other.shown() != expected
    found = mg.load_checkpoint(path, **other.parts())
    assert other.shown() == expected
    assert found.step == 3
    assert found.extra["table"].tolist() == [1.0] * 9
    fresh = _State(4, 0)
    mg.load_checkpoint(path, **fresh.parts())
    assert fresh.shown() == expected
    plain = mg.load_safetensors(path)
    assert plain["model/first.bias"].tolist() == other.net.first.bias.tolist(), "it is a plain safetensors file too"


def test_what_is_not_given_stays(saved: tuple[Path, str]) -> None:
    path, _ = saved
    other = _State(2, 5)
    before = (other.schedule.state_dict(), other.generator.get_state().tolist(), mg.random.get_rng_state().tolist())
    mg.load_checkpoint(path, other.net, default_rng=False)
    assert other.net.count.tolist() == [1, 3]
    assert before == (other.schedule.state_dict(), other.generator.get_state().tolist(), mg.random.get_rng_state().tolist())


MUTATIONS = 80


def _mutated(raw: bytes, rng: np.random.Generator) -> bytes:
    """The file with something wrong somewhere: bits, cuts, insertions, swapped, repeated and zeroed parts, changed digits."""
    size, kind = len(raw), int(rng.integers(9))
    a, b = sorted(int(v) for v in rng.integers(0, size + 1, 2))
    head = 8 + int.from_bytes(raw[:8], "little")
    if kind == 0:
        return raw[:a]
    if kind == 1:
        return raw[:a] + rng.bytes(int(rng.integers(1, 40))) + raw[a:]
    if kind == 2:
        return raw[:a] + raw[b:]
    if kind == 3:
        return raw[:a] + b"\0" * (b - a) + raw[b:]
    if kind == 4:
        return raw[b:] + raw[a:b] + raw[:a]
    out = bytearray(raw)
    if kind == 5:  # one of the eight bytes of the header's length
        out[int(rng.integers(8))] ^= int(rng.integers(1, 256))
        return bytes(out)
    if kind == 6:  # a digit of the header: shapes, offsets, counts, hashes
        digits = [i for i in range(8, head) if chr(raw[i]).isdigit()]
        out[digits[int(rng.integers(len(digits)))]] = ord(str(rng.integers(10)))
        return bytes(out)
    low, high = (8, head) if kind == 7 else (head, size)
    for _ in range(int(rng.integers(1, 4))):
        out[int(rng.integers(low, high))] ^= 1 << int(rng.integers(8))
    return bytes(out)


def _survives(saved: tuple[Path, str], seeds: range) -> None:
    path, expected = saved
    raw = path.read_bytes()
    bad = path.with_name("bad.safetensors")
    target = _State(2, 5)
    before = target.shown()
    refused = 0
    for seed in seeds:
        bad.write_bytes(_mutated(raw, np.random.default_rng(seed)))
        try:
            mg.load_checkpoint(bad, **target.parts())
        except mg.CheckpointError as e:
            assert str(bad) in str(e), seed
            assert target.shown() == before, f"mutation {seed} changed something, then failed: {e}"
            refused += 1
        else:
            assert target.shown() == expected, f"mutation {seed} loaded something else"
            target = _State(2, 5)
            assert target.shown() == before
    assert refused > 0.8 * len(seeds)


def test_damaged_files_change_nothing(saved: tuple[Path, str]) -> None:
    _survives(saved, range(MUTATIONS))


@pytest.mark.full
def test_many_damaged_files_change_nothing(saved: tuple[Path, str]) -> None:
    _survives(saved, range(1000, 1500))


def test_damage_is_named(saved: tuple[Path, str]) -> None:
    path, _ = saved
    raw = bytearray(path.read_bytes())
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    start = 8 + int.from_bytes(raw[:8], "little") + header["optimizer/1/exp_avg"]["data_offsets"][0]
    raw[start] ^= 1
    path.write_bytes(raw)
    with pytest.raises(mg.CheckpointError, match=r"a\.safetensors: tensor 'optimizer/1/exp_avg' is damaged"):
        mg.load_checkpoint(path)
    raw[start] ^= 1
    path.write_bytes(bytes(raw[:-100]))
    with pytest.raises(mg.CheckpointError, match=r"a\.safetensors: tensor '"):
        mg.load_checkpoint(path)
    path.write_bytes(bytes(raw).replace(b"first.weight", b"First.weight", 1))
    with pytest.raises(mg.CheckpointError, match=r"first\.weight' is missing|First\.weight|manifest is damaged"):
        mg.load_checkpoint(path)
    mg.save_safetensors({"a": np.ones(3, np.float32)}, path)
    with pytest.raises(mg.CheckpointError, match="not a checkpoint: it has no manifest"):
        mg.load_checkpoint(path)
    with pytest.raises(mg.CheckpointError, match="no such file"):
        mg.load_checkpoint(path.with_name("none.safetensors"))


def test_another_version_is_refused(saved: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> None:
    path, _ = saved
    monkeypatch.setattr(C, "VERSION", 2)
    with pytest.raises(mg.CheckpointError, match=r"of format 1 \(meganeura .*\); this reads format 2"):
        mg.load_checkpoint(path)


MT = np.random.Generator(np.random.MT19937(0))
MISFITS: dict[str, tuple[Any, str]] = {
    "width": (lambda: _State(2, 5, width=6), r"tensor 'first\.weight' is float32\[5, 4\] in the file, float32\[6, 4\] in the model"),
    "kind": (lambda: _State(2, 5, make=lambda p: optim.AdamW(p)), "the saved optimizer is a Adam, this one a AdamW"),
    "groups": (
        lambda: _State(2, 0, make=lambda p: optim.Adam([{"params": [q]} for q in p])), "1 parameter groups, this one 4",
    ),
    "fewer": (lambda: _State(2, 0, make=lambda p: optim.Adam(list(p)[:3])), "group 0: 4 parameters were saved, this optimizer has 3"),
    "dtype": (lambda: _half(_State(2, 0)), "in the file, float16"),
    "schedule": (
        lambda: _with(_State(2, 5), schedule=lambda s: optim.lr_scheduler.ExponentialLR(s.opt, 0.5)), "is a StepLR, this one a Exp",
    ),
    "loader": (lambda: _with(_State(2, 5), loader=lambda s: data.DataLoader([1], shuffle=True, generator=MT)), "loader does not.*PCG64"),
    "generator": (lambda: _with(_State(2, 5), generator=lambda s: {"mine": mg.Generator(0)}), "no generator 'mine'; there are default"),
    "extra buffer": (lambda: _buffered(_State(2, 5)), "tensor 'more' of the model is not in the file"),
}  # fmt: skip


def _half(state: _State) -> _State:
    state.net.half()
    return state


def _buffered(state: _State) -> _State:
    state.net.more = nn.Buffer(mg.ones(1))
    return state


def _with(state: _State, **changes: Any) -> _State:
    for name, make in changes.items():
        setattr(state, name, make(state))
    return state


@pytest.mark.parametrize("name", MISFITS)
def test_what_does_not_fit_changes_nothing(saved: tuple[Path, str], name: str) -> None:
    path, _ = saved
    make, text = MISFITS[name]
    target = make()
    whole = not isinstance(target.generator, dict)
    before = target.shown() if whole else ""
    with pytest.raises(mg.CheckpointError, match=text):
        mg.load_checkpoint(path, **target.parts())
    assert not whole or target.shown() == before


def test_a_part_that_was_not_saved(tmp_path: Path, numpy_world: None) -> None:
    state = _State(1, 2)
    mg.save_checkpoint(tmp_path / "m", state.net)
    with pytest.raises(mg.CheckpointError, match="holds no optimizer; nothing was changed"):
        mg.load_checkpoint(tmp_path / "m", state.net, state.opt)
    with pytest.raises(mg.CheckpointError, match="cannot save extra\\['f'\\] is a function"):
        mg.save_checkpoint(tmp_path / "m", extra={"f": test_round_trip})
    with pytest.raises(TypeError, match="must be a Module or a dict"):
        mg.save_checkpoint(tmp_path / "m", model=3)
    assert mg.load_checkpoint(tmp_path / "m", state.net).step is None, "failing to save left the old file"


def test_dtypes_sizes_and_shared_tensors(tmp_path: Path, numpy_world: None) -> None:
    whole = mg.tensor(np.arange(12, dtype=np.float32).reshape(3, 4))
    tensors = {
        "half": mg.tensor([1.5, float("nan")], dtype=mg.float16), "brain": mg.tensor([1.0, 3.140625], dtype=mg.bfloat16),
        "long": mg.tensor([2**31 - 1, -5], dtype=mg.int64), "flags": mg.tensor([True, False]), "empty": mg.zeros(0, 3),
        "one": mg.tensor(4.0), "view": whole[:, 1:3], "turned": whole.t(), "whole": whole, "again": whole,
        "bytes": mg.tensor([255], dtype=mg.uint8),
    }  # fmt: skip
    mg.save_checkpoint(tmp_path / "a", tensors)
    manifest = json.loads(read_metadata(tmp_path / "a")[C.KEY])
    assert manifest["shared"] == {"model/again": "model/whole"}
    others = {k: mg.zeros(*v.shape, dtype=v.dtype) for k, v in tensors.items()}
    mg.load_checkpoint(tmp_path / "a", others)
    for name, t in tensors.items():
        np.testing.assert_array_equal(others[name].numpy(), t.numpy(), err_msg=name)
        assert others[name].dtype is t.dtype


def test_plain_values() -> None:
    value = {
        "a": [1, 2.5, None, True, "ü", -0.0], ("t", 1): {3: (4, (5,))}, "inf": [float("inf"), float("-inf")], "set": {1, 2}, "~": 1,
        "big": 2**80, "array": np.array([[1, 2]], np.uint64), "none": {}, "scalar": np.float32(0.1), "bool": np.bool_(True),
    }  # fmt: skip
    again = decode(json.loads(json.dumps(encode(value))))
    np.testing.assert_array_equal(again.pop("array"), value["array"])
    assert again == {k: v for k, v in value.items() if k != "array"}
    assert str(again["a"][-1]) == "-0.0"
    with pytest.raises(ValueError, match="unknown mark"):
        decode({"~": ["module", "os"]})
    with pytest.raises(TypeError, match=r"x\['a'\]\[0\] is a object"):
        encode({"a": [object()]}, None, "x")


@pytest.mark.parametrize("workers", [0, 2])
def test_the_loader_goes_on(numpy_world: None, workers: int) -> None:
    """From the middle of an epoch, from its end, and before its start, with each kind of generator."""
    for generator in (3, mg.Generator(3), None, np.random.Generator(np.random.MT19937(3))):
        mg.manual_seed(0)
        make = lambda g: data.DataLoader(data.TensorDataset(np.arange(20)), 3, shuffle=True, generator=g, num_workers=workers)
        for taken in (0, 4, 7):
            loader = make(copy.deepcopy(generator))
            list(loader)
            batches = iter(loader)
            for _ in range(taken):
                next(batches)
            state, rng = json.loads(json.dumps(encode(loader.state_dict()))), mg.random.get_rng_state()
            rest = [b[0].tolist() for b in batches] + [b[0].tolist() for b in loader]
            if taken == 0:
                continue  # an epoch that was begun, of which nothing was taken, is drawn anew
            mg.random.set_rng_state(rng)
            other = make(copy.deepcopy(generator))
            other.load_state_dict(decode(state))
            assert [b[0].tolist() for b in other] + [b[0].tolist() for b in other] == rest
