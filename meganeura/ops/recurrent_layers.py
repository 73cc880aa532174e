"""Recurrent layers and cells over the row of ops/recurrent.py, as torch.lstm and the like: stacked, in one or two directions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .. import dispatch
from ..errors import DTypeError, ShapeError
from ..provenance import site
from . import creation
from .matmul import batched_matmul
from .recurrent import CELLS, recurrence
from .table import COMPOSITES, composite
from .views import cat, reshape, stack, transpose, unsqueeze

if TYPE_CHECKING:
    from ..tensor import Tensor


def _joined(parts: Sequence[Tensor]) -> Any:
    """Tensors of the directions, one after another in a new first dimension."""
    return unsqueeze(parts[0], 0) if len(parts) == 1 else stack(parts)


def _bias(cell: str, ih: Sequence[Tensor], hh: Sequence[Tensor]) -> Any:
    """Both biases [G*H] of every direction as [D, B*H]: added up, except for what a GRU multiplies on the hidden side."""
    first, second = _joined(ih), _joined(hh)
    if cell != "gru":
        return first + second
    h = first.shape[1] // 3
    return cat([first[:, : 2 * h] + second[:, : 2 * h], first[:, 2 * h :], second[:, 2 * h :]], 1)


def _layer(cell: str, input: Tensor, states: Sequence[Tensor], params: Sequence[Sequence[Tensor]], biases: bool, lengths: Any) -> Any:
    """One layer: input [T, N, F], states [D, N, *] each, a list of parameters a direction. -> outputs, last states."""
    kind, count = CELLS[cell], 4 if biases else 2
    t, n, f = input.shape
    by_role = list(zip(*params, strict=True))
    weight = _joined(by_role[0])
    d, wide, _ = weight.shape
    gates = reshape(batched_matmul(reshape(input, 1, t * n, f), transpose(weight, 1, 2)), d, t, n, wide)
    if biases:
        bias = _bias(cell, by_role[2], by_role[3])
    else:
        bias = creation.fill(0.0, (d, wide // kind.gates * kind.biases), input.dtype)
    tensors = [gates, _joined(by_role[1]), bias, *states]
    if len(by_role) > count:
        tensors.append(_joined(by_role[count]))
    keep = dispatch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    out, hidden, *more = recurrence(tensors, lengths, cell, keep)
    return out, (hidden, more[1]) if kind.state else (hidden,)


def run_layers(
    cell: str,
    input: Tensor,
    hx: Sequence[Tensor],
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    lengths: Tensor | None = None,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """All layers of a recurrent network. input [T, N, F]; hx: first output [L*D, N, R] and, for 'lstm', state [L*D, N, H];
    params layer by layer, in each forwards then backwards: weights for input and output, both biases if any, a projection if
    any. lengths [N]: steps of each sequence. -> outputs [T, N, D*R], last states."""
    directions = 2 if bidirectional else 1
    each = len(params) // (num_layers * directions)
    check_input(cell, input, hx, params, num_layers * directions, each)
    ends: list[tuple[Tensor, ...]] = []
    out = input
    for layer in range(num_layers):
        rows = slice(layer * directions, (layer + 1) * directions)
        own = [params[i * each : (i + 1) * each] for i in range(rows.start, rows.stop)]
        if layer and dropout and train:
            out = COMPOSITES["dropout"](out, dropout, True)
        out, last = _layer(cell, out, [x[rows] for x in hx], own, has_biases, lengths)
        ends.append(last)
    return out, tuple(parts[0] if num_layers == 1 else cat(list(parts), 0) for parts in zip(*ends, strict=True))


def check_input(cell: str, input: Tensor, hx: Sequence[Tensor], params: Sequence[Tensor], count: int, each: int) -> None:
    """Raise where input, states and weights do not fit each other."""
    if input.ndim != 3 or input.shape[0] == 0:
        raise ShapeError(f"{cell}: expected an input of 3 dimensions and at least one step, got shape {list(input.shape)}\n  at {site()}")
    if input.shape[2] != params[0].shape[1]:
        raise ShapeError(f"{cell}: expected an input of {params[0].shape[1]} features, got shape {list(input.shape)}\n  at {site()}")
    if len(hx) != 1 + CELLS[cell].state:
        raise ShapeError(f"{cell}: expected {1 + CELLS[cell].state} initial states, got {len(hx)}\n  at {site()}")
    size = params[0].shape[0] // CELLS[cell].gates
    for name, x, width in zip(("hidden", "cell"), hx, (params[1].shape[1], size), strict=False):
        wanted = (count, input.shape[1], width)
        if x.shape != wanted:
            raise ShapeError(f"{cell}: expected an initial {name} state of shape {list(wanted)}, got {list(x.shape)}\n  at {site()}")
    for x in (*hx, *params):
        if x.dtype is not input.dtype:
            raise DTypeError(f"{cell}: the input is {input.dtype.name}, but a state or weight is {x.dtype.name}\n  at {site()}")


def _network(cell: str, input: Any, hx: Any, params: Any, rest: Sequence[Any]) -> Any:
    """torch.lstm and the like, whose last argument says which dimension comes first."""
    has_biases, num_layers, dropout, train, bidirectional, batch_first = rest
    x = transpose(input, 0, 1) if batch_first else input
    out, last = run_layers(cell, x, hx, params, has_biases, num_layers, dropout, train, bidirectional)
    return (transpose(out, 0, 1) if batch_first else out, *last)


@composite(method=False)
def lstm(
    input: Tensor, hx: Sequence[Tensor], params: Sequence[Tensor], has_biases: bool, num_layers: int, dropout: float, train: bool,
    bidirectional: bool, batch_first: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Long short-term memory layers. [T, N, F], ([L*D, N, R], [L*D, N, H]) -> [T, N, D*R], [L*D, N, R], [L*D, N, H]."""
    return _network("lstm", input, hx, params, (has_biases, num_layers, dropout, train, bidirectional, batch_first))  # type: ignore[no-any-return]


