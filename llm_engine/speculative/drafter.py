"""Interface of drafters: what proposes tokens for speculative decoding.

A drafter proposes how a reply goes on. The model computes the rows of all proposed tokens in one
step and chooses after each as it would have chosen anyway, with the same random number (that
depends on the position alone). What the model chooses is the reply; a draft only decides how many
of the computed rows were of use. A draft can be wrong, but it cannot change a reply.
"""

from collections.abc import Sequence
from typing import Protocol

from llm_engine.backends.base import Slot


class Draft(Protocol):
    """A drafter's state for one request. Called between steps, on the engine's thread."""

    def propose(self, tokens: Sequence[int], max_tokens: int) -> Sequence[int]:
        """Propose at most `max_tokens` tokens that may follow; an empty sequence for no proposal.

        `tokens` are the prompt and the reply so far. They only grow from one call to the next, and
        by many where drafting paused.
        """
        ...

    @property
    def grade(self) -> int:
        """Class of the last proposal, 0 to 7: acceptance is measured for each class by itself. A
        drafter that can't tell sure proposals from others has one class."""
        ...

    def num_unread(self, num_tokens: int) -> int:
        """Number of the `num_tokens` tokens so far that `propose` must read first: what makes a
        draft dear after a pause. 0 where reading costs next to nothing."""
        ...

    def close(self) -> None:
        """Release what the request held."""
        ...


class Drafter(Protocol):
    """Makes a `Draft` for each request."""

    @property
    def name(self) -> str:
        """Name under which drafts are counted."""
        ...

    def begin(self, slot: Slot) -> Draft:
        """Start drafting for a request whose tokens the backend computes in this slot."""
        ...
