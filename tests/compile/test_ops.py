"""Every row, compiled: results equal to eager bit for bit (they run the same kernels), gradients equal to eager's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meganeura as mg
from meganeura.autograd import cotangents
from meganeura.ops.table import LIST, Op
from tests.ops.test_table import ROWS, SMOOTH, close
from tests.ops.variants import laid_out, samples


def _outs(result: Any) -> list[Any]:
    return list(result) if isinstance(result, tuple) else [result]


@pytest.mark.parametrize("op", ROWS, ids=lambda r: r.name)
def test_compiled_equals_eager(op: Op) -> None:
    """As captured tensors in three layouts and as arguments."""
    for number in range(len(samples(op))):
        for layout in ("plain", "transposed", "stepped"):
            found = laid_out(op, samples(op)[number], layout)
            if found is None:
                continue
            _, make, kwargs = found
            args = make()
            want = [o.numpy() for o in _outs(op(*args, **kwargs))]
            captured = mg.compile(lambda args=args, kwargs=kwargs: op(*args, **kwargs), debug=True)
            given = mg.compile(lambda *args, kwargs=kwargs: op(*args, **kwargs), debug=True)
            for got in (captured(), given(*args)) if layout == "plain" else (captured(),):
                for g, w in zip(_outs(got), want, strict=True):
                    np.testing.assert_array_equal(g.numpy(), w, err_msg=f"{op.name} {number} {layout}")


def _leaves(op: Op, args: list[Any]) -> list[Any]:
    """Make leaves of the differentiable inputs, in place in `args`."""
    leaves = []
    for i, (p, v) in enumerate(zip(op.params, args, strict=False)):
        if op.grad.get(p.name) is None:
            continue
        if p.kind == LIST:
            args[i] = [t.detach().requires_grad_() for t in v]
            leaves.extend(args[i])
        elif isinstance(v, mg.Tensor) and v.dtype.is_floating_point:
            args[i] = v.detach().requires_grad_()
            leaves.append(args[i])
    return leaves


@pytest.mark.parametrize("op", SMOOTH, ids=lambda r: r.name)
def test_gradient_of_compiled_equals_eager(op: Op) -> None:
    """One node outside, and the same engine inside one function."""
    for sample in samples(op):
        found = laid_out(op, sample, "plain")
        assert found is not None
        _, make, kwargs = found
        args = make()
        leaves = _leaves(op, args)
        outs = [o for o in _outs(op(*args, **kwargs)) if o.requires_grad]
        if not outs:
            continue  # a cast to integers
        seeds = [mg.tensor(c.astype(np.float32)).to(o.dtype) for o, c in zip(outs, cotangents(outs, 3), strict=True)]
        want = [g.numpy() for g in mg.grad(outs, leaves, seeds)]

        def run(*args: Any, kwargs: Any = kwargs) -> Any:
            return [o for o in _outs(op(*args, **kwargs)) if o.requires_grad]

        node = mg.grad(mg.compile(run, debug=True)(*args), leaves, seeds)

        def inside(args: Any = args, leaves: Any = leaves, seeds: Any = seeds) -> Any:
            return mg.grad(run(*args), leaves, seeds)

        for g, h, w in zip(node, mg.compile(inside, debug=True)(), want, strict=True):
            close(g.numpy(), w, "float16" in str(sample.args), f"gradient of {op.name}")
            close(h.numpy(), w, "float16" in str(sample.args), f"gradient of {op.name}, inside")
