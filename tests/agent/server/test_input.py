"""Invalid input of clients, by mistake or malice: an error, and a session that goes on."""

import base64
import contextlib
import json
from functools import partial
from typing import Any

import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed

from agent.codec.json_frame import MAX_FRAME_BYTES
from agent.realtime import socket
from agent.realtime.socket import ReceiveLimiter
from tests.support.service.live import LiveServer
from tests.support.service.live_call import (
    WIRE_HZ,
    LiveCall,
    audio_of,
    call_to,
    overlap,
    recording,
    silence,
    to_int16,
    transcript,
    words_of,
)

pytest_plugins = ["tests.support.service.live_fixtures"]
pytestmark = [pytest.mark.slow, pytest.mark.models]

Sound = Any
APPEND = "input_audio_buffer.append"


def audio(data: bytes) -> str:
    return json.dumps({"type": APPEND, "audio": base64.b64encode(data).decode()})


MALFORMED: dict[str, tuple[str | bytes, str]] = {
    "no json": ("{", "invalid_event"),
    "no object": ("[1, 2]", "invalid_event"),
    "empty": ("", "invalid_event"),
    "binary": (b"\x00\xff\xfe\x01", "invalid_event"),
    "raw audio": (bytes(4800), "invalid_event"),
    "no type": ('{"audio": ""}', "invalid_event"),
    "unknown type": ('{"type": "input_audio_buffer.explode"}', "invalid_event"),
    "beta type": ('{"type": "transcription_session.update"}', "beta_api_shape_disabled"),
    "extension not offered": ('{"type": "halfsec.playback", "item_id": "x"}', "invalid_event"),
    "deep": ('{"type":' + "[" * 5000 + "]" * 5000 + "}", "invalid_event"),
    "NaN": ('{"type": "response.create", "response": {"temperature": NaN}}', "invalid_event"),
    "bad base64": (json.dumps({"type": APPEND, "audio": "!!!!"}), "invalid_value"),
    "half a sample": (audio(bytes(4801)), "invalid_value"),
    "audio of a wrong type": (json.dumps({"type": APPEND, "audio": 5}), "invalid_value"),
    "no audio": (json.dumps({"type": APPEND}), "missing_required_parameter"),
    "empty commit": ('{"type": "input_audio_buffer.commit"}', "input_audio_buffer_commit_empty"),
    "cancel of nothing": ('{"type": "response.cancel"}', "response_cancel_not_active"),
    "unknown item": (
        '{"type": "conversation.item.retrieve", "item_id": "item_nope"}',
        "item_retrieve_invalid_item_id",
    ),
    "unknown voice": (
        '{"type": "session.update", "session": {"type": "realtime",'
        ' "audio": {"output": {"voice": "nobody"}}}}',
        "invalid_value",
    ),
    "wrong rate": (
        '{"type": "session.update", "session": {"type": "realtime",'
        ' "audio": {"input": {"format": {"type": "audio/pcm", "rate": 48000}}}}}',
        "invalid_value",
    ),
}


async def test_every_mistake_is_answered_and_the_session_goes_on(live: LiveServer) -> None:
    async with call_to(live.url) as call:
        for name, (frame, code) in MALFORMED.items():
            await call.socket.send(frame)
            error = await call.problem()
            assert error["code"] == code, (name, error)
        await call.prove_alive()


async def test_an_error_names_the_event_that_caused_it(live: LiveServer) -> None:
    async with call_to(live.url) as call:
        await call.send("response.cancel", event_id="mine_1")
        assert (await call.problem())["event_id"] == "mine_1"
        await call.send(APPEND, event_id="mine_2", audio="?")
        assert (await call.problem())["event_id"] == "mine_2"


