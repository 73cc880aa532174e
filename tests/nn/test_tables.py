"""Bags of embeddings, clustered softmax, lists and dicts of parameters, initialisations and vectors of parameters, against PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meganeura as mg
from tests.surface.compare import check, floats, ints, torch

BAG = "nn.functional.embedding_bag"
WEIGHT = floats(7, 4)
OFFSETS = np.array([0, 2, 2, 5])


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding_idx", [None, 2, -3])
def test_embedding_bag(mode: str, padding_idx: int | None) -> None:
    flat = np.array([1, 2, 4, 2, 6, 0, 3, 1])
    options: dict[str, Any] = {"mode": mode, "padding_idx": padding_idx, "layouts": ("plain",), "half": False}
    check(BAG, ints(3, 5, low=0, high=7), WEIGHT, **options)
    check(BAG, flat, WEIGHT, OFFSETS, **options)
    check(BAG, flat, WEIGHT, np.array([0, 3, 8]), include_last_offset=True, **options)
    if mode == "sum":
        check(BAG, flat, WEIGHT, OFFSETS, per_sample_weights=floats(8, seed=4), **options)


def test_embedding_bag_module_and_errors() -> None:
    ours, theirs = mg.nn.EmbeddingBag(7, 4, padding_idx=-1), torch.nn.EmbeddingBag(7, 4, padding_idx=-1)
    assert repr(ours) == repr(theirs) and not ours.weight[6].any().item()
    ours = mg.nn.EmbeddingBag.from_pretrained(mg.tensor(WEIGHT), mode="max")
    theirs = torch.nn.EmbeddingBag.from_pretrained(torch.tensor(WEIGHT), mode="max")
    x = ints(3, 5, low=0, high=7)
    np.testing.assert_array_equal(ours(mg.tensor(x)).numpy(), theirs(torch.tensor(x)).numpy())
    assert not ours.weight.requires_grad
    for args in ((x, WEIGHT, OFFSETS), (x[0], WEIGHT), (x.astype(np.float32), WEIGHT)):
        check(BAG, *args, layouts=("plain",), half=False)
    check(BAG, x, WEIGHT, mode="min", layouts=("plain",), half=False)
    check(BAG, x, WEIGHT, mode="mean", per_sample_weights=floats(3, 5), layouts=("plain",), half=False)
    with pytest.raises(mg.UnsupportedError, match="max_norm"):
        mg.nn.functional.embedding_bag(mg.tensor(x), mg.tensor(WEIGHT), max_norm=1.0)


def test_adaptive_softmax() -> None:
    ours = mg.nn.AdaptiveLogSoftmaxWithLoss(8, 12, [3, 7], div_value=2.0, head_bias=True)
    theirs = torch.nn.AdaptiveLogSoftmaxWithLoss(8, 12, [3, 7], div_value=2.0, head_bias=True)
    ours.load_state_dict({k: v.numpy() for k, v in theirs.state_dict().items()})
    x, target = floats(6, 8), np.array([0, 11, 3, 7, 2, 6])
    results = []
    for layer, lib in ((ours, mg), (theirs, torch)):
        t = lib.tensor(x, requires_grad=True)
        out = layer(t, lib.tensor(target))
        out.loss.backward()
        found = [out.output, out.loss, t.grad, layer.log_prob(t), layer.predict(t), *(p.grad for p in layer.parameters())]
        results.append([f.detach().numpy() for f in found])
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    assert ours(mg.tensor(x[0]), mg.tensor(3)).output.shape == ()
    for cutoffs in ([], [0, 3], [5, 3], [3, 12], [2.5]):
        with pytest.raises(ValueError):
            mg.nn.AdaptiveLogSoftmaxWithLoss(8, 12, cutoffs)
    with pytest.raises(mg.ShapeError):
        ours(mg.tensor(x), mg.tensor(target[:2]))


def test_parameter_list() -> None:
    layer = mg.nn.ParameterList([mg.zeros(2, 3), mg.nn.Parameter(mg.ones(2))])
    layer.append(mg.ones(1)).extend([mg.zeros(())])
    layer += [mg.zeros(4)]
    assert [name for name, _ in layer.named_parameters()] == ["0", "1", "2", "3", "4"] and len(layer) == 5
    assert all(isinstance(p, mg.nn.Parameter) for p in layer)
    assert layer[-1].shape == (4,) and layer[1:3][0] is layer[1]
    layer[0] = mg.ones(3)
    assert layer[0].shape == (3,) and list(layer.state_dict()) == ["0", "1", "2", "3", "4"]
    with pytest.raises(IndexError, match="out of range for 5"):
        _ = layer[5]
    assert "(0): Parameter containing: [meganeura.float32 of size 3]" in repr(layer)
    assert "Object of type: int" in repr(mg.nn.ParameterList([5]))


def test_parameter_dict() -> None:
    layer = mg.nn.ParameterDict({"b": mg.zeros(2), "a": mg.ones(3)})
    layer["c"] = mg.zeros(1)
    layer.update([("d", mg.zeros(4))])
    assert list(layer) == list(layer.keys()) == ["b", "a", "c", "d"] and list(layer.state_dict()) == ["b", "a", "c", "d"]
    assert "a" in layer and layer.get("x") is None and layer.setdefault("e", mg.zeros(1)).shape == (1,)
    assert layer.pop("b").shape == (2,) and layer.popitem()[0] == "e" and list(reversed(layer)) == ["d", "c", "a"]
    assert list((layer | mg.nn.ParameterDict({"z": mg.zeros(1)})).keys()) == ["a", "c", "d", "z"]
    layer |= mg.nn.ParameterDict({"y": mg.zeros(1)})
    assert layer.copy()["y"] is layer["y"] and [k for k, _ in layer.items()] == ["a", "c", "d", "y"]
    assert len(layer.fromkeys(["p", "q"])) == 2 and len(list(layer.values())) == 4
    with pytest.raises(KeyError):
        _ = layer["b"]
    with pytest.raises(KeyError, match="already exists"):
        layer["training"] = mg.zeros(1)
    assert repr(layer).startswith("ParameterDict(\n  (a): Parameter containing")
    layer.clear()
    assert not len(layer) and not list(layer.parameters()) and repr(layer) == "ParameterDict()"


def test_lists_train() -> None:
    class Net(mg.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = mg.nn.ParameterList([mg.ones(3) for _ in range(2)])

        def forward(self, x: Any) -> Any:
            for w in self.weights:
                x = x * w
            return x

    net = Net()
    opt = mg.optim.SGD(net.parameters(), lr=0.1)
    net(mg.tensor(floats(3))).sum().backward()
    opt.step()
    np.testing.assert_allclose(net.weights[1].detach().numpy(), 1 - 0.1 * floats(3), rtol=1e-6)


@pytest.mark.parametrize(("shape", "groups"), [((4, 2, 3), 1), ((4, 2, 3), 2), ((2, 5, 4, 3), 1), ((6, 2, 3, 3, 3), 3)])
def test_dirac(shape: tuple[int, ...], groups: int) -> None:
    ours, theirs = mg.nn.init.dirac_(mg.ones(*shape), groups), torch.nn.init.dirac_(torch.ones(*shape), groups)
    np.testing.assert_array_equal(ours.numpy(), theirs.numpy())


def test_sparse_initialisation() -> None:
    mg.manual_seed(3)
    w = mg.nn.init.sparse_(mg.ones(50, 40), 0.3, std=2.0).numpy()
    assert ((w == 0).sum(0) == 15).all()
    assert 1.8 < w[w != 0].std() < 2.2
    for wrong in (
        (mg.nn.init.sparse_, (mg.zeros(3), 0.1)),
        (mg.nn.init.dirac_, (mg.zeros(3, 3),)),
        (mg.nn.init.dirac_, (mg.zeros(3, 2, 2), 2)),
    ):
        with pytest.raises(mg.ShapeError):
            wrong[0](*wrong[1])


def test_parameters_as_one_vector() -> None:
    net = mg.nn.Linear(3, 2)
    vector = mg.nn.utils.parameters_to_vector(net.parameters())
    assert vector.shape == (8,) and vector.requires_grad
    mg.nn.utils.vector_to_parameters(mg.arange(8).float(), net.parameters())
    np.testing.assert_array_equal(net.weight.detach().numpy(), np.arange(6).reshape(2, 3))
    np.testing.assert_array_equal(net.bias.detach().numpy(), [6, 7])


def test_affine_grid() -> None:
    for size in ((2, 3, 4, 5), (2, 1, 1, 3), (2, 1, 2, 3, 4)):
        for corners in (True, False) if 1 not in size[2:] else (False,):
            theta = floats(2, len(size) - 2, len(size) - 1)
            check("nn.functional.affine_grid", theta, size, align_corners=corners, layouts=("plain", "transposed"), half=False)
            check("affine_grid_generator", theta, size, corners, layouts=("plain",), half=False)
    check("nn.functional.affine_grid", floats(2, 2, 3), (3, 1, 4, 4), align_corners=False, layouts=("plain",))
    check("nn.functional.affine_grid", floats(2, 2, 3), (2, 1, 4), align_corners=False, layouts=("plain",))


def test_random_counts() -> None:
    mg.manual_seed(5)
    rates = np.array([0.0, 0.5, 4.0, 30.0], np.float32).repeat(4000)
    drawn = mg.poisson(mg.tensor(rates)).numpy().reshape(4, -1)
    np.testing.assert_allclose(drawn.mean(1), [0, 0.5, 4, 30], rtol=0.05)
    np.testing.assert_allclose(drawn.var(1), [0, 0.5, 4, 30], rtol=0.1)
    drawn = mg.binomial(mg.tensor([10.0, 3.0]).expand(4000, 2), mg.tensor(0.3)).numpy()
    np.testing.assert_allclose(drawn.mean(0), [3, 0.9], rtol=0.05)
    mg.manual_seed(5)
    first = mg.poisson(mg.tensor(rates)).tolist()
    mg.manual_seed(5)
    assert mg.poisson(mg.tensor(rates)).tolist() == first
    with pytest.raises(mg.ShapeError):
        mg.poisson(mg.tensor([-1.0]))
    with pytest.raises(mg.DTypeError):
        mg.poisson(mg.tensor([1]))
    with pytest.raises(mg.TraceError):
        mg.compile(lambda t: mg.poisson(t))(mg.ones(3))


def test_zeta() -> None:
    s, q = np.meshgrid(np.float32([1.0, 0.5, 1.5, 2.0, 3.0, 2.5, 7.0]), np.float32([0.1, 1.0, 2.5, 30.0, -0.5, -3.25, 0.0, -2.0]))
    check("special.zeta", np.ascontiguousarray(s), np.ascontiguousarray(q), grad=False, layouts=("plain", "stepped"), half=False)
    check("special.zeta", np.float32([np.nan, 2.0, np.inf]), np.float32([1.5, np.nan, 2.0]), grad=False, layouts=("plain",), half=False)
    check("special.zeta", np.float32([1, 2, 3]), np.array([1, 2, 3]), grad=False, layouts=("plain",), half=False)
    s, q = np.abs(floats(4, 3)) + 1.2, np.abs(floats(4, 3, seed=1)) + 0.3
    check("special.zeta", s.astype(np.float64).astype(np.float32), q.astype(np.float32), grad=False, half=False)
    assert mg.autograd.gradcheck(lambda t: mg.special.zeta(mg.tensor(s), t), (mg.tensor(q, requires_grad=True),))
    with pytest.raises(mg.NoGradientError):
        mg.special.zeta(mg.tensor(s, requires_grad=True), mg.tensor(q)).sum().backward()
