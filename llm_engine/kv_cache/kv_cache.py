"""KV cache manager: sequences, prefix reuse, pinned prefixes, eviction.

A new prompt reuses its longest common prefix with the sequence's tokens. Where *pinned prefixes*
match further (system prompts and examples, with which many calls begin), the sequence takes over
the one that matches furthest: shared where the backend reads through block tables, copied where it
does not. A prefix is pinned when the first sequence has computed it, so that pinning costs nothing.

When pages run out, whole idle conversations are evicted first, the one that has been idle longest
before the others; then pinned prefixes. An evicted conversation goes on all the same: its next
prompt is computed from the start. No part of a live one is evicted: keys after a hole are useless.
"""

from collections.abc import Container, Sequence
from collections.abc import Sequence as Ids
from dataclasses import dataclass, field
from itertools import count
from typing import NewType

from llm_engine.backends.base import Backend, PageCopy, Slot
from llm_engine.errors import RequestError
from llm_engine.kv_cache.block_manager import BlockTable, OutOfPagesError, PagePool

MAX_PINNED = 8
"""Pinned prefixes, the oldest replaced first. A service has a few agents, and each has one; a
client that sends another system prompt with each call must not fill the cache."""


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


_COMPARED = 256
"""Tokens compared at once. A loop over each takes 60 us a thousand, in which nothing else runs: it
holds the interpreter's lock."""


def common_prefix_length(first: Ids[int], second: Ids[int]) -> int:
    """Number of leading tokens that two lists share."""
    num_tokens = min(len(first), len(second))
    for start in range(0, num_tokens, _COMPARED):
        end = min(start + _COMPARED, num_tokens)
        ours, theirs = list(first[start:end]), list(second[start:end])
        if ours != theirs:
            pairs = zip(ours, theirs, strict=True)
            return start + next(index for index, (a, b) in enumerate(pairs) if a != b)
    return num_tokens


