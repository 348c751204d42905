"""The Python client against real sockets on loopback, served by the dialect itself."""

import base64
import json
from typing import Any

import numpy as np
import pytest

from agent.client import events as ev
from agent.client.audio import input_encoding
from agent.client.call import Call, connect
from agent.client.errors import CallEndedError
from agent.session.api.client_events import AppendAudio
from agent.session.api.conversation import ItemId, Message
from agent.session.api.server_events import (
    Extension,
    ItemRetrieved,
    Problem,
    ReplyAudio,
    ReplyEnded,
    ReplyStarted,
    ReplyText,
    SpeechStarted,
    SpeechStopped,
    TranscriptCompleted,
    TranscriptDelta,
    TranscriptionFailed,
    Usage,
)
from latency_budget.account.clock import ManualClock
from tests.support.fakes.realtime_peer import SETTINGS, serving

PCM = (np.sin(np.arange(480) / 5) * 8000).astype(np.int16)


async def take(call: Call, count: int) -> list[ev.ClientEvent]:
    events: list[ev.ClientEvent] = []
    async for event in call.events():
        events.append(event)
        if len(events) == count:
            break
    return events


async def test_the_call_opens_with_the_servers_session() -> None:
    async with serving() as peer, connect(peer.url, model="anna", api_key="k-1") as call:
        assert call.session_id == "sess_1"
        assert call.session["audio"]["output"]["voice"] == "v"
        assert call.extensions
    (request,) = peer.requests
    assert request.path == "/v1/realtime?model=anna"
    assert request.headers["Authorization"] == "Bearer k-1"
    assert "Sec-WebSocket-Extensions" not in request.headers


async def test_an_address_without_a_path_means_the_voice_socket() -> None:
    async with serving() as peer:
        async with connect(peer.url.replace("ws:", "http:").removesuffix("/v1/realtime")):
            pass
        async with connect(peer.url + "?model=a", model="b"):
            pass
    assert [r.path for r in peer.requests] == ["/v1/realtime", "/v1/realtime?model=b"]


async def test_extensions_are_off_where_the_server_does_not_take_them_up() -> None:
    async with serving(subprotocols=()) as peer, connect(peer.url) as call:
        assert not call.extensions
    async with serving() as peer, connect(peer.url, extensions=False) as call:
        assert not call.extensions
        assert peer.requests[0].headers["Sec-WebSocket-Protocol"] == "realtime"


async def test_everything_that_happens_in_a_turn_becomes_an_event() -> None:
    u, a, r = ItemId("item_u"), ItemId("item_a"), "resp_1"
    clock = ManualClock(7)
    async with serving() as peer, connect(peer.url, clock=clock) as call:
        await peer.say(
            SpeechStarted(u, 100),
            Extension("halfsec.partial", {"item_id": u, "text": "hel", "stable_chars": 2}),
            Extension("halfsec.duck", {"item_id": a}),
            Extension("halfsec.unduck", {"item_id": a}),
            SpeechStopped(u, 900),
            TranscriptDelta(u, "hello"),
            TranscriptCompleted(u, "hello", 0.8),
            ReplyStarted(r, a, u, "audio", SETTINGS),
            ReplyText(r, "Hi."),
            ReplyAudio(r, np.zeros(160, np.int16), 8000),
            ReplyEnded(r, "cancelled", "turn_detected", "Hi", Usage(3, 1, 2)),
            Extension("halfsec.turn", {"turn": {"turn": 1}}),
            Extension(
                "halfsec.context",
                {"summary": "Ada.", "messages": 2, "tokens_before": 30, "tokens": 20},
            ),
            Extension("halfsec.waiting", {"stage": "asr", "waited_ms": 1500}),
            ItemRetrieved(Message(a, "assistant", "audio", "Hi", "incomplete")),
            Problem("No.", "invalid_value", param="p", event_id="e"),
            TranscriptionFailed(u, "Gone."),
            Extension("halfsec.unheard_of", {}),
        )
        events = await take(call, 17)
    audio = events[9]
    assert isinstance(audio, ev.ReplyAudio)
    assert (audio.response_id, audio.item_id, audio.rate_hz, audio.at_ns) == (r, a, 8000, 7)
    assert audio.pcm.tolist() == [0] * 160
    done = events[10]
    assert isinstance(done, ev.ReplyDone)
    assert (done.status, done.reason, done.text) == ("cancelled", "turn_detected", "Hi")
    assert done.usage["total_tokens"] == 5
    del events[9:11]
    assert events == [
        ev.SpeechStarted(u, 100, 7),
        ev.PartialTranscript(u, "hel", 2, 7),
        ev.Duck(a, 7),
        ev.Unduck(a, 7),
        ev.SpeechStopped(u, 900, 7),
        ev.TranscriptDelta(u, "hello", 7),
        ev.Transcript(u, "hello", 7),
        ev.ReplyStarted(r, 7),
        ev.ReplyText(r, a, "Hi.", 7),
        ev.TurnReport({"turn": 1}, 7),
        ev.ContextCondensed("Ada.", 2, 30, 20, 7),
        ev.Waiting("asr", 1500, 7),
        ev.ItemRetrieved(a, "Hi", 7),
        ev.ServerError("No.", "invalid_value", "p", "e", 7),
        ev.ServerError("Gone.", "transcription_failed", None, None, 7),
    ]


