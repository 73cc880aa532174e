"""mg.save and mg.load, pickle and deepcopy of tensors."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meganeura as mg
from meganeura import dispatch, nn, optim
from meganeura.serialization import as_array, load, save


@pytest.fixture(autouse=True)
def _numpy_world() -> Iterator[None]:
    with dispatch.use(mg.Reference()):
        yield


def test_tensors(tmp_path: Path) -> None:
    values = {
        "f": mg.tensor([[1.5, 2.0]], requires_grad=True), "h": mg.tensor([1.5], dtype=mg.float16), "b": mg.tensor([1.1], dtype=mg.bfloat16),
        "i": mg.arange(3), "m": mg.tensor([True, False]), "p": nn.Parameter(mg.ones(2)),
        "frozen": nn.Parameter(mg.ones(2), requires_grad=False),
        "t": nn.Buffer(mg.ones(1), persistent=False), "z": mg.zeros(0, 2), "s": mg.tensor(3),
    }  # fmt: skip
    save(values, tmp_path / "a.mg")
    for other in (load(tmp_path / "a.mg"), copy.deepcopy(values), pickle.loads(pickle.dumps(values))):
        for name, t in values.items():
            assert type(other[name]) is type(t), name
            assert other[name].dtype is t.dtype
            assert other[name].requires_grad == t.requires_grad
            assert other[name]._storage is not t._storage
            np.testing.assert_array_equal(other[name].detach().numpy(), t.detach().numpy())
            assert other[name].shape == t.shape
    assert not values["t"].persistent
    with pytest.raises(mg.GradientError, match="only leaf tensors"):
        copy.deepcopy(values["f"] * 2)


def test_checkpoint_of_a_training(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    opt = optim.AdamW(net.parameters(), lr=0.1)
    schedule = optim.lr_scheduler.StepLR(opt, 2)
    net(mg.ones(4, 2)).sum().backward()
    opt.step()
    stream = io.BytesIO()
    save({"net": net.state_dict(), "opt": opt.state_dict(), "schedule": schedule.state_dict(), "step": 7, "rng": mg.Generator(3)}, stream)
    stream.seek(0)
    saved = load(stream)
    twin = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    twin.load_state_dict(saved["net"])
    other = optim.AdamW(twin.parameters())
    other.load_state_dict(saved["opt"])
    for n, o in ((net, opt), (twin, other)):
        n.zero_grad()
        n(mg.ones(4, 2)).sum().backward()
        o.step()
    for a, b in zip(net.parameters(), twin.parameters(), strict=True):
        np.testing.assert_array_equal(a.detach().numpy(), b.detach().numpy())


def test_whole_modules_need_trust(tmp_path: Path) -> None:
    path = tmp_path / "net.mg"
    save(nn.Linear(2, 2), path)
    with pytest.raises(mg.LoadError, match=r"net\.mg: the file holds a meganeura\.nn\.basic\.Linear.*weights_only=False"):
        load(path)
    assert load(path, weights_only=False).weight.shape == (2, 2)


def test_code_in_a_file_does_not_run(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return (eval, ("pytest.fail('ran')",))

    path = tmp_path / "evil.mg"
    path.write_bytes(pickle.dumps({"w": Evil()}))
    with pytest.raises(mg.LoadError, match=r"holds a builtins\.eval"):
        load(path)


def test_damaged_files(tmp_path: Path) -> None:
    path = tmp_path / "a.mg"
    save({"w": mg.ones(3), "text": "x" * 50}, path)
    raw = path.read_bytes()
    for cut in range(0, len(raw) - 1, 7):
        path.write_bytes(raw[:cut])
        with pytest.raises(mg.LoadError, match=r"a\.mg"):
            load(path)
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "none")


def test_failed_save_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.mg"
    save({"w": 1}, path)
    with pytest.raises((pickle.PicklingError, AttributeError)):
        save({"w": lambda: 0}, path)
    assert load(path) == {"w": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["a.mg"]


def test_as_array() -> None:
    np.testing.assert_array_equal(as_array([[1, 2]]), [[1, 2]])
    with pytest.raises(TypeError, match="got object"):
        as_array(object())


@pytest.mark.torch
def test_as_array_of_torch(torch: Any) -> None:
    t = torch.tensor([1.5, -2.0], requires_grad=True)
    np.testing.assert_array_equal(as_array(t), [1.5, -2.0])
    np.testing.assert_array_equal(as_array(t.bfloat16()), np.array([1.5, -2.0], np.float32))


def test_the_package_and_the_function_share_a_name(tmp_path: Path) -> None:
    import inspect

    save([1, 2], tmp_path / "a.mg")
    assert mg.load(tmp_path / "a.mg") == [1, 2]
    assert mg.load.load_safetensors is not None
    assert list(inspect.signature(mg.load).parameters) == ["f", "weights_only"]
