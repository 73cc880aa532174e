"""Indices from data: checked in the kernel, reported at the next sync with op, value and user line; the next op is fine."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import meganeura as mg
from meganeura import dispatch, gpu, kernels
from meganeura.errors import IndexOutOfRangeError
from meganeura.kernels.call import make_call
from meganeura.kernels.kernel import STATUS, Profile
from meganeura.ops.infer import infer, named
from meganeura.ops.table import REGISTRY, Op
from meganeura.storage import Layout
from tests.gpu.handmade import child

F = mg.nn.functional
HERE = "test_point_07.py"


def table() -> Any:
    return mg.tensor(np.arange(12, dtype=np.float32).reshape(4, 3))


BAD: dict[str, tuple[Callable[[], Any], str, int, int]] = {
    "index_select": (lambda: table().index_select(0, mg.tensor([0, 4, 1])), "index_select", 4, 4),
    "index_select of columns": (lambda: table().index_select(1, mg.tensor([0, 3])), "index_select", 3, 3),
    "far beyond": (lambda: table().index_select(0, mg.tensor([1_000_000_000])), "index_select", 1_000_000_000, 4),
    "negative": (lambda: table().index_select(0, mg.tensor([-1])), "index_select", -1, 4),
    "gather": (lambda: table().gather(1, mg.tensor([[0], [1], [2], [7]])), "gather", 7, 3),
    "indexing": (lambda: table()[mg.tensor([[0, 9]])], "index_select", 9, 4),
    "embedding": (lambda: F.embedding(mg.tensor([2, 11]), table()), "embedding", 11, 4),
    "loss": (lambda: F.cross_entropy(table(), mg.tensor([0, 1, 2, 5])), "cross_entropy", 5, 3),
    "loss, negative": (lambda: F.cross_entropy(table(), mg.tensor([0, 1, 2, -7])), "cross_entropy", -7, 3),
    "negative log likelihood": (lambda: F.nll_loss(table(), mg.tensor([0, 1, 2, 5])), "", 5, 3),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_index_is_reported_with_op_value_and_line(name: str) -> None:
    act, op, value, limit = BAD[name]
    mg.synchronize()
    out = act()
    with pytest.raises(IndexOutOfRangeError) as caught:
        out.sum().item()
    text = str(caught.value)
    assert op in text.split(":", maxsplit=1)[0]
    assert f"{value} is out of range" in text
    assert f"size {limit}" in text
    assert HERE in text, "the user's line"
    assert isinstance(caught.value, IndexError)
    assert table().index_select(0, mg.tensor([3, 0])).tolist() == [[9, 10, 11], [0, 1, 2]], "the next one is fine"
    mg.synchronize()


def test_the_error_waits_for_a_sync_and_comes_once() -> None:
    mg.synchronize()
    x = table()
    x.index_select(0, mg.tensor([8]))
    y = x * 2
    z = mg.ones(3) + 1
    with pytest.raises(IndexOutOfRangeError, match="index 8"):
        mg.synchronize()
    assert z.tolist() == [2, 2, 2]
    assert (y * 1).tolist() == (np.arange(12).reshape(4, 3) * 2).tolist()
    x.index_select(0, mg.tensor([1]))  # an index kernel, so the next sync looks again
    mg.synchronize()


def test_the_first_of_several_is_reported() -> None:
    mg.synchronize()
    first, second = table(), table()
    first.index_select(0, mg.tensor([21]))
    second.index_select(0, mg.tensor([22]))
    with pytest.raises(IndexOutOfRangeError, match="index 21"):
        mg.synchronize()


def test_gradients_by_index_are_checked_too() -> None:
    """The backward of a lookup adds up by the same indices; memory around it stays."""
    mg.synchronize()
    w = mg.nn.Parameter(mg.ones(4, 3))
    guard = [mg.full((64,), 5.0) for _ in range(4)]
    F.embedding(mg.tensor([0, 6]), w).sum().backward()
    with pytest.raises(IndexOutOfRangeError, match="6 is out of range"):
        mg.synchronize()
    try:
        mg.synchronize()
    except IndexOutOfRangeError:
        pytest.fail("reported twice")
    assert all(g.tolist() == [5.0] * 64 for g in guard)


def test_a_compiled_call_reports_at_every_run() -> None:
    f = mg.compile(lambda x, i: x.index_select(0, i) * 2)
    x = table()
    assert f(x, mg.tensor([0])).tolist() == [[0, 2, 4]]
    for value in (4, 17):
        f(x, mg.tensor([value]))
        with pytest.raises(IndexOutOfRangeError, match=f"index_select: index {value} .*size 4\n.*{HERE}"):
            mg.synchronize()
    assert f(x, mg.tensor([1])).tolist() == [[6, 8, 10]]


def _launches(row: Op, profile: Profile) -> list[Any]:
    """The launches of a row's first sample that has any."""
    assert row.samples is not None
    for sample in row.samples():
        given = [mg.tensor(a) if isinstance(a, np.ndarray) and a.ndim else a for a in sample.args]
        values = dispatch.fill(row, given, dict(sample.kwargs))
        args = named(row, values)
        inferred = infer(row, args)
        found = kernels.lower(make_call(row, args, inferred, [Layout(s.dtype, s.shape) for s in inferred.outputs]), profile).launches
        if found:
            return list(found)
    raise AssertionError(f"{row.name} has no sample with a kernel")


