"""Sequential, ModuleList and ModuleDict behave as PyTorch's."""

from __future__ import annotations

from typing import Any

import pytest

from meganeura import nn


def _tags(n: int) -> list[Any]:
    return [nn.Flatten(i) for i in range(n)]


def test_sequential() -> None:
    a, b, c = _tags(3)
    net = nn.Sequential(a, b)
    assert net.append(c) is net
    assert [len(net), net[-1], net[0]] == [3, c, a]
    assert isinstance(net[1:], nn.Sequential)
    assert list(net[1:]._modules) == ["1", "2"]
    net[1] = c
    assert list(net) == [a, c, c]
    del net[0]
    assert list(net._modules) == ["0", "1"]
    net.insert(0, b)
    assert list(net)[0] is b
    with pytest.raises(IndexError, match="index 3 is out of range for 3 modules"):
        _ = net[3]
    named = nn.Sequential({"first": a, "second": b})
    assert named.second is b
    with pytest.raises(TypeError, match="must be a Module or None, got int"):
        nn.Sequential(3)  # type: ignore[arg-type]


def test_module_list() -> None:
    a, b, c = _tags(3)
    layers = nn.ModuleList([a])
    layers.extend([b, c])
    layers += [a]
    assert list(layers) == [a, b, c, a]
    assert list(layers + [b]) == [a, b, c, a, b]
    assert isinstance(layers[:2], nn.ModuleList)
    del layers[1:3]
    assert list(layers) == [a, a]
    assert list(layers._modules) == ["0", "1"]
    with pytest.raises(NotImplementedError):
        layers(1)


def test_module_dict() -> None:
    a, b, c = _tags(3)
    layers = nn.ModuleDict({"a": a})
    layers.update([("b", b)])
    layers["c"] = c
    assert list(layers) == ["a", "b", "c"]
    assert list(layers.items()) == [("a", a), ("b", b), ("c", c)]
    assert layers.pop("b") is b
    assert "b" not in layers
    assert len(layers) == 2
    del layers["a"]
    layers.clear()
    assert not list(layers.values())


@pytest.mark.torch
def test_list_repr(torch: Any) -> None:
    ours = nn.ModuleList([*[nn.ReLU() for _ in range(3)], nn.Sequential(nn.Tanh()), nn.ReLU()])
    theirs = torch.nn.ModuleList([*[torch.nn.ReLU() for _ in range(3)], torch.nn.Sequential(torch.nn.Tanh()), torch.nn.ReLU()])
    assert repr(ours) == repr(theirs)
    assert repr(nn.ModuleList()) == repr(torch.nn.ModuleList())
