"""An op of your own: WGSL expression, numpy reference, gradient. Eager, compiled and gradient checks come with it."""

from __future__ import annotations

import numpy as np

import meganeura as mg
from meganeura import Tensor
from meganeura.ops.archetype import Pointwise
from meganeura.ops.table import Scalar


@mg.op(
    Pointwise("{input} + sin({frequency} * {input}) * sin({frequency} * {input}) / {frequency}"),
    ref=lambda input, frequency: input + np.sin(frequency * input) ** 2 / frequency,
    grad={"input": lambda grad, input, frequency: grad * (1 + (input * (2 * frequency)).sin())},
)
def snake(input: Tensor, frequency: Scalar = 1.0) -> Tensor:
    """x + sin(a x)^2 / a, for periodic signals. [*] -> [*]. Source: arXiv:2006.08195."""


x = mg.linspace(-2, 2, 9).requires_grad_()
print(snake(x, 3.0))
snake(x, 3.0).sum().backward()
print(x.grad)
assert mg.autograd.gradcheck(lambda t: snake(t, 3.0), (x,))

square = mg.compile(lambda t: snake(t, 3.0) ** 2)
x = x.detach()
np.testing.assert_allclose(square(x).numpy(), snake(x, 3.0).numpy() ** 2, rtol=1e-5)
