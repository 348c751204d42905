"""What an engine asks of the thing that calculates.

A backend owns the weights and the keys and values of the sequences. The engine decides what runs:
it sends a `Plan` with `launch` and fetches the outcome with `collect`, at most one step later, so
that a backend on another device can calculate while the host prepares the next step.

Where keys and values lie is told in *pages* of a fixed number of tokens: every sequence has a block
table, whose page i holds its positions from i * page_size. Pages are the engine's contract, their
layout is the backend's business. One that reads through the block table lets sequences share pages
(`CacheLayout.shares_pages`). One that keeps each sequence in a buffer of its own, its *slot*,
ignores the tables, and copies where the others share; pages then only count what memory is used.

There is no call to shorten a sequence: rows at `first_position` replace whatever it held from there
on. Cutting a conversation back costs nothing and needs no word to the backend.

All calls come from one thread, the engine's.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NewType, Protocol, runtime_checkable

from torch import Tensor

from llm_engine.config import SamplingParams
from llm_engine.errors import DeviceLostError

Slot = NewType("Slot", int)
"""A backend's place for one sequence."""

PageId = NewType("PageId", int)
"""From 0 to `CacheLayout.num_pages` - 1."""


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """How much a backend can remember, and whether sequences may share it."""

    page_size: int
    """Tokens in a page."""
    num_pages: int
    shares_pages: bool
    """Whether the same page may stand in several block tables."""
    lookahead: int = 0
    """Tokens beyond those of a step for which there should be room where there is plenty: the
    backend begins with them before it is asked to."""

    @property
    def capacity(self) -> int:
        """Tokens that fit, if one sequence has everything."""
        return self.num_pages * self.page_size


@dataclass(frozen=True, slots=True)
class PageCopy:
    """A page to be copied before a step: it was shared, and one who shares it will write."""

    source: PageId
    target: PageId


@dataclass(frozen=True, slots=True)
class SequenceRows:
    """Consecutive tokens of one sequence."""

    slot: Slot
    token_ids: tuple[int, ...]
    first_position: int
    """Position of the first of them; the cache holds at least as many tokens from before."""
    num_sampled: int
    """Tokens to choose: after each of this many last rows one. 0 while a prompt goes on."""
    sampling: SamplingParams
    seed: int
    """Settled by the engine; `sampling.seed` may be None."""
    chosen: tuple[int, ...] = ()
    """The reply's tokens up to the first sampled row, for `sampling.repetition_penalty`. Each later
    sampled row adds its own token. Empty where there is no penalty."""
    banned: tuple[int, ...] = ()
    """Tokens that the first `num_banned` sampled rows may not choose."""
    num_banned: int = 0
    allowed: tuple[bytes, ...] = ()
    """For each sampled row what it may choose: token i if bit i % 8 of byte i // 8 is set. Tokens
    beyond the last byte may not be chosen. Empty where everything may."""
    pages: Sequence[PageId] = ()
    """The block table, with room for these tokens. The engine's own list: not to be kept."""


@dataclass(frozen=True, slots=True)
class SubBatch:
    """Sequences that may run in one forward pass; no slot stands in it twice."""

    sequences: tuple[SequenceRows, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """One step. A backend may run the sub-batches one after another."""

    sub_batches: tuple[SubBatch, ...]
    copies: tuple[PageCopy, ...] = ()
    """Done before everything else. Empty for a backend that does not share pages."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step chose."""

    tokens: Mapping[Slot, tuple[int, ...]]
    """For each slot `num_sampled` token ids."""


class StepHandle(Protocol):
    """A step on its way."""

    @property
    def plan(self) -> Plan: ...


@dataclass(frozen=True, slots=True)
class DoneStep:
    """A finished step: the handle of backends that compute in `launch`, on the host."""

    plan: Plan
    result: StepResult


class Backend(Protocol):
    """See the module's text. Whatever a call raises fails the requests in its plan."""

    @property
    def layout(self) -> CacheLayout: ...

    def open_slot(self) -> Slot:
        """A new, empty sequence."""
        ...

    def close_slot(self, slot: Slot) -> None:
        """Release its memory."""
        ...

    def copy_prefix(self, source: Slot, target: Slot, num_tokens: int) -> None:
        """Let the target begin with the source's first tokens. Nothing to do where these are in
        shared pages."""
        ...

    def launch(self, plan: Plan) -> StepHandle:
        """Start a step. Returns before it is done where the device allows."""
        ...

    def collect(self, handle: StepHandle) -> StepResult:
        """Wait for a step. Steps are collected in the order in which they were launched."""
        ...

    def cache_bytes(self) -> int:
        """Memory that keys and values take now."""
        ...


@runtime_checkable
class HasProcesses(Protocol):
    """A backend that has started processes of its own."""

    def when_lost(self, tell: Callable[[DeviceLostError], None]) -> None:
        """Call this once if one of them dies or hangs, from any thread: the engine's own may be
        waiting for that one, and never come back."""
        ...

    def close(self) -> None:
        """End them. Nothing can be calculated any more."""
        ...


@runtime_checkable
class DraftsItself(Protocol):
    """A backend that drafts where it chooses, and has the drafts in hand for its next step."""

    @property
    def num_drafted(self) -> int:
        """Tokens in a draft; 0 where it does not."""
        ...

    def drafted(self, slot: Slot, position: int) -> tuple[int, ...]:
        """What may follow the token at this position, the last that was chosen in the slot.
        Nothing for any other."""
        ...


@runtime_checkable
class HiddenStates(Protocol):
    """A backend that shows what its head was given. Others may go on from there, as draft heads
    do."""

    def hidden(self, slot: Slot, position: int) -> Tensor | None:
        """The row of this position behind the final norm, `[hidden]` float32 on the CPU.

        None unless the row was sampled, in the last step that sampled any of the slot.
        """
        ...
