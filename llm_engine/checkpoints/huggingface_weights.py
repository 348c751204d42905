"""Opens a Hugging Face directory as a checkpoint: safetensors (one file or sharded), config.json,
tokenizer.json."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from llm_engine.config import ModelConfig
from llm_engine.errors import ModelError
from llm_engine.torch_extra import require_torch

from .checkpoint import Checkpoint, is_known_tensor
from .fp8 import Fp8Matrix, declared_blocks, scaled
from .huggingface_config import read_config
from .huggingface_tokenizer import load_tokenizer
from .int4 import Int4Format, Int4Matrix, PackedInt4, UnpackedInt4, declared_int4
from .packed_cache import Array

if TYPE_CHECKING:
    from torch import Tensor

_FP8 = "F8_E4M3"
_BFLOAT16 = "BF16"
_FLOATS = ("F64", "F32", "F16", _BFLOAT16)
_SCALE_EXPONENTS = "F8_E8M0"
"""Type of scales that are powers of two."""
_SCALE_SUFFIXES = ("_scale", "_scale_inv")
"""Suffixes of the scales of an 8-bit weight; both are multiplied with it."""
_SCALES = re.compile(r"(.*\.weight)_scale(_inv)?")

_PACKED = re.compile(r"(.*)\.(qweight|qzeros|scales|g_idx)")
"""Tensors of a 4-bit matrix of GPTQ or AWQ."""
_PACKED_PARTS = "qweight", "qzeros", "scales"
"""Those that every such matrix has."""

_IGNORED = re.compile(
    # derived tensors in old exports; scales of activations and of the KV cache
    r".*(rotary_emb\.inv_freq|\.(input|output|activation|[qkv])_scale(_ub)?)"
)


def open_directory(path: Path) -> Checkpoint:
    """Open a model directory. Raises ModelError."""
    values = read_json(path / "config.json")
    config = read_config(values, path / "config.json")
    quantization = values.get("quantization_config")
    int4 = declared_int4(quantization, path / "config.json")
    blocks = () if int4 else declared_blocks(quantization, path / "config.json")
    stored = _decoder_tensors(path, config, int4)
    if values.get("tie_word_embeddings", False):
        stored = {name: found for name, found in stored.items() if not name.startswith("lm_head.")}
    if int4 is not None or any(found.dtype == _FP8 for found in stored.values()):
        require_torch(f"{path}: reading 4-bit weights or 8-bit floats")
    tensors = _Tensors(stored, blocks, int4)
    packed = frozenset(f"{match[1]}.weight" for match in map(_PACKED.fullmatch, stored) if match)
    plain = frozenset(
        name for name in stored if not name.endswith(_SCALE_SUFFIXES) and not _PACKED.match(name)
    )
    if values.get("tie_word_embeddings") is False and "lm_head.weight" not in plain | packed:
        # Else the embedding would stand for it.
        raise ModelError(f"{path}: tensor 'lm_head.weight' is missing; fetch the model again")
    for name in plain:
        tensors.check(name)
    for name in packed:
        tensors.check_packed(name)
    return Checkpoint(
        path=path,
        config=config,
        tokenizer=load_tokenizer(path, values),
        names=plain | packed,
        read=tensors.read,
        read_fp8=tensors.read_fp8,
        read_int4=tensors.read_int4,
        int4_names=packed,
    )


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file. Raises ModelError."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(
            f"{path.parent}: {path.name} is missing; a Hugging Face model has config.json, "
            "tokenizer.json and *.safetensors"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path}: cannot be read as JSON: {error}") from None
    if not isinstance(values, dict):
        raise ModelError(f"{path}: holds {type(values).__name__} instead of an object")
    return values


@dataclass(frozen=True, slots=True)
class _Stored:
    """Location and type of a tensor."""

    file: Path
    name: str
    """Name in the file."""
    dtype: str

    def __str__(self) -> str:
        return f"{self.file}: tensor {self.name!r}"

    def array(self) -> Array:
        """Read it for a type that numpy has, or ml_dtypes."""
        if self.dtype == _BFLOAT16:
            try:
                import ml_dtypes  # noqa: F401  # gives numpy the type
            except ModuleNotFoundError:  # on bare GPU machines, which have torch
                return self.tensor().float().numpy()
        array: Array = self._load("np")
        return array

    def tensor(self) -> "Tensor":
        """Read it for torch."""
        tensor: Tensor = self._load("pt")
        return tensor

    def _load(self, framework: str) -> Any:
        try:
            with safe_open(self.file, framework=framework) as shard:
                return shard.get_tensor(self.name)
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{self} cannot be read: {error}; fetch it again") from None


@dataclass(frozen=True, slots=True)
class _Tensors:
    """A directory's tensors, read one at a time."""

    stored: dict[str, _Stored]
    """Location by the engine's name."""
    blocks: tuple[tuple[int, int], ...]
    """Declared shapes of blocks that share a scale."""
    int4: Int4Format | None = None
    """Declared format of 4-bit matrices."""

    def check(self, name: str) -> None:
        """Raise ModelError for an unsupported type, and for missing or surplus scales."""
        stored = self.stored[name]
        if stored.dtype not in (*_FLOATS, _FP8):
            supported = ", ".join((*_FLOATS, _FP8))
            raise ModelError(f"{stored} is {stored.dtype}; {supported} are supported")
        scales = self._scales(name)
        if len(scales) != (stored.dtype == _FP8):
            raise ModelError(
                f"{stored} is {stored.dtype} and has {len(scales)} tensors of scales; a tensor of "
                f"{_FP8} needs one, named 'weight_scale' or 'weight_scale_inv', others have none"
            )
        if scales and scales[0].dtype not in (*_FLOATS, _SCALE_EXPONENTS):
            raise ModelError(f"{scales[0]} is {scales[0].dtype}, which scales cannot be")

    def check_packed(self, name: str) -> None:
        """Raise ModelError for a 4-bit matrix that lacks a tensor, or is stored twice."""
        prefix = name.removesuffix("weight")
        missing = [part for part in _PACKED_PARTS if prefix + part not in self.stored]
        if missing or name in self.stored:
            found = next(iter(self._packed(name).values()))
            raise ModelError(
                f"{found}: the 4-bit matrix "
                + (f"lacks {', '.join(missing)}" if missing else "is stored as floats as well")
                + "; fetch the model again"
            )

    def read(self, name: str) -> Array:
        matrix = self.read_fp8(name) if name in self.stored else self._unpacked(name)
        return self.stored[name].array() if matrix is None else matrix.dequantize().numpy()

    def read_int4(self, name: str) -> Int4Matrix | None:
        return None if name in self.stored else self._unpacked(name).matrix()

    def read_fp8(self, name: str) -> Fp8Matrix | None:
        stored = self.stored.get(name)
        if stored is None or stored.dtype != _FP8:
            return None
        values, scales = stored.tensor(), self._scales(name)[0].tensor()
        try:
            return scaled(values, scales, self.blocks)
        except ValueError as error:
            raise ModelError(f"{stored} {error}") from None

    def _unpacked(self, name: str) -> UnpackedInt4:
        assert self.int4 is not None
        parts = self._packed(name)
        try:
            packed = PackedInt4(**{part: stored.tensor() for part, stored in parts.items()})
            return packed.unpack(self.int4)
        except ValueError as error:
            raise ModelError(
                f"{parts['qweight']} {error}; the checkpoint is damaged, or config.json is "
                "another's: fetch both again"
            ) from None

    def _packed(self, name: str) -> dict[str, _Stored]:
        """Tensors of a 4-bit matrix by the last part of their names."""
        prefix = name.removesuffix("weight")
        found = ((part, self.stored.get(prefix + part)) for part in (*_PACKED_PARTS, "g_idx"))
        return {part: stored for part, stored in found if stored is not None}

    def _scales(self, name: str) -> list[_Stored]:
        found = (self.stored.get(name + suffix) for suffix in _SCALE_SUFFIXES)
        return [stored for stored in found if stored is not None]


