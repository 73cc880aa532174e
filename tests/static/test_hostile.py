"""Graphs and sessions in the hands of a hostile user: odd shapes and names, arguments that change later, graphs that go on."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from typing import Any

import numpy as np
import pytest

import meganeura as mg
from meganeura import nn, optim

INFERENCE = mg.SessionConfig.inference()
TRAINING = mg.SessionConfig.training(optimizer=lambda p: optim.SGD(p, lr=0.1))


def network() -> tuple[mg.Graph, Any]:
    g = mg.Graph("c")
    x, y = g.input("x", (8, 4)), g.input("y", (8,), "int64")
    logits = g.linear(x, g.parameter("w", (3, 4), nn.init.xavier_uniform_), g.parameter("b", (3,))).named("logits")
    g.set_outputs([g.cross_entropy(logits, y).named("loss"), logits])
    return g, logits


def batch() -> dict[str, Any]:
    return {"x": np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32), "y": np.arange(8) % 3}


def inferred(g: mg.Graph, output: Any, **inputs: Any) -> Any:
    g.set_outputs(output)
    session = mg.build_session(g, INFERENCE)
    session.step(**inputs)
    return session.read_output()


def test_shapes() -> None:
    g = mg.Graph()
    assert g.input("x", (np.int64(3), np.int32(2))).shape == (3, 2) and g.input("n", 3).shape == (3,)
    for bad in ((3.0,), (-1,), ("a",), None, "ab"):
        with pytest.raises(mg.ShapeError, match="non-negative ints"):
            g.input("y", bad)  # type: ignore[arg-type]


def test_inits() -> None:
    g = mg.Graph()
    np.testing.assert_array_equal(inferred(g, g.parameter("half", (3,), 0.5) + g.parameter("list", (3,), [1, 2, 3])), [1.5, 2.5, 3.5])
    with pytest.raises(mg.ShapeError, match="'w' of shape"):
        g.parameter("w", (3,), [1.0, 2.0])
    g.set_outputs(g.parameter("new", (3,), lambda t: mg.ones(3)) * 2)
    with pytest.raises(mg.MeganeuraError, match="did not change"):
        mg.build_session(g, INFERENCE)


def test_what_the_caller_changes_later() -> None:
    g, values, sizes, places = mg.Graph(), mg.ones(3), [2, 3], np.array([0, 1])
    x = g.input("x", (6,))
    constant, shaped, picked = g.constant(values), g.reshape(x, sizes), x[places]
    values.add_(5)
    sizes[:], places[:] = [3, 2], [3, 2]
    eager = mg.Eager(g)
    np.testing.assert_array_equal(eager.eval(constant).numpy(), 1)
    assert eager.eval(shaped, x=np.arange(6.0)).shape == (2, 3)
    np.testing.assert_array_equal(eager.eval(picked).numpy(), [0, 1])
    eager.eval(picked).fill_(7)
    np.testing.assert_array_equal(eager.eval(picked).numpy(), [0, 1])


def test_handed_out_constants_stay() -> None:
    g = mg.Graph()
    g.set_outputs([c := g.constant(np.arange(3.0)), c[1:]])
    session = mg.build_session(g, INFERENCE)
    for _ in range(2):
        for t in session.step():
            t.add_(5)
    session.step()
    np.testing.assert_array_equal(session.read_output(), [0, 1, 2])


def test_changes_in_place_are_refused_however_they_are_written() -> None:
    g = mg.Graph()
    x, y = g.input("x", (3,)), g.input("y", (3,))
    for call in (lambda: g.relu(x, inplace=True), lambda: g.call("f", lambda t: t.add_(1), x), lambda: g.add(x, x, out=y)):
        with pytest.raises(mg.MeganeuraError, match="in place"):
            call()
    own = g.call("f", lambda t: (t * 1).add_(1), x)  # of a value of its own
    np.testing.assert_array_equal(inferred(g, own, x=np.zeros(3), y=np.zeros(3)), 1)


def test_running_statistics_are_parameters_that_change() -> None:
    g = mg.Graph()
    x, mean = g.input("x", (8, 3)), g.parameter("mean", (3,), trainable=False)
    y = g.batch_norm(x, mean, g.parameter("var", (3,), 1, trainable=False), g.parameter("w", (3,), 1), training=True)
    g.set_outputs(y.square().mean())
    session = mg.build_session(g, TRAINING)
    session.step(x=np.full((8, 3), 3.0))
    np.testing.assert_allclose(session.read_param("mean"), 0.3, rtol=1e-6)


def test_names_of_the_users_and_of_the_graph_do_not_meet() -> None:
    g = mg.Graph()
    x = g.input("x", (3,))
    (x + 1).named("add2")
    x + 1, x + 1
    g.constant(1.0, "constant1")
    g.constant(2.0)
    assert len({n.name for n in g.nodes}) == len(g.nodes)
    h = mg.Graph()
    total = h.input("self", (2,)) + h.input("node", (2,)) + h.input("name", (2,))
    given = dict.fromkeys(("self", "node", "name"), np.ones(2))
    np.testing.assert_array_equal(mg.Eager(h).eval(total, **given).numpy(), 3)
    np.testing.assert_array_equal(inferred(h, total, **given), 3)


@pytest.mark.parametrize("name", ["ü💥", "a b", "x" * 10_000, "a\nb", "<script>", "{index}", "%s", "../../etc", "a\0b"])
def test_odd_names(name: str) -> None:
    g = mg.Graph(name)
    g.set_outputs((g.input(name, (3,)).exp() + 1).named(name + "2"))
    session = mg.build_session(g, INFERENCE.debug())
    session.step(**{name: np.zeros(3)})
    np.testing.assert_array_equal(session.read_output(name + "2"), 2)
    np.testing.assert_array_equal(session.session.read_node_by_name("_".join((name + "2").split())), 2)
    assert "<script>" not in session.session._repr_html_() and str(g)


def test_a_session_is_of_the_graph_as_it_was() -> None:
    g, logits = network()
    session = mg.build_session(g, TRAINING)
    g.set_outputs(logits)
    g.inputs["x"].named("xx")
    g.parameters["w"].node.named("weight")
    g.input("z", (2,))
    session.step(**batch())
    assert session.read_output("logits").shape == (8, 3) and session.read_param_grad("w").shape == (3, 4)
    session.set_parameter("w", np.zeros((3, 4)))
    assert session.read_loss() > 0


def test_nodes_are_no_tensors_and_no_sequences_without_end() -> None:
    g, _ = network()
    x, scalar = g.node("x"), g.input("s", ())
    assert [row.shape for row in x] == [(4,)] * 8 and len(x) == 8
    for call in (lambda: list(scalar), lambda: len(scalar), lambda: float(x)):
        with pytest.raises(TypeError):
            call()
    for name in ("grad", "layout", "nonsense"):
        with pytest.raises(AttributeError):
            getattr(x, name)
    assert (np.float32(2) * x).shape == (np.ones(4, np.float32) * x).shape == (8, 4)
    for wrong in (network()[0].node("x"), "logits", 3):
        with pytest.raises(mg.MeganeuraError):
            mg.Eager(g).eval(wrong)  # type: ignore[arg-type]


def test_what_is_asked_for_too_early_or_wrongly() -> None:
    g, _ = network()
    session = mg.build_session(g)
    anything: Any = mg
    calls: list[Any] = [
        session.memory_summary,
        lambda: session.session,
        session.read_output,
        session.read_loss,
        session.step,
        lambda: session.bind_external_buffer("x", 5),
        lambda: session.set_input("q", 1),
        lambda: anything.build_session(5),
        lambda: anything.build_session(g, "training"),
        lambda: anything.SessionConfig(accumulate=True),
        lambda: anything.Graph(5),
        lambda: anything.Trainer(5),
        lambda: mg.build_session(g, anything.SessionConfig(optimizer="adam")),
        lambda: mg.build_session(g, anything.SessionConfig(optimizer=lambda p: None)),
    ]
    for call in calls:
        with pytest.raises(mg.MeganeuraError):
            call()
    for thing in (g, session):
        for copied in (copy.deepcopy, pickle.dumps):
            with pytest.raises(mg.MeganeuraError, match="cannot be copied"):
                copied(thing)


def test_sharing_asks_each_graph_what_it_trains() -> None:
    g, _ = network()
    user, trainer = mg.build_session(g, INFERENCE), mg.build_session(g, TRAINING)
    before = user.read_param("w").copy()
    trainer.share_parameters_from(user)
    trainer.step(**batch())
    assert (user.read_param("w") != before).any()

    frozen, free = mg.Graph("frozen"), mg.Graph("free")
    frozen.set_outputs((frozen.parameter("w", (1,), 1, trainable=False) * frozen.parameter("v", (1,), 1)).sum())
    free.set_outputs(free.parameter("w", (1,), 1).sum())
    a, b = mg.build_session(frozen, TRAINING), mg.build_session(free, TRAINING)
    a.share_parameters_from(b)
    a.step()
    assert b.read_param("w") == 1
    b.step()
    a.step()
    assert a.read_param("w") == np.float32(0.9)


def test_trainer_names_wrong_metrics_and_keeps_what_was_trained() -> None:
    g, _ = network()

    def trainer(**metrics: Any) -> mg.Trainer:
        return mg.Trainer(mg.build_session(g, TRAINING), mg.TrainConfig(progress=False, metrics=metrics))

    for value in (None, "x", mg.ones(3)):
        with pytest.raises(mg.MeganeuraError, match="metric 'm' gave"):
            trainer(m=lambda out, batch, value=value: value).train([batch()])
    with pytest.raises(mg.MeganeuraError, match="another name"):
        trainer(loss=lambda out, batch: 7.0)
    good = trainer(a=lambda out, batch: np.float32(2), b=lambda out, batch: mg.ones(1), c=lambda out, batch: True)
    with pytest.raises(mg.ShapeError):
        good.train([batch(), {k: v[:3] for k, v in batch().items()}])
    assert len(good.history.losses) == good.steps == 1
    assert good.train([batch()]).epochs == [{"loss": good.history.losses[-1], "a": 2.0, "b": 1.0, "c": 1.0}]


def test_sessions_die_and_steps_leave_nothing() -> None:
    g, _ = network()
    session = mg.build_session(g, mg.SessionConfig.training(optimizer=lambda p: optim.Adam(p)))
    given = {k: mg.tensor(v) for k, v in batch().items()}

    def go(s: Any, n: int) -> int:
        for _ in range(n):
            s.step(**given)
        s.read_loss()
        gc.collect()
        return len(gc.get_objects())

    before = go(session, 1000)  # what runs keep for each copy of their numbers and set of results is made
    assert go(session, 1000) - before < 100
    ref = weakref.ref(session)
    del session
    gc.collect()
    assert ref() is None
