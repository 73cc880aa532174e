"""Functions that show, arrange, join, split and pad tensors, against PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meganeura as mg
from tests.surface.compare import SPECIAL, bools, check, floats, ints, torch

QUICK = ("plain", "transposed", "stepped")
A, B, C = floats(3, 5), floats(2, 3, 4), floats(7)
EMPTY = np.zeros((0, 3), np.float32)
SCALAR = np.array(1.5, np.float32)


# ---- rearrange ----


@pytest.mark.parametrize("dims", [(0,), (1,), (-1,), (0, 1), (0, 2), (0, 1, 2), (), (0, 0), (3,), (-4,)])
def test_flip(dims: tuple[int, ...]) -> None:
    check("flip", B, dims, layouts=QUICK)
    check("flip", ints(2, 4, 3), dims, layouts=QUICK)


def test_flip_forms() -> None:
    check(".flip", B, 0, 2)
    check("flip", SPECIAL, (0,))
    check("flip", bools(4, 5), (1,))
    check("flip", EMPTY, (0, 1))
    check("flip", SCALAR, ())
    for name in ("fliplr", "flipud"):
        for a in (A, B, C, SCALAR, ints(4, 4)):
            check(name, a, layouts=QUICK)


@pytest.mark.parametrize("k", [0, 1, 2, 3, 4, 5, -1, -2])
def test_rot90(k: int) -> None:
    check("rot90", A, k, (0, 1), layouts=QUICK)
    check("rot90", B, k, (2, 0), layouts=QUICK)
    check("rot90", ints(3, 4), k, (1, 0), layouts=("plain",))


@pytest.mark.parametrize("dims", [(0,), (0, 0), (0, 1, 2), (0, 5)])
def test_rot90_refuses(dims: tuple[int, ...]) -> None:
    check("rot90", A, 1, dims)
    check("rot90", C, 1, (0, 1))


@pytest.mark.parametrize(
    ("shifts", "dims"),
    [
        (1, 0),
        (-2, 1),
        (7, 1),
        (0, 0),
        ((1, 2), (0, 1)),
        ((1, -1), (1, 1)),
        (2, None),
        (-3, None),
        ((1,), None),
        ((1, 2), None),
        (1, 5),
        ((), ()),
    ],
)
def test_roll(shifts: Any, dims: Any) -> None:
    check("roll", A, shifts, dims, layouts=QUICK)
    check("roll", ints(4, 3), shifts, dims, layouts=("plain",))


def test_roll_of_nothing() -> None:
    check("roll", EMPTY, 1, 0)
    check("roll", EMPTY, 1)
    check("roll", SCALAR, 1)
    check("roll", SCALAR, 1, 0)


@pytest.mark.parametrize("reps", [(2,), (1, 1), (2, 3), (2, 1, 3), (0, 2), (-1, 2), ()])
def test_tile(reps: tuple[int, ...]) -> None:
    check("tile", A, reps, layouts=QUICK)
    check(".tile", C, reps, layouts=QUICK)
    check("tile", SCALAR, reps)


@pytest.mark.parametrize("dim", [None, 0, 1, -1, 2])
@pytest.mark.parametrize("repeats", [0, 1, 3, -1])
def test_repeat_interleave(repeats: int, dim: int | None) -> None:
    check("repeat_interleave", A, repeats, dim, layouts=QUICK)


def test_repeat_interleave_by_tensor() -> None:
    check("repeat_interleave", A, np.array([2, 0, 1]), 0, layouts=("plain", "stepped"))
    check("repeat_interleave", A, np.array([1, 0, 2, 3, 1]), 1, layouts=("plain",))
    check("repeat_interleave", A, np.array([2]), 0, layouts=("plain",))
    check("repeat_interleave", A, np.array([2, 1]), 0, layouts=("plain",))
    check("repeat_interleave", A, np.array([2, -1, 0]), 0, layouts=("plain",))
    check("repeat_interleave", np.array([2, 0, 3]))
    check("repeat_interleave", A, np.array([2, 0, 1]), 0, output_size=3, layouts=("plain",))
    repeat = mg.compile(lambda x, r: mg.repeat_interleave(x, r, 1, output_size=7))
    counts = np.array([1, 0, 2, 3, 1])
    assert np.array_equal(repeat(mg.tensor(A), mg.tensor(counts)).numpy(), np.repeat(A, counts, 1))
    with pytest.raises(mg.TraceError):
        mg.compile(lambda x, r: mg.repeat_interleave(x, r, 1))(mg.tensor(A), mg.tensor(counts))
    check("repeat_interleave", SCALAR, 3)
    check("repeat_interleave", EMPTY, 3, 1)


@pytest.mark.parametrize(
    "spec", [(0, 2, 1), (1, 3, 2), (-1, 5, 1), (1, 2, 4), (1, 1, 1), (1, 0, 1), (1, 6, 1), (1, 2, 0), (2, 1, 1), (0, 3, 7)]
)
def test_unfold(spec: tuple[int, int, int]) -> None:
    check(".unfold", A, *spec, layouts=QUICK)
    check(".unfold", ints(3, 5), *spec, layouts=("plain",))


def test_unfold_is_a_view_and_sums_overlaps() -> None:
    check(".unfold", floats(40), 0, 33, 1)  # more passes than are worth it: by index
    check(".unfold", floats(2, 40, 3), 1, 20, 1)
    check(".unfold", SCALAR, 0, 1, 1)
    x = mg.zeros(6)
    x.unfold(0, 3, 3)[1] += 1
    assert x.tolist() == [0, 0, 0, 1, 1, 1]


def test_names_of_transposes() -> None:
    for name in ("swapaxes", "swapdims", "transpose"):
        check(name, B, 0, 2, layouts=QUICK)
        check(name, B, 0, 3, layouts=QUICK)
        check(name, SCALAR, 0, -1)
    for name in ("moveaxis", "movedim"):
        check(name, B, (0, 1), (2, 0), layouts=QUICK)
        check(name, B, -1, 0, layouts=QUICK)
        check(name, B, (0, 0), (1, 2), layouts=QUICK)
    check("ravel", B)
    check("ravel", SCALAR)
    check(".reshape_as", A, floats(5, 3))
    check(".reshape_as", A, floats(5, 4))
    check(".view_as", A, floats(15), layouts=("plain",))
    check(".expand_as", floats(1, 5), A)
    check(".type_as", A, ints(3))
    check("squeeze", floats(1, 3, 1, 1), (0, 2))
    check("squeeze", floats(1, 3, 1), (0, 1))


def test_clone_takes_a_memory_format() -> None:
    assert mg.clone(mg.ones(3), memory_format=None).tolist() == [1, 1, 1]


# ---- triangles and diagonals ----


@pytest.mark.parametrize("k", [0, 1, -1, 2, -3, 9, -9])
@pytest.mark.parametrize("name", ["tril", "triu"])
def test_triangles(name: str, k: int) -> None:
    for a in (A, B, ints(4, 4), bools(4, 5), EMPTY):
        check(name, a, k, layouts=QUICK if a.dtype == np.float32 else ("plain", "transposed"))


def test_triangles_more() -> None:
    for name in ("tril", "triu"):
        check(name, C)
        check(name, np.full((3, 3), np.nan, np.float32))
        check((lambda x, n=name: getattr(x.clone(), n + "_")(1),) * 2, A)
        with mg.dispatch.use(mg.Reference()):
            x = mg.tensor(A)
            assert np.array_equal(getattr(mg, name)(x).numpy(), getattr(np, name)(A))
    x = mg.tensor(B)
    assert np.array_equal(mg.compile(lambda x: mg.tril(x * 2) + mg.triu(x, 1) * 2)(x).numpy(), B * 2)


@pytest.mark.parametrize("name", ["tril_indices", "triu_indices"])
def test_triangle_indices(name: str) -> None:
    for args in ((3, 4), (4, 3, 1), (4, 3, -2), (0, 3), (3, 0), (3, 3, 9), (-1, 3)):
        check(name, *args)


@pytest.mark.parametrize("args", [(), (1,), (-1,), (9,), (0, 1, 2), (1, -1, 0), (0, 1, 1), (0, 0, 3)])
def test_diagonal(args: tuple[int, ...]) -> None:
    check("diagonal", B, *args, layouts=QUICK)
    check("diagonal", A, *args, layouts=QUICK)


def test_diagonals_more() -> None:
    for k in (0, 1, -2, 7):
        for a in (A, C, ints(3), ints(4, 3), B, SCALAR):
            check("diag", a, k, layouts=QUICK)
        check("diagflat", A, k, layouts=QUICK)
        check("diag_embed", A, k, layouts=QUICK)
    check("diag_embed", A, 1, 0, 2)
    check("diag_embed", A, 0, 2, -2)
    check("diag_embed", A, 0, 0, 0)
    check("diag_embed", A, 0, 4, 0)
    for a in (A, ints(4, 4), B, C, EMPTY, floats(5, 2)):
        check("trace", a, layouts=QUICK)
    x = mg.zeros(3, 3)
    x.diagonal(1).fill_(2)
    assert x.tolist() == [[0, 2, 0], [0, 0, 2], [0, 0, 0]]


@pytest.mark.parametrize("shape", [(3, 3), (5, 3), (7, 2), (3, 5), (2, 2, 2), (2, 3, 2), (4,)])
@pytest.mark.parametrize("wrap", [False, True])
def test_fill_diagonal(shape: tuple[int, ...], wrap: bool) -> None:
    check((lambda x: x.clone().fill_diagonal_(2.5, wrap),) * 2, floats(*shape), layouts=("plain",))


# ---- joining and splitting ----


@pytest.mark.parametrize("name", ["hstack", "vstack", "dstack", "column_stack", "row_stack", "concat", "concatenate"])
def test_stacks(name: str) -> None:
    for parts in ([C, C], [A, A], [B, B], [A, floats(3, 2)], [floats(2, 5), A], [SCALAR, SCALAR], [C, SCALAR], [A, C], [ints(3), C], []):
        check(name, list(parts), layouts=("plain", "transposed"), half=False)


@pytest.mark.parametrize("name", ["atleast_1d", "atleast_2d", "atleast_3d"])
def test_ranks(name: str) -> None:
    for a in (SCALAR, C, A, B, floats(1, 2, 1, 2)):
        check(name, a, layouts=("plain", "transposed"))
    check(name, [SCALAR, C, A])
    check(name, SCALAR, B)


def test_block_diag() -> None:
    check("block_diag", A, C, SCALAR, ints(2, 2), layouts=("plain", "stepped"), half=False)
    check("block_diag", A)
    check("block_diag", B)
    check("block_diag", EMPTY, A, half=False)
    check("block_diag")


@pytest.mark.parametrize("how", [1, 2, 3, 5, 0, (1, 2), (2,), (), (0, 9), (-1,), (3, 1), (-9, 2)])
def test_tensor_split(how: Any) -> None:
    for dim in (0, 1, -1, 2):
        check("tensor_split", A, how, dim, layouts=("plain", "transposed"))
    for name in ("hsplit", "vsplit", "dsplit"):
        for a in (A, floats(4, 6, 2), C, SCALAR):
            check(name, a, how, layouts=("plain",))


def test_tensor_split_by_tensor() -> None:
    check("tensor_split", C, np.array([1, 4]), layouts=("plain",))
    check("tensor_split", C, np.array(3), layouts=("plain",))
    check("tensor_split", C, sections=3, layouts=("plain",))


def test_grids() -> None:
    for indexing in ("ij", "xy"):
        for parts in ([C, floats(3)], [C], [ints(2), ints(3), ints(4)], [C, SCALAR], [A, C], [C, ints(2)]):
            check("meshgrid", *parts, indexing=indexing, layouts=("plain", "stepped"))
    check("meshgrid", [C, C], indexing="zz")
    check("meshgrid", [C, floats(2)], indexing="xy")
    check("broadcast_tensors", A, floats(5), floats(2, 1, 1), SCALAR)
    check("broadcast_tensors", A, floats(4))
    check("cartesian_prod", C, floats(2), floats(3))
    check("cartesian_prod", C)
    check("cartesian_prod", A, C)


@pytest.mark.parametrize("r", [0, 1, 2, 3, 8])
@pytest.mark.parametrize("replacement", [False, True])
def test_combinations(r: int, replacement: bool) -> None:
    check("combinations", floats(5), r, replacement, layouts=("plain", "stepped"))
    check("combinations", ints(4), r, replacement, layouts=("plain",))


# ---- padding ----

PADS = {
    1: [(1, 2), (0, 3), (2, 0), (-1, 2), (2, -2), (-1, -1), (0, 0), (4, 4), (5, 5), (6, 0), (-3, -3)],
    2: [(1, 2, 2, 1), (0, 0, 1, 0), (2, -1, 0, 2), (1, 1, 4, 4), (3, 3, 3, 3)],
    3: [(1, 1, 1, 1, 1, 1), (2, 0, 0, 2, 1, 0)],
}


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular", "constant"])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_pad(mode: str, rank: int) -> None:
    for pads in PADS[rank]:
        for shape in ((2, 3, 4, 3, 5)[: rank + 2], (3, 4, 3, 5)[: rank + 1]):
            check("nn.functional.pad", floats(*shape), pads, mode, layouts=("plain", "transposed"), half=False)


def test_pad_refuses() -> None:
    for mode in ("reflect", "replicate", "circular", "other"):
        check("nn.functional.pad", C, (1, 1), mode)
        check("nn.functional.pad", A, (1, 1, 1, 1), mode)
        check("nn.functional.pad", B, (1,), mode)
        check("nn.functional.pad", np.zeros((2, 3, 0), np.float32), (1, 1), mode)
        check("nn.functional.pad", np.zeros((0, 3, 4), np.float32), (1, 1), mode)
    check("nn.functional.pad", A, (1, 1), "constant", 2.5)
    check("nn.functional.pad", ints(3, 4), (1, 1), "constant", 2)
    check("nn.functional.pad", floats(2, 3, 4), (1, 2), "reflect", half=True)


def test_pad_compiles() -> None:
    x = mg.tensor(B)
    for mode in ("reflect", "replicate", "circular"):
        want = torch.nn.functional.pad(torch.tensor(B), (2, 1), mode).numpy()
        assert np.array_equal(mg.compile(lambda x, m=mode: mg.pad(x, (2, 1), m))(x).numpy(), want)


# ---- modules ----


@pytest.mark.parametrize(
    ("name", "args", "shape"),
    [
        ("ConstantPad1d", ((1, 2), 3.5), (2, 3, 4)),
        ("ConstantPad2d", (1, 0.5), (2, 3, 4, 4)),
        ("ConstantPad3d", (1, 0.5), (2, 3, 2, 4, 4)),
        ("ZeroPad1d", (2,), (3, 4)),
        ("ZeroPad2d", ((1, 0, 2, -1),), (2, 3, 4)),
        ("ZeroPad3d", (1,), (1, 2, 2, 3, 2)),
        ("ReflectionPad1d", (2,), (2, 3, 4)),
        ("ReflectionPad2d", ((1, 2, 0, 1),), (2, 3, 4, 4)),
        ("ReflectionPad3d", (1,), (1, 2, 3, 2, 3)),
        ("ReplicationPad1d", ((3, 0),), (3, 4)),
        ("ReplicationPad2d", (2,), (3, 4, 3)),
        ("ReplicationPad3d", (1,), (2, 2, 2, 3)),
        ("CircularPad1d", (2,), (2, 3, 4)),
        ("CircularPad2d", (1,), (2, 3, 4, 4)),
        ("CircularPad3d", (1,), (2, 3, 2, 4, 4)),
        ("Unflatten", (1, (2, 3)), (4, 6)),
        ("PixelShuffle", (2,), (2, 8, 3, 2)),
        ("PixelShuffle", (3,), (9, 2, 3)),
        ("PixelUnshuffle", (2,), (2, 3, 4, 6)),
        ("PixelUnshuffle", (2,), (3, 4, 5)),
        ("ChannelShuffle", (3,), (2, 6, 2, 2)),
        ("ChannelShuffle", (4,), (2, 6, 2)),
    ],
)
def test_modules(name: str, args: Any, shape: tuple[int, ...]) -> None:
    ours, theirs = getattr(mg.nn, name)(*args), getattr(torch.nn, name)(*args)
    check((ours, theirs), floats(*shape), layouts=("plain", "transposed"))
    assert repr(ours) == repr(theirs)


def test_pad_modules_refuse_other_ranks() -> None:
    for name in ("ReflectionPad1d", "ReplicationPad2d", "CircularPad3d"):
        with pytest.raises(mg.ShapeError):
            getattr(mg.nn, name)(1)(mg.tensor(C))


# ---- facts ----


def test_facts() -> None:
    for a in (A, ints(3), bools(2, 2), SCALAR, EMPTY):
        for name in ("is_floating_point", "is_complex", "is_signed", "numel", "is_tensor"):
            check(name, a, layouts=("plain",), grad=False)
        for name in (".nelement", ".ndimension", ".dim"):
            check(name, a, layouts=("plain",), grad=False)
    assert mg.ones(2, dtype=mg.float16).element_size() == 2
    check("is_same_size", A, B, layouts=("plain",))
    check("is_same_size", A, A, layouts=("plain",))
    check("is_nonzero", SCALAR, layouts=("plain",), grad=False)
    check("is_nonzero", A, layouts=("plain",), grad=False)
    for shapes in (((3, 1), (4,)), ((2, 3), (3, 3)), (3, (2, 1)), ()):
        check((lambda s=shapes: tuple(mg.broadcast_shapes(*s)), lambda s=shapes: tuple(torch.broadcast_shapes(*s))))
    names = ("bool", "uint8", "int8", "int32", "int64", "float16", "bfloat16", "float32")
    for a in names:
        for b in names:
            ours, theirs = (getattr(mg, "bool_" if n == "bool" else n) for n in (a, b)), (getattr(torch, n) for n in (a, b))
            x, y = ours
            p, q = theirs
            if {a, b} != {"uint8", "int8"}:  # PyTorch's int16 is held as int32
                assert mg.promote_types(x, y).name == str(torch.promote_types(p, q)).removeprefix("torch.")
                assert mg.result_type(mg.zeros(2, dtype=x), mg.zeros((), dtype=y)).name == str(
                    torch.result_type(torch.zeros(2, dtype=p), torch.zeros((), dtype=q))
                ).removeprefix("torch.")
            assert mg.can_cast(x, y) == torch.can_cast(p, q), (a, b)
    assert mg.result_type(mg.ones(2, dtype=mg.int32), 1.5) is mg.float32


def test_more_names() -> None:
    check("adjoint", A)
    check("adjoint", C)
    check("narrow_copy", A, 1, 1, 3, layouts=("plain", "transposed"), grad=False)
    check("split_with_sizes", A, [2, 3], 1)
    check("split_with_sizes", A, [2, 2], 1)
    check("unsafe_chunk", A, 2, 1, grad=False)
    check("unsafe_split", A, 2, 1, grad=False)
    check("unravel_index", ints(4, low=0, high=24), (2, 3, 4), layouts=("plain",))
    check("unravel_index", A, (2, 3, 4), layouts=("plain",))
    x, y = mg.tensor(A), torch.tensor(A)
    assert x.H.tolist() == y.H.tolist() and x.mH.tolist() == y.mH.tolist() and x.mT.tolist() == y.mT.tolist()
    assert x.T.contiguous(memory_format=None).is_contiguous()
    with pytest.raises(mg.ShapeError):
        _ = mg.tensor(B).H
