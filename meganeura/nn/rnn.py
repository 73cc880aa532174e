"""Recurrent networks: RNN, LSTM and GRU over whole sequences, and their cells for one step. Parameters have PyTorch's names."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from ..errors import ShapeError
from ..ops.creation import fill
from ..ops.factory import empty
from ..ops.index import index_select
from ..ops.recurrent_layers import run_layers
from ..provenance import site
from ..tensor import Tensor
from . import functional as F
from . import init
from .module import Module
from .packing import PackedSequence, packed, padded
from .parameter import Parameter

_GATES = {"tanh": 1, "relu": 1, "lstm": 4, "gru": 3}


class RNNBase(Module):
    """What RNN, LSTM and GRU have in common. `mode`: RNN_TANH, RNN_RELU, LSTM or GRU."""

    def __init__(
        self,
        mode: str,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        _check_sizes(mode, hidden_size, num_layers, dropout, proj_size)
        self.mode, self.input_size, self.hidden_size, self.num_layers = mode, input_size, hidden_size, num_layers
        self.bias, self.batch_first, self.dropout = bias, batch_first, float(dropout)
        self.bidirectional, self.proj_size = bidirectional, proj_size
        self._cell = mode.rsplit("_", maxsplit=1)[-1].lower()
        width, wide = proj_size or hidden_size, _GATES[self._cell] * hidden_size
        for layer in range(num_layers):
            features = input_size if layer == 0 else width * (2 if bidirectional else 1)
            shapes: dict[str, tuple[int, ...]] = {"weight_ih": (wide, features), "weight_hh": (wide, width)}
            shapes |= {"bias_ih": (wide,), "bias_hh": (wide,)} if bias else {}
            shapes |= {"weight_hr": (proj_size, hidden_size)} if proj_size else {}
            for suffix in ("", "_reverse") if bidirectional else ("",):
                for name, shape in shapes.items():
                    setattr(self, f"{name}_l{layer}{suffix}", Parameter(empty(shape, dtype=dtype, device=device)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all parameters uniformly from +-1/sqrt(hidden_size)."""
        bound = 1 / math.sqrt(self.hidden_size)
        for p in self.parameters():
            init.uniform_(p, -bound, bound)

    def flatten_parameters(self) -> None:
        """Does nothing: parameters are used as they lie."""

    def _names(self) -> list[list[str]]:
        """Parameter names, a list for each layer and direction."""
        roles = ["weight_ih", "weight_hh", *(["bias_ih", "bias_hh"] if self.bias else []), *(["weight_hr"] if self.proj_size else [])]
        suffixes = ("", "_reverse") if self.bidirectional else ("",)
        return [[f"{role}_l{layer}{suffix}" for role in roles] for layer in range(self.num_layers) for suffix in suffixes]

    @property
    def all_weights(self) -> list[list[Parameter]]:
        """Parameters, a list for each layer and direction."""
        return [[getattr(self, name) for name in names] for names in self._names()]

    def _sizes(self) -> tuple[int, ...]:
        """Features of each state."""
        return (self.proj_size or self.hidden_size, self.hidden_size)[: 1 + (self._cell == "lstm")]

    def _states(self, hx: Any, n: int, like: Tensor) -> list[Tensor]:
        """Initial states [L*D, N, *], zeros if none were given."""
        if hx is not None:
            return list(hx) if self._cell == "lstm" else [hx]
        count = self.num_layers * (2 if self.bidirectional else 1)
        return [fill(0.0, (count, n, size), like.dtype) for size in self._sizes()]

    def _run(self, x: Tensor, hx: Any, lengths: Tensor | None) -> tuple[Tensor, tuple[Tensor, ...]]:
        """x [T, N, F] through all layers."""
        if x.shape[-1] != self.input_size:
            raise ShapeError(f"{type(self).__name__} expects {self.input_size} features, got an input {list(x.shape)}\n  at {site()}")
        params = [p for own in self.all_weights for p in own]
        states = self._states(hx, x.shape[1], x)
        return run_layers(
            self._cell, x, states, params, self.bias, self.num_layers, self.dropout, self.training, self.bidirectional, lengths
        )  # fmt: skip

    def forward(self, input: Any, hx: Any = None, lengths: Tensor | None = None) -> Any:
        """Outputs and last states for input [T, N, F] ([N, T, F] if batch_first, [T, F] for one sequence) or a PackedSequence.

        `lengths` [N], an addition to PyTorch: how many steps each sequence has. It does what packing does, but input and
        outputs stay padded (outputs with zeros), so that a compiled function sees the same shapes whatever the lengths.
        """
        if isinstance(input, PackedSequence):
            return self._packed(input, hx)
        if input.ndim not in (2, 3):
            raise ShapeError(f"{type(self).__name__} expects 2 or 3 dimensions, got an input {list(input.shape)}\n  at {site()}")
        single = input.ndim == 2
        self._check_states(hx, 2 if single else 3)
        x = input.unsqueeze(1) if single else input.transpose(0, 1) if self.batch_first else input
        if single and hx is not None:
            hx = tuple(h.unsqueeze(1) for h in hx) if self._cell == "lstm" else hx.unsqueeze(1)
        out, last = self._run(x, hx, lengths)
        if single:
            out, last = out.squeeze(1), tuple(s.squeeze(1) for s in last)
        elif self.batch_first:
            out = out.transpose(0, 1)
        return out, (last if self._cell == "lstm" else last[0])

    def _check_states(self, hx: Any, ndim: int) -> None:
        for h in () if hx is None else hx if self._cell == "lstm" else (hx,):
            if h.ndim != ndim:
                raise ShapeError(
                    f"for an input of {ndim} dimensions the initial state must have {ndim}, got {list(h.shape)}\n  at {site()}"
                )

    def _packed(self, sequence: PackedSequence, hx: Any) -> Any:
        """The same for a packed sequence, whose states are in the order in which the sequences were given."""
        x, lengths = padded(sequence)
        if hx is not None and sequence.sorted_indices is not None:
            hx = tuple(index_select(h, 1, sequence.sorted_indices) for h in (hx if self._cell == "lstm" else (hx,)))
            hx = hx if self._cell == "lstm" else hx[0]
        out, last = self._run(x, hx, lengths)
        if sequence.unsorted_indices is not None:
            last = tuple(index_select(s, 1, sequence.unsorted_indices) for s in last)
        return packed(out, sequence), (last if self._cell == "lstm" else last[0])

    def extra_repr(self) -> str:
        out = f"{self.input_size}, {self.hidden_size}"
        defaults = {"proj_size": 0, "num_layers": 1, "bias": True, "batch_first": False, "dropout": 0.0, "bidirectional": False}
        return out + "".join(f", {k}={getattr(self, k)}" for k, v in defaults.items() if getattr(self, k) != v)