class KvCache:
    """All sequences of an engine, their pages and slots. Not thread-safe; the engine's thread owns
    it."""

    def __init__(self, backend: Backend, max_sequences: int) -> None:
        self._backend = backend
        self._layout = backend.layout
        self._max_sequences = max_sequences
        self.pool = PagePool(self._layout.num_pages)
        self.sequences: dict[SequenceId, CachedSequence] = {}
        """Open sequences in order of their last use."""
        self._pinned: dict[tuple[int, ...], CachedSequence] = {}
        """Pinned prefixes in order of their last use."""
        self._ids = count(1)
        self.num_evicted = 0
        """Idle conversations evicted so far."""

    def open(self) -> CachedSequence:
        """Open a new, empty sequence. Raises RequestError when there are too many."""
        if len(self.sequences) >= self._max_sequences:
            raise RequestError(
                "max_sequences", f"all {self._max_sequences} of the engine's sequences are in use"
            )
        sequence = self._new()
        self.sequences[sequence.id] = sequence
        return sequence

    def close(self, sequence: CachedSequence) -> None:
        """Close a sequence and release its memory."""
        del self.sequences[sequence.id]
        self._dispose(sequence)

    def match(self, sequence: CachedSequence, wanted: Sequence[int]) -> int:
        """Cut a sequence back to its longest common prefix with these tokens, or take over the
        pinned one that matches furthest.

        Returns the number of cached tokens. `wanted` are the tokens of a prompt before the first
        after which logits are wanted: the cache has none.
        """
        self.sequences[sequence.id] = self.sequences.pop(sequence.id)
        num_own = common_prefix_length(sequence.token_ids, wanted)
        sequence.truncate(num_own)
        num_common, ids = max(
            ((common_prefix_length(ids, wanted), ids) for ids in self._pinned),
            key=lambda each: each[0],
            default=(0, ()),
        )
        if num_common > num_own:
            pinned = self._pinned[ids] = self._pinned.pop(ids)
            if self._fork(pinned, sequence, num_common):
                return num_common
        return num_own

    def take_over(self, source: CachedSequence, target: CachedSequence, num_tokens: int) -> None:
        """Give the target the source's first tokens, which begin with all of its own. Without room
        for a copy it stays as it is. Of shared pages only full ones are taken: the source, which
        may be at work, goes on in its own."""
        assert source.token_ids[: len(target.token_ids)] == target.token_ids
        if self._layout.shares_pages:
            num_tokens -= num_tokens % self._layout.page_size
        if num_tokens > len(target.token_ids):
            self._fork(source, target, num_tokens)

    def reserve(
        self,
        sequence: CachedSequence,
        num_tokens: int,
        busy: Container[SequenceId] = (),
        *,
        may_evict: bool = True,
    ) -> tuple[PageCopy, ...]:
        """Reserve pages for more tokens, if need be by evicting sequences that are not `busy`.

        Returns the copies for the backend to make before the step. Raises OutOfPagesError.
        """
        while True:
            try:
                copies = sequence.table.reserve(num_tokens)
            except OutOfPagesError:
                if not (may_evict and self._evict(busy)):
                    raise
            else:
                if self._layout.lookahead and self.pool.num_free > self._max_sequences:
                    sequence.table.reserve(num_tokens + self._layout.lookahead)
                return copies

    def forget(self, sequence: CachedSequence) -> None:
        """Release everything that a sequence has cached; it stays open."""
        sequence.truncate(0)
        self._backend.close_slot(sequence.slot)
        sequence.slot = self._backend.open_slot()

    def pin(self, sequence: CachedSequence, num_tokens: int) -> None:
        """Pin a sequence's first tokens for other sequences that begin with them."""
        ids = tuple(sequence.token_ids[:num_tokens])
        if ids in self._pinned:
            return
        pinned = self._new()
        if not self._fork(sequence, pinned, num_tokens):
            self._dispose(pinned)
            return
        self._pinned[ids] = pinned
        if len(self._pinned) > MAX_PINNED:
            self._unpin_oldest()

    def forget_everything(self) -> None:
        """Start again with an empty cache, trusting none of the counts."""
        for pinned in self._pinned.values():
            self._backend.close_slot(pinned.slot)
        self._pinned.clear()
        self.pool = PagePool(self._layout.num_pages)
        for sequence in self.sequences.values():
            sequence.token_ids.clear()
            sequence.table = BlockTable(self.pool, self._layout.page_size)
            self._backend.close_slot(sequence.slot)
            sequence.slot = self._backend.open_slot()

    @property
    def page_tokens(self) -> int:
        """Tokens in a page."""
        return self._layout.page_size

    def release(self) -> None:
        """Let the backend go. No other method may be called afterwards that needs it."""
        del self._backend

    def check(self) -> None:
        """Integrity check: raise AssertionError unless every page and token is accounted for."""
        everything = [*self.sequences.values(), *self._pinned.values()]
        self.pool.check(sequence.table for sequence in everything)
        for sequence in everything:
            assert sequence.table.num_tokens == len(sequence.token_ids), sequence.id

    def _new(self) -> CachedSequence:
        table = BlockTable(self.pool, self._layout.page_size)
        return CachedSequence(SequenceId(next(self._ids)), self._backend.open_slot(), table)

    def _dispose(self, sequence: CachedSequence) -> None:
        sequence.truncate(0)
        self._backend.close_slot(sequence.slot)

    def _fork(self, source: CachedSequence, target: CachedSequence, num_tokens: int) -> bool:
        """Give the target the source's first tokens. False when there is no room for a copy."""
        if self._layout.shares_pages:
            target.table.share(source.table, num_tokens)
        else:
            try:
                target.table.reserve(num_tokens - target.table.num_tokens)
            except OutOfPagesError:
                return False
            target.table.advance(num_tokens - target.table.num_tokens)
        self._backend.copy_prefix(source.slot, target.slot, num_tokens)
        target.token_ids[:] = source.token_ids[:num_tokens]
        return True

    def _evict(self, busy: Container[SequenceId]) -> bool:
        """Evict an idle sequence or a pinned prefix. False when there is none."""
        for sequence in self.sequences.values():
            if sequence.token_ids and sequence.id not in busy:
                self.forget(sequence)
                self.num_evicted += 1
                return True
        if self._pinned:
            self._unpin_oldest()
            return True
        return False

    def _unpin_oldest(self) -> None:
        self._dispose(self._pinned.pop(next(iter(self._pinned))))
