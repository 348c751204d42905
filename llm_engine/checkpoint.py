"""A model on disk, as a backend sees it: a shape, named tensors and a tokenizer.

Tensors go by their Hugging Face names without the leading `model.`, whatever the file calls them.
They are read one at a time when a backend asks, so that converting to the backend's own layout
never holds a second copy of the whole model.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from llm_engine.config import ModelConfig
from llm_engine.errors import ModelError
from llm_engine.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """An opened model."""

    path: Path
    config: ModelConfig
    tokenizer: Tokenizer
    names: frozenset[str]
    """Tensors that exist, such as `layers.0.self_attn.q_proj.weight`, `embed_tokens.weight`,
    `norm.weight`, and `lm_head.weight` unless the embedding is the head as well."""
    read: Callable[[str], torch.Tensor]
    """One tensor by name: its stored floating dtype, or float32 where it was quantized.
    Raises ModelError when the file turns out to be damaged."""

    def tensor(self, name: str, *shape: int) -> torch.Tensor:
        """One tensor, whose shape must be the one given. Raises ModelError."""
        if name not in self.names:
            raise ModelError(f"{self.path}: tensor {name!r} is missing")
        values = self.read(name)
        if tuple(values.shape) != shape:
            raise ModelError(
                f"{self.path}: tensor {name!r} has shape {tuple(values.shape)}; the model's "
                f"configuration calls for {shape}"
            )
        return values
