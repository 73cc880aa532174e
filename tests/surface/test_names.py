"""Views in place, conversions, window functions, settings and refusals: small names a program takes for granted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meganeura as mg
from tests.surface.compare import SPECIAL, bools, check, floats, ints, torch

VIEWS: list[tuple[str, tuple[int, ...], tuple[Any, ...]]] = [
    ("t_", (3, 5), ()),
    ("t_", (3,), ()),
    ("t_", (), ()),
    ("t_", (2, 3, 4), ()),
    ("transpose_", (3, 4, 5), (0, 2)),
    ("transpose_", (3, 4, 5), (-1, 1)),
    ("transpose_", (3, 4), (0, 2)),
    ("swapaxes_", (3, 4, 5), (0, -1)),
    ("swapdims_", (3, 4, 5), (1, 2)),
    ("squeeze_", (1, 3, 1), ()),
    ("squeeze_", (1, 3, 1), (-1,)),
    ("squeeze_", (1, 3, 1), (1,)),
    ("squeeze_", (3, 0, 1), ()),
    ("unsqueeze_", (3, 4), (0,)),
    ("unsqueeze_", (3, 4), (-1,)),
    ("unsqueeze_", (3, 4), (4,)),
]


@pytest.mark.parametrize(("name", "shape", "args"), VIEWS)
def test_view_in_place(name: str, shape: tuple[int, ...], args: tuple[Any, ...]) -> None:
    """The tensor itself has the new shape, and gradients flow back to where it came from."""

    def apply(x: Any) -> Any:
        y = x * 2
        same = getattr(y, name)(*args)
        assert same is y
        return y * 3

    check((apply, apply), floats(*shape))


def test_view_in_place_and_what_came_before() -> None:
    def apply(lib: Any) -> list[Any]:
        x = lib.tensor(floats(3, 4), requires_grad=True)
        y = x * 1.0
        view = y[0]
        y.unsqueeze_(0)
        view.mul_(5.0)  # changes y, whose shape changed since
        y.mul_(2.0)
        (y * lib.tensor(floats(1, 3, 4, seed=3))).sum().backward()
        part = lib.tensor(floats(4, 6))[1:3]
        part.t_().add_(1.0)
        return [y, x.grad, part]

    for ours, theirs in zip(apply(mg), apply(torch), strict=True):
        assert tuple(ours.shape) == tuple(theirs.shape)
        np.testing.assert_allclose(ours.detach().numpy(), theirs.detach().numpy(), rtol=1e-6)


def test_view_in_place_refusals() -> None:
    leaf = mg.tensor(floats(3, 4), requires_grad=True)
    with pytest.raises(mg.GradientError, match="t_: a leaf"):
        leaf.t_()
    with mg.no_grad():
        assert leaf.t_().shape == (4, 3)
    y = leaf * 2
    z = y * y
    y.t_()
    with pytest.raises(mg.GradientError, match="changed in place"):
        z.sum().backward()
    with pytest.raises(mg.TraceError, match="transpose_ changes a tensor's own shape"):
        mg.compile(lambda t: t.transpose_(0, 1))(mg.zeros(2, 3))
    x = mg.zeros(4)
    assert x.as_strided_((2, 2), (1, 2)).stride() == (1, 2)
    for name in ("resize_", "resize_as_"):
        with pytest.raises(mg.UnsupportedError, match="keeps the memory"):
            getattr(x, name)(x)


@pytest.mark.parametrize("name", ["byte", "char", "bool", "int", "long", "float", "half", "bfloat16"])
def test_conversions(name: str) -> None:
    ours, theirs = getattr(mg.tensor(ints(5, 3)), name)(), getattr(torch.tensor(ints(5, 3)), name)()
    assert ours.dtype.name == str(theirs.dtype).removeprefix("torch.")
    np.testing.assert_array_equal(ours.float().numpy(), theirs.float().numpy())


def test_conversions_to_what_does_not_exist() -> None:
    x = mg.tensor([1.7, -2.3])
    assert x.double() is x and mg.tensor([1]).double().dtype is mg.float32
    assert x.short().dtype is mg.int32 and x.short().tolist() == [1, -2]
    with pytest.raises(mg.DeviceError, match="no device 'cuda'"):
        x.cuda()


def test_to_takes_no_name_of_a_dtype() -> None:
    """As in PyTorch, where a string names a device."""
    for name in ("int8", "float16", "float32"):
        with pytest.raises(RuntimeError):
            torch.zeros(2).to(name)
        with pytest.raises(mg.DeviceError, match=f"no device '{name}'; dtypes are mg.float16 and so on"):
            mg.zeros(2).to(name)
    assert mg.zeros(2).to("cpu").dtype is mg.float32
    assert mg.zeros(2).to(mg.int8).dtype is mg.zeros(2).to(np.int8).dtype is mg.int8
    assert mg.zeros(2).type("float16").dtype is mg.float16


@pytest.mark.parametrize("name", ["bartlett_window", "blackman_window", "hann_window", "hamming_window", "kaiser_window"])
@pytest.mark.parametrize("length", [0, 1, 2, 7, 64])
def test_windows(name: str, length: int) -> None:
    for periodic in (True, False):
        check(name, length, periodic, layouts=("plain",))
    check(name, length, dtype="@float16", layouts=("plain",), rtol=1e-3, atol=3e-3)


def test_window_options_and_errors() -> None:
    check("hamming_window", 9, True, 0.6, 0.3, layouts=("plain",))
    check("kaiser_window", 9, False, 3.5, layouts=("plain",))
    check("hann_window", -1, layouts=("plain",))
    check("hann_window", 5, dtype="@int64", layouts=("plain",))
    assert mg.hann_window(4, requires_grad=True).requires_grad


def test_second_names() -> None:
    x = floats(4, 5)
    check("trapz", x, dim=0)
    check("trapz", x, floats(5, seed=2))
    check("constant_pad_nd", x, (1, 2, -1, 0), 3.0)
    check("detach", x)
    check("nn.functional.relu_", SPECIAL, grad=False, layouts=("plain", "stepped"))
    check("relu_", SPECIAL, grad=False, layouts=("plain", "stepped"))
    assert mg.index_put_(mg.zeros(3), (mg.tensor([1]),), mg.tensor([2.0])).tolist() == [0, 2, 0]
    assert not hasattr(mg, "nothing_like_it_")


@pytest.mark.parametrize("value", [1.5, np.array(2.5, np.float32)])
def test_fill(value: Any) -> None:
    check("fill", floats(3, 4), value)
    check("fill", ints(3, 4), 7)
    check("fill", bools(3, 4), True)
    check("fill", floats(3, 4), floats(2))


def test_made_from_elsewhere() -> None:
    np.testing.assert_array_equal(mg.from_dlpack(torch.arange(6).reshape(2, 3)).numpy(), np.arange(6).reshape(2, 3))
    np.testing.assert_array_equal(mg.from_dlpack(floats(3, 2)).numpy(), floats(3, 2))
    with pytest.raises(mg.DTypeError, match="from_dlpack"):
        mg.from_dlpack([1, 2])
    with pytest.raises(mg.DTypeError, match="always copied"):
        mg.from_dlpack(floats(2), copy=False)
    for size, stride in (((3, 4), (1, 3)), ((0, 4), (4, 1)), ((), ())):
        assert mg.empty_strided(size, stride).stride() == torch.empty_strided(size, stride).stride()
    with pytest.raises(mg.ShapeError):
        mg.empty_strided((2,), (1, 1))


def test_settings() -> None:
    assert mg.get_default_dtype() is mg.float32
    mg.set_default_dtype(mg.float32)
    mg.set_default_dtype(np.float64)
    with pytest.raises(mg.UnsupportedError, match="give dtype="):
        mg.set_default_dtype(mg.float16)
    assert mg.get_default_device() is mg.device()
    mg.set_default_device(None)
    mg.set_default_device(mg.device())
    with pytest.raises(mg.DeviceError, match="use_device"):
        mg.set_default_device("cuda")
    assert mg.get_float32_matmul_precision() == "highest"
    mg.set_float32_matmul_precision("high")
    assert mg.get_float32_matmul_precision() == "high"
    mg.set_float32_matmul_precision("highest")
    with pytest.raises(ValueError, match="'half'"):
        mg.set_float32_matmul_precision("half")


def test_print_options() -> None:
    x = mg.tensor([1 / 3, 2.0])
    try:
        mg.set_printoptions(precision=2)
        assert "0.33" in repr(x) and "0.333" not in repr(x)
        mg.set_printoptions(sci_mode=True, precision=3)
        assert "3.333e-01" in repr(x)
        mg.set_printoptions(profile="default", threshold=4, edgeitems=1)
        assert repr(mg.arange(9)) == "tensor([0, ..., 8])"
        with pytest.raises(ValueError, match="profile"):
            mg.set_printoptions(profile="tiny")
    finally:
        mg.set_printoptions(profile="default")
    assert repr(mg.arange(9)) == "tensor([0, 1, 2, 3, 4, 5, 6, 7, 8])"


@pytest.mark.parametrize("name", ["to_sparse", "values", "coalesce", "resize", "view_as_complex", "imag", "dequantize", "stft"])
def test_methods_left_out_say_so(name: str) -> None:
    x = mg.zeros(2)
    with pytest.raises(mg.UnsupportedError, match=f"Tensor.{name}: "):
        getattr(x, name)
    assert not hasattr(x, name) and not x.is_sparse
    with pytest.raises(AttributeError, match="object has no attribute 'nothing'"):
        _ = x.nothing