async def test_a_frame_beyond_the_limit_ends_the_call_and_no_other(live: LiveServer) -> None:
    async with call_to(live.url) as other, call_to(live.url) as call:
        with contextlib.suppress(ConnectionClosed):  # it may close before it has read all
            await call.socket.send(audio(bytes(MAX_FRAME_BYTES * 3 // 4)))
        code, _ = await call.closed()
        assert code == 1009
        await other.prove_alive()


async def test_the_largest_frame_is_taken(live: LiveServer) -> None:
    async with call_to(live.url) as call:
        await call.socket.send(audio(bytes(MAX_FRAME_BYTES * 3 // 4 - 600)))
        await call.prove_alive()
    assert call.of("error") == []


def noise(seconds: float, level: float, seed: int = 1) -> Sound:
    return to_int16(np.random.default_rng(seed).normal(0, level, int(seconds * WIRE_HZ)))


def music(seconds: float) -> Sound:
    """Three chords of plucked strings over a bass."""
    time = np.arange(int(seconds * WIRE_HZ)) / WIRE_HZ
    decay = np.exp(-4 * (time % 0.5))
    chords = np.array([[220.0, 277.2, 329.6], [246.9, 311.1, 370.0], [196.0, 246.9, 293.7]])
    notes = chords[(time // 1.0).astype(int) % 3]
    sound = sum(np.sin(2 * np.pi * notes[:, i] * time) for i in range(3)) * decay
    return to_int16(0.15 * sound + 0.1 * np.sin(2 * np.pi * 55 * time))


SOUNDS: dict[str, Sound] = {
    "silence": silence(3.0),
    "white noise": noise(3.0, 0.05),
    "loud noise": noise(3.0, 0.4),
    "hum": to_int16(0.3 * np.sin(2 * np.pi * 50 * np.arange(3 * WIRE_HZ) / WIRE_HZ)),
    "beep": to_int16(0.5 * np.sin(2 * np.pi * 1000 * np.arange(2 * WIRE_HZ) / WIRE_HZ)),
    "music": music(4.0),
    "clicks": np.where(np.arange(3 * WIRE_HZ) % 6000 == 0, 32767, 0).astype(np.int16),
    "full scale": np.tile(np.array([32767, -32768], np.int16), WIRE_HZ),
    "offset": np.full(2 * WIRE_HZ, 20_000, np.int16),
}


async def test_what_is_no_speech_is_not_answered(live: LiveServer) -> None:
    async with call_to(live.url) as call:
        for sound in SOUNDS.values():
            await call.append(sound)
            await call.append(silence(2.0))
        await call.prove_alive()
        await call.append(silence(0.5))
        await call.send("input_audio_buffer.clear")
        await call.until("input_audio_buffer.cleared")
    assert call.of("conversation.item.input_audio_transcription.completed") == []
    assert len(call.of("response.created")) == 1
    assert len(call.of("conversation.item.added")) == 2


async def test_clipped_speech_is_understood(live: LiveServer) -> None:
    said = "all-circuits-busy-now"
    loud = np.clip(recording(said).astype(np.int32) * 12, -32768, 32767).astype(np.int16)
    async with call_to(live.url) as call:
        await call.append(loud)
        await call.append(silence(2.0))
        heard = await call.until("conversation.item.input_audio_transcription.completed")
        await call.until("response.created")
    assert overlap(transcript(said), heard["transcript"]) >= 0.6


async def test_a_minute_of_speech_sent_at_once_is_one_turn(live: LiveServer) -> None:
    names = ["vm-nobodyavail", "all-circuits-busy-now", "conf-locked"]
    minute = np.concatenate([recording(name) for name in names] * 10)
    assert len(minute) > 60 * WIRE_HZ
    async with call_to(live.url) as call:
        await call.update(
            max_output_tokens=4,
            audio={
                "input": {"turn_detection": {"type": "server_vad", "silence_duration_ms": 1500}}
            },
        )
        await call.append(minute, piece_ms=1000)
        await call.append(silence(3.0))
        heard = await call.until("conversation.item.input_audio_transcription.completed")
        assert heard["usage"]["seconds"] > 50
        words = heard["transcript"].lower()
        assert words.count("circuits") >= 6
        assert words.count("moment") >= 6
        await call.response()
        assert len(call.of("input_audio_buffer.committed")) == 1


async def speak_pushed(call: LiveCall, said: str) -> str:
    await call.append(recording(said))
    await call.send("input_audio_buffer.commit")
    heard = await call.until("conversation.item.input_audio_transcription.completed")
    text: str = heard["transcript"]
    return text


async def test_push_to_talk_commits_and_clears(live: LiveServer) -> None:
    async with call_to(live.url) as call:
        await call.update(audio={"input": {"turn_detection": None}}, output_modalities=["text"])
        await call.append(recording("conf-locked"))
        await call.append(silence(3.0))
        await call.send("input_audio_buffer.clear")
        await call.until("input_audio_buffer.cleared")
        assert "input_audio_buffer.speech_started" not in call.types
        said = "vm-nobodyavail"
        assert overlap(transcript(said), await speak_pushed(call, said)) >= 0.8
        assert call.of("response.created") == []
        response = await call.answer(max_output_tokens=8)
        assert words_of(response)
        await call.send("input_audio_buffer.commit")
        await call.problem("input_audio_buffer_commit_empty")
        await call.append(silence(1.0))
        await call.send("input_audio_buffer.commit")
        nothing = await call.until("conversation.item.input_audio_transcription.completed")
        assert nothing["transcript"] == ""
        await call.prove_alive()


@pytest.mark.parametrize("encoding", ["pcmu", "pcma"])
async def test_telephone_audio_both_ways(live: LiveServer, encoding: str) -> None:
    said = "all-circuits-busy-now"
    form = {"type": f"audio/{encoding}"}
    async with call_to(live.url) as call:
        session = await call.update(audio={"input": {"format": form}, "output": {"format": form}})
        assert session["audio"]["output"]["format"] == form
        await call.append(recording(said, 8_000), piece_ms=20, encoding=encoding)
        await call.append(silence(2.0, 8_000), piece_ms=20, encoding=encoding)
        heard = await call.until("conversation.item.input_audio_transcription.completed")
        assert overlap(transcript(said), heard["transcript"]) >= 0.6
        response = await call.response()
    pcm = audio_of(call.events, response["id"], encoding)
    assert 8_000 < len(pcm) < 8_000 * 20
    assert np.abs(pcm.astype(int)).max() > 1000
    num_words = len(words_of(response).split())
    assert 0.1 < len(pcm) / 8_000 / num_words < 0.8


async def test_the_input_format_may_change_in_mid_call(live: LiveServer) -> None:
    async with call_to(live.url) as call:
        await call.append(recording("conf-locked")[:9_999])
        await call.send("input_audio_buffer.clear")
        await call.update(audio={"input": {"format": {"type": "audio/pcmu"}}})
        said = "all-circuits-busy-now"
        await call.append(recording(said, 8_000), encoding="pcmu")
        await call.append(silence(2.0, 8_000), encoding="pcmu")
        heard = await call.until("conversation.item.input_audio_transcription.completed")
        assert overlap(transcript(said), heard["transcript"]) >= 0.6
        await call.until("response.created")


async def test_long_texts_in_a_row_are_all_answered(
    live: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None fits into the model's context, and each is refused for itself. The client has to wait,
    for they count as more messages than it may send at once."""
    waits: list[float] = []

    async def pause(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr(socket, "ReceiveLimiter", partial(ReceiveLimiter, pause=pause))
    async with call_to(live.url) as call:
        content = [{"type": "input_text", "text": "\N{CJK UNIFIED IDEOGRAPH-65E5}" * 120_000}]
        for number in range(12):
            item = {"id": f"item_{number}", "type": "message", "role": "user", "content": content}
            await call.send("conversation.item.create", item=item)
        for _ in range(12):
            assert "tokens" in (await call.problem("invalid_value"))["message"]
        await call.prove_alive()
    assert call.of("conversation.item.created") == []
    assert waits
