"""Optimizers, learning-rate schedules, averages of parameters.

In: parameters with `.grad`. Out: parameters changed in place, by few dispatches a group. Rows are in ops/optimizer.py.
Hyper-parameters and step counts stay on the host and reach the device as scalars, so changing them recompiles nothing.
Must not know kernels, tapes or traces.
"""

from . import lr_scheduler, swa_utils
from .accumulate import GradientAccumulation
from .adagrad import Adadelta, Adagrad
from .adam import Adam, AdamW
from .adam_family import Adamax, NAdam, RAdam
from .laprop import LaProp
from .lion import Lion
from .muon import Muon
from .optimizer import Optimizer
from .rmsprop import RMSprop
from .rprop import Rprop
from .sgd import SGD
from .swa_utils import EMA, AveragedModel

__all__ = [
    "EMA", "SGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "AveragedModel", "GradientAccumulation", "LaProp", "Lion", "Muon",
    "NAdam", "Optimizer", "RAdam", "RMSprop", "Rprop", "lr_scheduler", "swa_utils",
]  # fmt: skip
