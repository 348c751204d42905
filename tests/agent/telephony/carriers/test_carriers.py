"""Messages to and from each carrier, after the examples of its documentation."""

import base64
import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.telephony.carriers.asterisk import Asterisk
from agent.telephony.carriers.exotel import Exotel
from agent.telephony.carriers.jambonz import Jambonz
from agent.telephony.carriers.media_stream import (
    MULAW,
    CallerAudio,
    FlowChanged,
    Frame,
    KeyPressed,
    MarkReached,
    MediaFormat,
    MediaStreamProtocol,
    PhoneEvent,
    StreamError,
    StreamStarted,
    StreamStopped,
)
from agent.telephony.carriers.plivo import Plivo
from agent.telephony.carriers.telnyx import Telnyx
from agent.telephony.carriers.vonage import Vonage

AUDIO = bytes(range(160)) * 2
TEXT = base64.b64encode(AUDIO).decode()
NUMBERS = ("+15550100", "+15550199")
PBX = "MEDIA_START connection_id:e226e283 channel:WebSocket/x format:ulaw optimal_frame_size:160"


def said(**fields: Any) -> str:
    return json.dumps(fields)


@dataclass(frozen=True)
class Vectors:
    """What one carrier sends and gets."""

    make: Callable[[], MediaStreamProtocol]
    before: tuple[Frame, ...]
    start: Frame
    started: StreamStarted
    heard: tuple[tuple[Frame, list[PhoneEvent]], ...]
    audio: list[Any]
    mark: list[Any]
    clear: list[Any]


TELNYX = Vectors(
    Telnyx,
    (said(event="connected", version="1.0.0"),),
    said(
        event="start",
        sequence_number="1",
        stream_id="32DE0DEA",
        start={
            "user_id": "3e6f995f",
            "call_control_id": "v2:T02",
            "client_state": "aGF2ZSBhIG5pY2U=",
            "from": NUMBERS[0],
            "to": NUMBERS[1],
            "media_format": {"encoding": "PCMU", "sample_rate": 8000, "channels": 1},
        },
    ),
    StreamStarted("32DE0DEA", "v2:T02", MULAW, *NUMBERS),
    (
        (
            said(
                event="media",
                sequence_number="4",
                stream_id="32DE0DEA",
                media={"track": "inbound", "chunk": "2", "timestamp": "5", "payload": TEXT},
            ),
            [CallerAudio(AUDIO, 2)],
        ),
        (
            said(event="dtmf", stream_id="32DE0DEA", dtmf={"digit": "1"}),
            [KeyPressed("1")],
        ),
        (said(event="mark", stream_id="32DE0DEA", mark={"name": "7"}), [MarkReached("7")]),
        (said(event="error", stream_id="32DE0DEA", payload={"code": 100003}), []),
        (
            said(event="stop", stream_id="32DE0DEA", stop={"call_control_id": "v2:T02"}),
            [StreamStopped("the carrier ended the stream")],
        ),
    ),
    [{"event": "media", "media": {"payload": TEXT}}],
    [{"event": "mark", "mark": {"name": "7"}}],
    [{"event": "clear"}],
)

EXOTEL = Vectors(
    Exotel,
    (said(event="connected"),),
    said(
        event="start",
        sequence_number="1",
        stream_sid="MZx",
        start={
            "stream_sid": "MZx",
            "call_sid": "CAx",
            "account_sid": "ACx",
            "from": NUMBERS[0],
            "to": NUMBERS[1],
            "custom_parameters": {"key1": "value1"},
            "media_format": {"encoding": "audio/x-raw", "sample_rate": "8000", "bit_rate": "16"},
        },
    ),
    StreamStarted("MZx", "CAx", MediaFormat("pcm16", 8_000), *NUMBERS, {"key1": "value1"}),
    (
        (
            said(
                event="media",
                sequence_number="3",
                stream_sid="MZx",
                media={"chunk": "2", "timestamp": "200", "payload": TEXT},
            ),
            [CallerAudio(AUDIO)],
        ),
        (
            said(event="dtmf", stream_sid="MZx", dtmf={"digit": "5", "duration": "100"}),
            [KeyPressed("5")],
        ),
        (said(event="mark", stream_sid="MZx", mark={"name": "7"}), [MarkReached("7")]),
    ),
    [{"event": "media", "stream_sid": "MZx", "media": {"payload": TEXT}}],
    [{"event": "mark", "stream_sid": "MZx", "mark": {"name": "7"}}],
    [{"event": "clear", "stream_sid": "MZx"}],
)

