"""Session events from a carrier's frames, and frames from a session's notices."""

import base64
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from agent.codec.g711 import mulaw_decode, mulaw_encode
from agent.session.api import client_events as ask
from agent.session.api import server_events as say
from agent.session.api.conversation import ItemId
from agent.session.api.settings import SemanticVad, ServerVad, SessionSettings
from agent.telephony.carriers.asterisk import Asterisk
from agent.telephony.carriers.audiosocket import UUID, AudioSocket, message
from agent.telephony.carriers.media_stream import (
    CallerAudio,
    Frame,
    MarkReached,
    PhoneEvent,
    StreamError,
)
from agent.telephony.carriers.twilio import Twilio
from agent.telephony.media.dtmf import sound_of
from agent.telephony.media_output import MAX_MARKS
from agent.telephony.media_session import HungUp, PhoneLine
from tests.agent.telephony.carriers.test_twilio import frame, media, start

PIECE = np.arange(800, dtype=np.int16)
"""100 ms at 8 kHz."""


def begun() -> PhoneLine:
    line = PhoneLine(Twilio())
    assert not line.open('{"event":"connected","protocol":"Call","version":"1.0.0"}')
    assert line.open(start())
    return line


def sent_for(line: PhoneLine, *notices: say.Notice) -> list[dict[str, Any]]:
    for notice in notices:
        line.send(notice)
    return [json.loads(each) for each in line.frames()]


def started(number: int) -> say.ReplyStarted:
    item_id = ItemId(f"item_{number}")
    return say.ReplyStarted(f"resp_{number}", item_id, None, "audio", SessionSettings())


def piece(number: int) -> say.ReplyAudio:
    return say.ReplyAudio(f"resp_{number}", PIECE, 8_000)


def reply(line: PhoneLine, number: int, pieces: int) -> list[dict[str, Any]]:
    return sent_for(line, started(number), *pieces * (piece(number),))


def ended(number: int, status: say.ReplyStatus = "completed") -> say.ReplyEnded:
    return say.ReplyEnded(f"resp_{number}", status, None, "", say.Usage())


def marks(sent: list[dict[str, Any]]) -> list[str]:
    return [each["mark"]["name"] for each in sent if each["event"] == "mark"]


def reached(line: PhoneLine, name: str) -> list[ask.Request]:
    return line.receive(frame("mark", mark={"name": name}))


def test_the_caller_is_heard() -> None:
    codes = bytes(range(160))
    (request,) = begun().receive(media(base64.b64encode(codes).decode()))
    assert isinstance(request, ask.AppendAudio)
    assert request.rate_hz == 8_000
    assert np.array_equal(request.pcm, mulaw_decode(codes))
    assert begun().receive(media("")) == []


def test_the_audio_of_one_read_is_one_request() -> None:
    """An AudioSocket may send a thousand messages of one sample at once."""
    line = PhoneLine(AudioSocket())
    line.open(message(UUID, bytes(16)) + message(0x10, b"\1\0"))
    samples = np.arange(2, 821, dtype="<i2")
    first, *rest = line.receive(b"".join(message(0x10, each.tobytes()) for each in samples))
    assert rest == []
    assert isinstance(first, ask.AppendAudio)
    assert first.pcm.tolist() == [1, *range(2, 821)]
    assert line.receive(message(0x10) * 3) == []


def test_the_speech_beside_a_key_in_one_read_is_kept() -> None:
    speech = np.random.default_rng(1).normal(0, 3000, 960).astype(np.int16)
    pcm = np.concatenate([speech[:480], sound_of("5", off_ms=0), speech[480:]])
    messages = [message(0x10, each.tobytes()) for each in pcm.reshape(-1, 160)]
    heard = []
    for reads in (messages, [b"".join(messages)]):
        line = PhoneLine(AudioSocket(), detects_keys=True)
        line.open(message(UUID, bytes(16)) + message(0x10, bytes(320)))
        requests = [request for read in reads for request in line.receive(read)]
        pieces = [each.pcm for each in requests if isinstance(each, ask.AppendAudio)]
        heard.append(np.concatenate(pieces)[160:].tolist())
        assert line.take_keys() == ["5"]
    assert heard[0] == heard[1]
    assert heard[1][:320] == speech[:320].tolist()


def test_what_stands_between_audio_keeps_its_place() -> None:
    class Mixed(Twilio):
        def receive(self, frame: Frame) -> list[PhoneEvent]:
            if isinstance(frame, bytes):
                silence = CallerAudio(b"\xff")
                return [silence, silence, MarkReached(frame.decode()), silence]
            return super().receive(frame)

    line = PhoneLine(Mixed())
    line.open(start())
    (name,) = marks(reply(line, 1, 1))
    before, report, behind = line.receive(name.encode())
    assert isinstance(before, ask.AppendAudio)
    assert isinstance(behind, ask.AppendAudio)
    assert [len(before.pcm), report, len(behind.pcm)] == [
        2, ask.PlaybackReport(ItemId("item_1"), 100), 1,
    ]  # fmt: skip


def test_every_piece_of_a_reply_has_a_mark_behind_it() -> None:
    line = begun()
    sent = reply(line, 1, 2)
    assert [each["event"] for each in sent] == ["media", "mark", "media", "mark"]
    assert base64.b64decode(sent[0]["media"]["payload"]) == mulaw_encode(PIECE)
    first, second = marks(sent)
    assert reached(line, first) == [ask.PlaybackReport(ItemId("item_1"), 100)]
    assert reached(line, second) == [ask.PlaybackReport(ItemId("item_1"), 200)]
    assert reached(line, second) == []


