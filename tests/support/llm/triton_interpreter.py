"""Triton's interpreter, mended where it calculates wrongly. To be imported before kernels run, and
without effect where they run on a GPU."""

from typing import Any

import numpy as np
import torch
import triton.language as tl
from numpy.typing import NDArray
from triton.runtime import interpreter

_TYPES = {
    tl.float32: (torch.float32, np.uint32),
    tl.float16: (torch.float16, np.uint16),
    tl.bfloat16: (torch.bfloat16, np.uint16),
    tl.float8e4nv: (torch.float8_e4m3fn, np.uint8),
}
_patch = interpreter._patch_lang_tensor


def mend() -> None:
    interpreter._patch_lang_tensor = _patch_lang_tensor
    interpreter._convert_float = _convert_float


def _patch_lang_tensor(tensor: Any, scope: Any) -> None:
    """A loop's bound that is loaded or calculated is an array of one number, of which numpy 2.4
    makes no integer any more. Triton 3.6 asks for one."""
    _patch(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda bound: int(bound.handle.data.item()))


def _convert_float(
    data: NDArray[Any], source: Any, target: Any, rounding_mode: Any
) -> NDArray[Any]:
    """As the GPU does. Triton's own, also in 3.9, halves numbers that round up to a power of two:
    bfloat16 of 1.999 is 1. Takes and gives bits."""
    del rounding_mode  # to the nearest; no kernel asks for another one
    found, bits = _TYPES[source]
    wanted, result = _TYPES[target]
    contiguous = np.ascontiguousarray(data).view(bits)
    signed = torch.from_numpy(contiguous.view(np.dtype(f"i{contiguous.itemsize}")))
    numbers = signed.view(found)
    if wanted == torch.float8_e4m3fn:
        numbers = numbers.clamp(-448, 448)
    converted = numbers.to(wanted)
    width = np.dtype(result).itemsize
    as_integers = {1: torch.int8, 2: torch.int16, 4: torch.int32}[width]
    return converted.view(as_integers).numpy().view(result).reshape(data.shape)
