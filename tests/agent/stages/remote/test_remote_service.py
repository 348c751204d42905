"""The service with its language model on another server: another instance of this service."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent.config.layers import load_config
from agent.http.auth.keys import KeyFile
from agent.session.ports.stage_ports import APOLOGY, ChatMessage
from agent.stages.llm_chat import chat_factory
from agent.stages.model_thread import ModelThread
from agent.stages.remote import recovery
from agent.stages.remote.remote_chat import SmallModel, remote_chat_factory
from agent.stages.tool_call_adapter import NO_LIMITS
from latency_budget.account.clock import SystemClock
from llm_engine.config import EngineConfig, SamplingParams
from llm_engine.engine import Engine
from tests.agent.stages.remote.test_remote_chat import HI, reply, text_of
from tests.support.fakes.llm_models import save_tiny_model
from tests.support.service.live import LiveServer
from tests.support.service.live_call import call_to, overlap, transcript, words_of
from tests.support.service.model_servers import (
    chat_endpoint,
    error,
    model_server,
    scripted_server,
)
from tests.support.service.service_process import service
from tests.support.service.tcp_proxy import TcpProxy, tcp_proxy

pytest_plugins = ["tests.support.service.live_fixtures"]
pytestmark = [pytest.mark.slow, pytest.mark.models]

SECRET = "sk-very-secret"


@pytest.fixture
async def network(live: LiveServer) -> AsyncIterator[TcpProxy]:
    async with tcp_proxy(live.port) as proxy:
        yield proxy


@pytest.fixture
async def remote(
    network: TcpProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[LiveServer]:
    """A service without a language model of its own."""
    monkeypatch.setattr(recovery, "RECOVERY_S", 0.05)
    monkeypatch.setenv("MODEL_KEY", SECRET)
    config = load_config(
        {
            "agent.preset": "embedded",
            "agent.port": 0,
            "llm_engine.model": f"openai:http://127.0.0.1:{network.port}/v1#default",
            "llm_engine.remote_key_env": "MODEL_KEY",
            "llm_engine.remote_timeout_s": 60.0,
            "latency_budget.enforce": False,
            "latency_budget.admission": False,
            "access.require_key": "never",
        }
    )
    server = LiveServer(config, KeyFile(tmp_path / "keys.json"))
    await asyncio.to_thread(server.start)
    try:
        yield server
        await asyncio.to_thread(server.settle)
    finally:
        await asyncio.to_thread(server.stop)


async def readiness(server: LiveServer) -> dict[str, Any]:
    async with httpx.AsyncClient(timeout=60) as http:
        answer = await http.get(f"{server.http}/readyz")
        assert answer.status_code == 200, answer.text
        body: dict[str, Any] = answer.json()
        return body


async def test_a_call_is_answered_from_elsewhere_through_an_outage(
    remote: LiveServer, network: TcpProxy
) -> None:
    assert remote.stages.remote_llm is not None
    assert remote.stages.remote_llm.caches_prefix
    ready = await readiness(remote)
    assert (ready["status"], ready["stages"]["llm"]) == ("ready", "ready")
    assert ready["model"]["name"] == "default"
    async with call_to(remote.url) as call:
        await call.say("vm-nobodyavail")
        spoken = await call.response()
        assert spoken["status"] == "completed", spoken
        assert words_of(spoken)
        heard = call.of("conversation.item.input_audio_transcription.completed")[-1]["transcript"]
        assert overlap(transcript("vm-nobodyavail"), heard) > 0.5

        network.refuses = True
        network.cut()
        failed = await call.ask("And of Italy?")
        assert failed["status"] == "failed", failed
        assert words_of(failed).endswith(APOLOGY)
        shown = str(failed["status_details"]) + str(await readiness(remote))
        assert "model server" in shown
        for hidden in (SECRET, "127.0.0.1", str(network.port)):
            assert hidden not in shown
        broken = await readiness(remote)
        assert broken["status"] == "degraded"
        assert broken["language_model"].startswith("the model server ")
        assert broken["stages"]["llm"] == f"broken: {broken['language_model']}"

        network.refuses = False
        async with asyncio.timeout(60):
            while (await readiness(remote))["status"] != "ready":  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        again = await call.ask("And of Italy?")
        assert again["status"] == "completed", again
    # Of this process nothing was loaded for it.
    assert remote.stages.llm.model is None
    assert "llm" not in remote.stages.threads()
    async with httpx.AsyncClient(timeout=60) as http:
        body = {"messages": [{"role": "user", "content": "Hi"}]}
        refused = await http.post(f"{remote.http}/v1/chat/completions", json=body)
        assert (refused.status_code, "another server" in refused.text) == (501, True)
        metrics = (await http.get(f"{remote.http}/metrics")).text
        assert 'halfsec_stage_ready{stage="llm"} 1.0' in metrics


async def test_a_real_smaller_model_answers_with_the_history(tmp_path: Path) -> None:
    save_tiny_model(tmp_path, "qwen3", num_hidden_layers=2, head_dim=16)
    stage: ModelThread[Engine] = ModelThread(
        "small llm", lambda: Engine.load(tmp_path, EngineConfig(num_threads=1)), Engine.close
    )
    await stage.start()
    sampling = SamplingParams(temperature=0.0, max_tokens=8)
    open_small = chat_factory(stage, SystemClock(), sampling)
    small = SmallModel(open_small, lambda: True)
    history = [HI, ChatMessage("assistant", "Hello"), ChatMessage("user", "And now?")]
    alone = open_small("Be brief.", ())
    await alone.reset(history)
    expected = text_of(await reply(alone))
    failing = error(500, "out of memory")
    async with scripted_server(failing) as scripted, model_server(scripted.url) as server:
        factory = remote_chat_factory(
            server, SystemClock(), sampling, 4096, NO_LIMITS, "off", small
        )
        chat = factory("Be brief.", ())
        await chat.reset(history[:2])
        await chat.commit(history[2])
        assert text_of(await reply(chat)) == expected
        await chat.close()
    # And the same model behind the endpoint says the same: both read the same prompt.
    async with chat_endpoint(stage) as url, model_server(url) as server:
        chat = remote_chat_factory(server, SystemClock(), sampling, 4096, NO_LIMITS, "off")(
            "Be brief.", ()
        )
        await chat.reset(history)
        assert text_of(await reply(chat)) == expected
        await chat.close()
    await alone.close()
    await stage.close()


async def test_the_process_starts_without_the_server_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODEL_KEY", SECRET)
    async with scripted_server() as gone:
        url = gone.url
    model = f"openai:{url}#qwen3-8b"
    settings = (
        "--set",
        f"llm_engine.model={model}",
        "--set",
        "llm_engine.remote_key_env=MODEL_KEY",
    )
    async with service(*settings, log_level="debug") as process:
        await process.listening()
        await process.line("Ready after")
        async with httpx.AsyncClient(timeout=60) as http:
            body = (await http.get(f"{process.http}/readyz")).json()
        assert (body["status"], body["model"]["name"]) == ("degraded", "qwen3-8b")
        assert body["language_model"] == "the model server can't be reached"
        process.stop()
        status, errors = await process.ended()
    assert status == 0
    assert f"Language model qwen3-8b at {url}." in errors
    assert "The language model does not answer: the model server can't be reached." in errors
    assert SECRET not in errors + "".join(process.lines)
