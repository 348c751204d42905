"""Targets on one GPU, and the physical lower bounds."""

from dataclasses import dataclass
from typing import Final

from llm_engine.config import ModelConfig
from llm_engine.cuda.memory import shapes

_SLOWDOWNS: Final = {"H200": 1.0, "H100": 4.8 / 3.35}
"""Cards, by a part of their names, and the factor of their times: the targets are set for an H200,
and grow as memory bandwidth shrinks (TB/s by NVIDIA's data sheets of the SXM modules)."""

_ITL_MS: Final = {
    ("8b", "bfloat16"): 4.3,
    ("8b", "fp8"): 2.2,
    ("70b", "fp8"): 20.0,
    ("1b", "fp8"): 0.6,
}
_TTFT_MS: Final = {("8b", 512, 0): 14.0, ("8b", 32, 4096): 5.0}
_SPECULATIVE_MS: Final = {("8b", "fp8"): 1.1}
TOKENS_A_STEP: Final = 2.8
"""Number of tokens a step for which the target of speculation is set."""
JITTER: Final = 1.3
"""Greatest ratio of p99 to p50 of ITL."""


@dataclass(frozen=True, slots=True)
class Bars:
    """Targets of one model on one card. None: no target is set."""

    shape: str
    precision: str
    slowdown: float | None
    """Factor of times on this card: `slowdown_of`."""

    def itl_ms(self) -> float | None:
        return self._scaled(_ITL_MS.get((self.shape, self.precision)))

    def ttft_ms(self, num_new: int, num_cached: int) -> float | None:
        return self._scaled(_TTFT_MS.get((self.shape, num_new, num_cached)))

    def speculative_ms(self, tokens_a_step: float) -> float | None:
        """Target in ms a token, only for about `TOKENS_A_STEP` tokens a step."""
        if abs(tokens_a_step - TOKENS_A_STEP) > 0.15:
            return None
        return self._scaled(_SPECULATIVE_MS.get((self.shape, self.precision)))

    def jitter(self) -> float | None:
        return None if self.slowdown is None else JITTER

    def _scaled(self, ms: float | None) -> float | None:
        return None if ms is None or self.slowdown is None else ms * self.slowdown


def slowdown_of(card: str) -> float | None:
    """Factor of times on a card with this name. None: no targets are set for it."""
    return next((factor for part, factor in _SLOWDOWNS.items() if part in card), None)


def step_ms(weight_bytes: int, kv_bytes: int, bytes_a_s: float) -> float:
    """Lower bound in ms of a decode step: reading all weights, keys and values once."""
    return (weight_bytes + kv_bytes) / bytes_a_s * 1e3


def prompt_ms(
    config: ModelConfig, num_new: int, weight_bytes: int, bytes_a_s: float, flops: float
) -> float:
    """Lower bound in ms of prefill: the larger of reading the weights once and of the products'
    arithmetic. Attention's arithmetic is small beside it at such lengths."""
    layer = sum(rows * columns for rows, columns in shapes(config))
    operations = 2 * num_new * config.num_layers * layer
    return max(weight_bytes / bytes_a_s, operations / flops) * 1e3


def expected_tokens(acceptance: float, num_drafted: int) -> float:
    """Expected number of tokens a step if each drafted token is accepted with this probability."""
    return sum(acceptance**place for place in range(num_drafted + 1))
