"""Module: registration, traversal, modes, state dicts, copies, guards."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import meganeura as mg
from meganeura import dispatch, nn
from meganeura.tensor import state_epoch


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.blocks = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.heads = nn.ModuleDict({"a": nn.Linear(4, 2), "b": nn.Sequential(nn.ReLU(), nn.Linear(4, 2))})
        self.scale = nn.Parameter(mg.ones(1))
        self.register_buffer("count", mg.zeros((), dtype=mg.int64))
        self.cache = nn.Buffer(mg.zeros(2), persistent=False)
        self.width = 4

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        for block in self.blocks:
            x = block(x).relu()
        return self.heads["a"](x) * self.scale + self.heads["b"](x)


@pytest.fixture(autouse=True)
def _numpy_world() -> Iterator[None]:
    """Nothing here needs a device."""
    with dispatch.use(mg.Reference()):
        yield


def test_registration_and_traversal() -> None:
    net = Net()
    names = [n for n, _ in net.named_parameters()]
    assert names == [
        "scale", "first.weight", "first.bias", "blocks.0.weight", "blocks.0.bias", "blocks.1.weight", "blocks.1.bias",
        "heads.a.weight", "heads.a.bias", "heads.b.1.weight", "heads.b.1.bias",
    ]  # fmt: skip
    assert [n for n, _ in net.named_buffers()] == ["count", "cache"]
    assert [n for n, _ in net.named_children()] == ["first", "blocks", "heads"]
    assert [n for n, _ in net.named_modules()][:4] == ["", "first", "blocks", "blocks.0"]
    assert net.get_submodule("heads.b.1") is net.heads["b"][1]
    assert net.get_parameter("first.weight") is net.first.weight
    assert len(list(net.parameters(recurse=False))) == 1
    with pytest.raises(AttributeError, match=r"ModuleDict has no submodule 'c'.*there are: a, b"):
        net.get_submodule("heads.c.0")
    with pytest.raises(AttributeError, match="'Net' object has no attribute 'widht'"):
        _ = net.widht
    assert {"first", "scale", "count", "forward"} <= set(dir(net))


def test_same_names_and_repr_as_torch(torch: Any) -> None:
    class Twin(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.first = torch.nn.Linear(3, 4)
            self.blocks = torch.nn.ModuleList([torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)])
            self.heads = torch.nn.ModuleDict({"a": torch.nn.Linear(4, 2), "b": torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Linear(4, 2))})
            self.scale = torch.nn.Parameter(torch.ones(1))
            self.register_buffer("count", torch.zeros((), dtype=torch.int64))
            self.register_buffer("cache", torch.zeros(2), persistent=False)

    net, twin = Net(), Twin()
    assert repr(net) == repr(twin).replace("Twin(", "Net(")
    assert list(net.state_dict()) == list(twin.state_dict())
    assert net.load_state_dict(twin.state_dict()) == ([], [])
    for name, value in twin.state_dict().items():
        np.testing.assert_array_equal(net.state_dict()[name].numpy(), value.numpy())
    twin.load_state_dict({k: torch.from_numpy(v.numpy()) for k, v in Net().state_dict().items()})


def test_assignment_rules() -> None:
    net = Net()
    with pytest.raises(TypeError, match="cannot assign a Tensor as parameter 'scale'"):
        net.scale = mg.zeros(1)
    with pytest.raises(TypeError, match="cannot assign a int as submodule 'first'"):
        net.first = 3
    net.count = mg.ones((), dtype=mg.int64)
    assert net._buffers["count"].item() == 1
    net.scale = None
    assert "scale" not in dict(net.named_parameters())
    net.first = nn.Identity()
    assert isinstance(net.first, nn.Identity)
    net.width = nn.Linear(1, 1)
    assert "width" in net._modules
    del net.first
    assert not hasattr(net, "first")
    with pytest.raises(KeyError, match="already exists"):
        net.register_buffer("training", mg.zeros(1))
    with pytest.raises(KeyError, match="without dots"):
        net.add_module("a.b", nn.Identity())

    class Late(nn.Module):
        def __init__(self) -> None:
            self.weight = nn.Parameter(mg.zeros(1))

    with pytest.raises(AttributeError, match=r"super\(\).__init__"):
        Late()
    with pytest.raises(mg.DTypeError, match="use a Buffer"):
        nn.Parameter(mg.zeros(2, dtype=mg.int32))
    with pytest.raises(NotImplementedError, match="Module has no forward"):
        nn.Module()()


def test_modes() -> None:
    net = Net()
    assert net.eval() is net
    assert not any(m.training for m in net.modules())
    net.train()
    assert net.heads["b"].training
    seen: list[str] = []
    net.apply(lambda m: seen.append(type(m).__name__))
    assert seen[0] == "Linear"
    assert seen[-1] == "Net"
    net.requires_grad_(False)
    assert not any(p.requires_grad for p in net.parameters())
    net.half()
    assert net.first.weight.dtype is mg.float16
    assert net.count.dtype is mg.int64
    assert net.to(mg.float32).scale.dtype is mg.float32
    with pytest.raises(TypeError, match="floating point"):
        net.to(mg.int32)


def test_shared_parameters_count_once() -> None:
    net = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5, bias=False))
    net[1].weight = net[0].weight
    assert [n for n, _ in net.named_parameters()] == ["0.weight"]
    assert len(list(net.named_parameters(remove_duplicate=False))) == 2
    assert list(net.state_dict()) == ["0.weight", "1.weight"]
    twin = copy.deepcopy(net)
    assert twin[1].weight is twin[0].weight
    again = pickle.loads(pickle.dumps(net))
    assert again[1].weight is again[0].weight


def test_state_dict_shares_memory_and_load_copies() -> None:
    net = nn.Linear(2, 2)
    state = net.state_dict()
    storage = net.weight._storage
    net.load_state_dict({"weight": np.eye(2), "bias": [1.0, 2.0]})
    assert net.weight._storage is storage
    np.testing.assert_array_equal(state["weight"].numpy(), np.eye(2, dtype=np.float32))
    assert net.weight.requires_grad
    assert not state["weight"].requires_grad


def test_load_checks_everything_first() -> None:
    net = Net()
    before = {k: v.numpy() for k, v in net.state_dict().items()}
    state: dict[str, Any] = {k: np.ones_like(v) for k, v in before.items()}
    state["blocks.1.weight"] = np.ones((4, 5))
    state["blocks.0.bias"] = object()
    state["extra"] = np.ones(1)
    del state["first.bias"]
    with pytest.raises(mg.LoadError) as error:
        net.load_state_dict(state)
    text = str(error.value)
    assert "missing: first.bias" in text
    assert "unexpected: extra" in text
    assert "blocks.1.weight: shape [4, 5] in the state dict, [4, 4] in the module" in text
    assert "blocks.0.bias: a object instead of a tensor" in text
    for name, value in net.state_dict().items():
        np.testing.assert_array_equal(value.numpy(), before[name])
    del state["blocks.1.weight"], state["blocks.0.bias"]
    keys = net.load_state_dict(state, strict=False)
    assert keys.missing_keys == ["first.bias", "blocks.0.bias", "blocks.1.weight"]
    assert keys.unexpected_keys == ["extra"]
    assert net.scale.item() == 1.0


def test_copies_are_independent() -> None:
    net = Net()
    x = mg.tensor(np.ones((2, 3), np.float32))
    net(x).sum().backward()
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        np.testing.assert_array_equal(other(x).detach().numpy(), net(x).detach().numpy())
        assert other.first.weight is not net.first.weight
        assert isinstance(other.first.weight, nn.Parameter)
        assert isinstance(other.cache, nn.Buffer)
        assert not other.cache.persistent
        assert list(other.state_dict()) == list(net.state_dict())
        assert type(other.state_dict()["scale"]) is mg.Tensor
    twin = copy.deepcopy(net)
    np.testing.assert_array_equal(twin.scale.grad.numpy(), net.scale.grad.numpy())
    net.zero_grad(set_to_none=False)
    assert net.scale.grad.item() == 0.0
    assert twin.scale.grad.item() != 0.0
    net.zero_grad()
    assert net.scale.grad is None


def test_hooks() -> None:
    layer = nn.Identity()
    before = layer.register_forward_pre_hook(lambda m, args: args[0] + 1)
    after = layer.register_forward_hook(lambda m, args, out: out * 10)
    assert layer(2) == 30
    before.remove()
    assert layer(2) == 20
    after.remove()
    assert layer(2) == 2


def test_what_guards_read_moves_with_what_matters() -> None:
    net = Net()

    def changed(action: Any) -> tuple[bool, bool]:
        epoch, seen = state_epoch[0], net._fingerprint()
        action()
        return state_epoch[0] != epoch, net._fingerprint() != seen

    assert hash(net._fingerprint()) == hash(net._fingerprint())
    assert changed(lambda: setattr(net, "training", True)) == (False, False)
    assert changed(lambda: setattr(net, "training", False)) == (True, True)
    assert changed(lambda: setattr(net, "width", 5)) == (True, True)
    assert changed(lambda: setattr(net, "width", 5)) == (False, False)
    assert changed(lambda: setattr(net, "width", 5.0)) == (True, True)
    assert changed(lambda: net.scale.requires_grad_(False)) == (True, True)
    assert changed(lambda: setattr(net, "scale", nn.Parameter(mg.ones(1)))) == (True, True)
    assert changed(lambda: setattr(net, "first", nn.Identity())) == (True, True)
    assert changed(lambda: net.register_forward_hook(lambda m, a, o: None)) == (True, True)
    assert changed(lambda: net.load_state_dict(net.state_dict())) == (False, False)


def test_modules_tell_the_interpreter_that_they_are_used() -> None:
    seen: list[Any] = []

    class Watching(mg.Reference):
        def observe(self, owner: Any) -> None:
            seen.append(type(owner).__name__)

    with dispatch.use(Watching()):
        net = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
        net(mg.zeros(1, 2))
    assert seen == ["Sequential", "Linear", "ReLU"]


def test_summary() -> None:
    lines = Net().summary().splitlines()
    assert lines[0].split() == ["layer", "type", "shapes", "parameters"]
    assert any(line.startswith("heads.b.1") and "weight[2, 4], bias[2]" in line and line.endswith("10") for line in lines)
    assert lines[-1] == "77 parameters, 77 trainable, 320 bytes with buffers"
