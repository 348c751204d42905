"""Cuts a plan into steps of captured sizes. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from llm_engine.backends.base import SequenceRows
from llm_engine.cuda.memory import MAX_PROMPT_ROWS
from llm_engine.cuda.ops.interface import MAX_ROWS

BATCH_SIZES = (1, 2, 4, MAX_ROWS)
"""Sequences of a decode step with a row each: captured batch sizes."""

DRAFT_SIZES = (1, 2, 4, MAX_ROWS)
"""Rows of a single sequence in a decode step: captured sizes of a draft and its certain token."""

PROMPT_ROWS = (16, 32, 64, 128, 256, MAX_PROMPT_ROWS)
"""Rows of a prefill step: captured sizes. Longer prompts take several."""


def split_plan(
    sequences: Sequence[SequenceRows], longest: int = PROMPT_ROWS[-1]
) -> Iterator[tuple[SequenceRows, ...]]:
    """Yield steps: sequences with one row together, then the parts of the others, of at most
    `longest` rows, one after another."""
    single = [rows for rows in sequences if len(rows.token_ids) == 1]
    for first in range(0, len(single), BATCH_SIZES[-1]):
        yield tuple(single[first : first + BATCH_SIZES[-1]])
    for rows in sequences:
        if len(rows.token_ids) > 1:
            yield from ((part,) for part in _parts(rows, longest))


def _parts(rows: SequenceRows, longest: int) -> Iterator[SequenceRows]:
    """Yield the steps of one sequence: a prefill step chooses after its last row only."""
    num_rows = len(rows.token_ids)
    if num_rows <= MAX_ROWS:
        yield rows
        return
    num_read = num_rows if rows.num_sampled <= 1 else num_rows - rows.num_sampled
    yield from split(_cut(rows, 0, num_read), longest)
    if num_read < num_rows:
        yield from split(_cut(rows, num_read, num_rows), MAX_ROWS)


def split(rows: SequenceRows, size: int) -> Iterator[SequenceRows]:
    for first in range(0, len(rows.token_ids), size):
        yield _cut(rows, first, min(first + size, len(rows.token_ids)))


def _cut(rows: SequenceRows, start: int, end: int) -> SequenceRows:
    """Rows `start` to `end`, with their sampling, masks and bans."""
    first_sampled = len(rows.token_ids) - rows.num_sampled
    num_before = max(0, start - first_sampled)
    num_sampled = max(0, end - max(start, first_sampled))
    drafted = rows.token_ids[first_sampled + 1 :]
    penalized = rows.sampling.repetition_penalty != 1
    return replace(
        rows,
        token_ids=rows.token_ids[start:end],
        first_position=rows.first_position + start,
        num_sampled=num_sampled,
        chosen=rows.chosen + drafted[:num_before] if penalized else rows.chosen,
        num_banned=max(0, rows.num_banned - num_before),
        allowed=rows.allowed[num_before : num_before + num_sampled],
    )
