"""Epilogues of convolutions: what is fused, and that results are as near to float64 as unfused ones, on every family of kernels
and every form of kernel: strides, groups, few channels, one tap, transposed, in slices, half precision, NaN and infinities."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import meganeura as mg
from meganeura import gpu, nn
from meganeura.compile.fuse_matmul import is_open
from meganeura.compile.lower import lower
from meganeura.kernels import conv_choices, conv_gpu, conv_winograd_gpu
from meganeura.kernels.conv_tiled import usable
from meganeura.kernels.kernel import Profile
from meganeura.ops.archetype import Matmul
from tests import tint
from tests.kernels.run_call import eight_lanes

from . import epilogues
from .epilogues import draw, launches

F = nn.functional
NAME = "convolution epilogue"
check = functools.partial(epilogues.check, NAME)


# --- every form of kernel -----------------------------------------------------------------------------------------------------


def tail(y: Any, s: Any, t: Any, r: Any) -> Any:
    """Scale and shift by channel, a residual, an activation."""
    return F.silu(y * s + t + r)


# name: (channels in, out, spatial sizes, kernel, keywords)
FORMS: dict[str, tuple[int, int, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "odd": (5, 9, (7, 6), (3, 3), {"padding": 1}),
    "wide": (16, 40, (8, 12), (5, 3), {"padding": (2, 1)}),
    "one tap": (20, 24, (6, 6), (1, 1), {}),
    "one tap, groups": (16, 24, (5, 4), (1, 1), {"groups": 2}),
    "winograd": (32, 36, (10, 12), (3, 3), {"padding": 1}),
    "winograd, odd": (32, 34, (9, 7), (3, 3), {"padding": 1}),
    "small images": (64, 64, (4, 4), (3, 3), {"padding": 1}),
    "stride": (12, 16, (9, 11), (3, 3), {"stride": 2, "padding": 1}),
    "few channels": (3, 4, (9, 8), (3, 3), {"padding": 1}),
    "few channels in slices": (96, 4, (6, 5), (3, 3), {"padding": 1}),
    "depthwise": (8, 8, (7, 8), (3, 3), {"padding": 1, "groups": 8}),
    "groups": (24, 36, (5, 8), (3, 3), {"padding": 1, "groups": 2, "dilation": 1}),
    "line": (12, 20, (33,), (3,), {"padding": 1}),
    "volume": (6, 16, (3, 4, 5), (2, 3, 3), {"padding": 1}),
    "in slices": (400, 20, (3, 4), (3, 3), {"padding": 1, "stride": 2}),
}


def convolution(form: str, transposed: bool = False) -> tuple[Callable[..., Any], list[np.ndarray]]:
    c, m, size, kernel, kwargs = FORMS[form]
    groups = kwargs.get("groups", 1)
    name = f"conv{'_transpose' * transposed}{len(size)}d"

    def f(x: Any, w: Any, b: Any) -> Any:
        return getattr(F, name)(x, w, b, **kwargs)

    weight = draw(c, m // groups, *kernel) if transposed else draw(m, c // groups, *kernel)
    arrays = [draw(2, c, *size), weight, draw(m)]
    return f, arrays


@pytest.mark.parametrize("form", FORMS)
def test_scale_shift_residual_and_activation(family: str, form: str) -> None:
    f, arrays = convolution(form)
    _, m, size, *_ = FORMS[form]
    shape = f(*map(mg.tensor, arrays)).shape
    channel = (m, *(1,) * len(size))
    rest = [draw(*channel), draw(*channel, seed=1), draw(*shape)]
    check(lambda x, w, b, *rest: tail(f(x, w, b), *rest), *arrays, *rest)
    check(lambda x, w, *rest: tail(f(x, w, None), *rest), arrays[0], arrays[1], *rest)


@pytest.mark.parametrize("form", ["odd", "stride", "groups", "few channels", "line", "volume", "one tap"])
def test_transposed(family: str, form: str) -> None:
    """Phases of a stride, and those without taps."""
    f, arrays = convolution(form, transposed=True)
    shape = f(*map(mg.tensor, arrays)).shape
    check(lambda x, w, b, r: F.relu(f(x, w, b) + r), *arrays, draw(*shape))


@pytest.mark.parametrize("size", [(1, 1), (1, 3)], ids=str)
def test_elements_without_taps(family: str, size: tuple[int, int]) -> None:
    def f(x: Any, w: Any, b: Any, r: Any) -> Any:
        return F.relu(F.conv_transpose2d(x, w, b, stride=2, output_padding=1) * 2 + r)

    shape = 2, 20, 10, 11 + size[1]
    x, w, b = draw(2, 12, 5, 6), draw(12, 20, *size), draw(20)
    shape = mg.compile(f, rewrite="off")(*map(mg.tensor, (x, w, b, draw(20, 1, 1)))).shape
    check(f, x, w, b, draw(*shape))

    def g(x: Any, w: Any, r: Any) -> Any:
        r = r.exp()
        return r.sum(), F.conv_transpose2d(x, w, stride=2, output_padding=1) * r

    args = [mg.tensor(a) for a in (x, w, draw(*shape))]
    loose, tight = mg.compile(g, debug=True), mg.compile(g)
    for a, b in zip(loose(*args), tight(*args), strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("form", ["odd", "winograd", "winograd, odd", "few channels", "one tap", "stride"])
def test_input_gradients(family: str, form: str) -> None:
    """What an activation's gradient does with an input gradient."""
    f, (x, w, _) = convolution(form)

    def step(x: Any, w: Any, v: Any) -> Any:
        x = x.detach().requires_grad_()
        y = F.relu(x * v)
        z = f(y, w, None)
        z.backward(z.detach())
        return x.grad

    check(step, x, w, draw(*x.shape))


