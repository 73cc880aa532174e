"""Learning-rate schedules, with the names, arguments and values of torch.optim.lr_scheduler.

In: an optimizer and how far training is. Out: each group's 'lr' (and momentum), set on the host; it reaches the device as a
scalar of the next step, also in compiled steps, without tracing or building anything.
"""

from .base import LRScheduler
from .combine import ChainedScheduler, SequentialLR
from .cosine import CosineAnnealingLR, CosineAnnealingWarmRestarts, WarmupCosineLR
from .cycle import CyclicLR, OneCycleLR
from .decay import ConstantLR, ExponentialLR, LambdaLR, LinearLR, MultiplicativeLR, MultiStepLR, PolynomialLR, StepLR
from .plateau import ReduceLROnPlateau

__all__ = [
    "ChainedScheduler", "ConstantLR", "CosineAnnealingLR", "CosineAnnealingWarmRestarts", "CyclicLR", "ExponentialLR", "LRScheduler",
    "LambdaLR", "LinearLR", "MultiStepLR", "MultiplicativeLR", "OneCycleLR", "PolynomialLR", "ReduceLROnPlateau", "SequentialLR", "StepLR",
    "WarmupCosineLR",
]  # fmt: skip
