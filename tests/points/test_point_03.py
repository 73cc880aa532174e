"""One bad op loses nothing else: it alone raises, what reads its result raises the same, everything else is as asked."""

from __future__ import annotations

from tests.points.failing import survives


def test_the_bad_op_alone_is_blamed_and_the_others_ran() -> None:
    survives("""
    x = mg.ones(100)
    y, z = x.exp(), x * 2 + 1
    mg.synchronize()
    before = x * 3
    fails("exp")
    y = x.exp()
    back()
    after = before + x * 2
    e = raises(after.numpy, "exp", "70000")
    assert "sub" not in str(e) and "add" not in str(e)
    assert after.tolist() == [5.0] * 100
    assert before.tolist() == [3.0] * 100
    """)


def test_the_user_line_is_named() -> None:
    survives("""
    code = "def work(x):\\n    # line two\\n    return x.exp()\\n"
    names = {}
    exec(compile(code, "the_users_file.py", "exec"), names)
    x = mg.ones(100)
    names["work"](x)
    fails("exp")
    names["work"](x)
    back()
    raises(mg.synchronize, "exp", "the_users_file.py:3")
    """)


def test_results_that_were_never_written_raise_when_read() -> None:
    """Until their memory is handed out again; at a first error's sync, and at every later read."""
    survives("""
    x = mg.ones(100)
    y = x.exp()
    mg.synchronize()
    fails("exp")
    y = x.exp()
    back()
    raises(mg.synchronize, "exp")
    for _ in range(2):
        raises(y.numpy, "exp")
        raises(lambda: y[3].item(), "exp")
        raises(lambda: (y + 1).numpy(), "exp")
    f = mg.compile(lambda t: t * 2)
    raises(lambda: f(y), "exp")
    assert f(x).tolist() == [2.0] * 100
    buffer = y._storage.buffer
    del y
    gc.collect()
    kept = []
    while not any(t._storage.buffer is buffer for t in kept):
        kept.append(mg.full((100,), 7.0))
        assert len(kept) < 50
    assert all(t.tolist() == [7.0] * 100 for t in kept)
    """)


def test_memory_that_was_handed_on_before_the_failure_was_found_is_not_blamed() -> None:
    survives("""
    x = mg.ones(100)
    y, w = x.exp(), x * 5
    mg.synchronize()
    del w
    fails("exp")
    y = x.exp()
    back()
    buffer = y._storage.buffer
    z = y + 1
    del y
    w = x * 5
    assert w._storage.buffer is buffer, "memory was not reused: this test shows nothing"
    raises(mg.synchronize, "exp")
    assert w.tolist() == [5.0] * 100
    raises(z.numpy, "exp")
    """)


def test_what_reads_a_lost_result_does_not_run() -> None:
    """A parameter that was to be updated from garbage keeps its value."""
    survives("""
    x, p, q = mg.ones(100), mg.full((100,), 3.0), mg.full((100,), 4.0)
    g = x.exp()
    p += g; p -= g
    mg.synchronize()
    q += 1
    fails("exp")
    g = x.exp()
    back()
    p += g * 2
    q += 1
    raises(mg.synchronize, "exp")
    assert abs(p.sum().item() - 300) < 1e-2
    assert q.tolist() == [6.0] * 100
    """)


def test_a_failed_in_place_op_leaves_the_old_value() -> None:
    survives("""
    x = mg.full((100,), 3.0)
    x.neg_()
    x.neg_()
    mg.synchronize()
    fails("neg")
    x.neg_()
    back()
    raises(mg.synchronize, "neg")
    assert x.tolist() == [3.0] * 100
    x.neg_()
    assert x.tolist() == [-3.0] * 100
    """)


def test_a_call_of_several_dispatches_fails_as_one() -> None:
    survives("""
    values = np.random.default_rng(0).standard_normal((3, 100000)).astype(np.float32)
    x = mg.tensor(values)
    total = x.sum()
    launches = {s[0].name: len(p.prepared.steps) for s, p in dispatch.current().plans.items() if p.prepared}
    assert launches["sum"] > 1, "the sum takes one dispatch: this test shows nothing"
    mg.synchronize()
    fails("sum")
    total = x.sum()
    back()
    raises(mg.synchronize, "sum")
    raises(total.item, "sum")
    assert abs(x.sum().item() - values.astype(np.float64).sum()) < 1
    """)


def test_a_compiled_call_does_not_run_on_a_lost_argument() -> None:
    survives("""
    p = mg.full((100,), 3.0)
    @mg.compile
    def update(g):
        p.add_(g)
        return g * 2
    x = mg.zeros(100)
    g = x.exp()
    update(g)
    g2 = x.exp()
    mg.synchronize()
    before = p.numpy()
    fails("exp")
    g2 = x.exp()
    back()
    raises(lambda: (update(g2), mg.synchronize()), "exp")
    assert (p.numpy() == before).all()
    mg.synchronize()
    update(g)
    assert (p.numpy() == before + 1).all()
    """)
