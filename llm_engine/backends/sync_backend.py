"""What backends share that calculate on the host: a step is done when it has been launched."""

from dataclasses import dataclass

from torch import Tensor

from .base import Plan, SequenceRows, StepResult
from .sampler import choose


@dataclass(frozen=True, slots=True)
class DoneStep:
    """A step whose outcome is already here."""

    plan: Plan
    result: StepResult


def choose_tokens(rows: SequenceRows, logits: Tensor) -> tuple[int, ...]:
    """A token after each sampled row, from `[num_sampled, vocab]` float32."""
    first_sampled = len(rows.token_ids) - rows.num_sampled
    position = rows.first_position + first_sampled + 1
    drafted = rows.token_ids[first_sampled + 1 :]
    penalized = rows.sampling.repetition_penalty != 1
    return tuple(
        choose(
            row,
            rows.sampling,
            rows.seed,
            position + index,
            rows.chosen + drafted[:index] if penalized else (),
            rows.banned if index < rows.num_banned else (),
            rows.allowed[index] if rows.allowed else None,
        )
        for index, row in enumerate(logits)
    )
