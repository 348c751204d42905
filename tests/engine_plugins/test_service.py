"""The service with recognizer, language model and voice of another package."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from agent.config.layers import load_config
from agent.http.auth.keys import KeyFile
from tests.support.models import model_path
from tests.support.plugins import Install
from tests.support.service.live import LiveServer
from tests.support.service.live_call import call_to, words_of

pytest_plugins = ["tests.support.plugin_fixtures"]
pytestmark = [pytest.mark.slow, pytest.mark.models]

RECOGNIZER = """
    import asr

    class Engine:
        languages = ("en",)

        def __init__(self, argument, options):
            self.text = argument

        def recognize(self, pcm, options):
            return asr.RawTranscript(self.text if abs(pcm).max() > 0.01 else "")
"""
VOICE = """
    from tests.tts.test_voice import HummingEngine

    class Engine(HummingEngine):
        def __init__(self, argument, options):
            super().__init__()
            self.rate_hz = int(argument)
"""
CHAT = """
    class Engine:
        def __init__(self, argument, options):
            self.prefix = argument

        async def reply(self, request):
            yield self.prefix
            yield " " + request.messages[-1]["content"]

        async def close(self): ...
"""


@pytest.fixture
async def service(install: Install, tmp_path: Path) -> AsyncIterator[LiveServer]:
    for name in ("silero-vad", "smart-turn"):
        model_path(name)
    install("theirs", "halfsec.recognizers", "theirs = their_recognizer:Engine", RECOGNIZER)
    install("theirs", "halfsec.voices", "theirs = their_voice:Engine", VOICE)
    install("theirs", "halfsec.chats", "theirs = their_chat:Engine", CHAT)
    config = load_config(
        {
            "agent.preset": "remote",
            "agent.port": 0,
            "asr.model": "theirs:Nobody is available.",
            "tts.voice": "theirs:22050",
            "llm_engine.model": "theirs:You said:",
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


async def test_a_call_by_engines_of_another_package(service: LiveServer) -> None:
    async with call_to(service.url) as call:
        await call.say("vm-nobodyavail")
        spoken = await call.response()
        assert spoken["status"] == "completed", spoken
        assert words_of(spoken) == "You said: Nobody is available."
        heard = call.of("conversation.item.input_audio_transcription.completed")[-1]
        assert heard["transcript"] == "Nobody is available."
    async with httpx.AsyncClient(timeout=60, base_url=service.http) as http:
        ready = (await http.get("/readyz")).json()
        assert ready["status"] == "ready"
        assert ready["stages"]["voice theirs:22050"] == "ready"
        refused = await http.post("/v1/chat/completions", json={"messages": []})
        assert refused.status_code == 501
        assert "of a plug-in" in refused.text
        speech = {"model": "tts-1", "input": "Hello.", "voice": "theirs:22050"}
        assert (await http.post("/v1/audio/speech", json=speech)).status_code == 200
        names = [each["id"] for each in (await http.get("/v1/models")).json()["data"]]
        assert {"theirs:22050", "theirs:You said:", "theirs:Nobody is available."} <= set(names)
    assert not service.problems.texts()