def _decoder_tensors(
    path: Path, config: ModelConfig, int4: Int4Format | None
) -> dict[str, _Stored]:
    """Tensors by the engine's names. Raises ModelError for unknown ones."""
    tensors: dict[str, _Stored] = {}
    for stored in _stored_tensors(path):
        name = stored.name.removeprefix("model.")
        if _IGNORED.fullmatch(name):
            continue
        known = _SCALES.sub(r"\1", name) if int4 is None else _PACKED.sub(r"\1.weight", name)
        if not is_known_tensor(known, config):
            raise ModelError(
                f"{stored} has no place in a decoder of {config.num_layers} layers of the "
                f"{config.architecture} family"
            )
        tensors[name] = stored
    return tensors


def _exists(file: Path) -> bool:
    try:
        return file.exists()
    except OSError:  # its name is longer than names may be
        return False


def _stored_tensors(path: Path) -> list[_Stored]:
    index = path / "model.safetensors.index.json"
    if index.exists():
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict):
            raise ModelError(f"{index}: lacks 'weight_map'")
        files = sorted({str(file) for file in weight_map.values()})
        missing = [file for file in files if not _exists(path / file)]
        if missing:
            raise ModelError(f"{path}: {', '.join(missing)} missing, named by {index.name}")
    else:
        files, weight_map = ["model.safetensors"], None
    stored = []
    for file in files:
        try:
            with safe_open(path / file, framework="np") as shard:
                for name in shard.keys() if weight_map is None else weight_map:
                    if weight_map is None or str(weight_map[name]) == file:
                        dtype = str(shard.get_slice(name).get_dtype())
                        stored.append(_Stored(path / file, name, dtype))
        except FileNotFoundError:
            raise ModelError(f"{path}: {file} is missing") from None
        except (SafetensorError, OSError) as error:
            raise ModelError(
                f"{path / file}: truncated or not safetensors: {error}; fetch it again"
            ) from None
    return stored
