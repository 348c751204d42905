"""Draft heads for the tiny models."""

from dataclasses import replace
from typing import Any

import torch

from llm_engine.checkpoints.checkpoint import Checkpoint
from llm_engine.models.medusa_heads import DraftHead, DraftHeads, HeadsShape, model_fingerprint

VOCABULARY = 320
HIDDEN = 64
TEXT = tuple((17 * index + index * index // 7) % 40 + 20 for index in range(60))
"""Token ids."""


def shape_for(checkpoint: Checkpoint, **changes: Any) -> HeadsShape:
    shape = HeadsShape(
        model=model_fingerprint(checkpoint),
        hidden_size=HIDDEN,
        vocab_size=VOCABULARY,
        num_heads=3,
        inner_size=32,
        num_tokens=100,
        norm_eps=1e-5,
    )
    return replace(shape, **changes)


def random_heads(shape: HeadsShape, seed: int = 1) -> DraftHeads:
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        name: torch.randn(size, generator=generator) * 0.3 for name, size in shape.shapes().items()
    }
    order = torch.randperm(shape.vocab_size, generator=generator)
    tokens = order[: shape.num_tokens].sort().values
    heads = tuple(
        DraftHead(**{name: tensors[f"{index}.{name}"] for name in DraftHead.__slots__})
        for index in range(shape.num_heads)
    )
    return DraftHeads(shape, heads, tokens)
