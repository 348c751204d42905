"""The service on Ray Serve with stages that need no models.

Each reply begins with the replica's id, a version from the instructions, and the id of the
replica's process, so that a client knows which replica, with which settings, holds its call. What a
caller says is one of a few phrases, each of them a sound of its own.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from ray import serve

from agent.config.schema import Config
from agent.server.ray_serve import VoiceReplica
from agent.server.service import Service, make_service
from agent.session.ports.stage_ports import ChatMessage, OnMark, ReplyToken, Tools
from agent.stages.model_store.catalogue import ModelStore
from agent.stages.registry import Stages, Status
from latency_budget.account.clock import Clock
from latency_budget.account.turn import TurnId
from tests.support.fakes.stages import FakeChat, FakeEars, FakeVoice

START_S: Final = 2.0
"""Time that loading the models would take."""

WHO: Final = "Who is there?"
STORY: Final = "Tell me a story."
THINK: Final = "Think it over."
PHRASES: Final = (WHO, STORY, THINK)
"""What a caller says: to be told the replica, to hear a long reply, to wait for a reply."""

TALE: Final = " ".join(["The dragon slept on."] * 24)
"""25 s of speech."""

THINKING_S: Final = 15.0
"""Time until the reply to `THINK`; in a call that was taken over there is none. After 20 s of it a
session takes the model for hung."""


def said(phrase: str) -> npt.NDArray[np.int16]:
    """The sound of a phrase for `PhraseEars`: int16 [480], at any rate."""
    return np.full(480, 1 + PHRASES.index(phrase), np.int16)


class PhraseEars(FakeEars):
    """Hears one of the phrases in each piece of audio."""

    async def feed(self, pcm: npt.NDArray[np.int16], rate_hz: int) -> None:
        await super().feed(pcm, rate_hz)
        self.say(PHRASES[int(pcm[0]) - 1])


class PhraseChat(FakeChat):
    """Answers the phrases, and says who answers."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name
        self._asked = ""
        self._is_taken_over = False

    async def commit(self, message: ChatMessage) -> None:
        await super().commit(message)
        self._hear(message)

    async def reset(self, messages: Sequence[ChatMessage], summary: tuple[str, ...] = ()) -> None:
        await super().reset(messages, summary)
        self._is_taken_over = True  # nothing else here makes a model read a history anew
        for message in messages:
            self._hear(message)

    async def generate(
        self,
        turn: TurnId,
        *,
        deadline_ns: int,
        max_tokens: int | None,
        on_mark: OnMark,
        tools: Tools | None = None,
    ) -> AsyncGenerator[ReplyToken, None]:
        if self._asked == THINK and not self._is_taken_over:
            await asyncio.sleep(THINKING_S)
        self.replies = [f"{self._name} {TALE}" if self._asked == STORY else self._name]
        reply = super().generate(
            turn, deadline_ns=deadline_ns, max_tokens=max_tokens, on_mark=on_mark, tools=tools
        )
        async for token in reply:
            yield token

    def _hear(self, message: ChatMessage) -> None:
        if message.role == "user":
            self._asked = message.text


class ModelFreeStages(Stages):
    """Stages of the tests' doubles."""

    _is_started = False

    async def start(self) -> None:
        await asyncio.sleep(START_S)
        self._is_started = True

    @property
    def status(self) -> Status:
        return "ready" if self._is_started else "warming"

    def progress(self) -> dict[str, str]:
        return {"doubles": self.status}

    def open_chat(self, instructions: str, examples: object) -> Any:
        replica = serve.get_replica_context().replica_id.unique_id
        version = next((word for word in instructions.split() if word.startswith("v")), "")
        return PhraseChat(f"{replica} {version} {os.getpid()}")

    def open_voice(self, name: str, rate_hz: int, speed: float = 1.0) -> Any:
        return FakeVoice()

    async def prepare_language(self, language: str, voice: str) -> str:
        return voice

    async def new_ears(self, detection: object) -> Any:
        return PhraseEars()


class ModelFreeReplica(VoiceReplica):
    """Replica without models, so that many fit into a test's machine."""

    def check(self, config: Config) -> None:
        pass

    def make(self, config: Config, clock: Clock) -> Service:
        stages = ModelFreeStages(config, ModelStore(), clock)
        return make_service(config, clock, replica="test", stages=stages)
