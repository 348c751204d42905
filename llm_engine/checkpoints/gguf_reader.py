"""GGUF reader: parses the header eagerly, reads tensors on demand.

The header is parsed here rather than by the `gguf` package's reader, which builds a numpy view for
every vocabulary string (1.7 s for a 49 k vocabulary, against 0.1 s) and reports a damaged file by
whatever numpy raises. Quantized blocks are left to the package: its tables have their sizes, and
its functions dequantize them.

Every length read from the file is checked against the file's size before it is used, so that a
corrupt header cannot ask for memory. Format: ggml's docs/gguf.md, versions 2 and 3, little-endian.
"""

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import Q4_K, dequantize

from llm_engine.errors import ModelError

from .int4 import INT4_BLOCK, ZERO, AffineInt4

MAGIC = b"GGUF"
SUPPORTED_VERSIONS = (2, 3)
_FLOATS = ("F32", "F16", "BF16")
_BLOCKS = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL")
_SUPER_BLOCKS = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS")
SUPPORTED_TYPES = frozenset(
    GGMLQuantizationType[name] for name in (*_FLOATS, *_BLOCKS, *_SUPER_BLOCKS)
)

INT4_TYPES = frozenset({"Q4_0", "Q4_1", "Q4_K"})
_SUPER_BLOCK = 8 * INT4_BLOCK
"""Numbers that share the scale of their blocks' scales in Q4_K."""

_PIECE = 1 << 22
"""Numbers dequantized at a time: the package's intermediate results are as large again."""

_SCALARS = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
_STRING, _ARRAY = 8, 9
_U32, _U64 = _SCALARS[4], _SCALARS[10]
_MAX_DIMS = 4
_MAX_ARRAY_DEPTH = 4
"""Nesting of arrays. No writer nests them; the bound keeps a corrupt file from exhausting the
stack."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Location, shape and type of a tensor in the file."""

    shape: tuple[int, ...]
    """Row-major, outermost dimension first (the file stores it the other way round)."""
    type: GGMLQuantizationType
    first_byte: int
    num_bytes: int


