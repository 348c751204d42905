"""An engine core over a real backend, driven to the end of what it was asked."""

from collections.abc import Sequence

from latency_budget.account.clock import ManualClock
from llm_engine.backends.base import Backend
from llm_engine.checkpoints.checkpoint import Checkpoint
from llm_engine.config import SamplingParams
from llm_engine.core.engine_core import EngineCore
from llm_engine.core.metrics import EngineStats
from llm_engine.core.request import Request, RequestId
from llm_engine.kv_cache.kv_cache import SequenceId
from llm_engine.speculative.drafter import Drafter

GREEDY = SamplingParams()


class Replies:
    """Requests and the tokens they got. The backend may be used again after `close`."""

    def __init__(
        self,
        backend: Backend,
        checkpoint: Checkpoint,
        *,
        prefill_chunk: int = 1000,
        drafters: Sequence[Drafter] = (),
        context_length: int = 400,
    ) -> None:
        self.core = EngineCore(
            backend,
            checkpoint.tokenizer.token_bytes,
            context_length=context_length,
            prefill_chunk=prefill_chunk,
            max_sequences=16,
            clock=ManualClock(),
            drafters=drafters,
        )
        self.tokens: dict[RequestId, list[int]] = {}

    def open(self) -> SequenceId:
        return self.core.open_sequence()

    def ask(
        self,
        prompt: Sequence[int],
        sampling: SamplingParams = GREEDY,
        num_tokens: int = 24,
        *,
        sequence: SequenceId | None = None,
        num_fixed: int = 0,
    ) -> RequestId:
        """No tokens: a preview."""
        request = self.core.add(
            Request(
                prompt=tuple(prompt),
                sampling=sampling,
                end_ids=frozenset(),
                max_tokens=num_tokens,
                sequence=self.open() if sequence is None else sequence,
                num_fixed=num_fixed,
            )
        )
        self.tokens[request] = []
        return request

    def step(self) -> None:
        for output in self.core.step():
            assert output.error is None, output.error
            self.tokens[output.request_id] += output.token_ids
        self.core.cache.check()

    def finish(self) -> None:
        while self.core.has_work:
            self.step()

    def reply(
        self, prompt: Sequence[int], sampling: SamplingParams = GREEDY, num_tokens: int = 24
    ) -> list[int]:
        """Reply to a prompt alone, on a sequence of its own."""
        request = self.ask(prompt, sampling, num_tokens)
        self.finish()
        return self.tokens[request]

    @property
    def stats(self) -> EngineStats:
        return self.core.stats()

    def close(self) -> None:
        """Give every slot back."""
        for sequence in list(self.core.cache.sequences):
            self.core.close_sequence(sequence)
        self.core.cache.forget_everything()
