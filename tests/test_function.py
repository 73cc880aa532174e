"""autograd.Function: a gradient of one's own, against PyTorch where it has the same code."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

import meganeura as mg
from meganeura.errors import GradientError

A, B = (np.random.default_rng(s).standard_normal((3, 4)).astype(np.float32) for s in (0, 1))


def functions(lib: Any) -> dict[str, Any]:
    """The same classes for both libraries."""

    class Cube(lib.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x * x * x

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            (x,) = ctx.saved_tensors
            return g * 3 * x * x

    class Exp(lib.autograd.Function):
        @staticmethod
        def forward(x: Any) -> Any:
            return lib.exp(x)

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.save_for_backward(output)

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * ctx.saved_tensors[0]

    class Several(lib.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, factor: float, y: Any) -> Any:
            ctx.save_for_backward(x, None, y)
            ctx.factor = factor
            same = x > 0
            ctx.mark_non_differentiable(same)
            return x * y * factor, x + y, same

        @staticmethod
        def backward(ctx: Any, g: Any, h: Any, _: Any) -> Any:
            x, nothing, y = ctx.saved_tensors
            assert nothing is None and ctx.needs_input_grad == (True, False, True)
            return g * y * ctx.factor + h, None, g * x * ctx.factor + h

    class InPlace(lib.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            x.mul_(2)
            ctx.mark_dirty(x)
            return x

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * 2

    class Reversed(lib.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x.view(x.shape)

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return -g

    class Nothing(lib.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.set_materialize_grads(False)
            return x * 1, x * 2

        @staticmethod
        def backward(ctx: Any, g: Any, h: Any) -> Any:
            assert h is None
            return g * 7

    return {c.__name__: c for c in (Cube, Exp, Several, InPlace, Reversed, Nothing)}


def use(lib: Any, name: str, x: Any, y: Any) -> Any:
    f = functions(lib)[name].apply
    if name == "Several":
        a, b, same = f(x * 1, 1.5, y * 1)
        assert not same.requires_grad
        return (a * a).sum() + (b * 3).sum()
    if name == "InPlace":
        z = x * y
        return (f(z) * z).sum()
    if name == "Nothing":
        return (f(x)[0] * y).sum()
    return (f(x * y) * y).sum()


@pytest.mark.parametrize("name", ["Cube", "Exp", "Several", "InPlace", "Reversed", "Nothing"])
def test_as_in_pytorch(name: str, torch: Any) -> None:
    x, y = (mg.tensor(v).requires_grad_() for v in (A, B))
    p, q = (torch.tensor(v, requires_grad=True) for v in (A, B))
    got, want = use(mg, name, x, y), use(torch, name, p, q)
    got.backward()
    want.backward()
    np.testing.assert_allclose(got.detach().numpy(), want.detach().numpy(), rtol=1e-4)
    for t, s in ((x, p), (y, q)):
        np.testing.assert_allclose(t.grad.numpy(), s.grad.numpy(), rtol=1e-4, atol=1e-5)


def test_second_derivatives_and_gradcheck() -> None:
    found = functions(mg)
    x = mg.tensor(A).requires_grad_()
    for name, second in (("Cube", 6 * A), ("Exp", np.exp(A))):
        (g,) = mg.autograd.grad(found[name].apply(x).sum(), [x], create_graph=True)
        (h,) = mg.autograd.grad(g.sum(), [x])
        np.testing.assert_allclose(h.numpy(), second, rtol=1e-5)
        assert mg.autograd.gradcheck(found[name].apply, (A,))


def test_without_recording() -> None:
    cube = functions(mg)["Cube"].apply
    assert not cube(mg.tensor(A)).requires_grad
    with mg.no_grad():
        assert not cube(mg.tensor(A).requires_grad_()).requires_grad


def test_nothing_is_kept_too_long() -> None:
    for name in ("Cube", "Exp", "InPlace"):
        x = mg.tensor(A).requires_grad_() * 1
        y = functions(mg)[name].apply(x)
        node = weakref.ref(y.grad_fn)
        gc.disable()
        try:
            del x, y
            assert node() is None
        finally:
            gc.enable()


def test_errors_name_the_function_and_the_line() -> None:
    class Short(mg.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, y: Any) -> Any:
            ctx.save_for_backward(x)
            return x + y

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g

    class Wide(Short):
        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g.reshape(-1)[:5], ctx.saved_tensors[0]

    class Missing(mg.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

    x = mg.tensor(A).requires_grad_()
    with pytest.raises(GradientError, match=r"Short.backward returned 1 gradients for 2(.|\n)*test_function.py:\d+"):
        Short.apply(x, x).sum().backward()
    with pytest.raises(GradientError, match=r"Wide.backward returned a gradient of shape \[5\] for input 0(.|\n)*test_function.py"):
        Wide.apply(x, x).sum().backward()
    y = x * 1
    out = Wide.apply(y, x).sum()
    with mg.no_grad():
        y.add_(1)
    with pytest.raises(GradientError, match=r"Wide saved for backward was changed in place 1 time"):
        out.backward()
    with pytest.raises(mg.NoGradientError, match=r"Missing(.|\n)*test_function.py"):
        Missing.apply(x).sum().backward()
    cubed = functions(mg)["Cube"].apply(x).sum()
    cubed.backward()
    with pytest.raises(GradientError, match="second time"):
        cubed.backward()
    with pytest.raises(GradientError, match="leaf"):
        functions(mg)["InPlace"].apply(x)