def test_forced_forms_on_a_gpu(monkeypatch: pytest.MonkeyPatch, gpu_family: None) -> None:
    """Winograd, and slices of K, whatever is estimated."""
    f, arrays = convolution("winograd")
    rest = [draw(36, 1, 1), draw(36, 1, 1, seed=1), draw(2, 36, 10, 12)]

    def g(x: Any, w: Any, b: Any, *rest: Any) -> Any:
        return tail(f(x, w, b), *rest)

    choose = conv_gpu.choose_gather
    with monkeypatch.context() as m:
        m.setattr(conv_winograd_gpu, "gather_pays", lambda *_: True)
        check(g, *arrays, *rest, label="conv_results")
        check(lambda x, w, b: F.relu(f(x, w, b)), *(draw(*a.shape) for a in convolution("winograd, odd")[1]), label="conv_results")
        holed = arrays[0].copy()
        holed[0, 3, 5, 6], holed[1, 2, 3, 3], holed[1, 4, 9, 11] = np.nan, np.inf, -np.inf
        check(g, holed, *arrays[1:], *rest, label="conv_results")
    with monkeypatch.context() as m:
        m.setattr(conv_winograd_gpu, "gather_pays", lambda *_: False)
        m.setattr(conv_gpu, "choose_gather", lambda *a: (choose(*a)[0], 3, True))
        check(g, *arrays, *rest, label="conv_sum")
        m.setattr(conv_gpu, "choose_gather", lambda *a: (choose(*a)[0], 1, False))
        check(g, *arrays, *rest, label="conv_gather")


def test_kinds_of_tiles_of_a_gpu(monkeypatch: pytest.MonkeyPatch, gpu_family: None) -> None:
    f, arrays = convolution("wide")
    profile = gpu.current().profile
    tiles = [x.tile for x in conv_choices.GATHER if usable(x.tile, profile)]
    for tile in (next(t for t in tiles if t.wrap), next(t for t in tiles if t.groups > 1)):
        monkeypatch.setattr(conv_gpu, "choose_gather", lambda *_, tile=tile: (tile, 1, True))
        check(lambda x, w, b, r: F.relu(f(x, w, b) + r), *arrays, draw(2, 40, 8, 12), label="conv_gather")


