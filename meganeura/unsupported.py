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