PLIVO = Vectors(
    Plivo,
    (),
    said(
        event="start",
        sequenceNumber=1,
        start={
            "callId": "12345678",
            "streamId": "87654321",
            "accountId": "MAX",
            "tracks": ["inbound"],
            "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 8000},
        },
        extra_headers="userId=12345;sessionId=abc-xyz",
    ),
    StreamStarted(
        "87654321", "12345678", MULAW, parameters={"userId": "12345", "sessionId": "abc-xyz"}
    ),
    (
        (
            said(
                event="media",
                sequenceNumber=42,
                streamId="87654321",
                media={"track": "inbound", "timestamp": "1705312200000", "payload": TEXT},
            ),
            [CallerAudio(AUDIO)],
        ),
        (said(event="dtmf", streamId="87654321", dtmf={"digit": "#"}), [KeyPressed("#")]),
        (said(event="playedStream", streamId="87654321", name="7"), [MarkReached("7")]),
        (said(event="playedStream", name="7"), [MarkReached("7")]),
        (said(event="clearedAudio", streamId="87654321"), []),
    ),
    [
        {
            "event": "playAudio",
            "media": {"contentType": "audio/x-mulaw", "sampleRate": 8000, "payload": TEXT},
        }
    ],
    [{"event": "checkpoint", "streamId": "87654321", "name": "7"}],
    [{"event": "clearAudio", "streamId": "87654321"}],
)

VONAGE = Vectors(
    Vonage,
    (),
    said(
        **{
            "event": "websocket:connected",
            "content-type": "audio/l16;rate=8000",
            "call_uuid": "aaaabbbb",
            "language": "en-GB",
        }
    ),
    StreamStarted(
        "aaaabbbb",
        "aaaabbbb",
        MediaFormat("pcm16", 8_000),
        parameters={"call_uuid": "aaaabbbb", "language": "en-GB"},
    ),
    (
        (AUDIO, [CallerAudio(AUDIO)]),
        (said(event="websocket:dtmf", digit="5", duration=260), [KeyPressed("5")]),
        (said(event="websocket:notify", payload={"name": "7"}), [MarkReached("7")]),
        (said(event="websocket:cleared"), []),
    ),
    [AUDIO],
    [{"action": "notify", "payload": {"name": "7"}}],
    [{"action": "clear"}],
)

JAMBONZ = Vectors(
    Jambonz,
    (),
    said(
        **{"callSid": "2be2b4a2", "from": NUMBERS[0], "to": NUMBERS[1]},
        sampleRate=8000,
        mixType="mono",
        metadata={"agent": "desk"},
    ),
    StreamStarted("2be2b4a2", "2be2b4a2", MediaFormat("pcm16", 8_000), *NUMBERS, {"agent": "desk"}),
    (
        (AUDIO, [CallerAudio(AUDIO)]),
        (said(event="dtmf", dtmf="2", duration="1600"), [KeyPressed("2")]),
        (said(type="mark", data={"name": "7", "event": "playout"}), [MarkReached("7")]),
        (said(type="mark", data={"name": "8", "event": "cleared"}), []),
    ),
    [AUDIO],
    [{"type": "mark", "data": {"name": "7"}}],
    [{"type": "killAudio"}, {"type": "clearMarks"}],
)

ASTERISK = Vectors(
    Asterisk,
    (),
    said(
        event="MEDIA_START",
        connection_id="e226e283",
        channel="WebSocket/connectionid",
        channel_id="pbx1-123456789.999",
        format="ulaw",
        optimal_frame_size=160,
        ptime=20,
        channel_variables={"caller": NUMBERS[0], "called": NUMBERS[1], "agent": "sales"},
    ),
    StreamStarted(
        "e226e283",
        "pbx1-123456789.999",
        MULAW,
        *NUMBERS,
        {"caller": NUMBERS[0], "called": NUMBERS[1], "agent": "sales"},
    ),
    (
        (AUDIO, [CallerAudio(AUDIO)]),
        (said(event="DTMF_END", channel_id="x", digit="4"), [KeyPressed("4")]),
        (said(event="MEDIA_MARK_PROCESSED", correlation_id="7"), [MarkReached("7")]),
        (said(event="MEDIA_XOFF"), [FlowChanged(takes_audio=False)]),
        (said(event="MEDIA_XON"), [FlowChanged(takes_audio=True)]),
        (said(event="STATUS", queue_length=43), []),
    ),
    [AUDIO],
    [{"command": "MARK_MEDIA", "correlation_id": "7"}],
    [{"command": "FLUSH_MEDIA"}],
)

ALL = [
    pytest.param(vectors, id=vectors.make().name)
    for vectors in (TELNYX, EXOTEL, PLIVO, VONAGE, JAMBONZ, ASTERISK)
]


def begun(vectors: Vectors) -> MediaStreamProtocol:
    dialect = vectors.make()
    for frame in vectors.before:
        assert dialect.receive(frame) == []
    assert dialect.receive(vectors.start) == [vectors.started]
    return dialect