def test_a_mark_stands_for_those_before_it() -> None:
    line = begun()
    first, _, third = marks(reply(line, 1, 3))
    assert reached(line, third) == [ask.PlaybackReport(ItemId("item_1"), 300)]
    assert reached(line, first) == []


def test_marks_of_a_reply_come_back_when_the_next_one_has_begun() -> None:
    line = begun()
    (first,) = marks(reply(line, 1, 1))
    line.send(ended(1))
    (second,) = marks(reply(line, 2, 1))
    assert reached(line, first) == [ask.PlaybackReport(ItemId("item_1"), 100)]
    assert reached(line, second) == [ask.PlaybackReport(ItemId("item_2"), 100)]


@pytest.mark.parametrize(
    "cause",
    [say.SpeechStarted(ItemId("item_9"), 0), ended(1, "cancelled")],
    ids=["spoken over", "cancelled"],
)
def test_what_was_cleared_was_not_heard(cause: say.Notice) -> None:
    line = begun()
    first, second, third = marks(reply(line, 1, 3))
    assert reached(line, first) == [ask.PlaybackReport(ItemId("item_1"), 100)]
    assert [each["event"] for each in sent_for(line, cause)] == ["clear"]
    assert reached(line, second) == []
    assert reached(line, third) == []
    (fourth,) = marks(reply(line, 2, 1))
    assert reached(line, fourth) == [ask.PlaybackReport(ItemId("item_2"), 100)]


@pytest.mark.parametrize("detection", [SemanticVad(), ServerVad(), None])
def test_speech_that_interrupts_nothing_clears_nothing(
    detection: SemanticVad | ServerVad | None,
) -> None:
    line = begun()
    reply(line, 1, 3)
    speaks = say.SpeechStarted(ItemId("item_9"), 0)
    if detection is not None:
        deaf = replace(detection, interrupt_response=False)
        created = say.SessionCreated("sess", SessionSettings(turn_detection=deaf))
        assert sent_for(line, created, speaks) == []
    updated = say.SessionUpdated(SessionSettings(turn_detection=detection))
    assert [each["event"] for each in sent_for(line, updated, speaks)] == ["clear"]


def test_there_is_nothing_to_clear_of_what_was_played() -> None:
    line = begun()
    (name,) = marks(reply(line, 1, 1))
    reached(line, name)
    assert sent_for(line, say.SpeechStarted(ItemId("item_9"), 0)) == []


def test_marks_that_never_come_back_are_forgotten() -> None:
    line = begun()
    names = marks(reply(line, 1, MAX_MARKS + 5))
    assert reached(line, names[0]) == []
    assert reached(line, names[-1]) == [ask.PlaybackReport(ItemId("item_1"), 100 * len(names))]


def test_keys_are_kept_until_somebody_takes_them() -> None:
    line = begun()
    for digit in "12#":
        assert line.receive(frame("dtmf", dtmf={"digit": digit})) == []
    assert line.take_keys() == ["1", "2", "#"]
    assert line.take_keys() == []


def tones(keys: str) -> list[np.ndarray[Any, np.dtype[np.int16]]]:
    """With half a second of a voice's noise before and behind, in pieces of 20 ms."""
    noise = np.random.default_rng(7).normal(0, 800, 4000).astype(np.int16)
    sound = np.concatenate([noise, sound_of(keys), noise])
    return [sound[first : first + 160] for first in range(0, len(sound), 160)]


def test_keys_are_heard_and_are_no_words() -> None:
    line = PhoneLine(Twilio(), detects_keys=True)
    assert line.open(start())
    keys: list[str] = []
    heard: list[np.ndarray[Any, np.dtype[np.int16]]] = []
    for pcm in tones("159#"):
        (request,) = line.receive(media(base64.b64encode(mulaw_encode(pcm)).decode()))
        assert isinstance(request, ask.AppendAudio)
        assert len(request.pcm) == len(pcm)
        heard.append(request.pcm)
        keys += line.take_keys()
    assert keys == ["1", "5", "9", "#"]
    levels = np.array([np.abs(each).max() for each in heard])
    assert (levels[:25] > 0).all(), "the caller's own voice"
    assert (levels[-25:] > 0).all()
    loud = np.array([np.abs(each).max() > 6000 for each in heard])  # a tone has 8230 twice
    assert loud.sum() <= 4, "of each tone no more than its first 20 ms"


def test_nobody_listens_for_keys_unasked() -> None:
    line = begun()
    for pcm in tones("1"):
        line.receive(media(base64.b64encode(mulaw_encode(pcm)).decode()))
    assert line.take_keys() == []


def test_a_carrier_that_stops_hangs_up() -> None:
    with pytest.raises(HungUp, match="ended the stream"):
        begun().receive(frame("stop"))


def test_half_a_call_is_none() -> None:
    with pytest.raises(StreamError, match="before start"):
        PhoneLine(Twilio()).open(media("AAAA"))


def test_a_full_queue_is_waited_for_and_cleared_with_it() -> None:
    line = PhoneLine(Asterisk())
    assert line.open("MEDIA_START connection_id:c channel:x format:ulaw optimal_frame_size:160")
    line.receive("MEDIA_XOFF")
    for notice in (started(1), piece(1), piece(1)):
        line.send(notice)
    assert line.frames() == []
    line.receive("MEDIA_XON")
    audio = mulaw_encode(PIECE)
    assert line.frames() == [audio, "MARK_MEDIA 1", audio, "MARK_MEDIA 2"]
    line.receive("MEDIA_XOFF")
    line.send(piece(1))
    line.send(say.SpeechStarted(ItemId("item_9"), 0))
    assert line.frames() == ["FLUSH_MEDIA"]
