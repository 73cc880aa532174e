"""What needs no input is computed once; what must not be is left alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meganeura as mg
from meganeura.compile import constants

X = np.linspace(-2, 2, 64, dtype=np.float32).reshape(8, 8)


def compiled(f: Any, *args: Any) -> Any:
    """f compiled, after comparing it with eager twice."""
    g = mg.compile(f, debug=True)
    want = f(*args).detach().numpy()
    for _ in range(2):
        np.testing.assert_allclose(g(*args).detach().numpy(), want, rtol=1e-5, atol=1e-6)
    return g


def masked(x: Any) -> Any:
    mask = mg.ones(8, 8, dtype="bool").tril()
    return mg.where(mask, x, float("-inf")).softmax(-1)


def ops(g: Any, *args: Any) -> set[str]:
    return {p for n in g.graph(*args).nodes for p in n.parts}


def test_a_mask_is_made_once() -> None:
    x = mg.tensor(X)
    g = compiled(masked, x)
    assert g.report(x)[0].count(constants.ONCE) == 1
    assert not ops(g, x) & {"band", "fill"}
    assert any(c.role == "constant" for c in g.graph(x).inputs)


def test_tables_of_positions() -> None:
    x = mg.tensor(X)
    g = compiled(lambda x: x * (mg.arange(8).float() * 0.5).cos()[:, None], x)
    assert ops(g, x) == {"mul"}


def test_tensors_of_one_value_are_numbers() -> None:
    x = mg.tensor(X)
    g = compiled(lambda x: (x + mg.full((8,), 2.0) * 3) * mg.zeros(()).exp(), x)
    assert ops(g, x) <= {"add", "mul"} and not any(c.role == "constant" for c in g.graph(x).inputs)
    h = compiled(lambda x: x * mg.full((8,), 0.1, dtype="float16"), x)
    assert ops(h, x) == {"mul"}


def test_a_number_must_not_change_the_result() -> None:
    """Shape and dtype of a result may come from the tensor of one value."""
    x = mg.tensor(X)
    g = compiled(lambda x: x[0, 0] + mg.ones(8, 8), x)
    assert g.graph(x).nodes[-1].outputs[0].layout.shape == (8, 8)
    n = mg.tensor(np.arange(8, dtype=np.int32))
    compiled(lambda n: n * mg.full((8,), 2.5), n)


def test_gradients_start_from_numbers() -> None:
    x = mg.tensor(X, requires_grad=True)

    def step(x: Any) -> Any:
        y = x.detach().requires_grad_()
        (y * y).mean().backward()
        return y.grad * 1.0

    g = compiled(step, x)
    assert "fill" not in ops(g, x)


def test_random_numbers_and_results_stay() -> None:
    g = mg.compile(lambda x: x + mg.rand(8, 8))
    x = mg.tensor(X)
    assert np.abs(g(x).numpy() - g(x).numpy()).max() > 0
    made = mg.compile(lambda x: (mg.arange(8).cos(), x.sum()))
    first, second = made(x)[0], made(x)[0]
    first.zero_()
    np.testing.assert_allclose(second.numpy(), np.cos(np.arange(8)), rtol=1e-6)


def test_what_is_changed_in_place_starts_anew() -> None:
    x = mg.tensor(X)

    def f(x: Any) -> Any:
        total = mg.arange(8).float().cos()
        total += x.sum(0)
        return total.sin()

    compiled(f, x)


def test_large_ones_are_made_at_every_run(monkeypatch: Any) -> None:
    monkeypatch.setattr(constants, "LARGEST", 16)
    x = mg.tensor(X)
    g = compiled(masked, x)
    assert "band" in ops(g, x)


def test_a_ramp_in_a_chain_stays_in_registers() -> None:
    x = mg.tensor(X[0])
    g = compiled(lambda x: x * mg.arange(8, dtype="float32"), x)
    assert ops(g, x) == {"ramp", "mul"} and len(g.graph(x).nodes) == 1


def test_constants_of_a_backward_graph() -> None:
    x = mg.tensor(X, requires_grad=True)
    g = mg.compile(masked)
    weights = mg.tensor(X[::-1].copy())
    (g(x) * weights).sum().backward()
    assert [c.role for c in g.graph(x).inputs].count("constant") == 1
    assert not any(c.dtype is mg.bool_ for c in g.graph(x).outputs), "the mask is not saved anew at every call"
    got, x.grad = x.grad.numpy(), None
    (masked(x) * weights).sum().backward()
    np.testing.assert_allclose(got, x.grad.numpy(), rtol=1e-4, atol=1e-6)


def attending(mask: Any, spell: Any) -> Any:
    """A function of queries, keys and values that masks scores with mask(rows, keys), as spell(scores, mask) does."""

    def f(q: Any, k: Any, v: Any) -> Any:
        scores = q @ k.transpose(-1, -2) * 0.5
        return spell(scores, mask(q.shape[-2], k.shape[-2])).softmax(-1) @ v

    return f


def lower(rows: int, keys: int) -> Any:
    return mg.ones(rows, keys, dtype="bool").tril()


SPELLINGS = {
    "where": (lower, lambda s, m: mg.where(m, s, float("-inf"))),
    "masked_fill": (lambda r, k: mg.ones(r, k, dtype="bool").triu(1), lambda s, m: s.masked_fill(m, float("-inf"))),
    "of heads": (lambda r, k: lower(r, k).expand(3, r, k), lambda s, m: mg.where(m, s, float("-inf"))),
    "host data": (lambda r, k: mg.tensor(np.tri(r, k, dtype=bool)), lambda s, m: mg.where(m, s, float("-inf"))),
}
OTHERS = {
    "added": (lambda r, k: mg.full((r, k), float("-inf")).triu(1), lambda s, m: s + m),
    "strictly lower": (lambda r, k: mg.ones(r, k, dtype="bool").tril(-1), lambda s, m: mg.where(m, s, float("-inf"))),
    "a place later": (lambda r, k: mg.ones(r, k, dtype="bool").tril(1), lambda s, m: mg.where(m, s, float("-inf"))),
    "upper": (lambda r, k: mg.ones(r, k, dtype="bool").triu(), lambda s, m: mg.where(m, s, float("-inf"))),
    "finite": (lambda r, k: mg.full((r, k), -100.0).triu(1), lambda s, m: s + m),
    "a bias": (lambda r, k: mg.where(lower(r, k), 0.5, float("-inf")), lambda s, m: s + m),
    "a row": (lambda r, k: mg.ones(1, k, dtype="bool").tril(), lambda s, m: mg.where(m, s, float("-inf"))),
}


def heads(rows: int, keys: int) -> list[Any]:
    rng = np.random.default_rng(0)
    return [mg.tensor(rng.standard_normal((2, 3, n, 8)).astype(np.float32)) for n in (rows, keys, keys)]


@pytest.mark.parametrize("size", [(9, 9), (6, 13), (13, 6)], ids=str)
@pytest.mark.parametrize(("mask", "spell"), SPELLINGS.values(), ids=SPELLINGS)
def test_attention_knows_a_causal_mask(mask: Any, spell: Any, size: tuple[int, int]) -> None:
    given = heads(*size)
    g = compiled(attending(mask, spell), *given)
    assert g.report(*given)[0].count(constants.KNOWN) == 1
    assert ops(g, *given) == {"attention"}
    assert not any(c.role == "constant" for c in g.graph(*given).inputs)


@pytest.mark.parametrize(("mask", "spell"), OTHERS.values(), ids=OTHERS)
def test_attention_reads_other_masks(mask: Any, spell: Any) -> None:
    given = heads(9, 9)
    f = attending(mask, spell)
    g = mg.compile(f)
    np.testing.assert_allclose(g(*given).numpy(), f(*given).numpy(), rtol=1e-5, atol=1e-6)
    assert g.report(*given)[0].count(constants.KNOWN) == 0
