"""Interface between the engine core and a compute backend.

A backend owns the weights and the keys and values of the sequences. The engine decides what runs:
it sends a `Plan` with `launch` and fetches the result with `collect`, at most one step later, so
that a backend on another device can compute while the host prepares the next step.

Keys and values are addressed by *pages* of a fixed number of tokens: every sequence has a block
table, whose page i holds its positions from i * page_size. The engine allocates pages; their layout
is the backend's. One that reads through the block table lets sequences share pages
(`CacheLayout.shares_pages`). One that keeps each sequence in a buffer of its own, its *slot*,
ignores the tables, and copies where the others share; pages then only count what memory is used.

There is no call to shorten a sequence: rows at `first_position` replace whatever it held from there
on. Truncating a conversation costs nothing and needs no call.

All calls come from one thread, the engine's.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NewType, Protocol, runtime_checkable

from llm_engine.config import SamplingParams
from llm_engine.errors import DeviceLostError

from .interruption import Interruption

if TYPE_CHECKING:
    from torch import Tensor

Slot = NewType("Slot", int)
"""Number of a sequence in a backend."""

PageId = NewType("PageId", int)
"""Number of a page, from 0 to `CacheLayout.num_pages` - 1."""


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """Size of a backend's KV cache, and whether sequences may share pages."""

    page_size: int
    """Tokens in a page."""
    num_pages: int
    shares_pages: bool
    """True if the same page may stand in several block tables."""
    lookahead: int = 0
    """Tokens beyond those of a step for which to reserve room while there is plenty: the backend
    launches the next step ahead (overlap scheduling)."""

    @property
    def capacity(self) -> int:
        """Tokens that fit if one sequence has all pages."""
        return self.num_pages * self.page_size


@dataclass(frozen=True, slots=True)
class PageCopy:
    """A page to copy before a step, because a sequence will write into a shared one."""

    source: PageId
    target: PageId


@dataclass(frozen=True, slots=True)
class ScoredRow:
    """A row after which the probability of some tokens is wanted, whatever is chosen."""

    index: int
    """Index of the row in `SequenceRows.token_ids`."""
    token_ids: tuple[int, ...]
    """Tokens whose probabilities are added up."""


@dataclass(frozen=True, slots=True)
class SequenceRows:
    """Rows of one sequence in a step: consecutive tokens, and how to sample after them."""

    slot: Slot
    token_ids: tuple[int, ...]
    first_position: int
    """Position of the first token; the cache holds at least as many tokens before it."""
    num_sampled: int
    """Last rows after each of which a token is chosen. 0 while a prompt goes on."""
    sampling: SamplingParams
    seed: int
    """Seed of the request, fixed by the engine; `sampling.seed` may be None."""
    chosen: tuple[int, ...] = ()
    """The reply's tokens up to the first sampled row, for `sampling.repetition_penalty`. Each later
    sampled row adds its own token. Empty without a penalty."""
    banned: tuple[int, ...] = ()
    """Tokens that the first `num_banned` sampled rows may not choose."""
    num_banned: int = 0
    allowed: tuple[bytes, ...] = ()
    """Bit mask for each sampled row: it may choose token i if bit i % 8 of byte i // 8 is set, and
    no token beyond the last byte. Empty without a grammar."""
    pages: Sequence[PageId] = ()
    """The block table, with room for these tokens. It is the engine's own list and must not be
    kept."""
    scored: ScoredRow | None = None
    """A backend that can't score a row leaves it out of `StepResult.log_probs`."""

    @property
    def logit_rows(self) -> tuple[int, ...]:
        """Indices of the rows whose logits are needed, in order: the sampled ones, and the scored
        one, which may lie before them."""
        size = len(self.token_ids)
        sampled = range(size - self.num_sampled, size)
        if self.scored is None or self.scored.index in sampled:
            return tuple(sampled)
        return self.scored.index, *sampled


@dataclass(frozen=True, slots=True)
class SubBatch:
    """Sequences that may run in one forward pass; each slot at most once."""

    sequences: tuple[SequenceRows, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """Work of one step. A backend may run the sub-batches one after another."""

    sub_batches: tuple[SubBatch, ...]
    copies: tuple[PageCopy, ...] = ()
    """Page copies to make first. Empty for a backend that does not share pages."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """Tokens that a step chose."""

    tokens: Mapping[Slot, tuple[int, ...]]
    """`num_sampled` token ids for each slot."""
    log_probs: Mapping[Slot, float] = field(default_factory=dict)
    """Natural logarithm of the probability that the next token is one of `ScoredRow.token_ids`."""


class StepHandle(Protocol):
    """A launched step."""

    @property
    def plan(self) -> Plan: ...


@dataclass(frozen=True, slots=True)
class DoneStep:
    """A finished step: the handle of backends that compute in `launch`, on the host."""

    plan: Plan
    result: StepResult


class Backend(Protocol):
    """Compute backend. Whatever a call raises fails the requests in its plan."""

    @property
    def layout(self) -> CacheLayout: ...

    def open_slot(self) -> Slot:
        """Open a new, empty sequence."""
        ...

    def close_slot(self, slot: Slot) -> None:
        """Release a sequence's memory."""
        ...

    def copy_prefix(self, source: Slot, target: Slot, num_tokens: int) -> None:
        """Copy the source's first tokens to the target. Does nothing where these are in shared
        pages."""
        ...

    def launch(self, plan: Plan) -> StepHandle:
        """Start a step. Returns before it is done where the device allows."""
        ...

    def collect(self, handle: StepHandle) -> StepResult:
        """Wait for a step. Steps are collected in the order in which they were launched."""
        ...

    def cache_bytes(self) -> int:
        """Bytes that keys and values take now."""
        ...


@runtime_checkable
class RunsInterruptibly(Protocol):
    """A backend that can break off a step."""

    def launch_interruptible(self, plan: Plan, interruption: Interruption) -> StepHandle:
        """Start a step that `interruption` breaks off: raises StepInterruptedError then. Its rows
        count as not written."""
        ...


@runtime_checkable
class HasProcesses(Protocol):
    """A backend that runs processes of its own (tensor parallel)."""

    def when_lost(self, on_lost: Callable[[DeviceLostError], None]) -> None:
        """Register a callback that is called once, on any thread, if a process dies or hangs: the
        engine's thread may be blocked on that process for ever."""
        ...

    def close(self) -> None:
        """End the processes. Nothing can be computed after that."""
        ...


@runtime_checkable
class DraftsItself(Protocol):
    """A backend that drafts inside its own step and holds the draft for the next one."""

    @property
    def num_drafted(self) -> int:
        """Tokens in a draft; 0 without draft heads."""
        ...

    def drafted(self, slot: Slot, position: int) -> tuple[int, ...]:
        """Draft after the token at this position, the last that was chosen in the slot. Empty for
        any other position."""
        ...


@runtime_checkable
class HiddenStates(Protocol):
    """A backend that exposes the LM head's input, from which draft heads start."""

    def hidden(self, slot: Slot, position: int) -> "Tensor | None":
        """The row of this position behind the final norm, `[hidden]` float32 on the CPU.

        None unless the row was sampled, in the last step that sampled any of the slot.
        """
        ...
