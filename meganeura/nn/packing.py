"""Sequences of unequal lengths: padded to one tensor, or packed step by step, as torch.nn.utils.rnn has them.

Lengths are the host's: packing computes places in numpy and moves elements with index_select, so gradients flow. Functions
that are compiled take padded tensors and a tensor of lengths instead (RNN.forward), whose shapes do not change.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..dtype import bool_, int64
from ..errors import ShapeError
from ..ops.factory import full
from ..ops.index import index_select
from ..ops.pointwise import where
from ..ops.views import cat, stack
from ..provenance import site
from ..tensor import Tensor, upload


class _Fields(NamedTuple):
    data: Tensor
    batch_sizes: Tensor
    sorted_indices: Tensor | None = None
    unsorted_indices: Tensor | None = None


class PackedSequence(_Fields):
    """Sequences one step after another: data [sum of lengths, *], of which the first batch_sizes[0] belong to step 0.

    sorted_indices [N] are the sequences from the longest to the shortest, unsorted_indices lead back; None if they came so.
    """

    def __new__(
        cls, data: Tensor, batch_sizes: Tensor, sorted_indices: Tensor | None = None, unsorted_indices: Tensor | None = None
    ) -> PackedSequence:
        if unsorted_indices is None and sorted_indices is not None:
            unsorted_indices = invert_permutation(sorted_indices)
        return super().__new__(cls, data, batch_sizes, sorted_indices, unsorted_indices)

    @property
    def sizes(self) -> Any:
        """batch_sizes on the host."""
        found = self.__dict__.get("_sizes")
        if found is None:
            found = self.__dict__["_sizes"] = self.batch_sizes.numpy()
        return found

    @property
    def is_cuda(self) -> bool:
        return False

    def to(self, *args: Any, **kwargs: Any) -> PackedSequence:
        """The same sequences with other data: see Tensor.to."""
        return _pack(self.data.to(*args, **kwargs), self.sizes, self.sorted_indices, self.unsorted_indices, self.batch_sizes)


def _pack(data: Tensor, sizes: Any, order: Tensor | None, back: Tensor | None, batch_sizes: Tensor | None = None) -> PackedSequence:
    made = PackedSequence(data, upload(sizes, int64) if batch_sizes is None else batch_sizes, order, back)
    made.__dict__["_sizes"] = sizes
    return made


def invert_permutation(permutation: Tensor | None) -> Tensor | None:
    """The permutation that leads back. [N] -> [N]."""
    if permutation is None:
        return None
    order = permutation.numpy()
    back = np.empty_like(order)
    back[order] = np.arange(order.size)
    return upload(back, int64)


def _places(sizes: Any, n: int) -> Any:
    """Where packed element i lies in a padded [T * N]: step times n, plus the sequence."""
    return np.concatenate([t * n + np.arange(k) for t, k in enumerate(sizes)])


def _moved(x: Tensor, places: Any) -> Tensor:
    """Elements of the first dimension."""
    return index_select(x, 0, upload(places, int64))  # type: ignore[no-any-return]


def pack_padded_sequence(input: Tensor, lengths: Any, batch_first: bool = False, enforce_sorted: bool = True) -> PackedSequence:
    """Pack input [T, N, *] ([N, T, *] if batch_first), of whose sequences `lengths` [N] says how long they are. They must be in
    order of decreasing length unless enforce_sorted is False."""
    x = input.transpose(0, 1) if batch_first else input
    counts = np.asarray(lengths.numpy() if isinstance(lengths, Tensor) else lengths, np.int64).reshape(-1)
    if counts.size != x.shape[1]:
        raise ShapeError(f"expected {x.shape[1]} lengths for an input of shape {list(input.shape)}, got {counts.size}\n  at {site()}")
    if counts.size == 0 or counts.min() <= 0 or counts.max() > x.shape[0]:
        raise ShapeError(f"lengths must lie between 1 and {x.shape[0]}, got {counts.tolist()}\n  at {site()}")
    order = back = None
    permutation = np.arange(counts.size)
    if not enforce_sorted:
        permutation = np.argsort(-counts, kind="stable")
        order, back = upload(permutation, int64), upload(np.argsort(permutation), int64)
    elif np.any(np.diff(counts) > 0):
        raise ShapeError(
            f"lengths must decrease, got {counts.tolist()}\n  at {site()}\n  pass enforce_sorted=False to have the sequences sorted"
        )
    sizes = (counts[None] > np.arange(counts.max())[:, None]).sum(1)
    steps, n = x.shape[:2]
    places = _places(sizes, n)
    data = _moved(x.reshape(steps * n, *x.shape[2:]), places // n * n + permutation[places % n])
    return _pack(data, sizes, order, back)


def padded(sequence: PackedSequence, total: int | None = None) -> tuple[Tensor, Tensor | None]:
    """A packed sequence as [T, N, *] in its sorted order, with its lengths [N] (None if all have T). What lies beyond a
    sequence's end is some element of the data."""
    sizes = sequence.sizes
    steps, n = total or len(sizes), int(sizes[0])
    where_ = np.zeros(steps * n, np.int64)
    where_[_places(sizes, n)] = np.arange(sizes.sum())
    data = sequence.data
    x = _moved(data, where_).reshape(steps, n, *data.shape[1:])
    lengths = _lengths(sizes)
    return x, None if lengths.min() == steps else upload(lengths, int64)


