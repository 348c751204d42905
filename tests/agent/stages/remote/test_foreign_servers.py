"""Chats with model servers by others, as processes of their own. Skipped where one is missing.

They need packages beside those of the tests, in this environment or in one whose interpreter a
variable names: `pip install "llama-cpp-python[server]"`, LLAMA_SERVER_PYTHON; `pip install
"transformers[serving]"`, TRANSFORMERS_SERVE_PYTHON.
"""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Final

import httpx
import pytest

from agent.session.ports.stage_ports import ChatMessage
from agent.stages.remote.remote_chat import remote_chat_factory
from agent.stages.tool_call_adapter import NO_LIMITS
from latency_budget.account.clock import SystemClock
from latency_budget.account.turn import TurnId
from llm_engine.config import SamplingParams
from tests.agent.stages.remote.test_remote_chat import failure, reply, text_of
from tests.support.fakes.llm_models import save_tiny_model
from tests.support.models import model_path
from tests.support.service.model_servers import model_server

pytestmark = [pytest.mark.slow, pytest.mark.models]

START_S: Final = 90
LLAMA_PYTHON: Final = os.environ.get("LLAMA_SERVER_PYTHON", sys.executable)
TRANSFORMERS_PYTHON: Final = os.environ.get("TRANSFORMERS_SERVE_PYTHON", sys.executable)


def can_run(python: str, code: str) -> bool:
    return subprocess.run([python, "-c", code], capture_output=True, check=False).returncode == 0


@asynccontextmanager
async def running(python: str, *arguments: str, cwd: Path | None = None) -> AsyncIterator[str]:
    """A server as a process; its last argument is the name of the option for its port. Yields the
    API's address."""
    probe = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = probe.sockets[0].getsockname()[1]
    probe.close()
    process = await asyncio.create_subprocess_exec(
        *(python, *arguments, str(port)),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        cwd=cwd,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    url = f"http://127.0.0.1:{port}/v1"
    try:
        async with asyncio.timeout(START_S), httpx.AsyncClient() as http:
            while True:
                try:
                    await http.get(f"{url}/models")
                    break
                except httpx.TransportError:
                    assert process.returncode is None, "the server ended"
                    await asyncio.sleep(0.1)
        yield url
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest.fixture
async def llama_cpp() -> AsyncIterator[str]:
    """llama.cpp's Python server with the smallest model; yields the API's address."""
    if not await asyncio.to_thread(can_run, LLAMA_PYTHON, "import llama_cpp.server.app"):
        pytest.skip("llama-cpp-python[server] is not installed")
    path = next(model_path("smollm2-135m-instruct").glob("*.gguf"))
    options = ("--n_ctx", "2048", "--n_threads", "2", "--model_alias", "tiny")
    command = ("-m", "llama_cpp.server", "--model", str(path), *options, "--host", "127.0.0.1")
    async with running(LLAMA_PYTHON, *command, "--port") as url:
        yield url


async def test_a_conversation_with_llama_cpp(llama_cpp: str) -> None:
    async with model_server(llama_cpp, timeout_s=60.0) as server:
        await server.start()
        assert server.problem is None
        sampling = SamplingParams(temperature=0.0, max_tokens=24)
        factory = remote_chat_factory(server, SystemClock(), sampling, 2048, NO_LIMITS, "quotes")
        chat = factory("You are a helpful assistant.", ())
        await chat.preview("What is the capital")
        await chat.commit(ChatMessage("user", "What is the capital of France?"))
        tokens = await reply(chat)
        assert "Paris" in text_of(tokens)
        assert len(tokens) > 3, "it streams"
        assert tokens[-1].finish_reason in ("stop", "length")
        # Cut off, and asked again: the server goes on with the next request.
        await chat.commit(ChatMessage("user", "Tell me a long story."))
        broken = chat.generate(TurnId(2), deadline_ns=0, max_tokens=None, on_mark=lambda *_: None)
        async with aclosing(broken):
            await anext(broken)
        await chat.truncate_reply(0)
        await chat.commit(ChatMessage("user", "What is the capital of Italy?"))
        assert "Rome" in text_of(await reply(chat))
        await chat.close()


async def test_what_is_no_api_of_llama_cpp(llama_cpp: str) -> None:
    async with model_server(f"{llama_cpp}/nowhere") as server:
        factory = remote_chat_factory(
            server, SystemClock(), SamplingParams(), 2048, NO_LIMITS, "off"
        )
        chat = factory("", ())
        await chat.commit(ChatMessage("user", "Hi"))
        assert "404" in (await failure(chat)).message


async def test_a_conversation_with_transformers_serve(tmp_path: Path) -> None:
    """It ends its streams without `[DONE]`, keeps no prompts, ignores `stream_options` and
    `tool_choice`, and answers a request of one token as any other."""
    code = (
        "from transformers.utils.import_utils import is_serve_available as a\n"
        "import accelerate, transformers.cli.serve; assert a()"
    )
    if not await asyncio.to_thread(can_run, TRANSFORMERS_PYTHON, code):
        pytest.skip("transformers[serving] is not installed")
    save_tiny_model(tmp_path / "tiny", "llama")
    serve = ("-m", "transformers.cli.transformers", "serve", "tiny", "--device", "cpu")
    async with (
        running(TRANSFORMERS_PYTHON, *serve, "--host", "127.0.0.1", "--port", cwd=tmp_path) as url,
        model_server(url, timeout_s=60.0) as server,
    ):
        await server.start()
        assert server.problem is None
        sampling = SamplingParams(temperature=0.0, max_tokens=8)
        factory = remote_chat_factory(server, SystemClock(), sampling, 256, NO_LIMITS, "off")
        chat = factory("Be brief.", ())
        told = []
        for _turn in range(2):
            await chat.commit(ChatMessage("user", "the cat sat"))
            tokens = await reply(chat)
            told.append((text_of(tokens), tokens[-1].finish_reason, tokens[-1].usage.output_tokens))
            await chat.take_back()
        assert told[0] == told[1], "it is asked the same"
        assert told[0][1:] == ("length", 8)
        assert tokens[-1].usage.input_tokens > 3
        await chat.close()