def shown(frames: list[Frame]) -> list[Any]:
    return [json.loads(frame) if isinstance(frame, str) else frame for frame in frames]


@pytest.mark.parametrize("vectors", ALL)
def test_a_call_is_read(vectors: Vectors) -> None:
    dialect = begun(vectors)
    for frame, events in vectors.heard:
        assert dialect.receive(frame) == events


@pytest.mark.parametrize("vectors", ALL)
def test_a_call_is_answered(vectors: Vectors) -> None:
    dialect = begun(vectors)
    assert shown(dialect.audio(AUDIO)) == vectors.audio
    assert shown(dialect.mark("7")) == vectors.mark
    assert shown(dialect.clear()) == vectors.clear


@pytest.mark.parametrize("vectors", ALL)
def test_a_call_begins_once(vectors: Vectors) -> None:
    dialect = begun(vectors)
    if isinstance(dialect, Jambonz):
        assert dialect.receive(vectors.start) == []  # it has no name for it
    else:
        with pytest.raises(StreamError, match="twice"):
            dialect.receive(vectors.start)


def test_a_refusal_quotes_little_of_a_frame() -> None:
    """It goes into a log, which any peer of the stream could fill."""
    with pytest.raises(StreamError, match='a frame has an "event"') as caught:
        begun(TELNYX).receive(said(**{letter * 9000: 1 for letter in "abcdefg"}))
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("vectors", ALL)
def test_nothing_is_heard_before_it_begins(vectors: Vectors) -> None:
    with pytest.raises(StreamError):
        vectors.make().receive(vectors.heard[0][0])


@pytest.mark.parametrize(
    ("vectors", "frame_bytes"),
    [(TELNYX, 1), (EXOTEL, 320), (PLIVO, 1), (VONAGE, 320), (JAMBONZ, 2), (ASTERISK, 160)],
    ids=lambda value: value.make().name if isinstance(value, Vectors) else value,
)
def test_carriers_say_of_what_length_audio_is_to_be(vectors: Vectors, frame_bytes: int) -> None:
    assert begun(vectors).frame_bytes == frame_bytes


@pytest.mark.parametrize(
    ("make", "frame", "reason"),
    [
        (Plivo, str(PLIVO.start).replace("x-mulaw", "x-l16"), "audio/x-mulaw"),
        (Vonage, said(**{"event": "websocket:connected", "content-type": "audio/opus"}), "opus"),
        (Jambonz, said(callSid="x", sampleRate=48000, mixType="mono"), "48000 Hz"),
        (Jambonz, said(callSid="x", sampleRate=8000, mixType="stereo"), "stereo"),
        (Asterisk, PBX.replace("ulaw", "opus"), "opus"),
        (Asterisk, PBX.replace("size:160", "size:0"), "passthrough"),
        (Asterisk, PBX.replace("size:160", "size:99999999"), "optimal_frame_size is 99999999"),
        (
            Asterisk,
            PBX.replace("ulaw optimal_frame_size:160", "slin optimal_frame_size:161"),
            "half",
        ),
        (Asterisk, "HELLO", "MEDIA_START"),
        (Telnyx, b"\x00", "binary"),
    ],
)
def test_audio_that_can_not_be_served_is_named(
    make: Callable[[], MediaStreamProtocol], frame: Frame, reason: str
) -> None:
    with pytest.raises(StreamError, match=reason):
        make().receive(frame)


@given(
    st.sampled_from([TELNYX, EXOTEL, PLIVO, VONAGE, JAMBONZ, ASTERISK]),
    st.text() | st.binary(),
    st.dictionaries(
        st.sampled_from(["event", "type", "start", "media", "mark", "dtmf", "data", "digit"]),
        st.none() | st.text() | st.integers() | st.dictionaries(st.text(), st.text()),
    ),
)
def test_nothing_but_a_line_error_comes_of_any_frame(
    vectors: Vectors, frame: Frame, fields: dict[str, Any]
) -> None:
    for dialect in (vectors.make(), begun(vectors)):
        for each in (frame, json.dumps(fields)):
            with contextlib.suppress(StreamError):
                dialect.receive(each)


def test_telnyx_may_list_its_parameters() -> None:
    frame = json.loads(TELNYX.start)
    for listed, parameters in [
        ([{"name": "token", "value": "ct1"}, {"name": "n", "value": 1}], {"token": "ct1"}),
        ([{"value": "x"}, "y", None, {"name": ["z"], "value": "z"}], {}),
        ([], {}),
    ]:
        frame["start"]["custom_parameters"] = listed
        (started,) = Telnyx().receive(json.dumps(frame))
        assert isinstance(started, StreamStarted)
        assert started.parameters == parameters