@composite(method=False)
def gru(
    input: Tensor, hx: Tensor, params: Sequence[Tensor], has_biases: bool, num_layers: int, dropout: float, train: bool,
    bidirectional: bool, batch_first: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Gated recurrent layers. [T, N, F], [L*D, N, H] -> [T, N, D*H], [L*D, N, H]."""
    return _network("gru", input, (hx,), params, (has_biases, num_layers, dropout, train, bidirectional, batch_first))  # type: ignore[no-any-return]


@composite(method=False)
def rnn_tanh(
    input: Tensor, hx: Tensor, params: Sequence[Tensor], has_biases: bool, num_layers: int, dropout: float, train: bool,
    bidirectional: bool, batch_first: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Elman recurrent layers with tanh. [T, N, F], [L*D, N, H] -> [T, N, D*H], [L*D, N, H]."""
    return _network("tanh", input, (hx,), params, (has_biases, num_layers, dropout, train, bidirectional, batch_first))  # type: ignore[no-any-return]


@composite(method=False)
def rnn_relu(
    input: Tensor, hx: Tensor, params: Sequence[Tensor], has_biases: bool, num_layers: int, dropout: float, train: bool,
    bidirectional: bool, batch_first: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Elman recurrent layers with relu. [T, N, F], [L*D, N, H] -> [T, N, D*H], [L*D, N, H]."""
    return _network("relu", input, (hx,), params, (has_biases, num_layers, dropout, train, bidirectional, batch_first))  # type: ignore[no-any-return]


# ---- one step ----


def _cell(cell: str, input: Tensor, hx: Sequence[Tensor], w_ih: Tensor, w_hh: Tensor, b_ih: Any, b_hh: Any) -> Any:
    """The states after one step on input [N, F] or [F]."""
    if input.ndim not in (1, 2):
        raise ShapeError(f"a {cell} cell expects an input of 1 or 2 dimensions, got shape {list(input.shape)}\n  at {site()}")
    lead = (1, 1) if input.ndim == 1 else (1,)
    for x in hx:
        if x.ndim != input.ndim:
            raise ShapeError(f"a {cell} cell got input {list(input.shape)} and state {list(x.shape)}: ranks differ\n  at {site()}")
    params = [w_ih, w_hh] + ([] if b_ih is None else [b_ih, b_hh])
    _, last = run_layers(
        cell, reshape(input, *lead, *input.shape), [reshape(x, *lead, *x.shape) for x in hx], params, b_ih is not None, 1, 0.0, False, False
    )  # fmt: skip
    return tuple(reshape(x, *y.shape) for x, y in zip(last, hx, strict=True))


@composite(method=False)
def lstm_cell(
    input: Tensor, hx: Sequence[Tensor], w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """One LSTM step. [N, F], ([N, H], [N, H]) -> [N, H], [N, H]. Source: Hochreiter & Schmidhuber 1997."""
    return _cell("lstm", input, hx, w_ih, w_hh, b_ih, b_hh)  # type: ignore[no-any-return]


@composite(method=False)
def gru_cell(input: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None) -> Tensor:
    """One GRU step. [N, F], [N, H] -> [N, H]. Source: arXiv:1406.1078."""
    return _cell("gru", input, (hx,), w_ih, w_hh, b_ih, b_hh)[0]  # type: ignore[no-any-return]


@composite(method=False)
def rnn_tanh_cell(input: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None) -> Tensor:
    """tanh(input @ w_ih.T + b_ih + hx @ w_hh.T + b_hh). [N, F], [N, H] -> [N, H]."""
    return _cell("tanh", input, (hx,), w_ih, w_hh, b_ih, b_hh)[0]  # type: ignore[no-any-return]


@composite(method=False)
def rnn_relu_cell(input: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None) -> Tensor:
    """relu(input @ w_ih.T + b_ih + hx @ w_hh.T + b_hh). [N, F], [N, H] -> [N, H]."""
    return _cell("relu", input, (hx,), w_ih, w_hh, b_ih, b_hh)[0]  # type: ignore[no-any-return]
