"""Every way to leave a trace says where in the user's code, why, and what to write instead; and nothing has changed after it."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import pickle
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import meganeura as mg
from meganeura import nn
from tests.compile.agree import numbers

A = numbers(3, 4)
kept: Any = None
store: dict[str, Any] = {}


def int_of(x: Any) -> Any:
    return int(x.sum())  # LINE


def float_of(x: Any) -> Any:
    return float(x.sum())  # LINE


def item(x: Any) -> Any:
    return x.sum().item()  # LINE


def to_numpy(x: Any) -> Any:
    return x.numpy()  # LINE


def tolist(x: Any) -> Any:
    return x.tolist()  # LINE


def asarray(x: Any) -> Any:
    return np.asarray(x)  # LINE


def numpy_function(x: Any) -> Any:
    return np.sin(x)  # LINE


def truth(x: Any) -> Any:
    if x.sum() > 0:  # LINE
        return x
    return -x


def conjunction(x: Any) -> Any:
    return x if (x[0, 0] > 0 and x[0, 1] > 0) else -x  # LINE


def negation(x: Any) -> Any:
    return x if not x.any() else -x  # LINE


def assertion(x: Any) -> Any:
    assert (x == x).all()  # LINE
    return x


def while_loop(x: Any) -> Any:
    while x.abs().max() > 1:  # LINE
        x = x / 2
    return x


def extreme(x: Any) -> Any:
    return max(x[0])  # LINE


def ordered(x: Any) -> Any:
    return sorted(x[0])  # LINE


def contains(x: Any) -> Any:
    return x * (1.0 in x)  # LINE


def count(x: Any) -> Any:
    return [x for _ in range(x.sum().long())]  # LINE


def list_index(x: Any) -> Any:
    return [1, 2, 3][x[0, 0].long()]  # LINE


def dictionary(x: Any) -> Any:
    return {1.0: x}[x[0, 0].item()]  # LINE


def sliced(x: Any) -> Any:
    return x[: x[0, 0].long()]  # LINE


def sized(x: Any) -> Any:
    return mg.zeros(x[0].sum().long())  # LINE


def reshaped(x: Any) -> Any:
    return x.reshape(x[0, 0].long(), -1)  # LINE


def masked(x: Any) -> Any:
    return x[x > 0]  # LINE


def mask_of_rows(x: Any) -> Any:
    return x[x.sum(1) > 0]  # LINE


def assigned_by_mask(x: Any) -> Any:
    y = x.clone()
    y[x > 0] = mg.ones(5)  # LINE
    return y


def nonzero(x: Any) -> Any:
    return x.nonzero()  # LINE


def masked_select(x: Any) -> Any:
    return mg.masked_select(x, x > 0)  # LINE


def unique(x: Any) -> Any:
    return mg.unique(x)  # LINE


def repeat_by_tensor(x: Any) -> Any:
    return mg.repeat_interleave(x, mg.tensor([1, 2, 1]) + x[:, 0].long() * 0, dim=0)  # LINE


def formatted(x: Any) -> Any:
    return f"{x.sum():.3f}"  # LINE


def math_function(x: Any) -> Any:
    return math.sqrt(x.sum())  # LINE


def pickled(x: Any) -> Any:
    return pickle.dumps(x)  # LINE


def copied(x: Any) -> Any:
    return copy.deepcopy(x)  # LINE


def saved(x: Any) -> Any:
    return json.dumps(x.tolist())  # LINE


def data(x: Any) -> Any:
    x.data = mg.zeros(3, 4)  # LINE
    return x


def equal(x: Any) -> Any:
    return x if mg.equal(x, x * 2) else -x  # LINE


def allclose(x: Any) -> Any:
    return x if mg.allclose(x, x * 2) else -x  # LINE


READS: list[Callable[[Any], Any]] = [
    int_of, float_of, item, to_numpy, tolist, asarray, numpy_function, truth, conjunction, negation, assertion, while_loop, extreme,
    ordered, contains, count, list_index, dictionary, sliced, sized, reshaped, masked, mask_of_rows, assigned_by_mask, nonzero,
    masked_select, unique, repeat_by_tensor, formatted, math_function, pickled, copied, saved, data, equal, allclose,
]  # fmt: skip
ADVICE = {
    "masked": "size of x.mask. depends", "mask_of_rows": r"where\(mask", "truth": r"where\(\)", "while_loop": "`while`",
    "negation": "`not`",
    "nonzero": "how many", "masked_select": "how many", "unique": "how many", "data": "copy_", "sliced": "arange", "sized": "Python ints",
    "reshaped": "Python ints",
    "count": "Python ints", "item": "no dimensions", "to_numpy": "in place of numpy", "numpy_function": "numpy",
    "contains": r"\(x == value\).any", "formatted": "format", "int_of": "arithmetic", "math_function": "arithmetic", "tolist": "outside",
    "ordered": "`if`", "list_index": "index_select", "assigned_by_mask": "number", "equal": "outside", "allclose": "outside",
}  # fmt: skip


@pytest.mark.parametrize("f", READS, ids=lambda f: f.__name__)
def test_values_cannot_be_read(f: Any) -> None:
    with pytest.raises(mg.TraceError) as e:
        mg.compile(f)(mg.tensor(A))
    text = str(e.value)
    assert "test_trace_errors.py:" in text and "# LINE" in text, text
    assert re.search(ADVICE.get(f.__name__, "outside|device"), text), text
    assert text.count("\n") >= 2 and len(text) < 900, text


# ---- tensors that outlive the trace ----


class Holder:
    last: Any = None


def by_global(x: Any) -> Any:
    global kept
    kept = x * 2  # LINE
    return x


def by_attribute(x: Any) -> Any:
    Holder.last = x * 2  # LINE
    return x


def by_dictionary(x: Any) -> Any:
    store["x"] = x * 2  # LINE
    return x


def by_exception(x: Any) -> Any:
    y = x * 2  # LINE
    raise ValueError("mine", y)


@pytest.mark.parametrize("f", [by_global, by_attribute, by_dictionary], ids=lambda f: f.__name__)
def test_tensors_that_outlive_the_trace(f: Any) -> None:
    global kept
    with pytest.raises(mg.TraceError, match=r"outlived the trace(.|\n)*made by mul at .*# LINE(.|\n)*return"):
        mg.compile(f)(mg.tensor(A))
    lost = kept if kept is not None else Holder.last if Holder.last is not None else store["x"]
    kept = Holder.last = None
    store.clear()
    for use in (lambda t: t + 1, lambda t: t.numpy(), lambda t: t.sum().item(), lambda t: t.add_(1), lambda t: bool(t[0, 0] > 1)):
        with pytest.raises(mg.TraceError, match=r"earlier trace|outlived"):
            use(lost)
    with pytest.raises(mg.TraceError):
        mg.compile(lambda x: x * lost)(mg.tensor(A))
    with pytest.raises(mg.TraceError):
        mg.compile(lambda x: x)(lost)
    assert "traced" in repr(lost) or "float32" in repr(lost)


def test_exceptions_pass_through_and_what_they_hold_is_dead() -> None:
    with pytest.raises(ValueError, match="mine") as e:
        mg.compile(by_exception)(mg.tensor(A))
    with pytest.raises(mg.TraceError):
        e.value.args[1].numpy()


# ---- other things ----


def test_print_shows_what_is_known(capsys: Any) -> None:
    def f(x: Any) -> Any:
        y = x * 2
        print(y, f"{y}", [y])
        return y

    mg.compile(f)(mg.tensor(A))
    shown = capsys.readouterr().out
    assert "3" in shown and "4" in shown and "float32" in shown and "symbolic" in shown


SEEDS: dict[str, Any] = {
    "seed": lambda: mg.manual_seed(1),
    "state": lambda: mg.set_rng_state(mg.get_rng_state()),
    "from the system": mg.seed,
    "generator": lambda: mg.Generator().manual_seed(1),
}


@pytest.mark.parametrize("seed", SEEDS.values(), ids=SEEDS)
def test_seeds_inside(seed: Any) -> None:
    def f(x: Any) -> Any:
        y = mg.rand(2)
        seed()
        return x + y

    before = mg.get_rng_state().tolist()
    with pytest.raises(mg.TraceError, match="outside"):
        mg.compile(f)(mg.ones(2))
    assert mg.get_rng_state().tolist() == before


def test_generator_made_inside() -> None:
    """A generator of one's own draws what it draws in plain code, call by call, if it lives outside."""
    source = mg.Generator().manual_seed(3)
    other = mg.Generator().manual_seed(3)
    f = mg.compile(lambda x: x + mg.rand(2, generator=source))
    for _ in range(3):
        np.testing.assert_array_equal(f(mg.zeros(2)).numpy(), mg.rand(2, generator=other).numpy())


