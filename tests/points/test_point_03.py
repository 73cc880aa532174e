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
    poison = [mg.full((100,), float("nan")) for _ in range(8)]
    mg.synchronize()
    del poison
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


def test_a_lost_operand_that_is_written_in_place_stops_the_call_too() -> None:
    """An optimizer's moment that was never written: the parameter beside it keeps its value. Found late, and found before."""
    survives("""
    BOTH = '''
    @group(0) @binding(0) var<storage, read_write> p: array<f32>;
    @group(0) @binding(1) var<storage, read_write> m: array<f32>;
    @compute @workgroup_size(64) fn main(@builtin(global_invocation_id) g: vec3<u32>) { m[g.x] += 1.0; p[g.x] += m[g.x]; }
    '''
    kernel = Kernel(("both",), lambda _: BOTH, ("read_write", "read_write"), "both", params=False)
    both = d.prepare(Lowered((Launch(kernel, (0, 1), (1, 1, 1)),)))
    x, p = upload(d, np.full(64, 2, np.float32)), upload(d, np.full(64, 3, np.float32))
    for late in (True, False):
        m = d.alloc(256)
        d.faults.skip_checks = True
        d.record(d.prepare(scale(64, (70000, 1, 1))), (x, m), (9.0, 9.0), "u.py:2", "offender")
        d.faults.skip_checks = False
        if late:
            d.record(both, (p, m), (), "u.py:3", "both")
            raises(d.flush, "offender")
        else:
            raises(d.flush, "offender")
            raises(lambda: d.record(both, (p, m), (), "u.py:3", "both"), "offender")
        assert floats(d, p, 1)[0] == 3
    """)


def test_a_failure_found_while_the_ring_is_full_spoils_no_other_call() -> None:
    """The submit that makes room for a call's numbers finds a bad op and drops the bind groups of what it lost."""
    survives("""
    d.recorder.batch = 10_000
    p = d.prepare(scale(64))
    x, y, z = upload(d, np.full(64, 2, np.float32)), d.alloc(256), d.alloc(256)
    d.record(p, (y, z), (1.0, 0.0), None, "first")
    d.flush()
    d.free(y)
    again = d.alloc(256)
    assert again is y
    d.faults.skip_checks = True
    d.record(d.prepare(scale(64, (70000, 1, 1))), (x, y), (9.0, 9.0), "u.py:2", "offender")
    d.faults.skip_checks = False
    w = d.alloc(256)
    for _ in range(255):
        d.record(p, (x, w), (2.0, 1.0), None, "innocent")
    raises(lambda: d.record(p, (y, z), (1.0, 0.0), "u.py:3", "reader"), "offender")
    raises(d.flush, "offender")
    assert floats(d, w, 1)[0] == 5
    d.record(p, (w, z), (2.0, 1.0), None, "after")
    assert floats(d, z, 1)[0] == 11
    """)


def test_a_call_that_cannot_be_bound_leaves_no_half_of_itself() -> None:
    survives("""
    p = d.prepare(Lowered((scale_launch(64, (0, 1)), scale_launch(64, (1, 2)))))
    x, y, gone = upload(d, np.full(64, 2, np.float32)), upload(d, np.full(64, 7, np.float32)), d.alloc(4096)
    d.free(gone)
    d.pool.trim()
    d.synchronize()
    raises(lambda: d.record(p, (x, y, gone), (2.0, 1.0), "u.py:2", "half"), "half", "destroyed")
    assert floats(d, y, 1)[0] == 7
    """)


def test_temporaries_of_a_call_that_runs_out_of_memory_go_back() -> None:
    survives("""
    n = 1 << 20
    launches = (scale_launch(64, (0, TEMP(0))), scale_launch(64, (TEMP(0), TEMP(1))), scale_launch(64, (TEMP(1), 1)))
    two = d.prepare(Lowered(launches, (4 * n, 12 * n)))
    x, y = upload(d, np.full(64, 2, np.float32)), d.alloc(256)
    d.free(d.alloc(4 * n))
    live = d.memory().live
    d.faults.fail_alloc = 2
    raises(lambda: d.record(two, (x, y), (2.0, 1.0), "u.py:2", "two"), "cannot hold")
    assert d.memory().live == live
    d.record(two, (x, y), (2.0, 1.0), "u.py:2", "two")
    assert floats(d, y, 1)[0] == 23
    """)
