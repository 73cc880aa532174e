"""Every error this package raises on purpose. Each says what, with which values, at which user line, and what to do."""

from __future__ import annotations


class MeganeuraError(Exception):
    """Base of all errors raised on purpose."""


class ShapeError(MeganeuraError, ValueError):
    """Shapes, dimensions or sizes that do not fit together."""


class UnsupportedError(MeganeuraError, AttributeError):
    """A part of PyTorch that does not exist here, such as complex numbers. An AttributeError, so that hasattr() works."""


class DTypeError(MeganeuraError, TypeError):
    """A dtype that an op, a device or a conversion does not accept."""


class DeviceError(MeganeuraError, RuntimeError):
    """No adapter, an adapter that cannot open, a lost device, a limit, or use after fork."""


class OutOfMemoryError(DeviceError, MemoryError):
    """The device cannot hold one more buffer of the size named in the message."""


class TraceError(MeganeuraError, RuntimeError):
    """Code that `meganeura.compile` cannot trace."""


class NoGradientError(MeganeuraError, RuntimeError):
    """backward() met an op without a gradient rule for an input that needs one."""


class GradientError(MeganeuraError, RuntimeError):
    """backward() cannot be right: a saved value was changed, the graph was freed, or there is no graph."""


class IndexOutOfRangeError(MeganeuraError, IndexError):
    """An index read from data lies outside the indexed dimension."""


class LinAlgError(MeganeuraError, RuntimeError):
    """A matrix that a factorisation or solver cannot take: singular, or not positive definite."""


class LoadError(MeganeuraError, ValueError):
    """A file that cannot be imported."""


class CheckpointError(LoadError):
    """A checkpoint that is damaged or does not fit the model."""
