"""Graphs written down before they run: shapes at once, mistakes at their line, values through Eager or a session."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meganeura as mg
from meganeura import nn, optim

RNG = np.random.default_rng(0)


def network() -> tuple[mg.Graph, Any]:
    """A classifier of 4 features in batches of 8, and its logits."""
    g = mg.Graph("classifier")
    x, y = g.input("x", (8, 4)), g.input("y", (8,), "int64")
    w1 = g.parameter("hidden.weight", (16, 4), nn.init.xavier_uniform_)
    b1 = g.parameter("hidden.bias", (16,))
    w2 = g.parameter("out.weight", init=RNG.standard_normal((3, 16), np.float32) * 0.1)
    h = g.relu(g.linear(x, w1, b1)).named("hidden")
    logits = (h @ w2.T).named("logits")
    g.set_outputs([g.cross_entropy(logits, y), logits])
    return g, logits


def batch() -> dict[str, Any]:
    return {"x": RNG.standard_normal((8, 4), np.float32), "y": RNG.integers(0, 3, (8,))}


def test_shapes_are_known_while_it_is_built() -> None:
    g, logits = network()
    assert logits.shape == (8, 3) and logits.dtype is mg.float32 and g.node("hidden").shape == (8, 16)
    values, places = g.topk(logits, 2)
    assert values.shape == places.shape == (8, 2) and places.dtype is mg.int64
    assert (2 * logits - 1 / (logits + 1) ** 2)[:, 1:].sum(-1).shape == (8,) and (logits > 0).dtype is mg.bool
    assert logits.T.shape == (3, 8) and logits.reshape(-1).shape == (24,) and g.cat([logits, logits], 1).shape == (8, 6)
    assert "classifier" in str(g) and "hidden.weight" in str(g) and "cross_entropy" in str(g)
    with pytest.raises(mg.ShapeError, match=r"test_graph\.py"):
        logits @ logits
    assert (logits + 0).shape == (8, 3)  # the failed call left nothing behind


def test_building_draws_no_random_numbers() -> None:
    mg.manual_seed(3)
    before = mg.get_rng_state()
    g = mg.Graph()
    g.dropout(g.input("x", (3,)), 0.5)
    np.testing.assert_array_equal(before, mg.get_rng_state())


def test_mistakes_are_named() -> None:
    g, logits = network()
    other, _ = network()
    for call, words in [
        (lambda: g.relu_(logits), "relu_ changes a tensor in place"),
        (lambda: g.input("x", (3,)), "already has a node named 'x'"),
        (lambda: g.relu(other.node("logits")), "belongs to graph"),
        (lambda: g.node("hiden"), "'hidden'"),
        (lambda: bool(logits), "no value while its graph is built"),
        (lambda: g.set_outputs([]), "at least one output"),
        (lambda: g.parameter("p"), "needs a shape"),
        (lambda: g.parameter("p", (2,), np.zeros(3)), r"shape \[2\] got an init of shape \[3\]"),
        (lambda: mg.build_session(mg.Graph()), "has no outputs"),
        (lambda: mg.SessionConfig("both"), "'training' or 'inference'"),
        (lambda: mg.SessionConfig.inference(accumulate=2), "nothing is differentiated"),
    ]:
        with pytest.raises(mg.MeganeuraError, match=words):
            call()
    with pytest.raises(AttributeError, match="no op 'frobnicate'"):
        g.frobnicate(logits)
    g.set_outputs(logits)
    with pytest.raises(mg.ShapeError, match="is the loss, a scalar"):
        mg.build_session(g)


def test_eager_runs_nodes_under_construction() -> None:
    g, logits = network()
    eager, data = mg.Eager(g), batch()
    with pytest.raises(mg.MeganeuraError, match="input 'x' has no value yet"):
        eager.eval(logits)
    got = eager.eval(logits, x=data["x"]).numpy()
    hidden = eager.eval(g.node("hidden")).numpy()
    want = np.maximum(data["x"] @ eager.eval(g.parameters["hidden.weight"].node).numpy().T, 0)
    np.testing.assert_allclose(hidden, want, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(got, want @ np.asarray(g.parameters["out.weight"].init).T, rtol=1e-5, atol=1e-6)
    eager.set_parameter("hidden.weight", np.zeros((16, 4), np.float32))
    assert not eager.eval(g.node("hidden")).numpy().any()
    later = (logits * 2).softmax(-1)  # building goes on
    np.testing.assert_allclose(eager.eval(later).numpy(), np.full((8, 3), 1 / 3), rtol=1e-6)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_session_trains_as_eager_code(accumulate: int) -> None:
    g, _ = network()
    config = mg.SessionConfig.training(
        optimizer=lambda p: optim.AdamW(p, lr=0.05), max_grad_norm=1.0, accumulate=accumulate, lr_multipliers={"out": 0.5}
    )
    session = mg.build_session(g, config)
    weights = {n: nn.Parameter(mg.tensor(session.read_param(n))) for n in session.param_names}
    opt = optim.AdamW(weights.items(), lr=0.05)
    opt.set_lr_multipliers({"out": 0.5})
    accumulation = optim.GradientAccumulation(opt, accumulate, 1.0)
    for _ in range(4):
        data = batch()
        session.step(**data)
        h = nn.functional.linear(mg.tensor(data["x"]), weights["hidden.weight"], weights["hidden.bias"]).relu()
        loss = nn.functional.cross_entropy(h @ weights["out.weight"].T, mg.tensor(data["y"]))
        accumulation.backward(loss)
        accumulation.step()
        assert session.read_loss() == pytest.approx(loss.item(), rel=1e-5)
    for name in session.param_names:
        np.testing.assert_allclose(session.read_param(name), weights[name].detach().numpy(), rtol=1e-4, atol=1e-6)
    session.wait()
    assert session.read_output("logits").shape == (8, 3) and session.read_output(-1).shape == (8, 3)


def test_gradients_without_an_optimizer() -> None:
    g, _ = network()
    session, data = mg.build_session(g), batch()
    with pytest.raises(mg.MeganeuraError, match="no value yet for 'x', 'y'"):
        session.step()
    session.set_input("x", data["x"])
    session.set_input("y", data["y"])
    with pytest.raises(mg.MeganeuraError, match="no step was made"):
        session.read_param_grad("out.weight")
    session.step()
    first = session.read_param_grad("out.weight")
    session.step()
    np.testing.assert_array_equal(session.read_param_grad("out.weight"), first)  # not added up
    logits = session.read_output("logits").astype(np.float64)
    p = np.exp(logits - logits.max(1, keepdims=True))
    p = (p / p.sum(1, keepdims=True) - np.eye(3)[data["y"]]) / 8
    h = mg.Eager(g)
    h.set_parameter("hidden.weight", session.read_param("hidden.weight"))
    np.testing.assert_allclose(first, p.T @ h.eval(g.node("hidden"), x=data["x"]).numpy(), rtol=1e-4, atol=1e-6)


def test_inference_shares_parameters_with_training() -> None:
    g, logits = network()
    train = mg.build_session(g, mg.SessionConfig.training(optimizer=lambda p: optim.SGD(p, lr=0.1)))
    x = g.node("x")
    g2 = mg.Graph("reader")
    z = g2.relu(g2.linear(g2.input("x", x.shape), g2.parameter("hidden.weight", (16, 4)), g2.parameter("hidden.bias", (16,))))
    g2.set_outputs((z @ g2.parameter("out.weight", (3, 16)).T).named("logits"))
    read = mg.build_session(g2, mg.SessionConfig.inference())
    read.share_parameters_from(train)
    for _ in range(2):
        data = batch()
        train.step(**data)
        read.step(x=data["x"])
        after = mg.Eager(g)
        for name in train.param_names:
            after.set_parameter(name, train.read_param(name))
        np.testing.assert_allclose(read.read_output(), after.eval(logits, x=data["x"]).numpy(), rtol=1e-5, atol=1e-6)
    with pytest.raises(mg.MeganeuraError, match="has no loss"):
        read.read_loss()
    with pytest.raises(mg.MeganeuraError, match="has no parameter named 'out'"):
        read.read_param("out")
    with pytest.raises(mg.ShapeError, match=r"input 'x' has shape \[8, 4\], got \[7, 4\]"):
        read.step(x=np.zeros((7, 4), np.float32))


def test_steps_after_the_first_make_nothing() -> None:
    g, _ = network()
    session = mg.build_session(g, mg.SessionConfig.training(optimizer=lambda p: optim.Adam(p)))
    data = {k: mg.tensor(v) for k, v in batch().items()}
    for _ in range(3):
        session.step(**data)
    counters = mg.device().counters
    before = counters.pipelines, counters.buffers, session._step.traces
    session.set_learning_rate(0.5)
    for _ in range(3):
        session.step(**data)
    assert before == (counters.pipelines, counters.buffers, session._step.traces)
    summary = session.memory_summary()
    assert summary["parameters"] == 4 * (64 + 16 + 48) and summary["optimizer"] == 2 * summary["parameters"]
    assert 0 < summary["values"] <= summary["values without reuse"]


def test_a_bound_tensor_is_read_at_every_step() -> None:
    g = mg.Graph()
    g.set_outputs(g.input("x", (5,)) * 2)
    session = mg.build_session(g, mg.SessionConfig.inference())
    x = mg.ones(5)
    session.bind_external_buffer("x", x)
    session.step()
    x.fill_(4.0)
    session.step()
    assert session.read_output().tolist() == [8.0] * 5
    device = mg.device()
    usage = device.alloc(64).device.wgpu.create_buffer(size=64, usage="STORAGE|COPY_SRC|COPY_DST").usage
    shared = device.wgpu.create_buffer_with_data(data=np.arange(16, dtype=np.float32), usage=usage)
    session.bind_external_buffer("x", shared)
    session.step()
    assert session.read_output().tolist() == [0.0, 2.0, 4.0, 6.0, 8.0]
    small = device.wgpu.create_buffer(size=16, usage=usage)
    with pytest.raises(mg.MeganeuraError, match="needs a buffer of 32 bytes"):
        session.bind_external_buffer("x", small)


def test_a_trainer_learns_and_tells() -> None:
    g = mg.Graph("line")
    x, y = g.input("x", (32, 3)), g.input("y", (32, 1))
    out = g.linear(x, g.parameter("weight", (1, 3)), g.parameter("bias", (1,))).named("out")
    g.set_outputs([g.mse_loss(out, y).named("loss"), out])
    session = mg.build_session(g, mg.SessionConfig.training(optimizer=lambda p: optim.SGD(p, lr=0.3)))
    points = RNG.standard_normal((128, 3)).astype(np.float32)
    data = mg.data.TensorDataset(points, (points @ [[1.0], [2.0], [-1.0]] + 0.5).astype(np.float32))
    seen: list[int] = []
    trainer = mg.Trainer(
        session,
        mg.TrainConfig(
            scheduler=lambda o: optim.lr_scheduler.StepLR(o, 8, 0.5),
            metrics={"error": lambda outputs, batch: (outputs["out"] - batch["y"]).abs().mean()},
            progress=False,
            on_epoch=lambda epoch, row: seen.append(epoch),
        ),
    )
    history = trainer.train(mg.data.DataLoader(data, 32, shuffle=True), 5)
    assert len(history.losses) == 20 and seen == [1, 2, 3, 4, 5] and len(history.epochs) == 5
    assert history.epochs[-1]["loss"] < 1e-3 < history.epochs[0]["loss"] and history.epochs[-1]["error"] < 0.05
    np.testing.assert_allclose(session.read_param("weight"), [[1.0, 2.0, -1.0]], atol=0.05)
    assert session.optimizer.param_groups[0]["lr"] == pytest.approx(0.3 * 0.25) and session._step.traces == 1
    assert "epoch 5: loss" in str(history)
    with pytest.raises(mg.MeganeuraError, match="batch of 1 tensors for the inputs 'x', 'y'"):
        trainer.train([mg.ones(32, 3)])
    with pytest.raises(mg.ShapeError, match=r"got \[7, 3\]"):
        trainer.train([(mg.ones(7, 3), mg.ones(7, 1))])


def test_dropout_draws_anew_at_every_step() -> None:
    g = mg.Graph()
    g.set_outputs(g.dropout(g.constant(np.ones(1000, np.float32)), 0.5))
    session = mg.build_session(g, mg.SessionConfig.inference())
    a, b = (session.step()[0].numpy() for _ in range(2))
    assert 300 < (a == 0).sum() < 700 and (a != b).any()