@pytest.fixture
def gpu_family(monkeypatch: pytest.MonkeyPatch) -> None:
    device = gpu.current()
    monkeypatch.setattr(device, "profile", dataclasses.replace(device.profile, family="gpu"))


# --- kinds of epilogues -------------------------------------------------------------------------------------------------------


ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "clamp": lambda y: y.clamp(-0.5, 0.75),
    "hardswish": F.hardswish,
    "leaky": lambda y: F.leaky_relu(y, 0.1),
    "mask": lambda y: mg.where(y > 0, y, -1.0),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name: str) -> None:
    f, arrays = convolution("odd")
    check(lambda x, w, b: ACTIVATIONS[name](f(x, w, b)), *arrays)


def test_batch_norm_of_inference(family: str) -> None:
    f, (x, w, _) = convolution("odd")
    stats = [draw(9), np.abs(draw(9)) + 0.5, draw(9, seed=1), draw(9, seed=2)]

    def g(x: Any, w: Any, *stats: Any) -> Any:
        return F.relu(F.batch_norm(f(x, w, None), *stats))

    graph = check(g, x, w, *stats, fused=1 if gpu.current().profile.max_storage_buffers >= 8 else 0)
    assert len(graph.nodes) == 1


def test_a_residual_that_others_read(family: str) -> None:
    x, w, v = draw(2, 12, 6, 8), draw(12, 12, 3, 3), draw(12, 12, 3, 3, seed=1)

    def block(x: Any, w: Any, v: Any) -> Any:
        y = F.relu(x)
        z = F.conv2d(F.relu(F.conv2d(y, w, padding=1)), v, padding=1) + y
        return F.relu(z), y.sum(1)

    check(block, x, w, v, fused=2)


def test_results_that_others_read(family: str) -> None:
    f, arrays = convolution("odd")

    def g(x: Any, w: Any, b: Any) -> Any:
        y = f(x, w, b)
        return y, F.silu(y), y.sum(1)

    check(g, *arrays)


