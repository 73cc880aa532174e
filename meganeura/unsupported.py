"""What PyTorch has and this package has not, by name: asking for it says so and what to do."""

from __future__ import annotations

from .errors import UnsupportedError
from .provenance import site

_COMPLEX = "complex numbers do not exist here: keep real and imaginary parts in two tensors"
_REASONS = {
    _COMPLEX: ("cdouble cfloat chalf complex complex128 complex32 complex64 imag polar view_as_complex view_as_real"),
    "Fourier transforms do not exist here: use numpy.fft on tensor.numpy()": "fft istft stft",
    "sparse tensors do not exist here: use dense tensors, or index_select and scatter_add": (
        "smm sparse sparse_bsc_tensor sparse_bsr_tensor sparse_compressed_tensor sparse_coo_tensor sparse_csc_tensor sparse_csr_tensor "
        "sspaddmm"
    ),
    "quantized tensors do not exist here": "dequantize quantize_per_channel quantize_per_tensor quantized_batch_norm",
    "TorchScript does not exist here: meganeura.compile makes a program of a function": "jit",
}
UNSUPPORTED = {name: reason for reason, names in _REASONS.items() for name in names.split(" ")}


def refuse(name: str) -> None:
    """Raise UnsupportedError if PyTorch has a function of this name that this package leaves out."""
    if name in UNSUPPORTED:
        raise UnsupportedError(f"meganeura.{name}: {UNSUPPORTED[name]}\n  at {site()}")


_SPARSE = "sparse tensors do not exist here: every tensor is dense"
_RESIZE = "a tensor keeps the memory it was made with: use reshape(), or copy into a new tensor of that size"
_METHOD_REASONS = {
    _SPARSE: (
        "coalesce crow_indices col_indices ccol_indices row_indices dense_dim indices is_coalesced sparse_dim sparse_mask "
        "sparse_resize_ to_dense to_sparse to_sparse_bsc to_sparse_bsr to_sparse_coo to_sparse_csc to_sparse_csr values"
    ),
    _RESIZE: "resize resize_ resize_as resize_as_",
    _COMPLEX: "cdouble cfloat chalf imag view_as_complex view_as_real",
    "quantized tensors do not exist here": "dequantize int_repr q_per_channel_scales q_scale q_zero_point qscheme",
    "Fourier transforms do not exist here: use numpy.fft on tensor.numpy()": "istft stft",
}
METHODS = {name: reason for reason, names in _METHOD_REASONS.items() for name in names.split(" ")}


def refuse_method(name: str) -> None:
    """The same for a method or attribute of tensors."""
    if name in METHODS:
        raise UnsupportedError(f"Tensor.{name}: {METHODS[name]}\n  at {site()}")
