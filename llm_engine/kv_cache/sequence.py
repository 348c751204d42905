"""A sequence: the tokens whose keys and values are cached, its slot and its block table."""

from collections.abc import Sequence as Ids
from dataclasses import dataclass, field
from typing import NewType

from llm_engine.backends.base import Slot

from .block_manager import BlockTable

SequenceId = NewType("SequenceId", int)


@dataclass(slots=True)
class CachedSequence:
    """Cached tokens of a sequence and the pages that hold their keys and values."""

    id: SequenceId
    slot: Slot
    table: BlockTable
    token_ids: list[int] = field(default_factory=list)

    def truncate(self, num_tokens: int) -> None:
        """Keep the first `num_tokens`."""
        del self.token_ids[num_tokens:]
        self.table.truncate(num_tokens)

    def extend(self, token_ids: Ids[int]) -> None:
        """Append tokens that were computed into reserved pages."""
        self.token_ids.extend(token_ids)
        self.table.advance(len(token_ids))


def common_prefix_length(first: Ids[int], second: Ids[int]) -> int:
    """Number of leading tokens that two lists share."""
    for index, (a, b) in enumerate(zip(first, second, strict=False)):
        if a != b:
            return index
    return min(len(first), len(second))
