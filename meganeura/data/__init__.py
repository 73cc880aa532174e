"""Datasets and the loader that makes batches of them.

In: datasets of numpy arrays (or files). Out: batches as tensors on the device, made in the thread that iterates.
Worker threads make numpy only and must not touch a device.
"""

from .collate import default_collate
from .dataset import ChainDataset, ConcatDataset, Dataset, IterableDataset, Subset, TensorDataset, random_split
from .idx import read_idx
from .loader import DataLoader
from .mnist import MNIST, load_mnist
from .sampler import BatchSampler, RandomSampler, Sampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler

__all__ = [
    "MNIST", "BatchSampler", "ChainDataset", "ConcatDataset", "DataLoader", "Dataset", "IterableDataset", "RandomSampler", "Sampler",
    "SequentialSampler", "Subset", "SubsetRandomSampler", "TensorDataset", "WeightedRandomSampler", "default_collate", "load_mnist",
    "random_split", "read_idx",
]  # fmt: skip
