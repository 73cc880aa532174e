"""Datasets and the loader that makes batches of them.

In: datasets of numpy arrays (or files). Out: batches as tensors on the device, made in the thread that iterates.
Worker threads make numpy only and must not touch a device.
"""

from .collate import default_collate
from .dataset import Dataset, Subset, TensorDataset, random_split
from .idx import read_idx
from .loader import DataLoader
from .mnist import MNIST, load_mnist

__all__ = ["MNIST", "DataLoader", "Dataset", "Subset", "TensorDataset", "default_collate", "load_mnist", "random_split", "read_idx"]
