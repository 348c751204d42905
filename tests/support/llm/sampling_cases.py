"""What choosing tokens is tested with: parameters, seeds that give a certain random number, and the
distribution as it is defined. Needs no package that a machine with a GPU might lack."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from llm_engine.backends.sampler import choose
from llm_engine.config import SamplingParams
from llm_engine.cuda.ops.interface import SamplingInputs

VOCAB = 203
NEARLY_ONE = 1 - 1e-12
"""In float32 1."""
EVERY_FILTER = (
    SamplingParams(temperature=0.7),
    SamplingParams(temperature=2.0, top_k=7),
    SamplingParams(temperature=1.0, top_p=0.9),
    SamplingParams(temperature=1.0, min_p=0.02),
    SamplingParams(temperature=1.5, top_k=30, top_p=0.8),
    SamplingParams(temperature=1.5, top_k=1000, top_p=0.95, min_p=0.03),
)
_MASK = (1 << 64) - 1


def lane_sampling(
    params: Sequence[SamplingParams], seeds: Sequence[int], device: torch.device
) -> SamplingInputs:
    """A lane for each."""

    def numbers(name: str, dtype: torch.dtype) -> Tensor:
        return torch.tensor([getattr(each, name) for each in params], dtype=dtype, device=device)

    signed = [seed - (1 << 64) if seed >> 63 else seed for seed in seeds]
    return SamplingInputs(
        temperature=numbers("temperature", torch.float32),
        top_k=numbers("top_k", torch.int32),
        top_p=numbers("top_p", torch.float32),
        min_p=numbers("min_p", torch.float32),
        seeds=torch.tensor(signed, dtype=torch.int64, device=device),
    )


def on_host(
    logits: Tensor, positions: Sequence[int], params: Sequence[SamplingParams], seeds: Sequence[int]
) -> list[int]:
    """The tokens after rows at these positions; lanes have equally many rows."""
    num_queries = len(logits) // len(params)
    return [
        choose(row, params[m // num_queries], seeds[m // num_queries], positions[m] + 1)
        for m, row in enumerate(logits.cpu().numpy())
    ]


def some_logits(num_rows: int, size: int, seed: int, scale: float, *, has_ties: bool) -> Tensor:
    """`[num_rows, size]`, float32, on the host."""
    logits = scale * torch.randn(num_rows, size, generator=torch.Generator().manual_seed(seed))
    return logits.round() if has_ties else logits


def seed_for(share: float, position: int) -> int:
    """The 64 bits of which `uniform` makes this multiple of 2^-53."""
    word = int(share * (1 << 53)) << 11
    word = _without_shifted(word, 31)
    for shift, factor in ((27, 0x94D049BB133111EB), (30, 0xBF58476D1CE4E5B9)):
        word = _without_shifted(word * pow(factor, -1, 1 << 64) & _MASK, shift)
    word -= position * 0xD1B54A32D192ED03 + 1
    return word * pow(0x9E3779B97F4A7C15, -1, 1 << 64) & _MASK


def _without_shifted(word: int, shift: int) -> int:
    """x, of which the word is x ^ (x >> shift)."""
    found = word
    for _ in range(64 // shift):
        found = word ^ (found >> shift)
    return found


def distribution(logits: NDArray[np.float32], params: SamplingParams) -> NDArray[np.float64]:
    """Probability of each token, computed from the description of `SamplingParams`."""
    scores = logits.astype(np.float64) / params.temperature
    probabilities = np.exp(scores - scores.max())
    ids = np.argsort(-probabilities, kind="stable")[: params.top_k or None]
    ids = ids[probabilities[ids] >= params.min_p * probabilities[ids[0]]]
    sums = np.cumsum(probabilities[ids])
    num_less = np.count_nonzero(sums < params.top_p * sums[-1] * (1 - 1e-12))
    ids = ids[: num_less + 1]
    kept = np.zeros(len(logits), dtype=np.float64)
    kept[ids] = probabilities[ids] / probabilities[ids].sum()
    return kept


def even_shares(count: int) -> list[float]:
    """Random numbers of which each token gets as many as it is likely, to one."""
    return [(index + 0.5) / count for index in range(count)]