def packed(x: Tensor, like: PackedSequence) -> PackedSequence:
    """[T, N, *] in sorted order, packed as another sequence is."""
    places = _places(like.sizes, x.shape[1])
    data = _moved(x.reshape(-1, *x.shape[2:]), places)
    return _pack(data, like.sizes, like.sorted_indices, like.unsorted_indices, like.batch_sizes)


def _lengths(sizes: Any) -> Any:
    return (sizes[:, None] > np.arange(sizes[0])[None]).sum(0)


def pad_packed_sequence(
    sequence: PackedSequence, batch_first: bool = False, padding_value: float = 0.0, total_length: int | None = None
) -> tuple[Tensor, Tensor]:
    """Packed sequences padded to [T, N, *] ([N, T, *] if batch_first) in the order in which they were given, and their lengths."""
    steps = len(sequence.sizes)
    if total_length is not None and total_length < steps:
        raise ShapeError(f"total_length must be at least the longest sequence's {steps} steps, got {total_length}\n  at {site()}")
    x, lengths = padded(sequence, total_length)
    counts = _lengths(sequence.sizes)
    if lengths is not None:
        on = np.arange(x.shape[0])[:, None] < counts
        x = where(upload(on.reshape(*on.shape, *(1,) * (x.ndim - 2)), bool_), x, padding_value)
    if sequence.unsorted_indices is not None:
        x = index_select(x, 1, sequence.unsorted_indices)
        counts = counts[sequence.unsorted_indices.numpy()]
    return (x.transpose(0, 1) if batch_first else x), upload(counts, int64)


def pad_sequence(
    sequences: Tensor | Iterable[Tensor], batch_first: bool = False, padding_value: float = 0.0, padding_side: str = "right"
) -> Tensor:
    """Tensors [L, *] of several lengths as one [T, N, *] ([N, T, *] if batch_first), padded at the end or ('left') in front."""
    if padding_side not in ("right", "left"):
        raise ValueError(f"padding_side should be 'right' or 'left', not {padding_side!r}")
    parts = list(sequences)
    steps = max(x.shape[0] for x in parts)
    made = []
    for x in parts:
        missing = steps - x.shape[0]
        if missing:
            rest = full((missing, *x.shape[1:]), padding_value, dtype=x.dtype)
            x = cat([x, rest] if padding_side == "right" else [rest, x], 0)
        made.append(x)
    return stack(made, 0 if batch_first else 1)


def unpad_sequence(padded_sequences: Tensor, lengths: Any, batch_first: bool = False) -> list[Tensor]:
    """The tensors [L, *] that pad_sequence padded at the end."""
    x = padded_sequences if batch_first else padded_sequences.transpose(0, 1)
    counts = lengths.tolist() if isinstance(lengths, Tensor) else list(lengths)
    return [x[i, :n] for i, n in enumerate(counts)]


def pack_sequence(sequences: Sequence[Tensor], enforce_sorted: bool = True) -> PackedSequence:
    """Tensors [L, *] of several lengths, packed."""
    return pack_padded_sequence(pad_sequence(sequences), [x.shape[0] for x in sequences], enforce_sorted=enforce_sorted)


def unpack_sequence(packed_sequences: PackedSequence) -> list[Tensor]:
    """The tensors that pack_sequence packed."""
    x, lengths = pad_packed_sequence(packed_sequences, batch_first=True)
    return unpad_sequence(x, lengths, batch_first=True)


def bucket(steps: int, parts: int = 8) -> int:
    """The number of steps that sequences of `steps` are padded to: `parts` sizes between a power of two and the next."""
    unit = max(1, (1 << max(0, (steps - 1).bit_length() - 1)) // parts)
    return -(-steps // unit) * unit


def pad_to_bucket(input: Tensor, lengths: Tensor | None = None, batch_first: bool = False, parts: int = 8) -> tuple[Tensor, Tensor]:
    """Sequences [T, N, *] padded with zeros to one of few lengths, and their own lengths [N] (all T if not given): an addition to
    PyTorch, for compiled functions, which have a session for every shape. `parts` lengths lie between a power of two and the
    next, so at most 1/parts of the steps are added."""
    dim = 1 if batch_first else 0
    steps, n = input.shape[dim], input.shape[1 - dim]
    missing = bucket(steps, parts) - steps
    if lengths is None:
        lengths = full((n,), steps, dtype=int64)
    if missing:
        shape = tuple(missing if d == dim else size for d, size in enumerate(input.shape))
        input = cat([input, full(shape, 0.0, dtype=input.dtype)], dim)
    return input, lengths
