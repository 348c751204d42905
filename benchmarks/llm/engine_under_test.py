"""Our engine as a contestant, through the interface that the service uses."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

from latency_budget.account.clock import SystemClock, processor_ns
from latency_budget.account.turn import TurnId
from llm_engine.backends.factory import make_backend
from llm_engine.checkpoints.load import load_checkpoint
from llm_engine.config import EngineConfig, SamplingParams
from llm_engine.engine import Engine
from llm_engine.speculative.draft_length import NO_DRAFT, DraftChoice, DraftLengthPolicy

from .contestant import Arrivals, CallerMessage
from .quality import Scorer, score
from .workload import SYSTEM

_CLOCK = SystemClock()


class OwnEngine:
    """A `Contestant`. Each call runs its own event loop; the engine's thread stays alive."""

    version = "this one"

    def __init__(self, path: Path, config: EngineConfig, draft_length: int | None = None) -> None:
        """`draft_length`: of every draft in this process, whether it pays or not; None: the
        engine's choice."""
        self._path = path
        self._config = config
        self._draft_length = draft_length
        self._engine: Engine | None = None

    def prepare(self) -> None:
        import llm_engine.backends.onnx_cpu  # noqa: F401

    def load(self) -> None:
        if self._draft_length is not None:
            fix_draft_length(self._draft_length)
        self._engine = Engine.load(self._path, self._config)
        asyncio.run(self._engine.warm())

    def reply(self, prompt: Sequence[int], num_tokens: int, *, may_end: bool = False) -> Arrivals:
        return asyncio.run(self._reply(prompt, num_tokens, may_end))

    def timed_reply(self, prompt: Sequence[int], num_tokens: int) -> tuple[Arrivals, float]:
        """`reply` that may end earlier, and the processor time in ms of this process, all threads,
        after the first token."""
        return asyncio.run(self._timed_reply(prompt, num_tokens))

    def together(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> list[Arrivals]:
        async def all_replies() -> list[Arrivals]:
            return list(
                await asyncio.gather(*(self._reply(each, num_tokens, False) for each in prompts))
            )

        return asyncio.run(all_replies())

    def dialogue(self, turns: Sequence[CallerMessage], num_tokens: int) -> list[float]:
        return asyncio.run(self._dialogue(turns, num_tokens, is_previewed=False))

    def previewed(self, turns: Sequence[CallerMessage], num_tokens: int) -> list[float]:
        """`dialogue` with each message prefilled before it is committed, as the service does while
        the caller speaks."""
        return asyncio.run(self._dialogue(turns, num_tokens, is_previewed=True))

    def nats(self, token_ids: Sequence[int]) -> float:
        """Mean of -log p, by a backend that is loaded for this call."""
        length = len(token_ids)
        backend = make_backend(
            load_checkpoint(self._path), self._config, length, lambda share: None
        )
        assert isinstance(backend, Scorer)
        return score(backend, token_ids).nats

    def drafts(self) -> tuple[int, int]:
        """Tokens drafted and accepted so far."""
        stats = asyncio.run(self._loaded.stats())
        counts = stats.drafts.values()
        return sum(one.num_drafted for one in counts), sum(one.num_accepted for one in counts)

    def draft_counts(self) -> tuple[int, int, int]:
        """Tokens drafted, checked and accepted so far."""
        counts = asyncio.run(self._loaded.stats()).drafts.values()
        return (
            sum(one.num_drafted for one in counts),
            sum(one.num_checked for one in counts),
            sum(one.num_accepted for one in counts),
        )

    @property
    def _loaded(self) -> Engine:
        assert self._engine is not None
        return self._engine

    async def _timed_reply(self, prompt: Sequence[int], num_tokens: int) -> tuple[Arrivals, float]:
        begun_ns: list[int] = []
        arrivals = await self._reply(
            prompt, num_tokens, True, on_first=lambda: begun_ns.append(processor_ns())
        )
        return arrivals, (processor_ns() - begun_ns[0]) / 1e6 if begun_ns else 0.0

    async def _reply(
        self,
        prompt: Sequence[int],
        num_tokens: int,
        may_end: bool,
        on_first: Callable[[], None] = lambda: None,
    ) -> Arrivals:
        sampling = SamplingParams(max_tokens=num_tokens, ignore_eos=not may_end)
        arrivals: Arrivals = []
        start_ns = _CLOCK.now_ns()
        async with aclosing(self._loaded.generate(prompt, sampling)) as reply:
            async for chunk in reply:
                if chunk.token_ids:
                    if not arrivals:
                        on_first()
                    at_ms = (_CLOCK.now_ns() - start_ns) / 1e6
                    arrivals.append((at_ms, len(chunk.token_ids)))
        return arrivals

    async def _dialogue(
        self, turns: Sequence[CallerMessage], num_tokens: int, *, is_previewed: bool
    ) -> list[float]:
        sampling = SamplingParams(max_tokens=num_tokens, ignore_eos=True)
        conversation = await self._loaded.open_conversation(SYSTEM, sampling=sampling)
        first_ms: list[float] = []
        for number, turn in enumerate(turns, start=1):
            if is_previewed:
                await conversation.warm(turn.text)
            start_ns = _CLOCK.now_ns()
            await conversation.commit(turn.text)
            async with aclosing(conversation.generate(TurnId(number))) as reply:
                await anext(reply)
                first_ms.append((_CLOCK.now_ns() - start_ns) / 1e6)
                async for _ in reply:
                    pass
        await conversation.close()
        return first_ms


def fix_draft_length(length: int) -> None:
    """Have every drafter of this process draft so many tokens, and have all of them verified."""

    def choose(
        policy: DraftLengthPolicy, max_tokens: int, *, num_unread: int = 0, is_masked: bool = False
    ) -> DraftChoice:
        return DraftChoice(min(length, max_tokens)) if max_tokens > 0 else NO_DRAFT

    def num_worth(
        policy: DraftLengthPolicy, num_proposed: int, *, grade: int = 0, is_masked: bool = False
    ) -> int:
        return num_proposed

    policy: Any = DraftLengthPolicy
    policy.choose, policy.num_worth = choose, num_worth
