"""Driver of one sequence on a backend without an engine: only the backend is timed."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from llm_engine.backends.base import Backend, PageId, Plan, SequenceRows, Slot, SubBatch
from llm_engine.config import SamplingParams

_GREEDY = SamplingParams()
SLOT: Final = Slot(0)


@dataclass(slots=True)
class BackendSequence:
    """Sequence with its own block table."""

    backend: Backend
    pages: Sequence[PageId]
    vocab_size: int
    num_tokens: int = 0
    """Number of tokens in the cache."""
    last: int = 0
    """First token of the next step."""
    sampling: SamplingParams = _GREEDY
    _random: random.Random = field(default_factory=lambda: random.Random(1))

    def prompt(self, num_tokens: int) -> tuple[int, ...]:
        """Make a prompt of random tokens."""
        return tuple(self._random.randrange(self.vocab_size) for _ in range(num_tokens))

    def read(self, prompt: tuple[int, ...]) -> int:
        """Prefill these tokens after the cached ones. Returns the token chosen after them."""
        self.last = self._run(prompt, 1)[0]
        self.num_tokens += len(prompt)
        return self.last

    def step(self, draft: Sequence[int] = ()) -> tuple[int, ...]:
        """Run a decode step with a draft after the last token. Returns the tokens that it yields:
        the accepted ones and one more."""
        chosen = self._run((self.last, *draft), 1 + len(draft))
        num_right = 0
        while num_right < len(draft) and chosen[num_right] == draft[num_right]:
            num_right += 1
        self.num_tokens += num_right + 1
        self.last = chosen[num_right]
        return chosen[: num_right + 1]

    def back_to(self, num_tokens: int, last: int) -> None:
        """Go back to the first `num_tokens` of the cache."""
        self.num_tokens, self.last = num_tokens, last

    def _run(self, token_ids: tuple[int, ...], num_sampled: int) -> tuple[int, ...]:
        rows = SequenceRows(
            slot=SLOT,
            token_ids=token_ids,
            first_position=self.num_tokens,
            num_sampled=num_sampled,
            sampling=self.sampling,
            seed=0,
            pages=self.pages,
        )
        handle = self.backend.launch(Plan((SubBatch((rows,)),)))
        return self.backend.collect(handle).tokens[SLOT]
