"""The service on Ray Serve with stages that need no models.

Each reply is the replica's id and a version from the instructions, so that a client knows which
replica, with which settings, holds its call.
"""

import asyncio
from typing import Any

from ray import serve

from agent.config.schema import Config
from agent.server.ray_serve import VoiceReplica
from agent.server.service import Service, make_service
from agent.stages.model_store.catalogue import ModelStore
from agent.stages.registry import Stages, Status
from latency_budget.account.clock import Clock
from tests.support.fakes.stages import FakeChat, FakeEars, FakeVoice

START_S = 2.0
"""Time that loading the models would take."""


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
        return FakeChat([f"{replica} {version}"] * 100)

    def open_voice(self, name: str, rate_hz: int, speed: float = 1.0) -> Any:
        return FakeVoice()

    async def prepare_language(self, language: str, voice: str) -> str:
        return voice

    async def new_ears(self, detection: object) -> Any:
        return FakeEars()


class ModelFreeReplica(VoiceReplica):
    """Replica without models, so that many fit into a test's machine."""

    def check(self, config: Config) -> None:
        pass

    def make(self, config: Config, clock: Clock) -> Service:
        stages = ModelFreeStages(config, ModelStore(), clock)
        return make_service(config, clock, replica="test", stages=stages)
