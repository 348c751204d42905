"""An engine core without a thread or a model, driven step by step."""

from collections.abc import Callable
from typing import Any

from latency_budget.account.clock import ManualClock
from llm_engine.config import SamplingParams
from llm_engine.core.engine_core import EngineCore
from llm_engine.core.request import Output, Request, RequestId
from llm_engine.kv_cache.kv_cache import SequenceId
from tests.support.fakes.llm_models import ScriptedBackend

LETTERS = tuple(bytes([code]) for code in range(128))
END = 0


def next_letter(held: list[int]) -> int:
    """A token that depends on everything before it, never the end."""
    return 97 + (sum((index + 1) * token for index, token in enumerate(held)) % 26)


class Bench:
    """A core, its backend, and what came out for each request."""

    def __init__(
        self,
        next_token: Callable[[list[int]], int] = next_letter,
        *,
        num_pages: int = 1000,
        shares_pages: bool = True,
        token_bytes: tuple[bytes, ...] = LETTERS,
        **settings: Any,
    ) -> None:
        self.backend = ScriptedBackend(next_token, num_pages=num_pages, shares_pages=shares_pages)
        self.clock = ManualClock()
        defaults = {"context_length": 200, "prefill_chunk": 8, "max_sequences": 4}
        self.core = EngineCore(
            self.backend, token_bytes, clock=self.clock, **{**defaults, **settings}
        )
        self.outputs: dict[RequestId, list[Output]] = {}

    def add(
        self, prompt: str, max_tokens: int = 5, sequence: SequenceId | None = None, **more: Any
    ) -> RequestId:
        return self.core.add(
            Request(
                prompt=tuple(prompt.encode()),
                sampling=more.pop("sampling", SamplingParams()),
                end_ids=more.pop("end_ids", frozenset([END])),
                max_tokens=max_tokens,
                sequence=self.core.open_sequence() if sequence is None else sequence,
                **more,
            )
        )

    def step(self) -> list[Output]:
        outputs = self.core.step()
        for output in outputs:
            self.outputs.setdefault(output.request_id, []).append(output)
        return outputs

    def run(self) -> None:
        while self.core.has_work:
            self.step()
            self.core.cache.check()

    def text(self, request: RequestId) -> str:
        return "".join(output.text for output in self.outputs.get(request, []))


def alone(prompt: str, max_tokens: int) -> str:
    bench = Bench(prefill_chunk=1000)
    request = bench.add(prompt, max_tokens)
    bench.run()
    return bench.text(request)
