"""Targets on one H200, and the physical lower bounds."""

from dataclasses import dataclass
from typing import Final

from llm_engine.config import ModelConfig
from llm_engine.cuda.memory import shapes

CARD: Final = "H200"
"""The bars are for cards with this in their name."""

_ITL_MS: Final = {
    ("8b", "bfloat16"): 4.3,
    ("8b", "fp8"): 2.2,
    ("70b", "fp8"): 20.0,
    ("1b", "fp8"): 0.6,
}
_TTFT_MS: Final = {("8b", 512, 0): 14.0, ("8b", 32, 4096): 5.0}
_SPECULATIVE_MS: Final = {("8b", "fp8"): 1.1}
TOKENS_A_STEP: Final = 2.8
"""The last bar is for speculation that brings so many."""
JITTER: Final = 1.3
"""p99 of ITL over p50."""


@dataclass(frozen=True, slots=True)
class Bars:
    """Those of one model on one card. None: none was set."""

    shape: str
    precision: str
    is_card: bool

    def itl_ms(self) -> float | None:
        return _ITL_MS.get((self.shape, self.precision)) if self.is_card else None

    def ttft_ms(self, num_new: int, num_cached: int) -> float | None:
        return _TTFT_MS.get((self.shape, num_new, num_cached)) if self.is_card else None

    def speculative_ms(self, tokens_a_step: float) -> float | None:
        """For about as many tokens a step as the bar is for."""
        if not self.is_card or abs(tokens_a_step - TOKENS_A_STEP) > 0.15:
            return None
        return _SPECULATIVE_MS.get((self.shape, self.precision))

    def jitter(self) -> float | None:
        return JITTER if self.is_card else None


def step_ms(weight_bytes: int, kv_bytes: int, bytes_a_s: float) -> float:
    """Reading all weights and all keys and values once."""
    return (weight_bytes + kv_bytes) / bytes_a_s * 1e3


def prompt_ms(
    config: ModelConfig, num_new: int, weight_bytes: int, bytes_a_s: float, flops: float
) -> float:
    """The larger of reading the weights once and of the products' arithmetic; attention's is small
    beside it at such lengths."""
    layer = sum(rows * columns for rows, columns in shapes(config))
    operations = 2 * num_new * config.num_layers * layer
    return max(weight_bytes / bytes_a_s, operations / flops) * 1e3


def expected_tokens(acceptance: float, num_drafted: int) -> float:
    """That a step brings where each drafted token is right with this probability."""
    return sum(acceptance**place for place in range(num_drafted + 1))