def _check_sizes(mode: str, hidden_size: Any, num_layers: Any, dropout: Any, proj_size: int) -> None:
    if isinstance(dropout, bool) or not isinstance(dropout, (int, float)) or not 0 <= dropout <= 1:
        raise ValueError(f"dropout should be a number from 0 to 1, got {dropout!r}")
    if dropout > 0 and num_layers == 1:
        warnings.warn(f"dropout acts between layers, so dropout={dropout} does nothing with num_layers=1", stacklevel=4)
    for name, value in (("hidden_size", hidden_size), ("num_layers", num_layers)):
        if not isinstance(value, int):
            raise TypeError(f"{name} should be an int, got {type(value).__name__}")
        if value <= 0:
            raise ValueError(f"{name} must be greater than zero, got {value}")
    if proj_size < 0 or proj_size >= hidden_size:
        raise ValueError(f"proj_size has to be positive and smaller than hidden_size, or 0, got {proj_size}")
    if proj_size and mode != "LSTM":
        raise ValueError(f"proj_size is for LSTM only, not {mode}")


class RNN(RNNBase):
    """Elman network: h' = tanh(W_ih x + b_ih + W_hh h + b_hh), or relu. [T, N, F] -> [T, N, D*H], [L*D, N, H]."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(f"nonlinearity must be 'tanh' or 'relu', not {nonlinearity!r}")
        mode = f"RNN_{nonlinearity.upper()}"
        super().__init__(mode, input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, 0, device, dtype)
        self.nonlinearity = nonlinearity


class LSTM(RNNBase):
    """Long short-term memory; gates in the order input, forget, cell, output. proj_size > 0 projects outputs to that many
    features. [T, N, F] -> [T, N, D*R], ([L*D, N, R], [L*D, N, H]). Source: Hochreiter & Schmidhuber 1997, arXiv:1402.1128."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(
            "LSTM", input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, proj_size, device, dtype
        )  # fmt: skip


