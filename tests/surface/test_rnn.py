"""Recurrent networks against PyTorch with the same state dict: values, states and gradients; cells, packing, errors; compiled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from meganeura.nn.utils.rnn import (
    PackedSequence,
    pack_padded_sequence,
    pack_sequence,
    pad_packed_sequence,
    pad_sequence,
    pad_to_bucket,
    unpack_sequence,
    unpad_sequence,
)

import meganeura as mg
from meganeura import dispatch, nn

from .compare import floats, torch

R = torch.nn.utils.rnn
pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections:UserWarning")


def pair(kind: str, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
    """The same module in both libraries, PyTorch's first, with PyTorch's random parameters."""
    torch.manual_seed(3)
    theirs, ours = getattr(torch.nn, kind)(*args, **kwargs), getattr(nn, kind)(*args, **kwargs)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    ours.load_state_dict({k: v.numpy() for k, v in theirs.state_dict().items()})
    return theirs, ours


def flat(x: Any) -> list[Any]:
    return [y for part in x for y in flat(part)] if isinstance(x, (tuple, list)) else [x]


def both(modules: tuple[Any, Any], arrays: list[Any], call: Any, tolerance: float = 1e-5) -> None:
    """Compare results, gradients of the arrays and gradients of the parameters; call(module, library, tensors) -> results."""
    kept = []
    for lib, module in zip((torch, mg), modules, strict=True):
        leaves = [lib.tensor(a).requires_grad_() for a in arrays]
        outs = [o for o in flat(call(module, lib, leaves)) if o.requires_grad]
        rng = np.random.default_rng(5)
        total: Any = 0
        for o in outs:
            total = total + (o * lib.tensor(rng.standard_normal(tuple(o.shape)).astype(np.float32))).sum()
        module.zero_grad()
        total.backward()
        grads = [("input", leaf.grad) for leaf in leaves] + [(n, p.grad) for n, p in module.named_parameters()]
        kept.append(([("output", o.detach()) for o in outs], grads))
    for part, scale in ((0, 1), (1, 20)):
        for (name, want), (_, got) in zip(kept[0][part], kept[1][part], strict=True):
            assert (want is None) == (got is None), name
            if want is not None:
                w, g = want.numpy(), got.numpy()
                assert w.shape == g.shape, name
                size = max(1.0, float(np.abs(w).max(initial=0)))
                np.testing.assert_allclose(g, w, rtol=tolerance * scale, atol=tolerance * size * scale, err_msg=name)


def start(kind: str, module: Any, n: int, single: bool = False) -> list[Any]:
    """Initial states."""
    count = module.num_layers * (2 if module.bidirectional else 1)
    sizes = [module.proj_size or module.hidden_size] + ([module.hidden_size] if kind == "LSTM" else [])
    return [floats(*((count, s) if single else (count, n, s)), seed=i, low=-1, high=1) for i, s in enumerate(sizes)]


def with_states(kind: str) -> Any:
    def call(module: Any, lib: Any, leaves: list[Any]) -> Any:
        return module(leaves[0], tuple(leaves[1:]) if kind == "LSTM" else leaves[1])

    return call


KINDS = ["RNN", "GRU", "LSTM"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("steps", [1, 2, 5, 37])
@pytest.mark.parametrize(("layers", "bidirectional"), [(1, False), (2, True)])
def test_lengths_layers_directions(kind: str, steps: int, layers: int, bidirectional: bool) -> None:
    modules = pair(kind, 5, 8, layers, bidirectional=bidirectional)
    both(modules, [floats(steps, 3, 5)], lambda m, lib, x: m(x[0]))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("features", "hidden", "n"), [(1, 1, 1), (3, 7, 1), (4, 20, 17), (33, 66, 5)])
def test_sizes(kind: str, features: int, hidden: int, n: int) -> None:
    modules = pair(kind, features, hidden)
    both(modules, [floats(3, n, features), *start(kind, modules[1], n)], with_states(kind))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [{"batch_first": True}, {"bias": False}, {"bidirectional": True, "num_layers": 3}], ids=str)
def test_options_and_initial_states(kind: str, options: dict[str, Any]) -> None:
    modules = pair(kind, 4, 6, **options)
    x = floats(2, 5, 4) if options.get("batch_first") else floats(5, 2, 4)
    both(modules, [x, *start(kind, modules[1], 2)], with_states(kind))


@pytest.mark.parametrize("kind", KINDS)
def test_one_sequence_without_a_batch(kind: str) -> None:
    for options in ({}, {"bidirectional": True, "batch_first": True}):
        modules = pair(kind, 4, 6, **options)
        both(modules, [floats(5, 4)], lambda m, lib, x: m(x[0]))
        both(modules, [floats(5, 4), *start(kind, modules[1], 1, single=True)], with_states(kind))


def test_relu_and_projections() -> None:
    both(pair("RNN", 4, 6, 2, "relu"), [floats(5, 2, 4)], lambda m, lib, x: m(x[0]))
    for bidirectional in (False, True):
        modules = pair("LSTM", 4, 8, 2, proj_size=3, bidirectional=bidirectional)
        both(modules, [floats(6, 3, 4), *start("LSTM", modules[1], 3)], with_states("LSTM"))
        both(modules, [floats(1, 1, 4)], lambda m, lib, x: m(x[0]))


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_last_state_matters(kind: str) -> None:
    both(pair(kind, 4, 6, 2), [floats(5, 2, 4)], lambda m, lib, x: m(x[0])[1])


@pytest.mark.parametrize("kind", KINDS)
def test_half_precision(kind: str) -> None:
    theirs, ours = pair(kind, 4, 16)
    x = floats(6, 3, 4)
    want = theirs(torch.tensor(x))[0].detach().numpy()
    got = ours.half()(mg.tensor(x.astype(np.float16)))[0]
    assert got.dtype is mg.float16
    np.testing.assert_allclose(got.detach().numpy().astype(np.float32), want, atol=5e-3)


def test_dropout_between_layers() -> None:
    m = nn.LSTM(4, 64, 2, dropout=0.5)
    x = mg.tensor(floats(3, 2, 4))
    a, b = (m(x)[0].detach().numpy() for _ in range(2))
    assert not np.array_equal(a, b)
    m.eval()
    a, b = (m(x)[0].detach().numpy() for _ in range(2))
    np.testing.assert_array_equal(a, b)
    dropped = nn.GRU(4, 8, 2, dropout=1.0)
    with mg.no_grad():
        dropped.weight_ih_l1.zero_()
        np.testing.assert_allclose(dropped(x)[0].numpy(), dropped.eval()(x)[0].numpy(), rtol=1e-6)


# ---- cells ----


@pytest.mark.parametrize(
    ("kind", "options"), [("RNNCell", {}), ("RNNCell", {"nonlinearity": "relu"}), ("GRUCell", {}), ("LSTMCell", {})], ids=str
)
@pytest.mark.parametrize("lead", [(), (3,)])
def test_cells(kind: str, options: dict[str, Any], lead: tuple[int, ...]) -> None:
    for bias in (True, False):
        modules = pair(kind, 5, 6, bias, **options)
        both(modules, [floats(*lead, 5)], lambda m, lib, x: m(x[0]))
        states = [floats(*lead, 6, seed=i) for i in range(2 if kind == "LSTMCell" else 1)]
        both(modules, [floats(*lead, 5), *states], with_states(kind[:-4]))


def test_cell_in_a_loop_equals_the_network() -> None:
    net, cell = nn.GRU(4, 6), nn.GRUCell(4, 6)
    cell.load_state_dict({k[:-3]: v for k, v in net.state_dict().items()})
    x = mg.tensor(floats(5, 2, 4))
    h = None
    for t in range(5):
        h = cell(x[t], h)
    np.testing.assert_allclose(h.detach().numpy(), net(x)[1][0].detach().numpy(), rtol=1e-5, atol=1e-6)


# ---- functions of nn.functional, as torch's ----


def test_functions() -> None:
    for kind, name in (("LSTM", "lstm"), ("GRU", "gru"), ("RNN", "rnn_tanh")):
        theirs, ours = pair(kind, 4, 6, 2, bidirectional=True)
        x, states = floats(5, 2, 4), start(kind, ours, 2)
        made = []
        for lib, module in ((torch, theirs), (mg, ours)):
            hx = [lib.tensor(s) for s in states]
            params = [p for own in module.all_weights for p in own]
            made.append(getattr(lib, name)(lib.tensor(x), hx if kind == "LSTM" else hx[0], params, True, 2, 0.0, False, True, False))
        for w, g in zip(*made, strict=True):
            np.testing.assert_allclose(g.detach().numpy(), w.detach().numpy(), rtol=1e-5, atol=1e-6)


# ---- packed sequences ----


@pytest.mark.parametrize("lengths", [[5, 3, 3, 1], [2, 5, 1, 4], [5, 5, 5, 5]], ids=str)
@pytest.mark.parametrize("batch_first", [False, True])
def test_packing(lengths: list[int], batch_first: bool) -> None:
    x = floats(4, 5, 3) if batch_first else floats(5, 4, 3)
    want = R.pack_padded_sequence(torch.tensor(x), torch.tensor(lengths), batch_first, enforce_sorted=False)
    got = pack_padded_sequence(mg.tensor(x), mg.tensor(lengths), batch_first, enforce_sorted=False)
    for w, g in zip(want, got, strict=True):
        np.testing.assert_array_equal(g.numpy(), w.numpy())
    for options in ({}, {"padding_value": 7.0}, {"total_length": 8}):
        w, wl = R.pad_packed_sequence(want, batch_first, **options)
        g, gl = pad_packed_sequence(got, batch_first, **options)
        if max(lengths) == min(lengths) and "total_length" not in options:
            assert gl.tolist() == wl.tolist()
        np.testing.assert_array_equal(g.numpy(), w.numpy())
        np.testing.assert_array_equal(gl.numpy(), wl.numpy())


def test_lists_of_sequences() -> None:
    parts = [floats(4, 2), floats(2, 2, seed=1), floats(1, 2, seed=2)]
    ours, theirs = [mg.tensor(p) for p in parts], [torch.tensor(p) for p in parts]
    for options in ({}, {"batch_first": True, "padding_value": 3.0}, {"padding_side": "left"}):
        np.testing.assert_array_equal(pad_sequence(ours, **options).numpy(), R.pad_sequence(theirs, **options).numpy())
    for p, a, b in zip(parts, unpack_sequence(pack_sequence(ours)), unpad_sequence(pad_sequence(ours), [4, 2, 1]), strict=True):
        np.testing.assert_array_equal(a.numpy(), p)
        np.testing.assert_array_equal(b.numpy(), p)
    assert isinstance(pack_sequence(ours).to(mg.float16), PackedSequence)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lengths", [[6, 4, 4, 1], [1, 6, 2, 5], [6, 6, 6, 6]], ids=str)
def test_networks_on_packed_sequences(kind: str, lengths: list[int]) -> None:
    modules = pair(kind, 4, 6, 2, bidirectional=True)
    states = start(kind, modules[1], 4)

    def call(module: Any, lib: Any, leaves: list[Any]) -> Any:
        pack = (R if lib is torch else mg.nn.utils.rnn).pack_padded_sequence
        hx = tuple(leaves[1:]) if kind == "LSTM" else leaves[1]
        out, last = module(pack(leaves[0], lib.tensor(lengths), enforce_sorted=False), hx)
        return out.data, last

    both(modules, [floats(6, 4, 4), *states], call)


def test_lengths_do_what_packing_does() -> None:
    m = nn.LSTM(4, 6, 2, bidirectional=True)
    x, lengths = mg.tensor(floats(6, 3, 4)), [2, 6, 3]
    out, (h, c) = m(pack_padded_sequence(x, lengths, enforce_sorted=False))
    want, _ = pad_packed_sequence(out)
    got, (gh, gc) = m(x, lengths=mg.tensor(lengths))
    for a, b in ((want, got), (h, gh), (c, gc)):
        np.testing.assert_allclose(b.detach().numpy(), a.detach().numpy(), rtol=1e-5, atol=1e-6)


# ---- errors ----


def test_errors() -> None:
    for bad, error in (
        ({"dropout": 1.5}, ValueError), ({"hidden_size": 0}, ValueError), ({"hidden_size": 2.5}, TypeError),
        ({"num_layers": 0}, ValueError),
        ({"proj_size": 9}, ValueError), ({"proj_size": -1}, ValueError), ({"proj_size": 4}, ValueError),
    ):  # fmt: skip
        with pytest.raises(error):
            nn.LSTM(**({"input_size": 3, "hidden_size": 4} | bad))
        with pytest.raises(error):
            torch.nn.LSTM(**({"input_size": 3, "hidden_size": 4} | bad))
    with pytest.raises(ValueError, match="nonlinearity"):
        nn.RNN(3, 4, nonlinearity="gelu")
    with pytest.warns(UserWarning, match="dropout"):
        nn.GRU(3, 4, dropout=0.5)
    m = nn.LSTM(3, 4)
    x = mg.zeros(5, 2, 3)
    for call, part in (
        (lambda: m(mg.zeros(5, 2, 4)), "3 features"),
        (lambda: m(mg.zeros(3)), "2 or 3 dimensions"),
        (lambda: m(mg.zeros(0, 2, 3)), "at least one step"),
        (lambda: m(x, (mg.zeros(1, 3, 4), mg.zeros(1, 2, 4))), r"initial hidden state of shape \[1, 2, 4\], got \[1, 3, 4\]"),
        (lambda: m(x, (mg.zeros(1, 2, 4), mg.zeros(2, 2, 4))), "initial cell state"),
        (lambda: m(x, (mg.zeros(1, 4), mg.zeros(1, 4))), "state must have 3"),
        (lambda: m(x.half()), "float16"),
        (lambda: nn.GRUCell(3, 4)(mg.zeros(1, 1, 3)), "1 or 2 dimensions"),
        (lambda: pack_padded_sequence(x, [1, 2]), "must decrease"),
        (lambda: pack_padded_sequence(x, [5, 0]), "between 1 and 5"),
        (lambda: pack_padded_sequence(x, [5]), "2 lengths"),
        (lambda: pad_packed_sequence(pack_padded_sequence(x, [5, 2]), total_length=3), "total_length"),
    ):
        with pytest.raises(mg.MeganeuraError, match=part):
            call()


def test_second_derivatives_are_refused() -> None:
    m, x = nn.GRU(2, 3), mg.tensor(floats(2, 1, 2)).requires_grad_()
    (g,) = mg.grad([m(x)[0].sum()], [x], create_graph=True)
    with pytest.raises(mg.NoGradientError, match="recurrence_grad"):
        g.sum().backward()


# ---- compiled ----


def train(m: Any) -> Any:
    def step(x: Any, lengths: Any = None) -> Any:
        out, last = m(x, lengths=lengths)
        loss = (out * out).sum() + sum(s.sum() for s in (last if isinstance(last, tuple) else (last,)))
        m.zero_grad()
        loss.backward()
        return loss

    return step


@pytest.mark.parametrize("kind", KINDS)
def test_compiled_equals_eager(kind: str) -> None:
    m = getattr(nn, kind)(4, 8, 2, bidirectional=True)
    step = train(m)
    compiled = mg.compile(step)
    for t in (3, 7, 3):
        x = mg.tensor(floats(t, 2, 4, seed=t))
        got = compiled(x).item(), [p.grad.numpy() for p in m.parameters()]
        want = step(x).item(), [p.grad.numpy() for p in m.parameters()]
        np.testing.assert_allclose(got[0], want[0], rtol=1e-5)
        for g, w in zip(got[1], want[1], strict=True):
            np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-5)


def pipelines() -> int:
    return dispatch.hooks.eager().device.counters.pipelines  # type: ignore[no-any-return,attr-defined]


def test_buckets_of_lengths_share_sessions() -> None:
    m = nn.LSTM(4, 8)
    compiled = mg.compile(train(m))
    rng = np.random.default_rng(0)
    seen = set()
    for t in rng.integers(33, 65, 12):
        x = mg.tensor(floats(int(t), 2, 4, seed=int(t)))
        wide, lengths = pad_to_bucket(x, parts=4)
        seen.add(wide.shape[0])
        assert wide.shape[0] - t < 8
        assert lengths.tolist() == [t, t]
        np.testing.assert_allclose(compiled(wide, lengths).item(), train(m)(x).item(), rtol=1e-5)
    assert len(seen) <= 4
    assert compiled.sessions == len(seen)


def test_new_lengths_build_no_pipelines() -> None:
    m = nn.GRU(4, 8)
    compiled = mg.compile(lambda x, lengths: m(x, lengths=lengths)[0])
    lengths = mg.tensor([2, 1])
    for t in (16, 20, 24):
        compiled(mg.tensor(floats(t, 2, 4)), lengths)
    before = pipelines()
    for t in (28, 32, 36):
        compiled(mg.tensor(floats(t, 2, 4)), lengths)
    assert pipelines() == before


def test_pad_to_bucket() -> None:
    x = mg.tensor(floats(2, 19, 3))
    wide, lengths = pad_to_bucket(x, mg.tensor([19, 5]), batch_first=True)
    assert wide.shape == (2, 20, 3)
    assert lengths.tolist() == [19, 5]
    np.testing.assert_array_equal(wide.numpy()[:, :19], x.numpy())
    assert not wide.numpy()[:, 19].any()
    for t in range(1, 200):
        assert t <= pad_to_bucket(mg.zeros(t, 1, 1))[0].shape[0] <= t * 1.125 + 1
