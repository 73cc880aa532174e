"""Reading and writing weights of other programs.

In: files. Out: tensors by name. A file is checked before any of it is used, and an error names the file and the tensor.
"""

from .safetensors import load_safetensors, save_safetensors

__all__ = ["load_safetensors", "save_safetensors"]
