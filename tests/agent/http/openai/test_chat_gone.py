"""A client of the chat endpoint that goes: how many steps the engine still makes for it."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, cast

import pytest
from starlette.applications import Starlette
from starlette.routing import Route
from starlette.types import Message

from agent.config.schema import Config
from agent.http.auth.principal import client_of
from agent.http.json_body import JsonBodies
from agent.http.openai.chat import ChatCompletions
from agent.stages.registry import Stages
from latency_budget.account.clock import SystemClock
from llm_engine.checkpoints.huggingface_tokenizer import load_tokenizer
from llm_engine.config import EngineConfig
from llm_engine.engine import Engine, read_vocabulary
from tests.support.fakes.llm_models import GatedBackend, save_tiny_model

FULL_STEPS = 40
"""Of a whole reply."""
STEPS_BEFORE = 4
"""Done when the client goes."""


class StubStages:
    """Ready, with an engine of the test's."""

    status = "ready"
    remote_llm = None
    only_computes = False

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.llm = self

    async def call(self, job: Callable[[Engine], Any], *, timeout_s: float) -> Any:
        return job(self._engine)


class Client:
    """One request to the endpoint, as a server hands it to the application."""

    def __init__(self, engine: Engine) -> None:
        chats = ChatCompletions(Config(), cast(Stages, StubStages(engine)), JsonBodies(client_of))
        self._app = Starlette(routes=[Route("/v1/chat/completions", chats.serve, methods=["POST"])])
        self._incoming: asyncio.Queue[Message] = asyncio.Queue()

    async def ask(self, **body: object) -> None:
        """Until the application is done with the request."""
        whole = {
            "messages": [{"role": "user", "content": "hello"}],
            "max_tokens": FULL_STEPS,
            "ignore_eos": True,
            **body,
        }
        self._incoming.put_nowait({"type": "http.request", "body": json.dumps(whole).encode()})
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},  # as uvicorn says
            "http_version": "1.1",
            "method": "POST",
            "path": "/v1/chat/completions",
            "query_string": b"",
            "headers": [(b"content-type", b"application/json")],
        }
        await self._app(scope, self._receive, self._send)

    async def _receive(self) -> Message:
        return await self._incoming.get()

    async def _send(self, message: Message) -> None:
        """To a client that takes everything."""

    def go(self) -> None:
        self._incoming.put_nowait({"type": "http.disconnect"})


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    save_tiny_model(path, "llama", num_hidden_layers=1)
    return path


@pytest.fixture
async def backend() -> GatedBackend:
    return GatedBackend()


@pytest.fixture
async def engine(model: Path, backend: GatedBackend) -> AsyncIterator[Engine]:
    engine = Engine(
        backend,
        read_vocabulary(load_tokenizer(model, {}), model),
        context_length=200,
        config=EngineConfig(prefill_chunk=64),
        clock=SystemClock(),
    )
    yield engine
    backend.gate.release(1000)
    engine.close()


@pytest.mark.parametrize("stream", [True, False])
async def test_generation_stops_within_a_step_of_a_disconnect(
    stream: bool, engine: Engine, backend: GatedBackend
) -> None:
    client = Client(engine)

    async with asyncio.TaskGroup() as group:
        request = group.create_task(client.ask(stream=stream))
        for _ in range(STEPS_BEFORE):
            assert await asyncio.to_thread(backend.reached.acquire, timeout=60)
            backend.gate.release()
        assert await asyncio.to_thread(
            backend.reached.acquire, timeout=60
        )  # one step more is under way
        client.go()
        await request  # noticed at once
        backend.gate.release()
        stats = await engine.stats()
    assert (stats.num_waiting, stats.num_replying) == (0, 0)
    assert len(backend.steps) == STEPS_BEFORE + 1
