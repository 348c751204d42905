"""Stages that raise or hang under a call: an apology, a restart, and the call goes on."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import httpx
import numpy as np
import pytest
from websockets.exceptions import InvalidStatus

import asr
from agent.errors import StageError
from agent.session.ports.stage_ports import APOLOGY
from agent.stages import llm_chat, model_thread, speech_output
from llm_engine.core.engine_core import EngineCore
from tests.support.service.live import LiveServer
from tests.support.service.live_call import (
    LiveCall,
    audio_of,
    call_to,
    overlap,
    silence,
    transcript,
    words_of,
)
from tts.voices.hibari import HibariEngine

pytest_plugins = ["tests.support.service.live_fixtures"]
pytestmark = [pytest.mark.slow, pytest.mark.models]

SHORT_S = 0.5
"""In place of deadlines of 6 to 10 s."""


class Fault:
    """A method of a model that fails on command. Every object of the class is hit."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        kind: type,
        name: str,
        *,
        deadline: tuple[ModuleType, str] | None = None,
        hits: Callable[[dict[str, Any]], bool] = lambda kwargs: True,
    ) -> None:
        """`deadline` is how long callers wait for it, cut short while it hangs: only then, since a
        busy machine may need it all. `hits` picks the calls that fail by their keyword arguments.
        """
        self._deadline = deadline
        self._patience = getattr(*deadline) if deadline is not None else 0.0
        self._monkeypatch = monkeypatch
        self.error: Exception | None = None
        self.hangs = 0
        """Calls that will hang. What is built anew must not."""
        self.hits = 0
        self._release = threading.Event()
        original = getattr(kind, name)

        def method(*args: Any, **kwargs: Any) -> Any:
            if not hits(kwargs):
                pass
            elif self.hangs:
                self.hangs -= 1
                self.hits += 1
                self._release.wait(60)
            elif self.error is not None:
                self.hits += 1
                raise self.error
            return original(*args, **kwargs)

        monkeypatch.setattr(kind, name, method)

    def strike(self, how: str) -> None:
        self.hangs = int(how == "hangs")
        self.error = RuntimeError("something broke") if how == "raises" else None
        if self.hangs:
            self._wait_for(SHORT_S)

    def mend(self) -> None:
        """What is slow on a busy machine may have missed the short deadline in place of what was to
        hang: then that must not hang later."""
        self.error = None
        self.hangs = 0
        self._wait_for(self._patience)

    def _wait_for(self, seconds: float) -> None:
        if self._deadline is not None:
            self._monkeypatch.setattr(*self._deadline, seconds)

    def release(self) -> None:
        """Let the threads that hang come to their end."""
        self.mend()
        self._release.set()


@pytest.fixture
def hearing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fault]:
    # A partial pass that hangs is made good by the final one behind it: strike that. Its thread is
    # found asleep long before its deadline, which a pass that is only slow must not miss.
    fault = Fault(
        monkeypatch,
        asr.WhisperTranscriber,
        "transcribe",
        hits=lambda kwargs: kwargs["fallback"],
    )
    yield fault
    fault.release()


@pytest.fixture
def watching(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fault]:
    fault = Fault(monkeypatch, asr.SileroVad, "probability")
    yield fault
    fault.release()


@pytest.fixture
def thinking_fault(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fault]:
    fault = Fault(monkeypatch, EngineCore, "step", deadline=(llm_chat, "HANGS_S"))
    yield fault
    fault.release()


@pytest.fixture
def voice(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fault]:
    fault = Fault(monkeypatch, HibariEngine, "speak", deadline=(speech_output, "VOICE_TIMEOUT_S"))
    yield fault
    fault.release()


async def check_apology(call: LiveCall) -> None:
    """The turn ends as failed, and says sorry aloud."""
    response = await call.response()
    assert response["status"] == "failed", response
    assert response["status_details"]["error"]["message"]
    assert words_of(response).endswith(APOLOGY)
    pcm = audio_of(call.events, response["id"])
    assert len(pcm) > 24_000
    assert np.abs(pcm.astype(int)).max() > 1000


async def check_next_turn(call: LiveCall) -> None:
    said = "vm-nobodyavail"
    await call.append(silence(0.5))
    await call.say(said)
    heard = await call.until("conversation.item.input_audio_transcription.completed")
    assert overlap(transcript(said), heard["transcript"]) >= 0.8
    created = (await call.until("response.created"))["response"]["id"]
    await call.until("response.output_audio.delta", lambda event: event["response_id"] == created)
    await call.send("response.cancel")
    assert (await call.response())["status"] == "cancelled"


@pytest.mark.parametrize("how", ["raises", "hangs"])
async def test_a_recognizer(live: LiveServer, hearing: Fault, how: str) -> None:
    live.expected = ["stage asr"]
    before = live.stages.recognizer.restarts
    async with call_to(live.url) as call:
        hearing.strike(how)
        await call.say("vm-nobodyavail")  # one pause: a pass that nobody overtakes
        if how == "hangs":  # once: the next recognizer has the pass again
            assert (await call.response())["status"] == "completed"
        else:
            await check_apology(call)
        hearing.mend()
        await check_next_turn(call)
    assert live.stages.recognizer.restarts > before