def test_history_from_outside() -> None:
    w = mg.ones(3, requires_grad=True) * 2
    with pytest.raises(mg.TraceError, match=r"argument, or detach\(\)"):
        mg.compile(lambda x: x * w)(mg.ones(3))


def test_backward_into_history_of_an_argument() -> None:
    h = mg.ones(3, requires_grad=True) * 2

    def f(x: Any) -> Any:
        (x * 2).sum().backward()

    with pytest.raises(mg.TraceError, match=r"argument tensor 0(.|\n)*detach\(\)"):
        mg.compile(f)(h)


def test_requires_grad_inside() -> None:
    w = mg.ones(3)

    def f(x: Any) -> Any:
        y = x * w
        w.requires_grad_()
        return y * w

    with pytest.raises(mg.TraceError, match=r"requires_grad(.|\n)*test_trace_errors.py(.|\n)*no_grad"):
        mg.compile(f)(mg.ones(3))
    assert not w.requires_grad


def test_inplace_on_a_leaf_and_on_saved_values() -> None:
    """The errors of plain code, with the same lines."""
    w = mg.ones(3, requires_grad=True)

    def on_leaf(x: Any) -> Any:
        w.add_(x)

    def on_saved(x: Any) -> Any:
        y = (x * w).exp()
        z = y.sum()
        y.mul_(2)
        z.backward()

    def saved(x: Any) -> Any:
        y = (x * w).exp()
        z = (y * y).sum()
        with mg.no_grad():
            y.mul_(2)
        z.backward()

    for f in (on_leaf, saved):
        with pytest.raises(mg.GradientError) as plain:
            f(mg.ones(3))
        with pytest.raises(mg.GradientError) as traced:
            mg.compile(f)(mg.ones(3))
        assert str(traced.value).splitlines()[0] == str(plain.value).splitlines()[0]
    assert w.grad is None


