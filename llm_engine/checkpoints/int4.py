"""Weights stored in 4 bits: codes, a scale and a zero point for each group of inputs.

GGUF's Q4_0 and the matrices of GPTQ and AWQ checkpoints are all of this form and are kept code for
code. In Q4_1 and Q4_K the offset is a number of its own, not a whole multiple of the scale
(`AffineInt4`): the backend for a CPU keeps these as well (`backends.onnx_int4`).

GPTQ (AutoGPTQ, GPTQModel) packs eight inputs into an int32, the first in the lowest bits:
`qweight` `[in / 8, out]`, `qzeros` `[groups, out / 8]`, `scales` `[groups, out]`, `g_idx` `[in]`,
the group of each input. Its first version stores zero points less one. AWQ's `gemm` packs eight
outputs, in the order of `_AWQ_ORDER`: `qweight` `[in, out / 8]`.
"""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from llm_engine.errors import ModelError

if TYPE_CHECKING:
    from torch import Tensor

ZERO = 8
"""Zero point of symmetric codes."""
LARGEST = 15
INT4_BLOCK = 32
"""Inputs that share a scale and an offset in GGUF's Q4_0, Q4_1 and Q4_K."""

SHRINKS = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75)
"""Shares of a group's range that rounding tries; the one of the least squared error wins."""

_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Output of each four bits of an int32 in AWQ's `gemm`, from the lowest."""
_IN_INT32 = 8
GROUP_SIZES = (128, 64, 32)
"""Groups that kernels support. Larger ones are cut into these, with equal scales."""


@dataclass(frozen=True, slots=True)
class Int4Matrix:
    """A weight as stored: `(code - zero point) * scale`."""

    codes: "Tensor"
    """`[out, in]`, uint8, 0 to 15."""
    scales: "Tensor"
    """`[out, ceil(in / group)]`, float32."""
    zeros: "Tensor"
    """Zero points, `[out, ceil(in / group)]`, uint8, 0 to 15."""
    group: int
    """Inputs that share a scale: 32, 64 or 128."""

    def dequantize(self) -> "Tensor":
        """The weight `[out, in]`, float32."""
        weight = self.codes.float()
        for index, start in enumerate(range(0, weight.shape[1], self.group)):
            part = weight[:, start : start + self.group]
            part -= self.zeros[:, index, None]
            part *= self.scales[:, index, None]
        return weight


@dataclass(frozen=True, slots=True)
class AffineInt4:
    """A weight in GGUF's 4-bit blocks of 32 inputs: `code * scale + offset`. Needs no torch."""

    codes: NDArray[np.uint8]
    """`[out, in]`, 0 to 15."""
    scales: NDArray[np.float32]
    """`[out, in / 32]`."""
    offsets: NDArray[np.float32]
    """`[out, in / 32]`."""


class Layout(StrEnum):
    """Layout of the packed tensors of a matrix."""

    GPTQ = "gptq"
    """Zero points are stored less one."""
    GPTQ_V2 = "gptq_v2"
    AWQ_GEMM = "gemm"


@dataclass(frozen=True, slots=True)
class Int4Format:
    """Format of a checkpoint's 4-bit matrices, from its `quantization_config`."""

    layout: Layout
    group: int | None
    """Inputs that share a scale; None: all of a row."""