@pytest.mark.parametrize("how", ["raises", "hangs"])
async def test_a_voice(live: LiveServer, voice: Fault, how: str) -> None:
    live.expected = ["stage tts"]
    stage = live.stages.threads()["voice hibari"]
    before = stage.restarts
    async with call_to(live.url) as call:
        voice.strike(how)
        await call.type("Hello!")
        await call.send("response.create")
        await check_apology(call)
        voice.mend()
        await check_next_turn(call)
    assert stage.restarts > before


async def test_a_language_model_that_raises(live: LiveServer, thinking_fault: Fault) -> None:
    live.expected = ["the engine's step failed", "the engine failed"]
    async with call_to(live.url) as call:
        await call.prove_alive()
        thinking_fault.strike("raises")
        await call.type("Hello!")
        await call.send("response.create")
        await check_apology(call)
        thinking_fault.mend()
        await check_next_turn(call)


async def test_a_call_that_begins_while_the_language_model_fails(
    live: LiveServer, thinking_fault: Fault
) -> None:
    """The cache can't be warmed, and the call goes on all the same."""
    live.expected = ["the engine's step failed", "the engine failed"]
    thinking_fault.strike("raises")
    async with call_to(live.url) as call:
        await call.type("Hello!")
        await call.send("response.create")
        await check_apology(call)
        thinking_fault.mend()
        await call.prove_alive()


async def test_a_language_model_that_hangs(live: LiveServer, thinking_fault: Fault) -> None:
    """It is loaded anew once, though two calls find that it hangs, and both are told the story."""
    live.expected = ["stage llm"]
    before = live.stages.llm.restarts
    async with call_to(live.url) as one, call_to(live.url) as other:
        for call in (one, other):
            await call.prove_alive()
        thinking_fault.strike("hangs")
        for call in (one, other):
            await call.type("Hello!")
            await call.send("response.create")
        for call in (one, other):
            await check_apology(call)
        thinking_fault.mend()
        for call in (one, other):
            await check_next_turn(call)
        await one.prove_alive()
        asked = [done["response"]["usage"]["input_tokens"] for done in one.of("response.done")]
        assert asked[-1] > asked[0] + 20
    assert live.stages.llm.restarts == before + 1


async def test_a_voice_detector(live: LiveServer, watching: Fault) -> None:
    """What is said meanwhile is lost, and nothing else."""
    live.expected = ["stage vad"]
    before = live.stages.detector.restarts
    async with call_to(live.url) as call:
        watching.strike("raises")
        await call.append(silence(0.5))
        await call.prove_alive()
        watching.mend()
        await check_next_turn(call)
    assert watching.hits
    assert live.stages.detector.restarts > before


async def test_call_during_a_recognizer_failure(
    live: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told to try again, and the next one that does is served."""
    live.expected = ["session ", "stage vad"]
    detector = live.stages.detector

    async def refuse(*args: Any, **kwargs: Any) -> None:
        raise StageError("vad", "The vad stage took too long.")

    with monkeypatch.context() as patch:
        patch.setattr(detector, "call", refuse)
        with pytest.raises(AssertionError, match="1013"):
            async with call_to(live.url):
                pass
    async with call_to(live.url) as call:
        await call.prove_alive()


async def test_a_stage_that_cannot_be_rebuilt_at_once(
    live: LiveServer, thinking_fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New calls are told to come back, `/readyz` says why, and nobody needs to ask for the cure."""
    live.expected = ["stage llm"]
    monkeypatch.setattr(model_thread, "RETRY_S", (0.0,))
    stage = live.stages.llm
    build, found, mended = stage._build, threading.Event(), threading.Event()

    def rebuild() -> Any:
        if mended.is_set():
            return build()
        if stage.broken is not None:
            found.set()
            mended.wait(60)
        raise OSError("the model is away")

    monkeypatch.setattr(stage, "_build", rebuild)
    http = httpx.AsyncClient(base_url=live.http, timeout=30, trust_env=False)
    async with http, call_to(live.url) as call:
        await call.prove_alive()
        thinking_fault.strike("hangs")
        await call.type("Hello!")
        await call.send("response.create")
        await check_apology(call)
        thinking_fault.mend()
        assert await asyncio.to_thread(found.wait, 60)
        ready = await http.get("/readyz")
        assert (ready.status_code, ready.json()["status"]) == (503, "broken")
        assert ready.json()["stages"]["llm"] == "broken: OSError: the model is away"
        with pytest.raises(InvalidStatus) as caught:
            async with call_to(live.url):
                pass
        assert caught.value.response.status_code == 503
        mended.set()
        for _ in range(6000):
            if (await http.get("/readyz")).status_code == 200:
                break
            await asyncio.sleep(0.01)
        await check_next_turn(call)
    async with call_to(live.url) as call:
        await call.prove_alive()
