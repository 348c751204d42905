"""Twilio's frames, after the examples of its documentation, and what is wrong with others.

https://www.twilio.com/docs/voice/media-streams/websocket-messages
"""

import base64
import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.telephony.carriers.media_stream import (
    MULAW,
    CallerAudio,
    KeyPressed,
    MarkReached,
    StreamError,
    StreamStarted,
    StreamStopped,
)
from agent.telephony.carriers.twilio import Twilio

SID = "MZXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXX"
CALL = "CAXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXX"


def start(**changes: Any) -> str:
    described = {
        "accountSid": "ACXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXX",
        "streamSid": SID,
        "callSid": CALL,
        "tracks": ["inbound"],
        "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1},
        "customParameters": {"FirstName": "Jane", "RemoteParty": "Bob"},
    }
    frame = {"event": "start", "sequenceNumber": "1", "start": described | changes}
    return json.dumps({**frame, "streamSid": SID})


def frame(event: str, **fields: Any) -> str:
    return json.dumps({"event": event, "sequenceNumber": "4", "streamSid": SID, **fields})


def media(payload: Any, track: str = "inbound") -> str:
    fields = {"track": track, "chunk": "2", "timestamp": "5", "payload": payload}
    return frame("media", media=fields)


def begun() -> Twilio:
    twilio = Twilio()
    twilio.receive(start())
    return twilio


def test_a_call_from_its_first_frame_to_its_last() -> None:
    twilio = Twilio()
    assert twilio.receive('{"event":"connected","protocol":"Call","version":"1.0.0"}') == []
    parameters = {"FirstName": "Jane", "RemoteParty": "Bob"}
    assert twilio.receive(start()) == [
        StreamStarted(SID, CALL, MULAW, parameters=parameters),
    ]
    audio = bytes(range(160))
    assert twilio.receive(media(base64.b64encode(audio).decode())) == [CallerAudio(audio)]
    assert twilio.receive(media("/w==", track="outbound")) == []
    digit = {"track": "inbound_track", "digit": "1"}
    assert twilio.receive(frame("dtmf", dtmf=digit)) == [KeyPressed("1")]
    assert twilio.receive(frame("mark", mark={"name": "my label"})) == [MarkReached("my label")]
    assert twilio.receive(frame("something_new", x=1)) == []
    (stopped,) = twilio.receive(frame("stop", stop={"accountSid": "AC", "callSid": CALL}))
    assert isinstance(stopped, StreamStopped)


def test_what_is_sent_names_the_stream() -> None:
    twilio = begun()
    sent = [*twilio.audio(b"\xff\x7f"), *twilio.mark("7"), *twilio.clear()]
    assert [json.loads(each) for each in sent] == [
        {"event": "media", "streamSid": SID, "media": {"payload": "/38="}},
        {"event": "mark", "streamSid": SID, "mark": {"name": "7"}},
        {"event": "clear", "streamSid": SID},
    ]
    assert twilio.hang_up() == []


def test_numbers_may_be_texts() -> None:
    described = {"encoding": "audio/x-mulaw", "sampleRate": "8000", "channels": "1"}
    (started,) = Twilio().receive(start(mediaFormat=described))
    assert isinstance(started, StreamStarted)
    assert started.media == MULAW


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (media("AAAA"), "before start"),
        (frame("stop"), "before start"),
        ("{", "not JSON"),
        ("[]", "object"),
        ('{"type":"start"}', '"event"'),
        (start(streamSid=""), r"start\.streamSid"),
        (start(callSid=5), r"start\.callSid"),
        (start(mediaFormat={"encoding": "audio/opus", "sampleRate": 8000}), "audio/opus at 8000"),
        (start(mediaFormat={"encoding": "audio/x-mulaw", "sampleRate": "much"}), "whole number"),
        (start(mediaFormat={"encoding": "audio/x-mulaw", "sampleRate": 44100}), "44100 Hz"),
        (start(customParameters=[]), "object"),
        ("x" * 70_000, "70000 characters"),
    ],
)
def test_what_can_not_begin_a_call(text: str, reason: str) -> None:
    with pytest.raises(StreamError, match=reason):
        Twilio().receive(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (start(), "twice"),
        (media("not base64!"), "base64"),
        (media(None), "base64"),
        (frame("media"), "no media"),
        (frame("mark", mark={}), r"mark\.name"),
        (media("AAAA").replace(SID, "MZanother"), "another stream"),
    ],
)
def test_what_ends_a_call(text: str, reason: str) -> None:
    with pytest.raises(StreamError, match=reason):
        begun().receive(text)


def test_binary_frames_are_of_somebody_else() -> None:
    with pytest.raises(StreamError, match="binary"):
        begun().receive(b"\x00\x01")


def test_parameters_that_are_no_texts_are_left_out() -> None:
    (started,) = Twilio().receive(start(customParameters={"a": "b", "c": 5, "d": "x" * 600}))
    assert isinstance(started, StreamStarted)
    assert started.parameters == {"a": "b"}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
    max_leaves=12,
)


@given(
    st.sampled_from(["start", "media", "mark", "dtmf", "stop", "connected"]),
    st.dictionaries(st.sampled_from(["start", "media", "mark", "dtmf", "streamSid"]), JSON),
)
def test_nothing_but_a_line_error_comes_of_any_frame(event: str, fields: dict[str, Any]) -> None:
    for twilio in (Twilio(), begun()):
        with contextlib.suppress(StreamError):
            twilio.receive(json.dumps({"event": event, **fields}))


@pytest.mark.parametrize("digit", ["x", "F", "1234"])
def test_what_is_no_key_is_passed_over(digit: str) -> None:
    assert begun().receive(frame("dtmf", dtmf={"digit": digit})) == []