@dataclass(frozen=True, slots=True)
class PackedInt4:
    """A matrix's tensors as a GPTQ or AWQ checkpoint has them."""

    qweight: "Tensor"
    qzeros: "Tensor"
    scales: "Tensor"
    g_idx: "Tensor | None" = None

    def unpack(self, form: Int4Format) -> "UnpackedInt4":
        """Unpack the tensors. Raises ValueError with the mismatch of shapes or types."""
        codes, zeros = self._codes(form.layout), self._zeros(form.layout)
        num_outputs, num_inputs = codes.shape
        group = form.group or num_inputs
        if num_inputs % group:
            raise ValueError(f"has {num_inputs} inputs, which groups of {group} do not divide")
        scales = self.scales.float().T.contiguous()
        shape = num_outputs, num_inputs // group
        for name, found in (("qzeros", zeros), ("scales", scales)):
            if tuple(found.shape) != shape:
                raise ValueError(
                    f"has {name} for {tuple(found.shape)} outputs and groups; {num_inputs} inputs "
                    f"in groups of {group} call for {shape}"
                )
        return UnpackedInt4(codes, zeros, scales, self._groups(num_inputs, group), group)

    def _codes(self, layout: Layout) -> "Tensor":
        """Codes `[out, in]`, int16."""
        packed = _int32("qweight", self.qweight)
        if layout is Layout.AWQ_GEMM:
            return _nibbles(packed, _AWQ_ORDER).T.contiguous()
        return _nibbles(packed.T.contiguous(), range(_IN_INT32))

    def _zeros(self, layout: Layout) -> "Tensor":
        """Zero points `[out, groups]`, int16."""
        packed = _int32("qzeros", self.qzeros)
        order = _AWQ_ORDER if layout is Layout.AWQ_GEMM else range(_IN_INT32)
        zeros = _nibbles(packed, order).T.contiguous()
        return zeros + 1 if layout is Layout.GPTQ else zeros

    def _groups(self, num_inputs: int, group: int) -> "Tensor":
        """Group of each input."""
        import torch

        if self.g_idx is None:
            return torch.arange(num_inputs) // group
        groups = self.g_idx.long()
        if tuple(groups.shape) != (num_inputs,):
            raise ValueError(f"has g_idx of shape {tuple(groups.shape)} for {num_inputs} inputs")
        if not bool(((groups >= 0) & (groups < num_inputs // group)).all()):
            raise ValueError(f"has a g_idx outside of its {num_inputs // group} groups")
        return groups


@dataclass(frozen=True, slots=True)
class UnpackedInt4:
    """A matrix of a GPTQ or AWQ checkpoint, one number for each element."""

    codes: "Tensor"
    """`[out, in]`, int16, 0 to 15."""
    zeros: "Tensor"
    """Zero points `[out, groups]`, int16; 16 is possible in GPTQ's first version."""
    scales: "Tensor"
    """`[out, groups]`, float32."""
    groups: "Tensor"
    """Group of each input `[in]`, int64. In any order where the checkpoint was made with
    `desc_act`."""
    group: int
    """Inputs in a group."""

    def matrix(self) -> Int4Matrix | None:
        """The matrix code for code; None where its groups are not consecutive inputs or not of a
        size that kernels support, or a zero point does not fit into 4 bits."""
        import torch

        own = torch.arange(self.codes.shape[1]) // self.group
        part = next((size for size in GROUP_SIZES if self.group % size == 0), None)
        if part is None or not torch.equal(self.groups, own) or bool((self.zeros > LARGEST).any()):
            return None
        scales, zeros = (
            values.repeat_interleave(self.group // part, 1)
            for values in (self.scales, self.zeros.to(torch.uint8))
        )
        return Int4Matrix(self.codes.to(torch.uint8), scales, zeros, part)

    def dequantize(self) -> "Tensor":
        """The weight `[out, in]`, float32."""
        weight = (self.codes - self.zeros[:, self.groups]).float()
        return weight.mul_(self.scales[:, self.groups])


def _int32(name: str, packed: "Tensor") -> "Tensor":
    import torch

    if packed.dtype is not torch.int32 or packed.dim() != 2:
        raise ValueError(
            f"has {name} of type {packed.dtype} and shape {tuple(packed.shape)}, not a matrix of "
            "int32"
        )
    return packed


def _nibbles(packed: "Tensor", order: Any) -> "Tensor":
    """Unpack `[n, m]` int32 to `[n, 8 * m]` int16; `order`: column of each four bits."""
    import torch

    unpacked = torch.empty(*packed.shape, _IN_INT32, dtype=torch.int16)
    for index, column in enumerate(order):
        unpacked[..., column] = ((packed >> (4 * index)) & 0xF).to(torch.int16)
    return unpacked.flatten(1)


def declared_int4(quantization: Any, file: Path) -> Int4Format | None:
    """Format declared by a `quantization_config` of GPTQ or AWQ; None for other methods.

    Raises ModelError for a layout that is not supported.
    """
    method = quantization.get("quant_method") if isinstance(quantization, dict) else None
    if method not in ("gptq", "awq"):
        return None
    supported: tuple[str, ...]
    if method == "gptq":
        name = quantization.get("checkpoint_format") or "gptq"
        if quantization.get("is_marlin_format"):
            name = "marlin"
        supported = ("gptq", "gptq_v2")
    else:
        name = str(quantization.get("version") or "gemm").lower()
        supported = ("gemm",)
    problem = None
    if quantization.get("bits", 4) != 4:
        problem = f"{quantization['bits']} bits"
    elif name not in supported:
        problem = f"the layout {name!r}"
    elif quantization.get("dynamic"):
        problem = "settings of single modules ('dynamic')"
    if problem is not None:
        raise ModelError(
            f"{file}: {method} with {problem} is not supported; 4 bits in the layout "
            f"{' or '.join(supported)} are. Convert the checkpoint, or take the unquantized one or "
            "a GGUF file"
        )
    group = quantization.get("group_size", 128)
    if type(group) is not int or group == 0 or group < -1:
        raise ModelError(f"{file}: 'quantization_config' has the group_size {group!r}")
    return Int4Format(Layout(name), None if group == -1 else group)