class GgufFile:
    """An open GGUF file. Raises ModelError for anything that is not a usable one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:  # mmap refuses an empty file with ValueError
            reason = "the file is empty" if isinstance(error, ValueError) else error.strerror
            raise ModelError(f"{path}: cannot be read: {reason}") from None
        cursor = _Cursor(self._bytes, path)
        num_tensors, num_values = self._read_preamble(cursor)
        self.metadata: dict[str, Any] = {}
        for _ in range(num_values):
            key = cursor.string()
            self.metadata[key] = cursor.value(cursor.scalar(_U32))
        self.tensors = self._read_tensor_table(cursor, num_tensors)

    def _read_preamble(self, cursor: "_Cursor") -> tuple[int, int]:
        magic = self._bytes[:4]
        if magic != MAGIC:
            raise ModelError(
                f"{self.path}: not a GGUF file: it begins with {magic!r} instead of {MAGIC!r}"
            )
        cursor.at = 4
        version = cursor.scalar(_U32)
        if version not in SUPPORTED_VERSIONS:
            raise ModelError(
                f"{self.path}: GGUF version {version} found; versions 2 and 3, little-endian, work"
            )
        return cursor.scalar(_U64), cursor.scalar(_U64)

    def _read_tensor_table(self, cursor: "_Cursor", num_tensors: int) -> dict[str, TensorInfo]:
        entries = []
        for _ in range(num_tensors):
            name = cursor.string()
            num_dims = cursor.scalar(_U32)
            if num_dims > _MAX_DIMS:
                raise cursor.corrupt(f"tensor {name!r} has {num_dims} dimensions")
            shape = tuple(cursor.scalar(_U64) for _ in range(num_dims))[::-1]
            entries.append((name, shape, cursor.scalar(_U32), cursor.scalar(_U64)))
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1:
            raise cursor.corrupt(f"general.alignment is {alignment!r}")
        data_start = -(-cursor.at // alignment) * alignment
        tensors: dict[str, TensorInfo] = {}
        free_from = 0
        # In the order of the data, which need not be that of the table.
        for name, shape, type_number, offset in sorted(entries, key=lambda entry: entry[3]):
            quantization = self._supported_type(name, type_number)
            num_bytes = self._num_bytes(cursor, name, shape, quantization)
            if name in tensors:
                raise cursor.corrupt(f"tensor {name!r} is there twice")
            if offset < free_from:
                raise cursor.corrupt(f"tensor {name!r} begins inside another one")
            free_from = offset + num_bytes
            first_byte = data_start + offset
            if first_byte + num_bytes > len(self._bytes):
                raise ModelError(
                    f"{self.path}: truncated: tensor {name!r} ends at byte "
                    f"{first_byte + num_bytes}, the file at {len(self._bytes)}; fetch it again"
                )
            tensors[name] = TensorInfo(shape, quantization, first_byte, num_bytes)
        return tensors

    def _supported_type(self, name: str, number: int) -> GGMLQuantizationType:
        try:
            quantization = GGMLQuantizationType(number)
        except ValueError:
            found = f"unknown type {number}"
        else:
            if quantization in SUPPORTED_TYPES:
                return quantization
            found = quantization.name
        names = ", ".join(sorted(kind.name for kind in SUPPORTED_TYPES))
        raise ModelError(
            f"{self.path}: tensor {name!r} is quantized as {found}; supported are {names}"
        )

    @staticmethod
    def _num_bytes(
        cursor: "_Cursor", name: str, shape: tuple[int, ...], kind: GGMLQuantizationType
    ) -> int:
        block_elements, block_bytes = GGML_QUANT_SIZES[kind]
        if not shape or not all(shape) or shape[-1] % block_elements:
            raise cursor.corrupt(f"tensor {name!r} of shape {shape} does not fit {kind.name}")
        return int(math.prod(shape) // block_elements * block_bytes)

    def read(self, name: str) -> npt.NDArray[np.float32]:
        """Read a tensor as float32, in its own shape. Raises ModelError if it is missing."""
        info, raw = self._raw(name)
        if info.type == GGMLQuantizationType.F32:
            return raw.view(np.float32).reshape(info.shape)
        if info.type == GGMLQuantizationType.F16:
            return raw.view(np.float16).reshape(info.shape).astype(np.float32)
        num_rows = math.prod(info.shape[:-1])
        rows = raw.reshape(num_rows, -1)
        values = np.empty((num_rows, info.shape[-1]), np.float32)
        step = max(1, _PIECE // info.shape[-1])
        for first in range(0, num_rows, step):
            piece = slice(first, first + step)
            values[piece] = dequantize(rows[piece], info.type)
        return values.reshape(info.shape)

    def read_int4(self, name: str) -> AffineInt4 | None:
        """Read a matrix `[out, in]` of one of `INT4_TYPES`, code for code. None for other types.
        Raises ModelError if it is missing."""
        info, raw = self._raw(name)
        if info.type.name not in INT4_TYPES or len(info.shape) != 2:
            return None
        num_outputs, num_inputs = info.shape
        if info.type.name == "Q4_K":
            codes, scales, offsets = _q4_k(raw.reshape(num_outputs, num_inputs // _SUPER_BLOCK, -1))
        else:
            blocks = raw.reshape(num_outputs, num_inputs // INT4_BLOCK, -1)
            codes = _halves(blocks[..., -INT4_BLOCK // 2 :])
            scales = _float16(blocks[..., :2])
            offsets = _float16(blocks[..., 2:4]) if info.type.name == "Q4_1" else -ZERO * scales
        shape = num_outputs, num_inputs // INT4_BLOCK
        return AffineInt4(codes.reshape(info.shape), scales.reshape(shape), offsets.reshape(shape))

    def _raw(self, name: str) -> tuple[TensorInfo, npt.NDArray[np.uint8]]:
        info = self.tensors.get(name)
        if info is None:
            raise ModelError(f"{self.path}: tensor {name!r} is missing")
        raw = np.frombuffer(
            self._bytes, dtype=np.uint8, count=info.num_bytes, offset=info.first_byte
        )
        return info, raw


def _q4_k(blocks: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[Any], ...]:
    """Codes `[out, super-blocks, 256]`, scales and offsets `[out, super-blocks, 8]` of Q4_K: the
    scale of the scales, that of the offsets, both in 6 bits, and the codes."""
    flat = blocks.reshape(-1, blocks.shape[-1])
    scales, offsets = (
        values.reshape(*blocks.shape[:2], 8).astype(np.float32)
        for values in Q4_K.get_scale_min(flat[:, 4:16])
    )
    scales *= _float16(blocks[..., :2])[..., None]
    offsets *= -_float16(blocks[..., 2:4])[..., None]
    pairs = blocks[..., 16:].reshape(*blocks.shape[:2], 4, INT4_BLOCK)
    return _halves(pairs), scales, offsets


def _halves(packed: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Codes of packed bytes: the low halves come first."""
    return np.concatenate([packed & 0xF, packed >> 4], axis=-1)


