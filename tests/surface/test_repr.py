"""What tensors show: text, the notebook table with its picture, formats; and copies through pickle and deepcopy."""

from __future__ import annotations

import base64
import copy
import io
import pickle
import re
import struct
import zlib
from typing import Any

import numpy as np
import pytest

import meganeura as mg
from meganeura import nn


def decoded(png: bytes) -> np.ndarray[Any, Any]:
    """Pixels of an unfiltered 8-bit RGB PNG. [height, width, 3]."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    at, data, size = 8, b"", (0, 0)
    while at < len(png):
        (length,), kind = struct.unpack(">I", png[at : at + 4]), png[at + 4 : at + 8]
        body = png[at + 8 : at + 8 + length]
        assert struct.unpack(">I", png[at + 8 + length : at + 12 + length])[0] == zlib.crc32(kind + body)
        if kind == b"IHDR":
            size = struct.unpack(">II", body[:8])
            assert body[8:] == bytes([8, 2, 0, 0, 0])
        data += body if kind == b"IDAT" else b""
        at += 12 + length
    rows = np.frombuffer(zlib.decompress(data), np.uint8).reshape(size[1], 1 + 3 * size[0])
    assert not rows[:, 0].any()
    return rows[:, 1:].reshape(size[1], size[0], 3)


def picture(t: mg.Tensor) -> np.ndarray[Any, Any]:
    found = re.search(r"data:image/png;base64,([^\"]+)\"", t._repr_html_())
    assert found
    return decoded(base64.b64decode(found[1]))


def test_text() -> None:
    assert repr(mg.tensor([1.0, 2.5])) == "tensor([1. , 2.5])"
    assert repr(mg.tensor([1, 2])) == "tensor([1, 2])"
    assert repr(mg.tensor([True])) == "tensor([ True])"
    assert repr(mg.tensor(3.0)) == "tensor(3.)"
    assert repr(mg.zeros(2, dtype=mg.float16)) == "tensor([0., 0.], dtype=meganeura.float16)"
    assert repr(mg.ones(1, requires_grad=True)) == "tensor([1.], requires_grad=True)"
    assert "grad_fn=<mulBackward>" in repr(mg.ones(1, requires_grad=True) * 2)
    assert repr(mg.zeros(0, 3)) == "tensor([], size=(0, 3))"
    assert repr(mg.tensor([float("nan"), float("inf")])) == "tensor([nan, inf])"
    assert "..." in repr(mg.zeros(5000)) and len(repr(mg.zeros(5000))) < 200


def test_text_of_large_tensors_reads_little() -> None:
    x = mg.arange(1_000_000).reshape(1000, 1000)
    want = np.array2string(x.numpy(), separator=", ", prefix="tensor(", threshold=1000, edgeitems=3)
    read, world = [], x._storage.world
    with pytest.MonkeyPatch.context() as patch:
        original = type(world).read
        patch.setattr(type(world), "read", lambda self, t: (read.append(t.numel()), original(self, t))[1])
        assert repr(x) == f"tensor({want})"
        assert repr(x.T[::2]).startswith("tensor([[     0,   1000,   2000, ...")
    assert max(read) < 100


def test_formats() -> None:
    assert f"{mg.tensor(2.5):.3f}" == "2.500"
    assert f"{mg.tensor(7)}" == "tensor(7)"
    assert str(mg.tensor([1])) == "tensor([1])"


def test_table() -> None:
    x = mg.tensor([[1.0, float("nan")], [float("inf"), -3.0]])
    html = x._repr_html_()
    for cell in ("[2, 2]", "float32", "1 / 1", "-3 / -1 / 1"):
        assert f"<td>{cell}</td>" in html, html


def test_picture() -> None:
    x = mg.tensor([[0.0, 1.0, 0.5], [float("nan"), float("-inf"), 0.0]])
    want = np.array([[[0, 0, 0], [255, 255, 255], [127, 127, 127]], [[255, 0, 0], [255, 0, 0], [0, 0, 0]]])
    np.testing.assert_array_equal(picture(x), want)


@pytest.mark.parametrize("shape", [(), (5,), (300, 200), (3, 4, 5), (1000,), (1, 1)])
def test_picture_sizes(shape: tuple[int, ...]) -> None:
    image = picture(mg.ones(shape))
    assert max(image.shape[:2]) <= 128 and image.size


@pytest.mark.parametrize("dtype", [mg.bool_, mg.uint8, mg.int64, mg.float16])
def test_tables_of_other_dtypes(dtype: Any) -> None:
    html = mg.ones(3, dtype=dtype)._repr_html_()
    assert f"<td>{dtype.name}</td>" in html and "1 / 1 / 1" in html


def test_table_of_nothing() -> None:
    assert "[0, 3]" in mg.zeros(0, 3)._repr_html_()
    assert "<td>2 / 0</td>" in mg.tensor([float("nan")] * 2)._repr_html_()


def test_names_are_escaped() -> None:
    x = mg.ones(2)
    x._name = "<b>"
    assert "&lt;b&gt;" in x._repr_html_()


def test_repr_of_other_things() -> None:
    assert repr(mg.float16) == "meganeura.float16"
    assert "llvmpipe" in str(mg.ones(1).device) or str(mg.ones(1).device)


# ---- copies ----


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int8", "int32", "int64", "uint32", "float16", "bfloat16", "float32"])
@pytest.mark.parametrize("how", ["pickle", "deepcopy", "copy"])
def test_copies_keep_values_and_dtype(dtype: str, how: str) -> None:
    x = mg.tensor([[0, 1, 1], [1, 0, 1]], dtype=dtype).T
    y = {"pickle": lambda x: pickle.loads(pickle.dumps(x)), "deepcopy": copy.deepcopy, "copy": copy.copy}[how](x)
    assert y.dtype is x.dtype and y.shape == x.shape and y.tolist() == x.tolist()


def test_copies_of_leaves() -> None:
    x = mg.ones(3, requires_grad=True)
    (x * 2).sum().backward()
    y = copy.deepcopy(x)
    assert y.requires_grad and y.is_leaf and y.grad is not None and y.grad.tolist() == [2.0] * 3
    with mg.no_grad():
        y.zero_()
    assert x.tolist() == [1.0] * 3
    assert pickle.loads(pickle.dumps(x)).requires_grad
    with pytest.raises(mg.GradientError):
        copy.deepcopy(x * 2)


def test_shared_tensors_stay_shared() -> None:
    x = mg.ones(2)
    a, b = copy.deepcopy([x, x])
    assert a is b and a is not x


def test_copies_of_nothing_and_of_scalars() -> None:
    for x in (mg.zeros(0, 3), mg.tensor(2.5), mg.tensor(float("nan"))):
        y = pickle.loads(pickle.dumps(x))
        np.testing.assert_array_equal(y.numpy(), x.numpy())
        assert y.shape == x.shape


def test_modules() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    x = mg.randn(5, 3)
    want = model(x).detach().numpy()
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        np.testing.assert_array_equal(other(x).detach().numpy(), want)
        assert [n for n, _ in other.named_parameters()] == [n for n, _ in model.named_parameters()]
        assert all(isinstance(p, nn.Parameter) and p.requires_grad for p in other.parameters())
        assert not {id(p) for p in other.parameters()} & {id(p) for p in model.parameters()}


def test_save_and_load() -> None:
    file = io.BytesIO()
    pickle.dump({"a": mg.arange(3), "d": mg.float16}, file)
    file.seek(0)
    loaded = pickle.load(file)
    assert loaded["a"].tolist() == [0, 1, 2] and loaded["d"] is mg.float16


def test_numpy_both_ways() -> None:
    x = mg.tensor([[1.0, 2.0]])
    a = np.asarray(x)
    a[0, 0] = 9  # a copy
    assert x.tolist() == [[1.0, 2.0]]
    assert isinstance(np.float32(2) * x, mg.Tensor) and isinstance(np.ones(2, np.float32) + x, mg.Tensor)
    np.testing.assert_array_equal(np.asarray(x, dtype=np.float64), [[1.0, 2.0]])
    with pytest.raises(ValueError, match="copy"):
        np.array(x, copy=False)
