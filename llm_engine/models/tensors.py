"""Views of numpy arrays as torch tensors, for the backends that compute with torch."""

import ml_dtypes
import numpy as np
import torch
from torch import Tensor

from llm_engine.checkpoints.packed_cache import Array


def tensor(array: Array) -> Tensor:
    """View an array, such as `Checkpoint.tensor` returns, as a tensor of the same type. The memory
    is shared; a read-only array is copied."""
    if not array.flags.writeable:
        array = array.copy()
    if array.dtype == ml_dtypes.bfloat16:  # a type that torch.from_numpy does not know
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)