def _float16(raw: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """Numbers of `[..., 2]` bytes, `[...]`."""
    return np.ascontiguousarray(raw).view(np.float16)[..., 0].astype(np.float32)


class _Cursor:
    """Reads the header's values in order, never beyond the end of the file."""

    def __init__(self, buffer: mmap.mmap, path: Path) -> None:
        self._buffer = buffer
        self._size = len(buffer)
        self._path = path
        self.at = 0

    def corrupt(self, what: str) -> ModelError:
        return ModelError(f"{self._path}: corrupt GGUF header at byte {self.at}: {what}")

    def scalar(self, layout: struct.Struct) -> Any:
        end = self.at + layout.size
        if end > self._size:
            raise self.corrupt("the file ends inside it")
        (value,) = layout.unpack_from(self._buffer, self.at)
        self.at = end
        return value

    def string(self) -> str:
        (text,) = self.strings(1)
        return text

    def strings(self, count: int) -> list[str]:
        """Read strings in a row. Vocabularies have hundreds of thousands: one loop, no calls."""
        buffer, size, at = self._buffer, self._size, self.at
        length_at, width = _U64.unpack_from, _U64.size
        texts: list[str] = []
        for _ in range(count):
            start = at + width
            if start > size:
                self.at = at
                raise self.corrupt("the file ends inside it")
            (length,) = length_at(buffer, at)
            end = start + length
            if end > size:
                self.at = start
                raise self.corrupt(f"a string of {length} bytes does not fit in the file")
            # Some writers cut a token's bytes inside a character; the token is then unusable, no
            # more.
            texts.append(buffer[start:end].decode("utf-8", errors="replace"))
            at = end
        self.at = at
        return texts

    def value(self, kind: int, depth: int = 0) -> Any:
        if kind in _SCALARS:
            return self.scalar(_SCALARS[kind])
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY or depth >= _MAX_ARRAY_DEPTH:
            raise self.corrupt(f"value type {kind} is unknown")
        item_kind = self.scalar(_U32)
        count = self.scalar(_U64)
        smallest = _SCALARS[item_kind].size if item_kind in _SCALARS else _U64.size
        if self.at + count * smallest > self._size:
            raise self.corrupt(f"an array of {count} items does not fit in the file")
        if item_kind in _SCALARS:
            item = _SCALARS[item_kind]
            raw = self._buffer[self.at : self.at + count * item.size]
            self.at += count * item.size
            return [value for (value,) in item.iter_unpack(raw)]
        if item_kind == _STRING:
            return self.strings(count)
        return [self.value(item_kind, depth + 1) for _ in range(count)]
