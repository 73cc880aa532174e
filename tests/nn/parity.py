"""Runs a layer of this package and PyTorch's of the same name on the same values, and compares results and gradients."""

from __future__ import annotations

from typing import Any

import numpy as np

import meganeura as mg
from meganeura import nn


def copied(layer: Any, twin: Any) -> None:
    """Give PyTorch's layer the values of this package's, through state dicts."""
    import torch

    twin.load_state_dict({k: torch.from_numpy(v.numpy()) for k, v in layer.state_dict().items()})


def close(ours: Any, theirs: Any, what: str, rtol: float = 2e-5, atol: float = 2e-6) -> None:
    """Same shape and nearly the same values."""
    a, b = ours.detach().numpy(), theirs.detach().numpy()
    assert a.shape == b.shape, f"{what}: {a.shape} and {b.shape}"
    np.testing.assert_allclose(a, b, rtol=rtol, atol=atol, err_msg=what)


def tensors(torch: Any, *arrays: Any) -> tuple[list[Any], list[Any]]:
    """The arrays as leaves of both packages; floating point ones require grad."""
    ours = [mg.tensor(a, requires_grad=a.dtype.kind == "f") for a in arrays]
    theirs = [torch.tensor(a, requires_grad=a.dtype.kind == "f") for a in arrays]
    return ours, theirs


def compare(torch: Any, layer: nn.Module, twin: Any, *arrays: Any, differentiable: int | None = None) -> None:
    """Forward and backward of both, with a random cotangent."""
    copied(layer, twin)
    ours, theirs = tensors(torch, *arrays)
    result, expected = layer(*ours), twin(*theirs)
    close(result, expected, "result")
    if not expected.requires_grad:
        return
    cotangent = np.random.default_rng(7).standard_normal(tuple(expected.shape)).astype(np.float32)
    result.backward(mg.tensor(cotangent))
    expected.backward(torch.tensor(cotangent))
    for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        if b.grad is not None:
            close(a.grad, b.grad, f"gradient of input {i}")
    grads = dict(twin.named_parameters())
    for name, p in layer.named_parameters():
        close(p.grad, grads[name].grad, f"gradient of {name}")
