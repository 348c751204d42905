"""Opens a Hugging Face directory as a checkpoint: safetensors (one file or sharded), config.json,
tokenizer.json."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from llm_engine.config import ModelConfig
from llm_engine.errors import ModelError

from .checkpoint import Checkpoint, is_known_tensor
from .fp8 import Fp8Matrix, declared_blocks, scaled
from .huggingface_config import read_config
from .huggingface_tokenizer import load_tokenizer

_FLOATS = ("F64", "F32", "F16", "BF16")
_FP8 = "F8_E4M3"
_SCALE_EXPONENTS = "F8_E8M0"
"""Type of scales that are powers of two."""
_SCALE_SUFFIXES = ("_scale", "_scale_inv")
"""Suffixes of the scales of an 8-bit weight; both are multiplied with it."""
_SCALES = re.compile(r"(.*\.weight)_scale(_inv)?")

_IGNORED = re.compile(
    # derived tensors in old exports; scales of activations and of the KV cache
    r".*(rotary_emb\.inv_freq|\.(input|output|activation|[qkv])_scale(_ub)?)"
)


def open_directory(path: Path) -> Checkpoint:
    """Open a model directory. Raises ModelError."""
    values = read_json(path / "config.json")
    config = read_config(values, path / "config.json")
    blocks = declared_blocks(values.get("quantization_config"), path / "config.json")
    stored = _decoder_tensors(path, config)
    if values.get("tie_word_embeddings", False):
        stored = {name: found for name, found in stored.items() if not name.startswith("lm_head.")}
    tensors = _Tensors(stored, blocks)
    tokenizer = load_tokenizer(path, values)
    names = frozenset(name for name in stored if not name.endswith(_SCALE_SUFFIXES))
    for name in names:
        tensors.check(name)
    return Checkpoint(path, config, tokenizer, names, tensors.read, tensors.read_fp8)


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

    def load(self) -> torch.Tensor:
        try:
            with safe_open(self.file, framework="pt") as shard:
                tensor: torch.Tensor = shard.get_tensor(self.name)
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{self} cannot be read: {error}; fetch it again") from None
        return tensor


@dataclass(frozen=True, slots=True)
class _Tensors:
    """A directory's tensors, read one at a time."""

    stored: dict[str, _Stored]
    """Location by the engine's name."""
    blocks: tuple[tuple[int, int], ...]
    """Declared shapes of blocks that share a scale."""

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

    def read(self, name: str) -> torch.Tensor:
        matrix = self.read_fp8(name)
        return self.stored[name].load() if matrix is None else matrix.dequantize()

    def read_fp8(self, name: str) -> Fp8Matrix | None:
        stored = self.stored[name]
        if stored.dtype != _FP8:
            return None
        values, scales = stored.load(), self._scales(name)[0].load()
        try:
            return scaled(values, scales, self.blocks)
        except ValueError as error:
            raise ModelError(f"{stored} {error}") from None

    def _scales(self, name: str) -> list[_Stored]:
        found = (self.stored.get(name + suffix) for suffix in _SCALE_SUFFIXES)
        return [stored for stored in found if stored is not None]


def _decoder_tensors(path: Path, config: ModelConfig) -> dict[str, _Stored]:
    """Tensors by the engine's names. Raises ModelError for unknown ones."""
    tensors: dict[str, _Stored] = {}
    for stored in _stored_tensors(path):
        name = stored.name.removeprefix("model.")
        if _IGNORED.fullmatch(name):
            continue
        if not is_known_tensor(_SCALES.sub(r"\1", name), config):
            raise ModelError(
                f"{stored} has no place in a decoder of {config.num_layers} layers of the "
                f"{config.architecture} family"
            )
        tensors[name] = stored
    return tensors


def _stored_tensors(path: Path) -> list[_Stored]:
    index = path / "model.safetensors.index.json"
    if index.exists():
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict):
            raise ModelError(f"{index}: lacks 'weight_map'")
        files = sorted({str(file) for file in weight_map.values()})
        missing = [file for file in files if not (path / file).exists()]
        if missing:
            raise ModelError(f"{path}: {', '.join(missing)} missing, named by {index.name}")
    else:
        files, weight_map = ["model.safetensors"], None
    stored = []
    for file in files:
        try:
            with safe_open(path / file, framework="pt") as shard:
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