WILD = (-1, 4, 1 << 20, -(1 << 20), (1 << 31) - 1, -(1 << 31))


def test_wild_indices_touch_no_foreign_memory() -> None:
    """Whether the driver clamps or not: every lookup with every wild index, in a process of its own, next to guards."""
    done = child(f"""
        import meganeura as mg
        from meganeura.errors import IndexOutOfRangeError
        from meganeura.ops.table import REGISTRY
        F = mg.nn.functional
        guards = [mg.full((256,), 7.0) for _ in range(8)]
        x = mg.tensor(np.arange(32, dtype=np.float32).reshape(4, 8))
        for wild in {WILD}:
            i = mg.tensor([1, wild, 3, 0])
            w = mg.nn.Parameter(x.clone())
            acts = [lambda: x.index_select(0, i), lambda: x.gather(1, (i * 0 + i).view(4, 1)) if not 0 <= wild < 8 else 1 / 0,
                    lambda: REGISTRY["segment_sum"](x, i, 4, None), lambda: F.embedding(i, w).sum().backward(),
                    lambda: F.cross_entropy(x[:, :4], i) if wild != -100 else 1 / 0]
            for act in acts:
                try:
                    act()
                    mg.synchronize()
                except (IndexOutOfRangeError, ZeroDivisionError):
                    continue
                raise SystemExit(f"nothing was reported for {{wild}}")
            try:
                out = x.index_select(0, i)
                mg.synchronize()
            except IndexOutOfRangeError:
                pass
            assert out.tolist() == [x[1].tolist(), [0.0] * 8, x[3].tolist(), x[0].tolist()]
        assert all(g.tolist() == [7.0] * 256 for g in guards)
        assert x.tolist() == np.arange(32).reshape(4, 8).tolist()
        print("alive")
    """)
    assert (done.returncode, done.stdout.split()) == (0, ["alive"]), done.stdout + done.stderr


def test_a_kernel_that_reads_an_index_and_is_trusted_checks_it_itself() -> None:
    """Rows that are not static-index either leave the driver's clamps on or compare every index before they use it."""
    for name in ("index_select", "gather", "segment_sum", "embedding_rows"):
        launches = _launches(REGISTRY[name], gpu.current().profile)
        readers = [launch.kernel for launch in launches if launch.kernel.key[0] != "pointwise" and 1 in launch.bindings]
        assert readers, name
        for kernel in readers:
            assert not kernel.trusted or "status_report(" in kernel.source(gpu.current().profile), (name, kernel.label)


def test_some_kernel_reports_for_every_public_lookup() -> None:
    for name in ("index_select", "gather", "segment_sum", "embedding_rows"):
        launches = _launches(REGISTRY[name], gpu.current().profile)
        assert any(STATUS in launch.bindings for launch in launches), name


def test_rows_that_take_an_index_say_so() -> None:
    """A row with an integer input that addresses memory is marked: its kernels read through it."""
    marked = {n for n, r in REGISTRY.items() if not r.static_index}
    assert {"index_select", "gather", "segment_sum", "embedding_rows"} <= marked
    assert {n for n, r in REGISTRY.items() if "index" in r.names} <= marked


def test_a_violation_at_exit_is_no_abort() -> None:
    done = child("""
        import meganeura as mg
        x = mg.ones(4, 3)
        y = x.index_select(0, mg.tensor([99]))
        print("alive")
    """)
    assert (done.returncode, done.stdout.split()) == (0, ["alive"]), done.stderr


def test_a_session_that_died_before_the_sync_still_names_op_and_line() -> None:
    mg.synchronize()
    out = mg.compile(lambda x, i: x.index_select(0, i) * 2)(table(), mg.tensor([9]))
    gc.collect()
    with pytest.raises(IndexOutOfRangeError, match=f"index_select: index 9 .*size 4\n.*{HERE}"):
        out.tolist()
    mg.synchronize()


def test_names_of_dispatches_that_nobody_waits_for_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    from meganeura.gpu import transfer

    monkeypatch.setattr(transfer, "MAX_NOTED", 10)
    mg.synchronize()
    x, i = table(), mg.tensor([0])
    for _ in range(30):
        x.index_select(0, i)
    x.index_select(0, mg.tensor([7]))
    assert len(gpu.current().status.noted) <= 10
    with pytest.raises(IndexOutOfRangeError, match="index_select: index 7"):
        mg.synchronize()
