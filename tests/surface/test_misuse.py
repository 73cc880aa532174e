"""Misuse: each error says what is wrong, with which values, at which line of this file; the next op works."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import meganeura as mg
from meganeura.nn import functional as F

Shape, DType, Index, Gradient = mg.ShapeError, mg.DTypeError, mg.IndexOutOfRangeError, mg.GradientError


class Given:
    """The tensors that cases use, made anew for each."""

    def __init__(self) -> None:
        self.x = mg.tensor(np.arange(6, dtype=np.float32).reshape(2, 3))
        self.v = mg.tensor([1.0, 2.0, 3.0])
        self.i = mg.tensor([0, 1])
        self.b = mg.tensor([True, False])
        self.leaf = mg.ones(2, requires_grad=True)


def put(x: mg.Tensor, key: Any, value: Any) -> None:
    x[key] = value


def power_in_place(x: mg.Tensor, exponent: Any) -> None:
    x **= exponent


Case = tuple[Callable[[Given], Any], type[Exception], tuple[str, ...]]
CASES: dict[str, Case] = {
    # ---- shapes ----
    "add": (lambda g: g.x + mg.ones(4), Shape, ("add", "[2, 3] and [4]", "sizes 3 and 4 at dimension -1")),
    "matmul sizes": (lambda g: g.x @ g.x, Shape, ("matmul", "[2, 3] and [2, 3]")),
    "matmul of a number": (lambda g: mg.matmul(g.x, 3), DType, ("matmul", "3 (int)")),
    "matmul of a scalar": (lambda g: mg.tensor(1.0) @ g.x, Shape, ("matmul", "[] and [2, 3]")),
    "mm of a vector": (lambda g: mg.mm(g.x, g.v), Shape, ("mm", "[2, 3] and [3]")),
    "bmm of matrices": (lambda g: mg.bmm(g.x, g.x), Shape, ("bmm", "[2, 3] and [2, 3]")),
    "bmm of other counts": (lambda g: mg.bmm(mg.ones(2, 1, 1), mg.ones(3, 1, 1)), Shape, ("bmm", "[2, 1, 1] and [3, 1, 1]")),
    "linear features": (lambda g: F.linear(g.x, mg.ones(4, 5)), Shape, ("linear", "[2, 3]", "[4, 5]")),
    "linear of a scalar": (lambda g: F.linear(g.x, mg.tensor(1.0)), Shape, ("linear", "[2, 3]", "[]")),
    "reshape": (lambda g: g.x.reshape(4), Shape, ("reshape", "[4]", "6 elements")),
    "reshape twice -1": (lambda g: g.x.reshape(-1, -1), Shape, ("reshape", "[-1, -1]")),
    "reshape to a fraction": (lambda g: g.x.reshape(2.5, 2), TypeError, ("2.5 (float)",)),
    "view of a transpose": (lambda g: g.x.T.view(6), Shape, ("view([6])", "strides=[1, 3]", "use reshape()")),
    "transpose": (lambda g: g.x.transpose(0, 2), Shape, ("dim=2", "rank 2", "[-2, 1]")),
    "transpose by name": (lambda g: g.x.transpose(0, "a"), Shape, ("'a'",)),
    "permute": (lambda g: g.x.permute(0, 0), Shape, ("permute", "[0, 0]", "2 dimensions")),
    "expand": (lambda g: g.x.expand(3, 3), Shape, ("expand", "[2, 3]", "[3, 3]", "size 2 at dimension 0")),
    "squeeze": (lambda g: g.x.squeeze(5), Shape, ("dim=5", "[-2, 1]")),
    "unsqueeze": (lambda g: g.x.unsqueeze(4), Shape, ("dim=4", "[-3, 2]")),
    "flatten backwards": (lambda g: g.x.flatten(1, 0), Shape, ("start_dim 1", "end_dim 0", "[2, 3]")),
    "flatten of a scalar": (lambda g: mg.tensor(1.0).flatten(0, 2), Shape, ("dim=2",)),
    "unflatten": (lambda g: g.x.unflatten(1, (2, 2)), Shape, ("unflatten", "[2, 3]", "[2, 2]")),
    "narrow": (lambda g: g.x.narrow(0, 1, 5), Shape, ("narrow", "start=1", "length=5", "[2, 3]")),
    "split": (lambda g: g.x.split([1, 2]), Shape, ("[1, 2]", "add up to 2", "[2, 3]")),
    "chunk": (lambda g: g.x.chunk(0), Shape, ("chunk", "got 0")),
    "cat of shapes": (lambda g: mg.cat([g.x, g.v]), Shape, ("cat", "tensor 1", "[3]", "[2, 3]")),
    "cat of nothing": (lambda g: mg.cat([]), Shape, ("cat of no tensors",)),
    "cat of scalars": (lambda g: mg.cat([mg.tensor(1.0)]), Shape, ("cat of 0-d tensors", "stack")),
    "cat of a tensor": (lambda g: mg.cat(g.x), TypeError, ("cat", "got Tensor")),
    "cat of numbers": (lambda g: mg.cat([g.x, 1]), TypeError, ("'Tensor', 'int'",)),
    "stack of shapes": (lambda g: mg.stack([g.x, g.v]), Shape, ("stack", "[3]", "[2, 3]")),
    "repeat": (lambda g: g.x.repeat(2), Shape, ("repeat", "[2, 3]")),
    "pad of half a pair": (lambda g: F.pad(g.x, (1,)), Shape, ("pad [1]", "[2, 3]")),
    "pad cuts too much": (lambda g: F.pad(g.x, (-4, 5)), Shape, ("pad", "(-4, 5)", "[2, 3]")),
    "as_strided": (lambda g: g.x.as_strided((3,), (4,)), Shape, ("as_strided", "[3]", "[4]", "6 elements")),
    "layer_norm": (lambda g: F.layer_norm(g.x, (4,)), Shape, ("layer_norm", "[4]", "[2, 3]")),
    "normalised weight": (lambda g: F.layer_norm(g.x, 3, mg.ones(4)), Shape, ("[3]", "[[4]]")),
    "target": (lambda g: F.cross_entropy(g.x, mg.tensor([0, 1, 2])), Shape, ("[3]", "[2, 3]", "expected [2]")),
    "dense target": (lambda g: F.cross_entropy(g.x, g.v), Shape, ("[3]", "[2, 3]")),
    "loss shapes": (lambda g: F.mse_loss(g.x, mg.ones(4)), Shape, ("[2, 3] and [4]",)),
    "maximum of nothing": (lambda g: mg.zeros(0).max(), Shape, ("max", "[0]", "no value")),
    "argmax of nothing": (lambda g: mg.zeros(0, 3).argmax(0), Shape, ("argmax", "[0, 3]")),
    "negative size": (lambda g: mg.zeros(2, -1), Shape, ("[2, -1]", "negative")),
    "ragged": (lambda g: mg.tensor([[1, 2], [3]]), Shape, ("unequal length",)),
    "in place, larger": (lambda g: g.x.add_(mg.ones(2, 2, 3)), Shape, ("[2, 2, 3]", "[2, 3]")),
    "in place, expanded": (lambda g: g.v.expand(2, 3).add_(1), Shape, ("add_", "expanded", "clone()")),
    "copy_": (lambda g: g.x.copy_(mg.ones(4)), Shape, ("[4]", "[2, 3]")),
    "item": (lambda g: g.x.item(), Shape, ("item()", "[2, 3]")),
    "truth": (lambda g: bool(g.x), Shape, ("truth value", "[2, 3]", "any() or all()")),
    "int of many": (lambda g: int(g.x), Shape, ("[2, 3]",)),
    "embedding weight": (lambda g: F.embedding(g.i, g.v), Shape, ("embedding", "[3]")),
    "one size for all": (lambda g: g.x.sum_to_size(5), Shape, ("[2, 3]", "[5]")),
    # ---- dtypes ----
    "bools subtracted": (lambda g: g.b - g.b, DType, ("sub", "bool[2]", "logical_xor")),
    "scaled bools subtracted": (lambda g: g.x.sub(mg.tensor(True), alpha=2), DType, ("bool[]", "logical_xor")),
    "bool negated": (lambda g: -g.b, DType, ("neg", "bool[2]")),
    "float inverted": (lambda g: ~g.x, DType, ("bitwise_not", "float32[2, 3]")),
    "float and": (lambda g: g.x & g.x, DType, ("bitwise_and", "float32")),
    "mean of integers": (lambda g: g.i.mean(), DType, ("mean", "int64[2]", ".float()")),
    "softmax of integers": (lambda g: g.i.softmax(0), DType, ("softmax", "int64[2]")),
    "float into integer": (lambda g: g.i.add_(1.5), DType, ("add", "float32", "int64")),
    "negative power": (lambda g: g.i.pow(-1), DType, ("-1", "int64[2]", ".float()")),
    "negative power in place": (lambda g: power_in_place(g.i, -1), DType, ("-1", "int64[2]")),
    "division by zero": (lambda g: g.i // 0, DType, ("zero", "int64[2]")),
    "modulus by zero": (lambda g: g.i % 0, DType, ("zero", "int64[2]")),
    "index of floats": (lambda g: g.x.index_select(0, g.v), DType, ("index_select", "float32[3]")),
    "gather by floats": (lambda g: g.x.gather(0, g.x), DType, ("gather", "float32[2, 3]")),
    "condition": (lambda g: mg.where(g.x, g.x, g.x), DType, ("where", "float32[2, 3]")),
    "matmul of dtypes": (lambda g: g.x @ mg.ones(3, 2, dtype=mg.int32), DType, ("float32[2, 3]", "int32[3, 2]")),
    "int64 too large": (lambda g: mg.tensor([1, 2**40]), DType, ("1099511627776", "[1]", "int64")),
    "array too large": (lambda g: mg.tensor(np.array([[1, -(2**33)]])), DType, ("-8589934592", "[0, 1]")),
    "far too large": (lambda g: mg.tensor([2**80]), DType, ("cannot make a tensor", str(2**80))),
    "byte too large": (lambda g: mg.tensor([300], dtype=mg.uint8), DType, ("300", "uint8")),
    "negative float for a byte": (lambda g: mg.tensor([1], dtype=mg.uint8).fill_(-1.5), DType, ("-1.5", "uint8")),
    "fill with NaN": (lambda g: g.i.fill_(float("nan")), DType, ("nan", "int64")),
    "complex": (lambda g: mg.tensor([1j]), DType, ("complex128",)),
    "text": (lambda g: mg.tensor("a"), DType, ("'a'",)),
    "nothing": (lambda g: mg.tensor(None), DType, ("None",)),
    "no such dtype": (lambda g: mg.zeros(2, dtype="float65"), DType, ("'float65'", "float16")),
    "random integers": (lambda g: mg.rand(2, dtype=mg.int32), DType, ("int32",)),
    "requires_grad": (lambda g: g.i.requires_grad_(), DType, ("int64[2]", "floating point")),
    "alpha": (lambda g: g.i.add(g.i, alpha=0.5), DType, ("alpha", "0.5", "int64")),
    "alpha of text": (lambda g: g.x.add(g.x, alpha="a"), DType, ("alpha", "'a'")),
    "one_hot of floats": (lambda g: mg.one_hot(g.v, 3), DType, ("one_hot", "float32[3]")),
    "log likelihood of integers": (lambda g: F.nll_loss(mg.ones(2, 2, dtype=mg.int32), g.i), DType, ("nll_loss", "int32[2, 2]")),
    # ---- indices ----
    "index": (lambda g: g.x[0, 5], Index, ("index 5", "dimension 1 of size 3", "[2, 3]")),
    "negative index": (lambda g: g.x[-3], Index, ("index -3", "dimension 0 of size 2")),
    "too many indices": (lambda g: g.x[0, 0, 0], Index, ("3 indices", "[2, 3]")),
    "index by text": (lambda g: g.x["a"], Index, ("'a' (str)",)),
    "index by a float": (lambda g: g.x[1.5], Index, ("1.5 (float)",)),
    "index by floats": (lambda g: g.x[g.v], Shape, ("float32[3]",)),
    "backward slice": (lambda g: g.x[::-1], Shape, ("-1", "positive")),
    "mask": (lambda g: g.x[mg.tensor([True])], Index, ("mask", "[1]", "[2, 3]")),
    "index lists": (lambda g: g.x[[0, 1], [0, 1, 2]], Shape, ("[2] and [3]",)),
    "index in a tensor": (lambda g: g.x[mg.tensor([0, 5])].numpy(), Index, ("index 5", "size 2")),
    "index into nothing": (lambda g: mg.zeros(0, 3)[mg.tensor([0])], Index, ("size 0", "[0, 3]")),
    "embedding index": (lambda g: F.embedding(mg.tensor([7]), g.x).numpy(), Index, ("7", "size 2")),
    "gather index": (lambda g: g.x.gather(1, mg.tensor([[9]])).numpy(), Index, ("gather", "9", "size 3")),
    "class": (lambda g: F.cross_entropy(g.x, mg.tensor([0, 3])).item(), Index, ("cross_entropy", "3", "size 3")),
    "select": (lambda g: g.x.select(0, 2), Index, ("index 2", "size 2", "[2, 3]")),
    "size": (lambda g: g.x.size(4), Index, ("dimension 4", "[2, 3]")),
    "assignment": (lambda g: put(g.x, 5, 1), Index, ("index 5", "size 2")),
    "assigned shape": (lambda g: put(g.x, 0, mg.ones(4)), Shape, ("[4]", "[3]")),
    "assigned index": (lambda g: (put(y := g.x.clone(), mg.tensor([0, -3]), 1.0), y.tolist()), Index, ("-3", "dimension of size 2")),
    "assigned through a mask": (lambda g: put(g.x, g.x > 2, mg.ones(2)), Shape, ("[2]", "[3]")),
    # ---- arguments ----
    "reduction": (lambda g: F.cross_entropy(g.x, g.i, reduction="avg"), Shape, ("'avg'", "'mean'")),
    "dropout": (lambda g: F.dropout(g.x, 1.5), Shape, ("1.5", "[0, 1]")),
    "gelu": (lambda g: F.gelu(g.x, "fast"), DType, ("'fast'", "'tanh'")),
    "pad mode": (lambda g: F.pad(g.x, (1, 1), mode="other"), mg.MeganeuraError, ("'other'",)),
    "rounding": (lambda g: mg.div(g.x, g.x, rounding_mode="up"), DType, ("'up'", "'floor'")),
    "clamp without bounds": (lambda g: g.x.clamp(), Shape, ("clamp", "min or max")),
    "sum of a name": (lambda g: g.x.sum("a"), Shape, ("sum", "'a'")),
    "sum twice": (lambda g: g.x.sum((0, 0)), Shape, ("(0, 0)", "twice")),
    "sum beyond": (lambda g: g.x.sum(3), Shape, ("dim=3", "rank 2")),
    "exp of a number": (lambda g: mg.exp(3), DType, ("exp", "3 (int)")),
    "where of text": (lambda g: mg.where(g.x > 1, "a", g.x), DType, ("'a' (str)",)),
    "maximum with text": (lambda g: g.x.maximum("a"), DType, ("'a' (str)",)),
    "fill with text": (lambda g: g.x.fill_("a"), TypeError, ("'a' (str)",)),
    "arange step": (lambda g: mg.arange(0, 5, -1), Shape, ("arange(0, 5, -1)",)),
    "arange of text": (lambda g: mg.arange("a"), TypeError, ("arange", "'a' (str)")),
    "linspace": (lambda g: mg.linspace(0, 1, 2.5), TypeError, ("2.5 (float)",)),
    "full without value": (lambda g: mg.full((2,)), TypeError, ("fill_value",)),
    "randint range": (lambda g: mg.randint(5, 5, (2,)), Shape, ("5 and 5",)),
    "randint too far": (lambda g: mg.randint(0, 2**40, (2,)), DType, (str(2**40 - 1),)),
    "from_numpy": (lambda g: mg.from_numpy([1]), TypeError, ("list",)),
    "constructor": (lambda g: mg.Tensor([1]), TypeError, ("meganeura.tensor",)),
    "length of a scalar": (lambda g: len(mg.tensor(1.0)), TypeError, ("0-d",)),
    "iteration over a scalar": (lambda g: list(mg.tensor(1.0)), TypeError, ("0-d",)),
    "format": (lambda g: format(g.x, ".2f"), TypeError, (".2f", "[2, 3]")),
    "range of a float": (lambda g: range(g.v[0]), TypeError, ("float32[]",)),
    "device": (lambda g: g.x.to("gpu7"), mg.DeviceError, ("'gpu7'",)),
    "dtype by text": (lambda g: g.x.to("float16"), mg.DeviceError, ("mg.float16",)),
    "to a number": (lambda g: g.x.to(3.5), TypeError, ("3.5",)),
    "numpy of a leaf": (lambda g: g.leaf.numpy(), Gradient, ("detach().numpy()",)),
    "backward without history": (lambda g: g.x.backward(), Gradient, ("float32[2, 3]", "requires_grad")),
    "backward of a vector": (lambda g: (g.leaf * 2).backward(), Gradient, ("[2]",)),
    "leaf in place": (lambda g: g.leaf.add_(1), Gradient, ("add_", "leaf", "no_grad()")),
    "too large": (lambda g: mg.empty(1 << 44), mg.OutOfMemoryError, (str(1 << 46),)),
    "unknown argument": (lambda g: mg.exp(g.x, input2=1), TypeError, ("exp", "'input2'")),
    "too many arguments": (lambda g: mg.exp(g.x, g.x), TypeError, ("exp", "2 were given")),
    "missing argument": (lambda g: mg.maximum(g.x), TypeError, ("maximum", "'other'")),
}  # fmt: skip

# Python's own TypeErrors: the traceback names the line.
PLAIN: dict[str, tuple[Callable[[Given], Any], tuple[str, ...]]] = {
    "add text": (lambda g: g.x + "a", ("+", "'str'")),
    "add None": (lambda g: None + g.x, ("+", "'NoneType'")),
    "add a list": (lambda g: g.x + [1, 2, 3], ("+", "'list'")),
    "matmul operator": (lambda g: g.x @ 3, ("@", "'int'")),
    "divide text": (lambda g: g.x / "a", ("/", "'str'")),
    "compare with text": (lambda g: g.x < "a", ("<", "'str'")),
    "unknown keyword": (lambda g: g.x.sum(dims=1), ("sum", "'dims'")),
    "missing operand": (lambda g: mg.add(g.x), ("add", "'other'")),
}


def failed(fn: Callable[[Given], Any], error: type[Exception]) -> Exception:
    given = Given()
    with pytest.raises(error) as caught:
        fn(given)
    assert (mg.ones(3) + 1).tolist() == [2.0, 2.0, 2.0], "the next op"
    assert (given.x * 2).tolist() == [[0.0, 2.0, 4.0], [6.0, 8.0, 10.0]], "what was not to be changed"
    return caught.value


@pytest.mark.parametrize(("fn", "error", "words"), CASES.values(), ids=CASES)
def test_errors(fn: Callable[[Given], Any], error: type[Exception], words: tuple[str, ...]) -> None:
    message = str(failed(fn, error))
    for word in words:
        assert word in message, message
    lines = [f.__code__.co_firstlineno + (f is not fn) for f in (fn, put, power_in_place)]
    assert any(f"{__file__}:{line}:" in message for line in lines), message


@pytest.mark.parametrize(("fn", "words"), PLAIN.values(), ids=PLAIN)
def test_usual_type_errors(fn: Callable[[Given], Any], words: tuple[str, ...]) -> None:
    error = failed(fn, TypeError)
    for word in words:
        assert word in str(error), str(error)
    assert any(frame.filename == __file__ for frame in traceback.extract_tb(error.__traceback__))


def test_an_error_is_of_the_usual_python_type_too() -> None:
    for ours, usual in ((Shape, ValueError), (DType, TypeError), (Index, IndexError), (Gradient, RuntimeError)):
        assert issubclass(ours, usual) and issubclass(ours, mg.MeganeuraError)
