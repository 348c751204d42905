"""Whole calls with recognizer, language model and voice on another server: another instance of this
service, with real models, behind a network that breaks."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import httpx
import numpy as np
import pytest

import asr
from agent.config.layers import load_config
from agent.config.remote_models import RemoteModel
from agent.http.auth.keys import KeyFile
from agent.session.ports.stage_ports import APOLOGY
from agent.stages.remote import recovery
from agent.stages.remote.api_server import ServerOptions
from agent.stages.remote.remote_recognizer import RemoteRecognizer
from agent.stages.remote.remote_voice import RemoteVoice
from agent.stages.remote.transcription_server import TranscriptionServer
from asr.audio.files import read_file
from tests.agent.stages.remote.test_remote_service import readiness
from tests.agent.stages.remote.test_remote_voice import PCM, whole
from tests.support.service.live import LiveServer
from tests.support.service.live_call import (
    RECORDINGS,
    audio_of,
    call_to,
    overlap,
    transcript,
    words_of,
)
from tests.support.service.model_servers import (
    WAIT_S,
    Answer,
    ScriptedServer,
    head,
    scripted_server,
)
from tests.support.service.tcp_proxy import TcpProxy, tcp_proxy

pytest_plugins = ["tests.support.service.live_fixtures"]
pytestmark = [pytest.mark.slow, pytest.mark.models]

SECRET: Final = "sk-very-secret"
GREETING: Final = "Good morning, and welcome to a greeting that never ends."


@pytest.fixture
async def network(live: LiveServer) -> AsyncIterator[TcpProxy]:
    async with tcp_proxy(live.port) as proxy:
        yield proxy


@pytest.fixture
async def endless() -> AsyncIterator[ScriptedServer]:
    """A server whose voice says whatever is kept of it; `remote` makes it begin and never end."""
    async with scripted_server(whole()) as scripted:
        yield scripted


@pytest.fixture
async def remote(
    live: LiveServer,
    network: TcpProxy,
    endless: ScriptedServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[LiveServer]:
    """A service whose only models of its own detect speech, and speak in an emergency."""
    monkeypatch.setattr(recovery, "RECOVERY_S", 0.05)
    monkeypatch.setenv("MODEL_KEY", SECRET)
    elsewhere = f"openai:http://127.0.0.1:{network.port}/v1"
    config = load_config(
        {
            "agent.preset": "embedded",
            "agent.port": 0,
            "llm_engine.model": f"openai:http://127.0.0.1:{live.port}/v1#default",
            "llm_engine.remote_timeout_s": 60.0,
            "asr.model": f"{elsewhere}#whisper-tiny.en",
            "asr.remote_key_env": "MODEL_KEY",
            "asr.remote_timeout_s": 60.0,
            "tts.voice": f"{elsewhere}#hibari",
            "tts.remote_key_env": "MODEL_KEY",
            "tts.remote_timeout_s": 60.0,
            "agents.endless.voice": f"openai:{endless.url}#endless",
            "agents.endless.greeting": GREETING,
            "latency_budget.enforce": False,
            "latency_budget.admission": False,
            "access.require_key": "never",
        }
    )
    server = LiveServer(config, KeyFile(tmp_path / "keys.json"))
    await asyncio.to_thread(server.start)
    assert len(endless.bodies) > 1, "its apology, and what is said while a tool runs"
    assert not endless.given_up.is_set()
    endless.answers = [Answer([head("audio/pcm"), PCM], "hang")]
    try:
        yield server
        await asyncio.to_thread(server.settle)
    finally:
        await asyncio.to_thread(server.stop)


async def test_the_words_of_a_session_and_of_an_upload(live: LiveServer) -> None:
    model = RemoteModel(f"http://127.0.0.1:{live.port}/v1", "whisper-tiny.en")
    server = TranscriptionServer(model, ServerOptions(60.0, section="asr"), "en", "auto")
    await server.start()
    assert (server.problem, server.has_sessions) == (None, True)
    recognizer = RemoteRecognizer(server)
    pcm = read_file(RECORDINGS / "vm-nobodyavail.wav")
    words = transcript("vm-nobodyavail")
    async with asyncio.timeout(2 * WAIT_S), asyncio.TaskGroup() as group:
        running = group.create_task(recognizer.run())
        partial = None
        spoken = asr.DecodeJob("partial", 1, 0, 0, pcm[: 2 * asr.RATE_HZ])
        while partial is None:  # they come when the session is open, and the server has decoded
            await asyncio.sleep(0.01)
            partial = await recognizer.decode(spoken, 0)
        final = await recognizer.decode(asr.DecodeJob("final", 1, 1, 0, pcm), 0)
        running.cancel()
    assert final is not None
    assert overlap(partial.text, words) > 0.5
    assert overlap(words, final.text) > 0.5
    uploaded = await server.transcribe(pcm, 60.0, is_last_resort=True)
    assert overlap(words, uploaded) > 0.5
    assert server.problem is None
    await server.close()


async def test_whole_calls_through_an_outage(
    remote: LiveServer, network: TcpProxy, endless: ScriptedServer
) -> None:
    ready = await readiness(remote)
    assert ready["status"] == "ready", ready
    assert remote.stages.remote_asr is not None
    assert remote.stages.remote_asr.has_sessions
    assert remote.stages.recognizer.model is None, "nothing was loaded for it"
    async with call_to(remote.url, protocols=("halfsec.v1",)) as call:
        assert call.events[0]["session"]["audio"]["output"]["voice"] == "hibari"
        words = transcript("vm-nobodyavail")
        await call.say("vm-nobodyavail")
        spoken = await call.response()
        assert spoken["status"] == "completed", spoken
        assert words_of(spoken)
        completed = call.of("conversation.item.input_audio_transcription.completed")
        assert overlap(words, completed[-1]["transcript"]) > 0.5
        assert np.abs(audio_of(call.events, spoken["id"])).max() > 1000

        network.refuses = True
        network.cut()
        await call.say("vm-nobodyavail")
        failed = await call.response()
        assert (failed["status"], words_of(failed)) == ("failed", APOLOGY)
        assert np.abs(audio_of(call.events, failed["id"])).max() > 1000, "in the voice of before"
        asked = await call.ask("And of Italy?")
        assert asked["status"] == "completed", "the voice of this process speaks"
        assert np.abs(audio_of(call.events, asked["id"])).max() > 1000
        broken = await readiness(remote)
        assert broken["status"] == "degraded"
        assert broken["recognizer"].startswith("the recognition server ")
        assert broken["voices"]["hibari"].startswith("the speech server ")
        assert broken["stages"]["asr"] == f"broken: {broken['recognizer']}"
        for shown in (str(failed), str(broken)):
            for hidden in (SECRET, "127.0.0.1", str(network.port)):
                assert hidden not in shown

        network.refuses = False
        async with asyncio.timeout(60):
            while (await readiness(remote))["status"] != "ready":  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        await call.say("vm-nobodyavail")
        again = await call.response()
        assert again["status"] == "completed", again
        completed = call.of("conversation.item.input_audio_transcription.completed")
        assert overlap(words, completed[-1]["transcript"]) > 0.5

    async with call_to(remote.url, model="endless") as call:
        await call.until("response.output_audio.delta")
        await call.say("vm-nobodyavail")
        cut = await call.response()
        async with asyncio.timeout(WAIT_S):  # it has sent nothing more, and its stream is closed
            await endless.given_up.wait()
        assert cut["status"] == "cancelled"
        assert GREETING.startswith(words_of(cut).strip())
        heard = audio_of(call.events, cut["id"])
        assert 0 < len(heard) <= len(PCM) // 2


async def test_this_service_does_not_pass_requests_on(remote: LiveServer) -> None:
    voice: Any = remote.stages.voice_stage("hibari")
    assert isinstance(voice, RemoteVoice)
    assert remote.stages.voice_stage("alloy") is voice
    async with httpx.AsyncClient(timeout=60) as http:
        said = await http.post(f"{remote.http}/v1/audio/speech", json={"input": "Hi"})
        files = {"file": ("x.wav", b"RIFF", "audio/wav")}
        heard = await http.post(f"{remote.http}/v1/audio/transcriptions", files=files)
        for refused in (said, heard):
            assert (refused.status_code, "another server" in refused.text) == (501, True)
        listed = (await http.get(f"{remote.http}/v1/models")).text
        assert "127.0.0.1" not in listed
        assert "whisper-tiny.en" in listed