async def test_audio_is_sent_as_it_is_and_in_the_format_of_the_session() -> None:
    async with serving() as peer, connect(peer.url) as call:
        await call.send_audio(PCM, 24_000)
        await call.update(audio={"input": {"format": {"type": "audio/pcma"}}})
        await call.send_audio(PCM, 8_000)
        (changed,) = await take(call, 1)
        sent = [await peer.asked.get() for _ in range(3)]
    assert isinstance(sent[0], AppendAudio)
    assert isinstance(sent[2], AppendAudio)
    assert (sent[0].rate_hz, sent[0].pcm.tolist()) == (24_000, PCM.tolist())
    assert sent[2].rate_hz == 8_000
    assert np.abs(sent[2].pcm.astype(int) - PCM).max() < 300
    assert isinstance(changed, ev.SessionUpdated)
    assert call.session["audio"]["input"]["format"] == {"type": "audio/pcma"}


async def test_other_rates_are_resampled_as_one_stream() -> None:
    second = (np.sin(np.arange(16_000) * 2 * np.pi * 440 / 16_000) * 8000).astype(np.int16)
    async with serving() as peer, connect(peer.url) as call:
        for first in range(0, len(second), 320):
            await call.send_audio(second[first : first + 320], 16_000)
        await call.commit_audio()
        parts = []
        while isinstance(request := await peer.asked.get(), AppendAudio):
            assert request.rate_hz == 24_000
            parts.append(request.pcm)
    heard = np.concatenate(parts)
    assert abs(len(heard) - 24_000) <= 1
    spectrum = np.abs(np.fft.rfft(heard[2000:22_000]))
    assert spectrum.argmax() == round(440 * 20_000 / 24_000)


async def test_long_audio_goes_in_several_frames_and_wrong_audio_not_at_all() -> None:
    async with serving() as peer, connect(peer.url) as call:
        await call.send_audio(np.zeros(60_000, np.int16), 24_000)
        sizes = [len((await peer.asked.get()).pcm) for _ in range(3)]  # type: ignore[union-attr]
        with pytest.raises(ValueError, match="int16"):
            await call.send_audio(np.zeros(10), 24_000)  # type: ignore[arg-type]
    assert sizes == [24_000, 24_000, 12_000]


async def test_each_method_sends_its_event() -> None:
    async with serving() as peer, connect(peer.url) as call:
        await call.send_text("hello")
        await call.cancel()
        await call.truncate("item_a", 40)
        await call.report_playback("item_a", 20)
        await call.create_reply(instructions="Sing.")
        names = [type(await peer.asked.get()).__name__ for _ in range(6)]
    assert names == [
        "CreateItem",
        "CreateResponse",
        "CancelResponse",
        "TruncateItem",
        "PlaybackReport",
        "CreateResponse",
    ]


