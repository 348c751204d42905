"""Frequencies and tables of the rotary position embedding, plain and scaled to longer contexts.

Powers, cosines and sines are computed in float64 and rounded once: the tables of all backends are
equal, on every machine.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llm_engine.config import (
    DivisorScaling,
    LinearScaling,
    Llama3Scaling,
    ModelConfig,
    RopeScaling,
    YarnScaling,
)

Floats = NDArray[np.float32]


def rotary_tables(
    config: ModelConfig, positions: NDArray[np.integer[Any]]
) -> tuple[Floats, Floats]:
    """Cosines and sines of positions, `[positions, head_dim / 2]`, float32."""
    frequencies = inverse_frequencies(config.head_dim, config.rope_theta, config.rope_scaling)
    angles = np.outer(positions.astype(np.float32), frequencies).astype(np.float64)
    factor = np.float32(config.rope_attention_factor)
    return np.cos(angles).astype(np.float32) * factor, np.sin(angles).astype(np.float32) * factor


def inverse_frequencies(head_dim: int, theta: float, scaling: RopeScaling | None) -> Floats:
    """Rotary frequencies `[head_dim / 2]`, float32, in radians per position.

    YaRN also multiplies sines and cosines: `ModelConfig.rope_attention_factor`.
    """
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    with np.errstate(over="ignore"):
        powers = np.power(theta, exponents.astype(np.float64)).astype(np.float32)
    frequencies: Floats = np.float32(1) / powers
    kept: Floats
    match scaling:
        case None:
            return frequencies
        case LinearScaling():
            return frequencies / np.float32(scaling.factor)
        case DivisorScaling():
            divided: Floats = np.divide(frequencies, np.array(scaling.divisors, np.float32))
            return divided
        case Llama3Scaling():
            kept = _kept_by_turns(frequencies, scaling)
        case YarnScaling():
            kept = _kept_by_index(head_dim, theta, scaling)
    scaled: Floats = frequencies * (kept + (1 - kept) / np.float32(scaling.factor))
    return scaled


def _kept_by_turns(frequencies: Floats, scaling: Llama3Scaling) -> Floats:
    """Unscaled share of each frequency, 0 to 1: rises with its turns."""
    turns = scaling.original_context_length * frequencies / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept: Floats = np.clip((turns - low) / (high - low), 0, 1)
    return kept


def _kept_by_index(head_dim: int, theta: float, scaling: YarnScaling) -> Floats:
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
    indices = np.arange(head_dim // 2, dtype=np.float32)
    kept: Floats = 1 - np.clip((indices - first) / (last - first), 0, 1)
    return kept
