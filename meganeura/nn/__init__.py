"""Layers, losses, initialisations: modules that hold parameters and call functions of ops.

In: tensors. Out: tensors. Names, weight layouts and default distributions are PyTorch's, so state dicts load as they are.
Must not know kernels, devices or interpreters.
"""

import sys

from . import clip as utils
from . import functional, init
from .activation import GELU, LogSoftmax, ReLU, Sigmoid, SiLU, Softmax, Tanh
from .basic import Dropout, Embedding, Flatten, Identity, LayerNorm, Linear, RMSNorm
from .container import ModuleDict, ModuleList, Sequential
from .loss import BCEWithLogitsLoss, CrossEntropyLoss, L1Loss, MSELoss, NLLLoss
from .module import Module
from .parameter import Buffer, Parameter

sys.modules[__name__ + ".utils"] = utils  # `from meganeura.nn.utils import clip_grad_norm_`, as in PyTorch

__all__ = [
    "GELU", "BCEWithLogitsLoss", "Buffer", "CrossEntropyLoss", "Dropout", "Embedding", "Flatten", "Identity", "L1Loss", "LayerNorm",
    "Linear", "LogSoftmax", "MSELoss", "Module", "ModuleDict", "ModuleList", "NLLLoss", "Parameter", "RMSNorm", "ReLU", "Sequential",
    "SiLU", "Sigmoid", "Softmax", "Tanh", "functional", "init", "utils",
]  # fmt: skip
