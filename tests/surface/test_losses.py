"""Losses against PyTorch: every reduction, weights, targets of each form, gradients of all inputs; and their modules."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meganeura as mg

from .compare import bools, floats, ints, torch
from .compare import check as compare

pytestmark = pytest.mark.filterwarnings("ignore:Using a target size:UserWarning", "ignore:reduction:UserWarning")
REDUCTIONS = ("mean", "sum", "none")


def check(name: str, *args: Any, **kwargs: Any) -> None:
    """compare.check of a function of nn.functional, on two layouts unless told."""
    kwargs.setdefault("layouts", ("plain", "transposed"))
    compare("nn.functional." + name, *args, **kwargs)


def every(name: str, *args: Any, **kwargs: Any) -> None:
    """check with each reduction."""
    for reduction in REDUCTIONS:
        check(name, *args, reduction=reduction, **kwargs)
    for field in ("grad", "half"):
        kwargs.pop(field, None)
    with pytest.raises((mg.MeganeuraError, ValueError)):
        getattr(mg.nn.functional, name)(*[mg.tensor(a) if isinstance(a, np.ndarray) else a for a in args], reduction="all", **kwargs)


def signs(*shape: int, seed: int = 3) -> Any:
    return (bools(*shape, seed=seed) * 2 - 1).astype(np.float32)


def probabilities(*shape: int, seed: int = 5) -> Any:
    x = np.exp(floats(*shape, seed=seed))
    return (x / x.sum(-1, keepdims=True)).astype(np.float32)


# ---- elementwise ----


@pytest.mark.parametrize("name", ["mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "soft_margin_loss"])
def test_elementwise(name: str) -> None:
    x, y = floats(4, 5), signs(4, 5).astype(np.int64) if name == "soft_margin_loss" else floats(4, 5, seed=1)
    every(name, x, y)
    check(name, np.array(x[0, 0]), np.array(y[0, 0]))
    check(name, floats(0, 3), y[:0, :3].copy(), reduction="sum")
    check(name, floats(0, 3), y[:0, :3].copy())
    if name != "soft_margin_loss":
        check(name, x, y[0])


def test_smooth_l1_and_huber_widths() -> None:
    x, y = floats(4, 5), floats(4, 5, seed=1)
    for width in (0.3, 2.0):
        check("smooth_l1_loss", x, y, beta=width)
        check("huber_loss", x, y, delta=width)
    check("smooth_l1_loss", x, y, beta=0.0)
    check("smooth_l1_loss", x, y, beta=-1.0)
    check("huber_loss", x, y, delta=0.0)


def test_kl_div() -> None:
    x, y = np.log(probabilities(4, 5)), probabilities(4, 5, seed=6)
    every("kl_div", x, y)
    every("kl_div", x, np.log(y), log_target=True)
    for target, log in ((y, False), (np.log(y), True)):
        check("kl_div", x, target, reduction="batchmean", log_target=log)
    y[0, :2] = 0
    check("kl_div", x, y, reduction="sum", grad=False)


def test_binary_cross_entropy() -> None:
    p, y = probabilities(4, 5), bools(4, 5).astype(np.float32)
    soft = np.float32(0.1) + np.float32(0.8) * y
    every("binary_cross_entropy", p, y, grad=False)
    check("binary_cross_entropy", p, soft)
    check("binary_cross_entropy", p, soft, floats(4, 5, low=0.2, high=2, seed=2), grad=False)
    check("binary_cross_entropy", p, soft, floats(5, low=0.2, high=2, seed=2), grad=False)
    check("binary_cross_entropy", np.float32([0, 1, 0, 1]), np.float32([0, 1, 1, 0]), grad=False)
    check("binary_cross_entropy", p, y[0])
    x = floats(4, 5) * 3
    every("binary_cross_entropy_with_logits", x, soft)
    check("binary_cross_entropy_with_logits", x, soft, floats(4, 1, low=0.2, high=2, seed=2), grad=False)
    check("binary_cross_entropy_with_logits", x, soft, pos_weight=floats(5, low=0.2, high=2, seed=2), grad=False, half=False)
    check("binary_cross_entropy_with_logits", np.float32([-200, 200, 0]), np.float32([1, 0, 1]), half=False)


def test_poisson_nll_loss() -> None:
    x, y = floats(4, 5), ints(4, 5, low=0, high=6).astype(np.float32)
    every("poisson_nll_loss", x, y)
    every("poisson_nll_loss", np.exp(x), y, log_input=False)
    check("poisson_nll_loss", x, y, full=True, grad=False)
    check("poisson_nll_loss", x, y + 1.5, full=True)


def test_gaussian_nll_loss() -> None:
    x, y, var = floats(4, 5), floats(4, 5, seed=1), floats(4, 5, low=0.2, high=2, seed=2)
    every("gaussian_nll_loss", x, y, var)
    check("gaussian_nll_loss", x, y, var, full=True)
    check("gaussian_nll_loss", x, y, var[:, 0].copy())
    check("gaussian_nll_loss", x, y, var[:, :1].copy())
    check("gaussian_nll_loss", x, y, var, eps=0.7)
    check("gaussian_nll_loss", x, y, var[0].copy())
    check("gaussian_nll_loss", x, y, var, eps=0.0)


# ---- margins ----


def test_hinge_embedding_and_ranking() -> None:
    x, y, t = floats(4, 5), floats(4, 5, seed=1), signs(4, 5)
    every("hinge_embedding_loss", x, t)
    check("hinge_embedding_loss", x, t, margin=0.4)
    every("margin_ranking_loss", x, y, t)
    check("margin_ranking_loss", x, y, t, margin=0.6)
    check("margin_ranking_loss", x[0], y[0], t[0])
    check("margin_ranking_loss", x, y, t[0])


def test_cosine_embedding_loss() -> None:
    x, y, t = floats(6, 5), floats(6, 5, seed=1), signs(6)
    every("cosine_embedding_loss", x, y, t)
    check("cosine_embedding_loss", x, y, t, margin=0.3)
    check("cosine_embedding_loss", x[0], y[0], np.array(t[0]))
    check("cosine_embedding_loss", x, y, t[:3].copy())
    check("cosine_embedding_loss", x, y[:3].copy(), t)
    check("cosine_embedding_loss", x, y, ints(6, low=0, high=1) * 2 + 1)


def test_triplet_margin_loss() -> None:
    a, p, n = (floats(6, 5, seed=s) for s in range(3))
    every("triplet_margin_loss", a, p, n)
    for fields in ({"margin": 0.3}, {"p": 1.0}, {"p": 3.0}, {"swap": True}, {"eps": 1e-3}):
        check("triplet_margin_loss", a, p, n, **fields)
    check("triplet_margin_loss", a[0], p[0], n[0])
    check("triplet_margin_loss", a, p, n[0])
    check("triplet_margin_loss", a, p, n, margin=-1.0)
    check("triplet_margin_with_distance_loss", a, p, n)
    check("triplet_margin_with_distance_loss", a, p, n, distance_function=lambda x, y: (x - y).abs().sum(-1), swap=True, margin=0.5)


# ---- several classes ----


def test_multi_margin_loss() -> None:
    x, y, w = floats(6, 5), ints(6, low=0, high=5), floats(5, low=0.2, high=2, seed=2)
    every("multi_margin_loss", x, y, half=False)
    for fields in ({"p": 2}, {"margin": 0.3}):
        check("multi_margin_loss", x, y, half=False, **fields)
    ours = mg.nn.functional.multi_margin_loss(mg.tensor(x), mg.tensor(y), weight=mg.tensor(w))
    theirs = torch.nn.functional.multi_margin_loss(torch.tensor(x), torch.tensor(y), weight=torch.tensor(w))
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-5)
    check("multi_margin_loss", x[0], np.array(3), reduction="none", half=False)
    check("multi_margin_loss", x, y, p=3)
    check("multi_margin_loss", x, y[:3].copy())


def test_multilabel_margin_loss() -> None:
    x = floats(4, 5)
    y = np.array([[3, 0, -1, 1, 2], [-1, 0, 1, 2, 3], [0, 1, 2, 3, 4], [4, 4, -1, -1, 0]])
    every("multilabel_margin_loss", x, y, half=False)
    check("multilabel_margin_loss", x[0], y[0], half=False)
    check("multilabel_margin_loss", x, y[:, :3].copy())


def test_multilabel_soft_margin_loss() -> None:
    x, y, w = floats(4, 5), bools(4, 5).astype(np.float32), floats(5, low=0.2, high=2, seed=2)
    every("multilabel_soft_margin_loss", x, y)
    for reduction in REDUCTIONS:
        compare(
            (
                lambda a, b, w: mg.nn.functional.multilabel_soft_margin_loss(a, b, w, reduction=reduction),  # noqa: B023
                lambda a, b, w: torch.nn.functional.multilabel_soft_margin_loss(a, b, w, reduction=reduction),  # noqa: B023
            ),
            x, y, w, layouts=("plain",),
        )  # fmt: skip
    check("multilabel_soft_margin_loss", x[0], y[0])


# ---- cross entropy ----

SHAPES = ((6, 5), (5,), (3, 5, 4), (2, 5, 3, 2))


def classes(shape: tuple[int, ...], ignored: int | None = None) -> Any:
    y = np.asarray(ints(*shape[:1], *shape[2:], low=0, high=5) if len(shape) > 1 else np.array(3))
    if ignored is not None and y.size > 1:
        y.reshape(-1)[::3] = ignored
    return y


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_nll_loss(shape: tuple[int, ...]) -> None:
    x = floats(*shape)
    w = floats(5, low=0.2, high=2, seed=2)
    layouts = ("plain",) if len(shape) == 4 else ("plain", "transposed")  # PyTorch's images must be dense
    for reduction in REDUCTIONS:
        check("nll_loss", x, classes(shape), reduction=reduction, layouts=layouts)
        check("nll_loss", x, classes(shape, -100), reduction=reduction, layouts=layouts)
        check("nll_loss", x, classes(shape, 2), ignore_index=2, reduction=reduction, layouts=("plain",))
        weighted("nll_loss", x, classes(shape, -100), w, reduction=reduction)
        weighted("nll_loss", x, classes(shape), w, reduction=reduction, ignore_index=1)


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_cross_entropy(shape: tuple[int, ...], smoothing: float) -> None:
    x = floats(*shape)
    w = floats(5, low=0.2, high=2, seed=2)
    soft = np.moveaxis(probabilities(*(*shape[:1], *shape[2:], 5) if len(shape) > 1 else (5,)), -1, min(1, len(shape) - 1)).copy()
    for reduction in REDUCTIONS:
        fields: dict[str, Any] = {"reduction": reduction, "label_smoothing": smoothing}
        check("cross_entropy", x, classes(shape), **fields)
        check("cross_entropy", x, classes(shape, -100), **fields)
        check("cross_entropy", x, soft, **fields)
        weighted("cross_entropy", x, classes(shape, -100), w, **fields)
        weighted("cross_entropy", x, classes(shape), w, ignore_index=2, **fields)
        weighted("cross_entropy", x, soft, w, **fields)


def weighted(name: str, x: Any, y: Any, w: Any, **fields: Any) -> None:
    """With class weights, which get no gradient."""
    ours, theirs = getattr(mg.nn.functional, name), getattr(torch.nn.functional, name)
    compare(
        (lambda a: ours(a, mg.tensor(y), mg.tensor(w), **fields), lambda a: theirs(a, torch.tensor(y), torch.tensor(w), **fields)),
        x, layouts=("plain",), half=False,
    )  # fmt: skip


def test_cross_entropy_of_nothing_and_refusals() -> None:
    check("cross_entropy", floats(6, 5), np.full(6, -100))
    check("cross_entropy", floats(6, 5), np.full(6, -100), reduction="sum")
    check("nll_loss", floats(6, 5), np.full(6, -100))
    check("cross_entropy", floats(0, 5), np.zeros(0, np.int64))
    check("cross_entropy", floats(6, 5), classes((5, 5)))
    check("cross_entropy", floats(6, 5), floats(6, 4))
    check("nll_loss", floats(6, 5), classes((6, 5)).astype(np.float32))
    for bad in (5, -1):
        y = mg.tensor(np.array([0, bad, 1]))
        for fn in (mg.nn.functional.cross_entropy, mg.nn.functional.nll_loss):
            with pytest.raises(mg.IndexOutOfRangeError):
                fn(mg.tensor(floats(3, 5)), y).item()


def test_large_vocabulary() -> None:
    x, y = floats(3, 50257, low=-9, high=9), np.array([0, 50256, -100])
    check("cross_entropy", x, y)
    check("cross_entropy", x, y, floats(50257, low=0.2, high=2), label_smoothing=0.1, half=False, layouts=("plain",), grad=False)
    check("cross_entropy", x, probabilities(3, 50257), reduction="sum", half=False, layouts=("plain",))


def test_second_derivatives_of_cross_entropy() -> None:
    x, w, y = floats(3, 4), floats(4, low=0.2, high=2), np.array([0, 3, 1])
    for target in (y, probabilities(3, 4)):
        for smoothing in (0.0, 0.2):
            second = []
            for lib in (torch, mg):
                leaf = lib.tensor(x).requires_grad_()
                loss = lib.nn.functional.cross_entropy(leaf, lib.tensor(target), lib.tensor(w), label_smoothing=smoothing)
                (g,) = lib.autograd.grad([loss], [leaf], create_graph=True)
                (g * lib.tensor(floats(3, 4, seed=8))).sum().backward()
                second.append(leaf.grad.numpy())
            np.testing.assert_allclose(second[1], second[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("chunk", [None, 3, 100])
def test_linear_cross_entropy(reduction: str, chunk: int | None) -> None:
    w, b, c = floats(7, 4, seed=1), floats(7, seed=2), floats(7, low=0.2, high=2, seed=3)
    y = np.array([0, 6, -100, 3, 3, 1, 2, 5])
    for target, smoothing in ((y, 0.1), (probabilities(8, 7), 0.0)):
        kept = []
        for lib in (torch, mg):
            leaves = [lib.tensor(a).requires_grad_() for a in (floats(8, 4), w, b)]
            fields: dict[str, Any] = {}
            if chunk and lib is mg:
                fields = {"options": mg.nn.LinearCrossEntropyOptions(batch_chunk_size=chunk)}
            x, weight, bias = leaves
            loss = lib.nn.functional.linear_cross_entropy(
                x,
                weight,
                lib.tensor(target),
                linear_bias=bias,
                weight=lib.tensor(c),
                reduction=reduction,
                label_smoothing=smoothing,
                **fields,
            )
            loss.sum().backward()
            kept.append([loss.detach().numpy(), *(t.grad.numpy() for t in leaves)])
        for want, got in zip(*kept, strict=True):
            np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6)


def test_linear_cross_entropy_module_and_chunks_under_compile() -> None:
    loss = mg.nn.LinearCrossEntropyLoss(4, 7, bias=True, options=mg.nn.LinearCrossEntropyOptions(batch_chunk_size=2))
    plain = mg.nn.LinearCrossEntropyLoss(4, 7, bias=True)
    plain.load_state_dict(loss.state_dict())
    y = mg.tensor(np.array([0, 6, -100, 3, 3]))

    def step(module: Any) -> Any:
        def run(x: mg.Tensor) -> Any:
            module.zero_grad()
            made = module(x, y)
            made.backward()
            return made

        return run

    x = mg.tensor(floats(5, 4))
    want = step(plain)(x).item()
    for run in (step(loss), mg.compile(step(loss))):
        assert run(x).item() == pytest.approx(want, rel=1e-5)
        np.testing.assert_allclose(loss.linear.weight.grad.numpy(), plain.linear.weight.grad.numpy(), rtol=1e-4, atol=1e-6)


# ---- modules ----

X, Y, T = floats(6, 5), floats(6, 5, seed=1), signs(6, 5)
LABELS = ints(6, low=0, high=5)
MODULES: list[tuple[str, dict[str, Any], tuple[Any, ...]]] = [
    ("BCELoss", {}, (probabilities(6, 5), bools(6, 5).astype(np.float32))),
    ("SmoothL1Loss", {"beta": 0.5}, (X, Y)),
    ("HuberLoss", {"delta": 0.5}, (X, Y)),
    ("KLDivLoss", {"reduction": "batchmean", "log_target": True}, (X, Y)),
    ("PoissonNLLLoss", {"log_input": False, "eps": 1e-6}, (np.exp(X), np.abs(Y))),
    ("GaussianNLLLoss", {"full": True}, (X, Y, np.abs(T))),
    ("SoftMarginLoss", {}, (X, T.astype(np.int64))),
    ("HingeEmbeddingLoss", {"margin": 0.7}, (X, T)),
    ("MarginRankingLoss", {"margin": 0.2}, (X, Y, T)),
    ("CosineEmbeddingLoss", {"margin": 0.1}, (X, Y, T[:, 0].copy())),
    ("TripletMarginLoss", {"p": 1.0, "swap": True}, (X, Y, T)),
    ("TripletMarginWithDistanceLoss", {"margin": 2.0}, (X, Y, T)),
    ("MultiMarginLoss", {"p": 2}, (X, LABELS)),
    ("MultiLabelMarginLoss", {}, (X, ints(6, 5, low=-1, high=5))),
    ("MultiLabelSoftMarginLoss", {}, (X, bools(6, 5).astype(np.float32))),
    ("CrossEntropyLoss", {"label_smoothing": 0.1}, (X, LABELS)),
    ("NLLLoss", {}, (X, LABELS)),
]


@pytest.mark.parametrize(("name", "fields", "args"), MODULES, ids=[m[0] for m in MODULES])
def test_modules(name: str, fields: dict[str, Any], args: tuple[Any, ...]) -> None:
    for reduction in (None, "none"):
        given = fields if reduction is None else {**fields, "reduction": reduction}
        compare(
            (lambda *a: getattr(mg.nn, name)(**given)(*a), lambda *a: getattr(torch.nn, name)(**given)(*a)),  # noqa: B023
            *args, layouts=("plain",), half=False, grad=name not in ("BCELoss", "GaussianNLLLoss"),
        )  # fmt: skip


def test_weights_of_modules_are_buffers() -> None:
    w = floats(5, low=0.2, high=2, seed=2)
    for name in ("BCELoss", "CrossEntropyLoss", "NLLLoss", "MultiMarginLoss", "MultiLabelSoftMarginLoss", "BCEWithLogitsLoss"):
        loss = getattr(mg.nn, name)(weight=mg.tensor(w))
        assert [n for n, _ in loss.named_buffers()] == ["weight"]


def test_compiled_is_eager() -> None:
    F = mg.nn.functional
    x, y, t = mg.tensor(X), mg.tensor(Y), mg.tensor(T)
    labels, many = mg.tensor(LABELS), mg.tensor(ints(6, 5, low=-1, high=5))

    def losses(x: mg.Tensor) -> list[mg.Tensor]:
        return [
            F.smooth_l1_loss(x, y), F.huber_loss(x, y), F.kl_div(x, y.exp()), F.poisson_nll_loss(x, y.exp(), full=True),
            F.gaussian_nll_loss(x, y, y.exp()), F.soft_margin_loss(x, t), F.hinge_embedding_loss(x, t), F.margin_ranking_loss(x, y, t),
            F.cosine_embedding_loss(x, y, t[:, 0]), F.triplet_margin_loss(x, y, t), F.multi_margin_loss(x, labels),
            F.multilabel_margin_loss(x, many), F.cross_entropy(x, labels, y[0].exp(), label_smoothing=0.1),
        ]  # fmt: skip

    for g, w in zip(mg.compile(losses)(x), losses(x), strict=True):
        assert g.item() == pytest.approx(w.item(), rel=1e-5)
