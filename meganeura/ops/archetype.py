"""The few shapes that computation comes in, as plain data. A row names one; kernels/ has a generator for each.

Expressions are scalar WGSL over names in braces: an input (already converted to its compute type: f32, i32, u32 or bool),
a scalar attribute, an earlier stage, or a variable that the archetype provides. Functions of kernels/wgsl/prelude.wgsl
may be called by name. NaN, inf and integer traps are the expression's business (see docs/kernels.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .table import Op


class Archetype:
    """Base of all archetypes. `fusable`: a pointwise value that chains may absorb."""

    fusable = False

    def inplace_ok(self, name: str) -> bool:
        """Whether an output may be written over the input of this name, laid out as the output is: every element of it
        must be read only by the invocation that then writes it (or, in rows, before the row's first write)."""
        return False


@dataclass(frozen=True)
class Pointwise(Archetype):
    """One output element from the elements at the same place of the broadcast inputs.

    `expr` is one expression, or a mapping from kind ('f', 'i', 'u', 'b') of the first input's compute type.
    Provided variables: {index} (u32, row-major number of the element in the output), and for random numbers
    {block} = index / 4 and {lane} = index % 4.
    `types`: 'promote' (compute and result in the common dtype), 'float' (the same, integers become float32),
    'compare' (compute in the common dtype, result bool), 'bool' (both bool), 'first' (the first input's dtype);
    the row's own dtype rule overrides it. The expression's WGSL type is bool for 'compare' and 'bool', otherwise that
    of the last input's compute dtype (of the output's when there are no inputs); storing converts to the output's dtype.
    `literals`: operands and the numbers that may stand for them in the text of a fused expression, which then needs no scalar block:
    where no compiler changes what they mean. Most take x * 0 and 0 / x for 0, and x + 0 for x, which NaN and -0 are not.
    """

    expr: str | Mapping[str, str]
    types: str = "promote"
    literals: tuple[tuple[str, tuple[int, ...]], ...] = ()
    fusable = True

    def inplace_ok(self, name: str) -> bool:
        return True

    def expression(self, kind: str) -> str:
        """The expression for a compute kind; KeyError if there is none."""
        return self.expr if isinstance(self.expr, str) else self.expr[kind]


@dataclass(frozen=True)
class Chain(Archetype):
    """Several pointwise statements in one kernel, made by fusion. A statement is (name, WGSL type, expression over
    inputs, scalars and earlier names); `results` are the names stored to the outputs, in order."""

    statements: tuple[tuple[str, str, str], ...]
    results: tuple[str, ...]
    fusable = True

    def inplace_ok(self, name: str) -> bool:
        return True


@dataclass(frozen=True)
class Reduce(Archetype):
    """Reduce over attrs['dim'] (sorted tuple of dimensions). kind: sum prod max min any all argmax argmin moments.

    `pre` maps an element before combining; `post` maps the accumulator {acc} ({n}: number of elements as f32) before
    storing. 'moments' gives {mean} and {m2} (sum of squared deviations) instead of {acc}. max, min, argmax and argmin
    let NaN win and take the first of equals. Accumulation is f32 for floats, i32 or u32 otherwise.

    Fusion (ops/fused_rows.py) adds the rest. `values`: elements to be reduced, several only for 'sum', instead of `pre`.
    `results`: (number of the value, expression) an output, instead of `post`. Both may name `statements`, as in Chain.
    `once`: inputs with one value a result. `type`: the WGSL type of what is reduced, where the first output does not say.
    """

    kind: str
    pre: str = ""
    post: str = "{acc}"
    values: tuple[str, ...] = ()
    results: tuple[tuple[int, str], ...] = ()
    statements: tuple[tuple[str, str, str], ...] = ()
    once: tuple[str, ...] = ()
    type: str = ""


@dataclass(frozen=True)
class Scan(Archetype):
    """Inclusive scan along attrs['dim']; from the last element where attrs has a true 'reverse'. kind: sum prod max min logsumexp.

    max and min have two outputs, values and int64 places: the last place of equal values, and NaN beats all, as in PyTorch.
    Accumulation is f32 for floats, i32 or u32 otherwise, in the first output's dtype.
    """

    kind: str


@dataclass(frozen=True)
class Stage:
    """A value a row. kind: 'sum' or 'max' of expr over the row, named `name`; 'softmax' gives {name}_max and
    {name}_sum (the sum of exp(expr - max)) in one go; 'moments' gives {name}_mean and {name}_var (population);
    'pick' is expr at the column given by `index` (a row input), checked against the row length through the status
    words, 0 where the index equals the scalar attribute `ignore_index`."""

    name: str
    kind: str
    expr: str
    index: str = ""


@dataclass(frozen=True)
class Row(Archetype):
    """Rows along attrs['dim'] (sorted tuple of neighbouring dimensions, reduced as one).

    Inputs: `full` have the row's elements; `column` have one value a column (broadcast over rows); all others one
    value a row. Inputs that are absent (None attribute 'absent' lists their names) count as the text in `defaults`.
    Stages run in order; `element` outputs are stored per element, `per_row` outputs once a row (shape without `dim`,
    contiguous). Provided: {n} row length (f32), {column} (u32). Fusion (ops/fused_rows.py) adds `statements`, as in
    Chain, which expressions may name.
    """

    full: tuple[str, ...]
    column: tuple[str, ...] = ()
    stages: tuple[Stage, ...] = ()
    element: tuple[str, ...] = ()  # expressions, one an element output
    per_row: tuple[str, ...] = ()  # expressions, one a row output; outputs are the element ones, then these
    defaults: Mapping[str, str] = field(default_factory=dict)
    statements: tuple[tuple[str, str, str], ...] = ()

    def inplace_ok(self, name: str) -> bool:
        return name in self.full and all(s.kind != "pick" for s in self.stages)  # a pick reads what others write


@dataclass(frozen=True)
class Part:
    """One of several rows that run in one dispatch: the names of the inputs it is given, its scalars (name, WGSL type), and
    its number of outputs."""

    op: Op
    inputs: tuple[str, ...]
    scalars: tuple[tuple[str, str], ...]
    outputs: int


@dataclass(frozen=True)
class Beside(Archetype):
    """Independent reductions in one dispatch, made by fusion (ops/beside.py)."""

    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Epilogue:
    """Pointwise statements (as in Chain) that a product or convolution applies to its results before storing them, made by
    fusion.

    `product` names the product in the statements; `results` are the names stored to the outputs, in order. All further
    inputs and the outputs are laid out over the product's leading dimensions, then `rows` dimensions (1 or 2) that make
    up M, then `cols` that make up N. Of a convolution these are the batch, channels, and spatial dimensions as one.
    """

    statements: tuple[tuple[str, str, str], ...]
    results: tuple[str, ...]
    product: str
    rows: int = 1
    cols: int = 1


@dataclass(frozen=True)
class Matmul(Archetype):
    """Batched matrix product [..., M, K] @ [..., K, N] -> [..., M, N]; leading dimensions broadcast. f32 accumulation."""

    epilogue: Epilogue | None = None

    def inplace_ok(self, name: str) -> bool:
        return self.epilogue is not None and any(f"{{{name}}}" in expr for _, _, expr in self.epilogue.statements)


@dataclass(frozen=True)
class Conv(Archetype):
    """A convolution of 1 to 3 spatial dimensions, or one of its gradients. role: 'output', 'input' or 'weight', the factor of
    the trilinear form in ops/conv.py that is made from the two others. Attributes: stride, padding (in front), dilation,
    groups. f32 accumulation. An optional input `bias` has one value a channel of the result. Weight gradients have no epilogue."""

    role: str
    epilogue: Epilogue | None = None

    def inplace_ok(self, name: str) -> bool:
        return self.epilogue is not None and any(f"{{{name}}}" in expr for _, _, expr in self.epilogue.statements)


@dataclass(frozen=True)
class Kernel(Archetype):
    """A kernel of its own, found by name in kernels/. `options` is read by that kernel only. `anywhere`: outputs that it stores
    whatever the order of their dimensions in memory, the last one being dense; operands it reads so too."""

    name: str
    options: Mapping[str, str] = field(default_factory=dict)
    anywhere: tuple[int, ...] = ()


@dataclass(frozen=True)
class Update(Archetype):
    """An in-place update of many parameters at once. Each role is a list of k tensors, passed as k inputs in a row,
    role after role; segment i updates with the i-th tensor of every role. Statements as in Chain; `writes` maps a role
    to the statement name stored into it. The call's outputs are the written roles' tensors, in the order of `roles`,
    aliasing the inputs. Elements of a segment are walked in the tensors' shared shape.
    `values` are tensors after the roles that give one number a segment [k], or one for all []; they must not share
    memory with what is written."""

    roles: tuple[str, ...]
    statements: tuple[tuple[str, str, str], ...]
    writes: Mapping[str, str]
    values: tuple[str, ...] = ()


@dataclass(frozen=True)
class View(Archetype):
    """No kernel: the output shows the input's storage through another layout (the row's `layout` rule)."""
