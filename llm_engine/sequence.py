"""Which tokens a sequence's cache holds, and what of it a new prompt can use."""

from collections.abc import Sequence as Ids
from dataclasses import dataclass, field
from typing import NewType

SequenceId = NewType("SequenceId", int)


@dataclass(slots=True)
class CachedSequence:
    """The tokens whose keys and values a backend's slot holds."""

    id: SequenceId
    slot: int
    token_ids: list[int] = field(default_factory=list)

    def reuse(self, prompt: Ids[int], *, keep_last_open: bool) -> int:
        """Cut back to the longest common prefix with a prompt; return its length.

        With `keep_last_open` the prompt's last token is never taken from the cache: its logits are
        wanted, and the cache has none.
        """
        limit = len(prompt) - 1 if keep_last_open else len(prompt)
        num_common = common_prefix_length(self.token_ids, prompt[:limit])
        self.truncate(num_common)
        return num_common

    def truncate(self, num_tokens: int) -> None:
        """Keep the first `num_tokens`."""
        del self.token_ids[num_tokens:]

    def extend(self, token_ids: Ids[int]) -> None:
        """These were computed after those it has."""
        self.token_ids.extend(token_ids)


def common_prefix_length(first: Ids[int], second: Ids[int]) -> int:
    """How many leading tokens two lists share."""
    for index, (a, b) in enumerate(zip(first, second, strict=False)):
        if a != b:
            return index
    return min(len(first), len(second))