def test_layouts(family: str) -> None:
    """Residuals and results with channels last, of one image for all, and images as rows of tokens."""
    f, arrays = convolution("wide")
    n, c, high, wide = f(*map(mg.tensor, arrays)).shape
    check(lambda x, w, b, r: f(x, w, b) + r.permute(0, 3, 1, 2), *arrays, draw(n, high, wide, c))
    check(lambda x, w, b, r: (f(x, w, b).permute(0, 2, 3, 1) + r).contiguous(), *arrays, draw(n, high, wide, c))
    check(lambda x, w, b, r: f(x, w, b) * r, *arrays, draw(1, c, high, wide))
    check(lambda x, w, b, r: f(x, w, b).flatten(2).transpose(1, 2) + r, *arrays, draw(high * wide, c))
    check(lambda x, w, b, r: f(x, w, b) * r, *arrays, draw(n, c, 1, 1))
    check(lambda x, w, b, r: f(x, w, b).reshape(n, 4, c // 4, high, wide) * r, *arrays, draw(4, 1, 1, 1))
    check(lambda x, w, b, r: f(x, w, b) + r, *arrays, draw(high, 1))
    check(lambda x, w, b, r: f(x, w, b) * r, *arrays, draw(wide))
    check(lambda x, w, b: f(x, w, b).exp(), arrays[0].transpose(0, 1, 3, 2).copy().transpose(0, 1, 3, 2), *arrays[1:])


def test_groups_of_channels_split(family: str) -> None:
    f, arrays = convolution("one tap, groups")
    check(lambda x, w, b, r: f(x, w, b).reshape(2, 6, 4, 5, 4) * r, *arrays, draw(6, 1, 1, 1))
    check(lambda x, w, b, r: f(x, w, b).reshape(2, 8, 3, 5, 4) * r, *arrays, draw(8, 1, 1, 1))
    check(lambda x, w, b, r: f(x, w, b).reshape(2, 3, 8, 5, 4) * r, *arrays, draw(3, 1, 1, 1))


@pytest.mark.parametrize("form", ["odd", "winograd", "few channels", "one tap", "depthwise"])
def test_half(family: str, form: str) -> None:
    f, arrays = convolution(form)
    shape = f(*map(mg.tensor, arrays)).shape
    check(lambda x, w, b, r: F.gelu(f(x, w, b)) + r, *arrays, draw(*shape), dtype="float16")
    check(lambda x, w, b: f(x, w, b).float() * 3, *arrays, dtype="float16")


@pytest.mark.parametrize("form", ["odd", "winograd", "winograd, odd", "few channels", "one tap"])
def test_nan_and_infinities_pass(family: str, form: str) -> None:
    f, (x, w, b) = convolution(form)
    x = x.copy()
    x[0, 1, 2, 3], x[1, 0, 5, 1], x[1, 2, 4, 4] = np.nan, np.inf, -np.inf
    shape = f(*map(mg.tensor, (x, w, b))).shape
    check(lambda x, w, b, r: F.relu(f(x, w, b) + r), x, w, b, draw(*shape))

    def dying(x: Any, w: Any, b: Any, r: Any) -> Any:
        """Made in the memory of the residual."""
        r = r.exp()
        return r.sum(1), f(x, w, b).tanh() * r

    args = [mg.tensor(a) for a in (x, w, b, draw(*shape))]
    loose, tight = mg.compile(dying, debug=True), mg.compile(dying)
    for a, c in zip(loose(*args), tight(*args), strict=True):
        np.testing.assert_allclose(a.numpy(), c.numpy(), rtol=2e-6, atol=2e-6)


def test_adding_in_place(family: str) -> None:
    f, arrays = convolution("odd")

    def g(total: Any, x: Any, w: Any, b: Any) -> Any:
        total = total * 1
        s = total.sum()
        total.add_(f(x, w, b))
        return total, s

    check(g, draw(*f(*map(mg.tensor, arrays)).shape), *arrays)


def test_dropout_draws_as_it_does_alone(family: str) -> None:
    for form in ("odd", "wide", "winograd"):
        f, arrays = convolution(form)
        check(lambda x, w, b, f=f: F.dropout(f(x, w, b), 0.4), *arrays)


def test_batches_in_pieces(monkeypatch: pytest.MonkeyPatch, family: str) -> None:
    """Temporaries that do not fit a binding: each piece has its part of the residual."""
    device = gpu.current()
    monkeypatch.setattr(device, "profile", dataclasses.replace(device.profile, max_binding=1 << 18))
    monkeypatch.setattr(conv_winograd_gpu, "gather_pays", lambda *_: True)
    x, w, b = draw(9, 40, 12, 12), draw(40, 40, 3, 3), draw(40)
    labels = launches(check(lambda x, w, b, r: F.relu(F.conv2d(x, w, b, padding=1) + r), x, w, b, draw(9, 40, 12, 12)))
    whole = family == "portable" or (family == "cpu" and not eight_lanes())
    assert whole or labels.count(labels[-1]) > 1


# --- limits -------------------------------------------------------------------------------------------------------------------


def test_what_is_not_fused() -> None:
    f, arrays = convolution("odd")
    _, c, h, w = f(*map(mg.tensor, arrays)).shape
    check(lambda x, w, b: f(x, w, b)[:, :4] * 2, *arrays, fused=0)  # a part
    check(lambda x, w, b: f(x, w, b) + f(x, w, b).permute(1, 0, 2, 3)[:2, :1], *arrays, fused=0)  # read in two ways
    check(lambda x, w, b, r: f(x, w, b) * r, *arrays, draw(3, 1, c, h, w), fused=0)  # repeated
    check(lambda x, w, b: f(x, w, b).reshape(2, 21, 18).transpose(1, 2).contiguous(), *arrays, fused=0)  # channels and pixels mixed


def test_binding_limit() -> None:
    f, arrays = convolution("odd")
    rest = [draw(*f(*map(mg.tensor, arrays)).shape, seed=i) for i in range(9)]

    def g(x: Any, w: Any, b: Any, *rest: Any) -> Any:
        y = f(x, w, b)
        for r in rest:
            y = y + r
        return y

    check(g, *arrays, *rest, fused=1 if gpu.current().profile.max_storage_buffers >= 14 else 0)


def test_numbers_are_not_in_the_shader() -> None:
    def sources(scale: float) -> list[Any]:
        g = mg.compile(lambda x, w: F.conv2d(x, w) * scale + 1)
        args = mg.tensor(draw(1, 3, 5, 5)), mg.tensor(draw(4, 3, 3, 3))
        g(*args)
        return [x.kernel for step in lower(g.graph(*args).nodes, gpu.current().profile) for x in step.lowered.launches]

    assert sources(0.5) == sources(0.25)


def test_lowers_for_other_devices() -> None:
    g = mg.compile(lambda x, w, b: F.gelu(F.conv2d(x, w, b, padding=1)))
    args = mg.tensor(draw(2, 32, 12, 12)), mg.tensor(draw(64, 32, 3, 3)), mg.tensor(draw(64))
    nodes = g.graph(*args).nodes
    for profile in (Profile(), Profile(backend="dawn"), Profile(family="cpu", subgroup_size=8), Profile(subgroups=False, subgroup_size=0)):
        for step in lower(nodes, profile):
            assert "fn finish" in step.lowered.launches[-1].kernel.source(profile)


def test_labels_and_places() -> None:
    g = mg.compile(lambda x, w: F.relu(F.conv2d(x, w)))
    args = mg.tensor(draw(1, 3, 5, 5)), mg.tensor(draw(4, 3, 3, 3))
    (node,) = g.graph(*args).nodes
    assert node.parts == ("convolution", "relu")
    assert NAME in str(g.report(*args)[0])


# --- networks -----------------------------------------------------------------------------------------------------------------


class Net(nn.Module):
    """Two residual blocks with batch norms between convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.convs = nn.ModuleList([nn.Conv2d(16, 16, 3, padding=1, bias=False) for _ in range(4)])
        self.norms = nn.ModuleList([nn.BatchNorm2d(16) for _ in range(4)])
        self.head = nn.Linear(16, 10)

    def forward(self, x: Any) -> Any:
        x = F.relu(self.stem(x))
        for i in (0, 2):
            y = F.relu(self.norms[i](self.convs[i](x)))
            x = F.relu(self.norms[i + 1](self.convs[i + 1](y)) + x)
        return self.head(x.mean((2, 3)))


class Plain(nn.Module):
    """Three convolutions, the last with a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv2d(c, m, 3, padding=1) for c, m in ((3, 16), (16, 32), (32, 32))])
        self.head = nn.Linear(32, 10)

    def forward(self, x: Any) -> Any:
        x = F.relu(self.convs[1](F.relu(self.convs[0](x))))
        return self.head(F.relu(self.convs[2](x) + x).mean((2, 3)))


