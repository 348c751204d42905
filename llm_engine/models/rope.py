"""Frequencies of the rotary position embedding, plain and scaled to longer contexts."""

import math

import torch
from torch import Tensor

from llm_engine.config import DivisorScaling, LinearScaling, Llama3Scaling, RopeScaling, YarnScaling


def inverse_frequencies(head_dim: int, theta: float, scaling: RopeScaling | None) -> Tensor:
    """Rotary frequencies `[head_dim / 2]`, float32, in radians per position.

    YaRN also multiplies sines and cosines: `ModelConfig.rope_attention_factor`.
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    frequencies = 1.0 / theta**exponents
    match scaling:
        case None:
            return frequencies
        case LinearScaling():
            return frequencies / scaling.factor
        case DivisorScaling():
            return frequencies / torch.tensor(scaling.divisors)
        case Llama3Scaling():
            kept = _kept_by_turns(frequencies, scaling)
        case YarnScaling():
            kept = _kept_by_index(head_dim, theta, scaling)
    return frequencies * (kept + (1 - kept) / scaling.factor)


def _kept_by_turns(frequencies: Tensor, scaling: Llama3Scaling) -> Tensor:
    """Unscaled share of each frequency, 0 to 1: rises with its turns."""
    turns = scaling.original_context_length * frequencies / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    return ((turns - low) / (high - low)).clamp(0, 1)


def _kept_by_index(head_dim: int, theta: float, scaling: YarnScaling) -> Tensor:
    """Unscaled share of each frequency, falling with its index (YaRN's paper, section 3.2)."""

    def index_that_turns(times: float) -> float:
        wavelength = scaling.original_context_length / times
        return head_dim * math.log(wavelength / (2 * math.pi)) / (2 * math.log(theta))

    first, last = index_that_turns(scaling.beta_fast), index_that_turns(scaling.beta_slow)
    if scaling.whole_indices:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, head_dim - 1)
    if first == last:
        last += 0.001  # as in every implementation; it only has to differ from 0
    indices = torch.arange(head_dim // 2, dtype=torch.float32)
    return 1 - ((indices - first) / (last - first)).clamp(0, 1)
