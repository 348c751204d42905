"""What an engine asks of the thing that calculates.

A backend owns the weights and, per *slot*, the keys and values of one sequence. The engine decides
what runs: it sends a `Plan` with `launch` and fetches the outcome with `collect`, at most one step
later, so that a backend on another device can calculate while the host prepares the next step.

There is no call to shorten a sequence: rows at `first_position` replace whatever the slot held from
there on. Cutting a conversation back costs nothing and needs no word to the backend.

All calls come from one thread, the engine's.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NewType, Protocol

from llm_engine.config import SamplingParams

Slot = NewType("Slot", int)
"""A backend's place for one sequence."""


@dataclass(frozen=True, slots=True)
class SequenceRows:
    """Consecutive tokens of one sequence."""

    slot: Slot
    token_ids: tuple[int, ...]
    first_position: int
    """Position of the first of them; the slot holds at least as many tokens from before."""
    num_sampled: int
    """Tokens to choose: after each of this many last rows one. 0 while a prompt goes on."""
    sampling: SamplingParams
    seed: int
    """Settled by the engine; `sampling.seed` may be None."""
    chosen: tuple[int, ...] = ()
    """The reply's tokens up to the first sampled row, for `sampling.repetition_penalty`. Each later
    sampled row adds its own token. Empty where there is no penalty."""


@dataclass(frozen=True, slots=True)
class SubBatch:
    """Sequences that may run in one forward pass; no slot stands in it twice."""

    sequences: tuple[SequenceRows, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """One step. A backend may run the sub-batches one after another."""

    sub_batches: tuple[SubBatch, ...]


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step chose."""

    tokens: Mapping[Slot, tuple[int, ...]]
    """For each slot `num_sampled` token ids."""


class StepHandle(Protocol):
    """A step on its way."""

    @property
    def plan(self) -> Plan: ...


class Backend(Protocol):
    """See the module's text. Whatever a call raises fails the requests in its plan."""

    def open_slot(self) -> Slot:
        """A new, empty sequence."""
        ...

    def close_slot(self, slot: Slot) -> None:
        """Release its memory."""
        ...

    def launch(self, plan: Plan) -> StepHandle:
        """Start a step. Returns before it is done where the device allows."""
        ...

    def collect(self, handle: StepHandle) -> StepResult:
        """Wait for a step. Steps are collected in the order in which they were launched."""
        ...

    def cache_bytes(self) -> int:
        """Memory that the open slots hold."""
        ...