def _dispatches(f: Callable[..., Any], *args: Any) -> tuple[int, int]:
    """Convolution epilogues and dispatches of a compiled function."""
    g = mg.compile(lambda *args: f(*args))
    g(*args)
    return sum(r.count(NAME) for r in g.report(*args)), sum(len(s.lowered.launches) for s in g.session(*args).steps)


def test_dispatches_of_networks(monkeypatch: pytest.MonkeyPatch, family: str) -> None:
    mg.manual_seed(0)
    net, plain, x = Net().eval(), Plain(), mg.tensor(draw(4, 3, 16, 16))
    labels = mg.tensor(np.arange(4))

    def step(x: Any, labels: Any) -> Any:
        plain.zero_grad()
        loss = F.cross_entropy(plain(x), labels)
        loss.backward()
        return loss.detach(), *(p.grad for p in plain.parameters())

    def forward(x: Any) -> Any:
        with mg.no_grad():
            return net(x)

    np.testing.assert_allclose(mg.compile(forward)(x).numpy(), forward(x).numpy(), rtol=1e-4, atol=1e-4)
    for a, b in zip(mg.compile(step)(x, labels), step(x, labels), strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-4, atol=1e-5)
    after = [_dispatches(forward, x), _dispatches(step, x, labels)]
    monkeypatch.setattr("meganeura.compile.fuse_matmul.is_open", lambda node: isinstance(node.op.archetype, Matmul) and is_open(node))
    before = [_dispatches(forward, x), _dispatches(step, x, labels)]
    assert [n for n, _ in after] == [5, 5]
    assert [n for n, _ in before] == [0, 0]
    # a chain that the mean took in before is the last convolution's now
    assert [b - a for (_, b), (_, a) in zip(before, after, strict=True)] == [4, 5]


