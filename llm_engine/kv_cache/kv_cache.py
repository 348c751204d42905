"""All sequences of an engine: what each has cached, and what goes when the cache is full.

A new prompt keeps what it has in common with its sequence's tokens. Where a *pinned prefix* fits it
better (the system prompt and examples, which many calls begin with), the sequence takes that over:
shared where the backend reads through block tables, copied where it does not. A prefix is pinned
when the first sequence has computed it, so that pinning costs nothing.

When pages run out, first whole idle conversations are forgotten, the one that has been idle longest
first; then pinned prefixes. A forgotten conversation goes on all the same: its next prompt is
computed from the start. Never part of a live one: what comes after a hole is worthless.
"""

from collections.abc import Container, Sequence
from itertools import count

from llm_engine.backends.base import Backend, PageCopy
from llm_engine.errors import RequestError

from .block_manager import BlockTable, OutOfPagesError, PagePool
from .sequence import CachedSequence, SequenceId, common_prefix_length

MAX_PINNED = 8
"""Prefixes kept although nobody may need them any more. A service has a few agents, and each has
one; a client that sends another system prompt with each call must not fill the cache."""


class KvCache:
    """Sequences, their pages and slots. Not thread-safe; the engine's thread owns it."""

    def __init__(self, backend: Backend, max_sequences: int) -> None:
        self._backend = backend
        self._layout = backend.layout
        self._max_sequences = max_sequences
        self.pool = PagePool(self._layout.num_pages)
        self.sequences: dict[SequenceId, CachedSequence] = {}
        """The open ones, in order of their last use."""
        self._pinned: dict[tuple[int, ...], CachedSequence] = {}
        """Prefixes, likewise."""
        self._ids = count(1)
        self.num_evicted = 0
        """Conversations forgotten for others' sake."""

    def open(self) -> CachedSequence:
        """A new, empty sequence. Raises RequestError when there are too many."""
        if len(self.sequences) >= self._max_sequences:
            raise RequestError(
                "max_sequences", f"all {self._max_sequences} of the engine's sequences are in use"
            )
        sequence = self._new()
        self.sequences[sequence.id] = sequence
        return sequence

    def close(self, sequence: CachedSequence) -> None:
        """Forget it and release its memory."""
        del self.sequences[sequence.id]
        self._dispose(sequence)

    def match(self, sequence: CachedSequence, prompt: Sequence[int], *, is_preview: bool) -> int:
        """Cut a sequence back to what a prompt has in common with it, or with a pinned prefix.

        Returns how many tokens that are. Unless it is a preview, the prompt's last token is never
        taken from the cache: its logits are wanted, and the cache has none.
        """
        self.sequences[sequence.id] = self.sequences.pop(sequence.id)
        wanted = prompt if is_preview else prompt[:-1]
        num_own = common_prefix_length(sequence.token_ids, wanted)
        sequence.truncate(num_own)
        for ids, pinned in self._pinned.items():
            num_common = common_prefix_length(ids, wanted)
            if num_common > num_own:
                self._pinned[ids] = self._pinned.pop(ids)
                if self._fork(pinned, sequence, num_common):
                    return num_common
                break
        return num_own

    def reserve(
        self, sequence: CachedSequence, num_tokens: int, busy: Container[SequenceId]
    ) -> tuple[PageCopy, ...]:
        """Make room for more tokens, at the cost of sequences that are not `busy`.

        Returns what the backend has to copy before the step. Raises OutOfPagesError.
        """
        while True:
            try:
                copies = sequence.table.reserve(num_tokens)
            except OutOfPagesError:
                if not self._evict(busy):
                    raise
            else:
                if self._layout.lookahead and self.pool.num_free > self._max_sequences:
                    sequence.table.reserve(num_tokens + self._layout.lookahead)
                return copies

    def forget(self, sequence: CachedSequence) -> None:
        """Release the memory of what a sequence has cached; it stays open."""
        sequence.truncate(0)
        self._backend.close_slot(sequence.slot)
        sequence.slot = self._backend.open_slot()

    def pin(self, sequence: CachedSequence, num_tokens: int) -> None:
        """Keep a sequence's first tokens for others that will begin with them."""
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
        """Start again with an empty cache, trusting nothing that was noted before."""
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
        """That a page holds."""
        return self._layout.page_size

    def check(self) -> None:
        """Raise AssertionError unless every page and token is accounted for."""
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
        """Let the target hold the source's first tokens. False when there is no room for a copy."""
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
        """Forget something. False when there is nothing that may be forgotten."""
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