def test_returned_generators_and_iterators() -> None:
    for f in (lambda x: (r * 2 for r in x), lambda x: iter([x]), lambda x: map(mg.exp, [x]), lambda x: {"a": zip([x], [x], strict=True)}):
        with pytest.raises(mg.TraceError, match="list"):
            mg.compile(f)(mg.tensor(A))


def test_asynchronous_functions() -> None:
    async def f(x: Any) -> Any:
        return x

    with pytest.raises((mg.TraceError, TypeError), match=r"async|coroutine"):
        mg.compile(f)(mg.tensor(A))


def test_numpy_arguments_and_other_devices() -> None:
    with pytest.raises(mg.TraceError, match=r"meganeura.tensor\(array\)"):
        mg.compile(lambda x, d: x)(mg.ones(2), {"a": [np.ones(3)]})


def test_module_that_keeps_a_tensor() -> None:
    class Keeping(nn.Module):
        def forward(self, x: Any) -> Any:
            self.state = x * 2  # LINE
            return x

    with pytest.raises(mg.TraceError, match=r"# LINE(.|\n)*copy_"):
        mg.compile(Keeping())(mg.tensor(A))


def test_a_failed_trace_leaves_the_function_usable() -> None:
    def f(x: Any) -> Any:
        return x.item() if x.numel() == 1 else x * 2

    g = mg.compile(f)
    for _ in range(2):
        with pytest.raises(mg.TraceError):
            g(mg.ones(1))
        assert g(mg.ones(2)).tolist() == [2, 2]
    assert g.traces == 1 and g.sessions == 1