async def test_the_end_of_the_call_is_the_last_event() -> None:
    clock = ManualClock(5)
    async with serving() as peer, connect(peer.url, clock=clock, reconnect=False) as call:
        await (await peer.socket()).close(1012, "restarting")
        assert [event async for event in call.events()] == [ev.Closed(1012, "restarting", 5)]
        with pytest.raises(CallEndedError, match="1012"):
            await call.send_text("anyone?")


async def test_frames_that_can_not_be_read_are_errors_not_exceptions() -> None:
    frames = ["nonsense", "[]", "{}", '{"type":5}', '{"type":"response.done"}', '{"type":"new"}']
    async with serving() as peer, connect(peer.url) as call:
        for frame in frames:
            await (await peer.socket()).send(frame)
        await (await peer.socket()).close()
        *events, closed = [event async for event in call.events()]
    assert isinstance(closed, ev.Closed)
    assert [e.code for e in events if isinstance(e, ev.ServerError)] == ["invalid_frame"] * 5


RESUMED: dict[str, Any] = {
    "type": "halfsec.resumed",
    "items": [],
    "num_items": 0,
    "received": 7,
    "will_answer": False,
}
CALL: dict[str, Any] = {
    "type": "function_call",
    "id": "i",
    "status": "completed",
    "call_id": "c",
    "name": "clock",
    "arguments": "{}",
}
ITEM_DONE: dict[str, Any] = {"type": "response.output_item.done", "response_id": "r", "item": CALL}
TOKEN: dict[str, Any] = {"type": "halfsec.session", "resume_token": "t", "resume_s": 30}


@pytest.mark.parametrize(
    "good",
    [RESUMED, {**RESUMED, "items": [CALL, {"type": "message", "name": 5}]}, ITEM_DONE, TOKEN],
)
def test_frames_that_the_client_goes_on_from(good: dict[str, Any]) -> None:
    event = ev.EventReader().read(json.dumps(good), 0)
    assert isinstance(event, ev.Resumed | ev.FunctionCall | ev.ResumeToken)


@pytest.mark.parametrize(
    "frame",
    [
        "[" * 100_000,
        "9" * 5000,
        *map(
            json.dumps,
            [
                {**RESUMED, "received": "7"},
                {**RESUMED, "received": 7.5},
                {**RESUMED, "received": True},
                {**RESUMED, "num_items": None},
                {**RESUMED, "items": 5},
                {**RESUMED, "items": [5]},
                {**RESUMED, "items": [{}]},
                {**RESUMED, "items": [{**CALL, "call_id": []}]},
                {**RESUMED, "items": [{**CALL, "name": {}}]},
                {**RESUMED, "items": [{"type": "function_call_output"}]},
                {**ITEM_DONE, "response_id": []},
                {**ITEM_DONE, "item": {**CALL, "name": []}},
                {**ITEM_DONE, "item": {**CALL, "call_id": {}}},
                {**TOKEN, "resume_token": {}},
                {**TOKEN, "resume_token": "\ud800"},
                {**TOKEN, "resume_s": "30"},
                {"type": "session.updated", "session": 5},
            ],
        ),
    ],
    ids=lambda frame: frame[:100],
)
def test_frames_from_which_the_client_can_not_go_on(frame: str) -> None:
    event = ev.EventReader().read(frame, 3)
    assert isinstance(event, ev.ServerError)
    assert (event.code, event.at_ns) == ("invalid_frame", 3)


@pytest.mark.parametrize("audio", [5, {"input": []}, {"input": {"format": "pcm"}}])
def test_a_session_without_a_readable_audio_format(audio: object) -> None:
    assert input_encoding({"audio": audio}, "pcmu") == "pcmu"


def test_audio_on_the_wire_is_base64_without_breaks() -> None:
    delta = base64.b64encode(PCM.astype("<i2").tobytes()).decode()
    ids = {"response_id": "r", "item_id": "i"}
    frame = json.dumps({"type": "response.output_audio.delta", "delta": delta, **ids})
    event = ev.EventReader().read(frame, 3)
    assert isinstance(event, ev.ReplyAudio)
    assert (event.pcm.tolist(), event.rate_hz) == (PCM.tolist(), 24_000)
