"""Triton's interpreter, mended where it calculates wrongly, and without work that has no effect. To
be imported before kernels run; changes nothing where they run on a GPU."""

from dataclasses import replace
from functools import cache
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
_np_dtype = interpreter._get_np_dtype


def mend() -> None:
    interpreter._patch_lang_tensor = _patch_lang_tensor
    interpreter._convert_float = _convert_float
    interpreter._patch_lang = _patch_lang
    interpreter.InterpretedFunction.__call__ = _call
    interpreter._get_np_dtype = _get_np_dtype
    builder = interpreter.interpreter_builder
    if not builder.options.debug:  # each sum and product is checked, and what was found is dropped
        builder.options = replace(builder.options, sanitize_overflow=False)


def _patch_lang(fn: Any) -> Any:
    """Patch the language for a kernel and all that it calls. Triton's own patches what the kernel's
    module sees, and the rest, with all the same again, at each call of a function."""
    del fn
    scope = interpreter._LangPatchScope()
    for lang in (tl, tl.core):
        for package in (lang, lang.tensor):
            interpreter._patch_builtin(package, interpreter.interpreter_builder, scope)
        interpreter._patch_lang_tensor(lang.tensor, scope)
        interpreter._patch_lang_core(lang, scope)
    interpreter._patch_builtin(tl.math, interpreter.interpreter_builder, scope)
    interpreter._patch_builtin(
        tl.core.tensor_descriptor_base, interpreter.interpreter_builder, scope
    )
    return scope


def _call(function: Any, *args: Any, **kwargs: Any) -> Any:
    """A call within a kernel, which is patched."""
    try:
        return function.rewrite()(*args, **kwargs)
    except Exception as error:
        raise interpreter.InterpreterError(repr(error)) from error


def _get_np_dtype(dtype: Any) -> Any:
    """Of a block, that of its elements. Triton's own makes a table of all types each time."""
    if isinstance(dtype, tl.block_type):
        dtype = dtype.element_ty
    if isinstance(dtype, tl.pointer_type):
        return np.dtype(np.uint64)
    return _dtype_named(dtype.name)


@cache
def _dtype_named(name: str) -> Any:
    return _np_dtype(tl.dtype(name))


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
