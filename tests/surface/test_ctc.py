"""ctc_loss and CTCLoss against PyTorch: padded and concatenated targets, lengths, repeated labels, blanks, impossible targets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meganeura as mg

from .compare import floats, torch


def both(
    t: int, n: int, c: int, targets: Any, inputs: Any, labels: Any, as_tensors: bool = True, tolerance: float = 2e-5, **options: Any
) -> None:
    """Values, and gradients through log_softmax."""
    x = floats(*((t, n, c) if n else (t, c)), low=-3, high=3, seed=t)
    kept = []
    for lib in (torch, mg):
        leaf = lib.tensor(x).requires_grad_()
        lengths = (lib.tensor(inputs), lib.tensor(labels)) if as_tensors else (inputs, labels)
        loss = lib.nn.functional.ctc_loss(lib.nn.functional.log_softmax(leaf, -1), lib.tensor(targets), *lengths, **options)
        kept.append([loss.detach().numpy(), leaf])
        weights = lib.tensor(np.linspace(0.5, 1.5, loss.numel()).astype(np.float32).reshape(tuple(loss.shape)))
        (loss * weights).sum().backward()
    np.testing.assert_allclose(kept[1][0], kept[0][0], rtol=tolerance, atol=tolerance)
    want, got = (k[1].grad.numpy() for k in kept)
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=tolerance)


def drawn(n: int, s: int, c: int, blank: int = 0) -> Any:
    choice = np.array([k for k in range(c) if k != blank])
    return choice[np.random.default_rng(s).integers(0, c - 1, (n, s))]


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("as_tensors", [True, False])
def test_reductions(reduction: str, as_tensors: bool) -> None:
    both(12, 3, 6, drawn(3, 5, 6), [12, 11, 9], [5, 3, 1], as_tensors, reduction=reduction)


@pytest.mark.parametrize(("t", "n", "c", "s"), [(1, 1, 2, 1), (3, 2, 3, 1), (50, 4, 20, 10), (120, 2, 30, 40)])
def test_sizes(t: int, n: int, c: int, s: int) -> None:
    both(t, n, c, drawn(n, s, c), [t] * n, [s] * n, zero_infinity=True)
    both(t, n, c, drawn(n, s, c, c - 1), [t] * n, [max(1, s - i) for i in range(n)], blank=c - 1, reduction="none", zero_infinity=True)


def test_concatenated_targets() -> None:
    targets = np.concatenate([drawn(1, k, 6)[0] for k in (4, 2, 3)])
    both(10, 3, 6, targets, [10, 8, 9], [4, 2, 3])
    both(10, 3, 6, targets, [10, 8, 9], [4, 2, 3], as_tensors=False, reduction="sum")


def test_repeated_labels_empty_targets_and_one_sequence() -> None:
    both(9, 2, 4, np.array([[1, 1, 1, 2], [3, 3, 1, 1]]), [9, 9], [4, 4])
    both(5, 2, 4, drawn(2, 2, 4), [5, 4], [0, 2], reduction="none")
    both(8, 0, 4, drawn(1, 3, 4)[0], 8, 3, reduction="none")
    both(8, 0, 4, drawn(1, 3, 4)[0], [8], [3], as_tensors=False)


def test_impossible_targets() -> None:
    x = mg.tensor(floats(3, 1, 4)).requires_grad_()
    targets, lengths = mg.tensor([[1, 1, 1]]), (mg.tensor([3]), mg.tensor([3]))
    loss = mg.nn.functional.ctc_loss(x.log_softmax(-1), targets, *lengths)
    assert np.isinf(loss.item())
    both(3, 1, 4, np.array([[1, 1, 1]]), [3], [3], zero_infinity=True, reduction="sum")


def test_module_and_compiled() -> None:
    loss = mg.nn.CTCLoss(blank=1, zero_infinity=True)
    targets, inputs, labels = mg.tensor(drawn(2, 3, 5, 1)), mg.tensor([7, 6]), mg.tensor([3, 2])

    def step(x: mg.Tensor) -> Any:
        x = x.detach().requires_grad_()
        made = loss(x.log_softmax(-1), targets, inputs, labels)
        made.backward()
        return made, x.grad

    x = mg.tensor(floats(7, 2, 5))
    for g, w in zip(mg.compile(step)(x), step(x), strict=True):
        np.testing.assert_allclose(g.detach().numpy(), w.detach().numpy(), rtol=1e-5, atol=1e-6)


def test_errors() -> None:
    x, y = mg.tensor(floats(4, 2, 3)), mg.tensor(drawn(2, 2, 3))
    ctc = mg.nn.functional.ctc_loss
    for call, part in (
        (lambda: ctc(x, y, [4, 4], [2, 2], blank=3), "blank"),
        (lambda: ctc(x, y, [5, 4], [2, 2]), "between 0 and 4"),
        (lambda: ctc(x, y, [4], [2, 2]), "2 lengths"),
        (lambda: ctc(x, y.float(), [4, 4], [2, 2]), "integers"),
        (lambda: ctc(x, y, [4, 4], [2, 2], reduction="all"), "reduction"),
        (lambda: ctc(x, mg.tensor([1, 2, 1]), [4, 4], [2, 2]), "3 targets"),
    ):
        with pytest.raises(mg.MeganeuraError, match=part):
            call()
    with pytest.raises(mg.IndexOutOfRangeError):
        ctc(x, mg.tensor([[1, 7], [1, 1]]), [4, 4], [2, 2]).item()
    with pytest.raises(mg.IndexOutOfRangeError):
        ctc(x, y, mg.tensor([9, 4]), [2, 2]).item()