def test_interrupted_trace() -> None:
    def f(x: Any) -> Any:
        x.grad = x * 2
        raise KeyboardInterrupt

    x = mg.tensor(A)
    with pytest.raises(KeyboardInterrupt):
        mg.compile(f)(x)
    assert x.grad is None and (x + 1).shape == (3, 4)


def appended(x: Any, parts: Any) -> Any:
    parts["list"].append(x * 2)
    return x


def replaced(x: Any, parts: Any) -> Any:
    parts["x"] = x * 2
    return x


def removed(x: Any, parts: Any) -> Any:
    parts["list"].pop()
    return x


def inner(x: Any, parts: Any) -> Any:
    parts["list"][0] = 3
    return x


@pytest.mark.parametrize("f", [appended, replaced, removed, inner], ids=lambda f: f.__name__)
def test_argument_containers_that_are_changed(f: Any) -> None:
    x = mg.tensor(A)
    parts = {"x": x, "list": [x]}
    with pytest.raises(mg.TraceError, match=r"changed a (list|dict)(.|\n)*test_trace_errors.py(.|\n)*copy_"):
        mg.compile(f)(x, parts)
    assert parts["x"] is x and parts["list"][0] is x and len(parts["list"]) == 1


def test_argument_records_that_are_changed() -> None:
    @dataclasses.dataclass
    class Batch:
        x: Any

    def f(b: Batch) -> Any:
        b.x = b.x * 2
        return b.x

    with pytest.raises(mg.TraceError, match="changed a Batch"):
        mg.compile(f)(Batch(mg.tensor(A)))


def test_optimizer_made_inside() -> None:
    def f(x: Any) -> Any:
        p = nn.Parameter(x.clone())
        opt = mg.optim.SGD([p], lr=0.1)
        (p * p).sum().backward()
        opt.step()
        return p.detach()

    with pytest.raises(mg.TraceError, match=r"SGD steps tensors(.|\n)*outside"):
        mg.compile(f)(mg.tensor(A))


def test_leaf_made_inside_that_is_returned_with_what_depends_on_it() -> None:
    def f(x: Any) -> Any:
        w = x.clone().requires_grad_()
        return w, (w * w).sum()

    with pytest.raises(mg.TraceError, match="returned a leaf"):
        mg.compile(f)(mg.tensor(A))


def test_where_a_tensor_is_kept() -> None:
    class Mean(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mean = nn.Buffer(mg.zeros(4))

        def forward(self, x: Any) -> Any:
            self.mean = self.mean * 0.9 + x.mean(0) * 0.1  # LINE
            return x - self.mean

    with pytest.raises(mg.TraceError, match=r"# LINE(.|\n)*buffer 'mean' of a Mean(.|\n)*self.mean.copy_"):
        mg.compile(Mean())(mg.tensor(A))
    holder = Holder()

    def f(x: Any) -> Any:
        holder.last = x * 2
        return x

    with pytest.raises(mg.TraceError, match="attribute 'last' of a Holder"):
        mg.compile(f)(mg.tensor(A))


def test_changes_with_history_name_their_line() -> None:
    w = mg.ones(3, 4).requires_grad_()
    h = mg.ones(3, 4)

    def on_argument(x: Any) -> Any:
        x.mul_(w)  # LINE
        return x

    def on_state(x: Any) -> Any:
        h.mul_(w)  # LINE
        return h * x

    for f in (on_argument, on_state):
        with pytest.raises(mg.TraceError, match="# LINE"):
            mg.compile(f)(mg.tensor(A))
    assert h.grad_fn is None and (h.numpy() == 1).all()