def test_fuzzed_programs(family: str) -> None:
    """Random programs of convolutions, pointwise ops, reductions and in-place writes: compiled equals eager."""
    rng, fired = np.random.default_rng(4), 0
    for _ in range(5):
        f = _program(int(rng.integers(1 << 30)))
        args = mg.tensor(draw(2, 8, 6, 7)), mg.tensor(draw(8, 8, 3, 3)), mg.tensor(draw(8, 8, 1, 1)), mg.tensor(draw(8))
        for debug in (True, False):
            g = mg.compile(f, debug=debug)
            for got, want in zip(g(*args), f(*args), strict=True):
                np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-4, atol=1e-5)
        fired += sum(r.count(NAME) for r in g.report(*args))
    assert fired > 5


def _program(seed: int) -> Callable[..., Any]:
    """A program over images [2, 8, 6, 7], two weights and a bias."""

    def run(x: Any, w: Any, v: Any, b: Any) -> Any:
        rng = np.random.default_rng(seed)
        values = [x * 1, x.sin()]
        for _ in range(12):
            a, c = (values[int(rng.integers(len(values)))] for _ in range(2))
            kind = int(rng.integers(8))
            if kind < 2:
                values.append(F.conv2d(a, w, b if kind else None, padding=1) * 0.1)
            elif kind == 2:
                values.append(F.conv_transpose2d(a, w, padding=1) * 0.1 + c)
            elif kind == 3:
                values.append(F.relu(F.conv2d(a, v) * 0.3 + b[:, None, None]))
            elif kind == 4:
                values.append((a + c).tanh())
            elif kind == 5:
                a.mul_(0.5).add_(c)
            elif kind == 6:
                a[int(rng.integers(2))].sub_(c[int(rng.integers(2))])
            else:
                values.append(F.conv2d(a, w, padding=1).mean((2, 3), keepdim=True) * 0.1 + c)
        return tuple(values)

    return run


TINT = """
import dataclasses
import meganeura as mg
from meganeura import gpu
from meganeura.kernels import conv_winograd_gpu
F, device, fused = mg.nn.functional, gpu.current(), 0
own = device.profile
for changes in ({"family": "gpu", "subgroup_size": 32, "subgroups": True}, {"family": "cpu", "subgroup_size": 8, "subgroups": True}):
    device.profile = dataclasses.replace(own, **changes)
    for c, m, k, size in ((3, 4, 3, 8), (32, 36, 3, 12), (32, 36, 3, 9), (16, 24, 1, 6), (64, 64, 3, 4), (400, 8, 3, 3)):
        for pays in (True, False):
            conv_winograd_gpu.gather_pays = lambda *_: pays
            x, w, b, r = mg.zeros(2, c, size, size), mg.zeros(m, c, k, k), mg.zeros(m), mg.zeros(2, m, size, size)
            for f in (
                lambda: F.gelu(F.conv2d(x, w, b, padding=k // 2)) + r,
                lambda: F.dropout(F.conv2d(x, w, padding=k // 2) * b[:, None, None], 0.5),
                lambda: F.relu(F.conv_transpose2d(r, w, stride=2)),
                lambda: F.conv2d(x.half(), w.half(), b.half()).float(),
            ):
                g = mg.compile(f)
                g()
                fused += sum(r.count("convolution epilogue") for r in g.report())
print(device.backend, fused)
"""


def test_tint_accepts_epilogues() -> None:
    assert tint.printed(TINT, MEGANEURA_BACKEND="wgpudawn-null") == ["dawn", "96"]
