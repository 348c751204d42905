"""Views of numpy arrays as torch tensors, for the backends that compute with torch."""

import numpy as np
import torch
from torch import Tensor

from llm_engine.checkpoints.packed_cache import Array


def tensor(array: Array) -> Tensor:
    """View an array, such as `Checkpoint.tensor` returns, as a tensor of the same type. The memory
    is shared; a read-only array is copied."""
    if not array.flags.writeable:
        array = array.copy()
    if array.dtype.name == "bfloat16":  # ml_dtypes', which torch.from_numpy does not know
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)
