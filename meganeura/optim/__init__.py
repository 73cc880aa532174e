"""Optimizers and learning-rate schedules.

In: parameters with `.grad`. Out: parameters changed in place, by one dispatch a group. Rows are in ops/optimizer.py.
Hyper-parameters and step counts stay on the host and reach the device as scalars, so changing them recompiles nothing.
Must not know kernels, tapes or traces.
"""

from . import lr_scheduler
from .adam import Adam, AdamW
from .laprop import LaProp
from .optimizer import Optimizer
from .sgd import SGD

__all__ = ["SGD", "Adam", "AdamW", "LaProp", "Optimizer", "lr_scheduler"]