class GRU(RNNBase):
    """Gated recurrent units; gates in the order reset, update, new. [T, N, F] -> [T, N, D*H], [L*D, N, H].
    Source: arXiv:1406.1078."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__("GRU", input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, 0, device, dtype)


# ---- one step ----


class RNNCellBase(Module):
    """What the cells have in common: weight_ih [G*H, F], weight_hh [G*H, H], and both biases."""

    def __init__(self, input_size: int, hidden_size: int, bias: bool, num_chunks: int, device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        self.input_size, self.hidden_size, self.bias = input_size, hidden_size, bias
        wide = num_chunks * hidden_size
        shapes = {"weight_ih": (wide, input_size), "weight_hh": (wide, hidden_size), "bias_ih": (wide,), "bias_hh": (wide,)}
        for name, shape in shapes.items():
            made = Parameter(empty(shape, dtype=dtype, device=device)) if bias or len(shape) == 2 else None
            self.register_parameter(name, made)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all parameters uniformly from +-1/sqrt(hidden_size)."""
        bound = 1 / math.sqrt(self.hidden_size) if self.hidden_size > 0 else 0.0
        for p in self.parameters():
            init.uniform_(p, -bound, bound)

    def _step(self, fn: Callable[..., Any], input: Tensor, hx: Any) -> Any:
        return fn(input, hx, self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh)

    def _zeros(self, input: Tensor) -> Any:
        return fill(0.0, (*input.shape[:-1], self.hidden_size), input.dtype)

    def extra_repr(self) -> str:
        out = f"{self.input_size}, {self.hidden_size}" + ("" if self.bias else f", bias={self.bias}")
        kind = getattr(self, "nonlinearity", "tanh")
        return out if kind == "tanh" else f"{out}, nonlinearity={kind}"


class RNNCell(RNNCellBase):
    """h' = tanh(W_ih x + b_ih + W_hh h + b_hh), or relu. [N, F], [N, H] -> [N, H]."""

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, nonlinearity: str = "tanh", device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__(input_size, hidden_size, bias, 1, device, dtype)
        self.nonlinearity = nonlinearity

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Any:
        if self.nonlinearity not in ("tanh", "relu"):
            raise RuntimeError(f"nonlinearity must be 'tanh' or 'relu', not {self.nonlinearity!r}")
        return self._step(getattr(F, f"rnn_{self.nonlinearity}_cell"), input, self._zeros(input) if hx is None else hx)


class LSTMCell(RNNCellBase):
    """One LSTM step. [N, F], ([N, H], [N, H]) -> [N, H], [N, H]."""

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True, device: Any = None, dtype: Any = None) -> None:
        super().__init__(input_size, hidden_size, bias, 4, device, dtype)

    def forward(self, input: Tensor, hx: Sequence[Tensor] | None = None) -> Any:
        return self._step(F.lstm_cell, input, (self._zeros(input), self._zeros(input)) if hx is None else tuple(hx))


class GRUCell(RNNCellBase):
    """One GRU step. [N, F], [N, H] -> [N, H]."""

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True, device: Any = None, dtype: Any = None) -> None:
        super().__init__(input_size, hidden_size, bias, 3, device, dtype)

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Any:
        return self._step(F.gru_cell, input, self._zeros(input) if hx is None else hx)
