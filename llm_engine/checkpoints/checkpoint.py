"""A model on disk: its shape, named tensors and tokenizer, independent of the file format.

Tensors have their Hugging Face names without the leading `model.`, in all formats.
They are read one at a time when a backend asks, so that converting to the backend's own layout
never holds a second copy of the whole model. They are numpy arrays, so that the ONNX backend runs
without torch; only matrices kept in 8-bit floats or 4 bits are torch tensors.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from llm_engine.config import ModelConfig
from llm_engine.errors import ModelError

from .fp8 import Fp8Matrix
from .int4 import AffineInt4, Int4Matrix
from .packed_cache import Array
from .tokenizer import Tokenizer

MAX_DIMENSION: Final = 1 << 22
"""Bound for the dimensions of a decoder: none comes near it; a damaged header easily does."""

_TOP = ("embed_tokens.weight", "norm.weight", "lm_head.weight")
_NORMS = ("input_layernorm", "post_attention_layernorm")
_QK_NORMS = ("self_attn.q_norm", "self_attn.k_norm")
_PROJECTIONS = (
    *(f"self_attn.{part}_proj" for part in "qkvo"),
    *(f"mlp.{part}_proj" for part in ("gate", "up", "down")),
)
_LAYER = re.compile(r"layers\.(\d{1,7})\.(.+)\.(weight|bias)")


def is_known_tensor(name: str, config: ModelConfig) -> bool:
    """True if a decoder of this shape has a tensor of this name. Others would be ignored silently,
    so loaders refuse them."""
    match = _LAYER.fullmatch(name)
    if match is None:
        return name in _TOP
    layer, part, kind = int(match[1]), match[2], match[3]
    norms = (*_NORMS, *_QK_NORMS) if config.has_qk_norm else _NORMS
    return layer < config.num_layers and (
        part in _PROJECTIONS or (kind == "weight" and part in norms)
    )


def is_finite(values: Array) -> bool:
    """True without NaN and infinity. Of weights a sum is the fastest test (0.1 s for 135 M
    numbers), and far from float32's limit."""
    with np.errstate(all="ignore"):
        return bool(np.isfinite(values.sum(dtype=np.float32)))


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """An opened model."""

    path: Path
    config: ModelConfig
    tokenizer: Tokenizer
    names: frozenset[str]
    """Names of the tensors, such as `layers.0.self_attn.q_proj.weight`, `embed_tokens.weight`,
    `norm.weight`, and `lm_head.weight` unless it is tied to the embedding. Any projection may have
    a bias."""
    read: Callable[[str], Array]
    """Reads one tensor by name: in its stored floating dtype (ml_dtypes' for bfloat16), or float32
    where it was quantized.
    Raises ModelError for a damaged file."""
    read_fp8: Callable[[str], Fp8Matrix | None] = lambda _: None
    """Reads one tensor as 8-bit floats and scales; None where it is stored differently."""
    read_int4: Callable[[str], Int4Matrix | None] = lambda _: None
    """Reads one tensor as 4-bit codes; None where it cannot be had as these."""
    int4_names: frozenset[str] = frozenset()
    """Names of the tensors that `read_int4` may return."""
    read_affine_int4: Callable[[str], AffineInt4 | None] = lambda _: None
    """Reads one tensor as 4-bit codes with offsets, without torch; None where it is no such one."""
    affine_int4_names: frozenset[str] = frozenset()
    """Names of the tensors that `read_affine_int4` may return."""

    def __post_init__(self) -> None:
        """Raise ModelError for an impossible shape, before anything is allocated by it."""
        config = self.config
        sizes = {
            name: getattr(config, name)
            for name in ("num_layers", "hidden_size", "intermediate_size", "vocab_size")
        }
        sizes |= {"heads": config.num_heads, "key heads": config.num_kv_heads}
        sizes |= {"head size": config.head_dim, "context length": config.context_length}
        for name, size in sizes.items():
            if not 1 <= size <= MAX_DIMENSION:
                raise ModelError(f"{self.path}: {name} is {size}")
        if config.num_heads % config.num_kv_heads or config.head_dim % 2:
            raise ModelError(
                f"{self.path}: {config.num_heads} heads cannot share {config.num_kv_heads} key "
                f"heads of size {config.head_dim}"
            )
        if not 0 <= config.norm_eps < 1 or not 1 < config.rope_theta < math.inf:
            raise ModelError(
                f"{self.path}: norm epsilon {config.norm_eps} and rotary base {config.rope_theta} "
                "are not a model's"
            )
        windows = config.sliding_windows
        if len(windows) not in (0, config.num_layers) or not all(
            w is None or w > 0 for w in windows
        ):
            raise ModelError(
                f"{self.path}: sliding windows {windows} do not fit {config.num_layers} layers"
            )
        largest = self.tokenizer.largest_used_id
        if largest >= config.vocab_size:
            raise ModelError(
                f"{self.path}: the tokenizer has a token {largest}, the model only "
                f"{config.vocab_size} rows for tokens: one is of another model, or the embedding "
                "was not resized when tokens were added"
            )

    @property
    def has_int4_layers(self) -> bool:
        """True if matrices of a layer are stored in 4 bits."""
        return any(name.startswith("layers.") for name in self.int4_names)

    def tensor(self, name: str, *shape: int) -> Array:
        """Read a tensor and check its shape. Raises ModelError, also for NaN and infinity."""
        if name not in self.names:
            raise ModelError(f"{self.path}: tensor {name!r} is missing; fetch the model again")
        values = self.read(name)
        self._check_shape(name, values.shape, shape)
        if not is_finite(values):
            raise self._damaged(name)
        return values

    def fp8(self, name: str, *shape: int) -> Fp8Matrix | None:
        """Read a weight as 8-bit floats, for a backend that multiplies them.

        None where it is stored differently, or missing: `tensor` then reports it. Raises
        ModelError.
        """
        matrix = self.read_fp8(name) if name in self.names else None
        if matrix is not None:
            self._check_shape(name, tuple(matrix.values.shape), shape)
            if matrix.has_nan:
                raise self._damaged(name)
        return matrix

    def int4(self, name: str, *shape: int) -> Int4Matrix | None:
        """Read a weight as 4-bit codes, exactly as stored.

        None where it is stored differently, or missing: `tensor` then reports it. Raises
        ModelError.
        """
        matrix = self.read_int4(name) if name in self.int4_names else None
        if matrix is not None:
            self._check_shape(name, tuple(matrix.codes.shape), shape)
            if not bool(matrix.scales.isfinite().all()):
                raise self._damaged(name)
        return matrix

    def affine_int4(self, name: str, *shape: int) -> AffineInt4 | None:
        """Read a weight as 4-bit codes with offsets, exactly as stored.

        None where it is stored differently, or missing: `tensor` then reports it. Raises
        ModelError.
        """
        matrix = self.read_affine_int4(name) if name in self.affine_int4_names else None
        if matrix is not None:
            self._check_shape(name, matrix.codes.shape, shape)
            if not (is_finite(matrix.scales) and is_finite(matrix.offsets)):
                raise self._damaged(name)
        return matrix

    def _damaged(self, name: str) -> ModelError:
        return ModelError(
            f"{self.path}: tensor {name!r} is damaged: it holds NaN or infinity; fetch it again"
        )

    def _check_shape(self, name: str, found: tuple[int, ...], shape: tuple[int, ...]) -> None:
        if found != shape:
            raise ModelError(
                f"{self.path}: tensor {name!r} has shape {found}; the model's "
                f"configuration calls for {shape}. One is of another model: fetch both again"
            )
