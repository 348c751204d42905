"""Frames of telephone carriers' media streams, through the line of a call and back.

An input is the frames of one stream, one a line; one that begins with a zero byte is binary. The
first byte chooses the carrier, and whether keys are looked for in the audio. Frames are read or the
stream is refused; what is sent meanwhile is what the carrier takes: JSON, or whole frames of audio.
"""

import json
import random
from typing import Any, Final

import numpy as np

from agent.session.api.client_events import AppendAudio, Request
from agent.session.api.conversation import ItemId
from agent.session.api.server_events import (
    Notice,
    ReplyAudio,
    ReplyEnded,
    ReplyStarted,
    SpeechStarted,
    Usage,
)
from agent.session.api.settings import SessionSettings
from agent.telephony.carriers.media_stream import Frame, StreamError
from agent.telephony.carriers.table import CARRIERS
from agent.telephony.media_session import HungUp, PhoneLine
from tests.fuzz.target import MAX_MESSAGE_CHARS, JsonGrammar, Target

MAX_FRAMES: Final = 6

KEYS: Final = tuple(CARRIERS)
AUDIO: Final = "f39/f39/f39/fw=="

_ITEM: Final = ItemId("item_1")
_TONE: Final = np.arange(300, dtype=np.int16)
REPLY: Final[tuple[Notice, ...]] = (
    ReplyStarted("resp_1", _ITEM, None, "audio", SessionSettings()),
    ReplyAudio("resp_1", _TONE, 8000),
    SpeechStarted(_ITEM, 0),
    ReplyAudio("resp_1", _TONE, 8000),
    ReplyEnded("resp_1", "completed", None, "x", Usage()),
)
"""What a session says meanwhile, one notice after each frame."""

_MEDIA: Final = {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1}
_SNAKE: Final = {"encoding": "PCMU", "sample_rate": 8000, "channels": 1}
SAMPLES: Final[dict[str, tuple[dict[str, Any], ...]]] = {
    "twilio": (
        {"event": "connected", "protocol": "Call", "version": "1.0.0"},
        {"event": "start", "sequenceNumber": "1", "streamSid": "MZ1", "start": {
            "streamSid": "MZ1", "callSid": "CA1", "tracks": ["inbound"],
            "mediaFormat": _MEDIA, "customParameters": {"token": "t"}}},
        {"event": "media", "streamSid": "MZ1", "media": {
            "track": "inbound", "chunk": "1", "timestamp": "5", "payload": AUDIO}},
        {"event": "dtmf", "streamSid": "MZ1", "dtmf": {"digit": "1"}},
        {"event": "mark", "streamSid": "MZ1", "mark": {"name": "1"}},
        {"event": "stop", "streamSid": "MZ1", "stop": {"callSid": "CA1"}},
    ),
    "telnyx": (
        {"event": "connected", "version": "1.0.0"},
        {"event": "start", "sequence_number": "1", "stream_id": "s", "start": {
            "call_control_id": "c", "from": "+1", "to": "+2", "media_format": _SNAKE,
            "custom_parameters": [{"name": "token", "value": "t"}]}},
        {"event": "media", "stream_id": "s", "media": {
            "track": "inbound", "chunk": "2", "payload": AUDIO}},
        {"event": "media", "stream_id": "s", "media": {"chunk": 1, "payload": AUDIO}},
        {"event": "mark", "stream_id": "s", "mark": {"name": "1"}},
        {"event": "dtmf", "stream_id": "s", "dtmf": {"digit": "#"}},
        {"event": "stop", "stream_id": "s"},
    ),
    "plivo": (
        {"event": "start", "start": {"streamId": "s", "callId": "c", "mediaFormat": _MEDIA},
            "extra_headers": "token=t;a=b"},
        {"event": "start", "start": {"streamId": "s", "callId": "c", "mediaFormat": _MEDIA},
            "extra_headers": '{"token": "t"}'},
        {"event": "media", "streamId": "s", "media": {"track": "inbound", "payload": AUDIO}},
        {"event": "playedStream", "streamId": "s", "name": "1"},
        {"event": "dtmf", "streamId": "s", "dtmf": {"digit": "5"}},
    ),
    "exotel": (
        {"event": "start", "stream_sid": "s", "start": {
            "stream_sid": "s", "call_sid": "c", "from": "+1", "to": "+2",
            "media_format": {"encoding": "audio/x-raw", "sample_rate": "8000"},
            "custom_parameters": {"a": "b"}}},
        {"event": "media", "stream_sid": "s", "media": {"payload": AUDIO}},
        {"event": "mark", "stream_sid": "s", "mark": {"name": "1"}},
        {"event": "stop", "stream_sid": "s", "stop": {"reason": "x"}},
    ),
    "vonage": (
        {"event": "websocket:connected", "content-type": "audio/l16;rate=16000",
            "headers": {"call_uuid": "u", "from": "1", "to": "2", "token": "t"}},
        {"event": "websocket:notify", "payload": {"name": "1"}},
        {"event": "websocket:dtmf", "digit": "5", "duration": 260},
    ),
    "jambonz": (
        {"callSid": "c", "from": "1", "to": "2", "mixType": "mono", "sampleRate": 8000,
            "metadata": {"token": "t"}},
        {"event": "dtmf", "dtmf": "5", "duration": "100"},
        {"type": "mark", "data": {"name": "1", "event": "playout"}},
    ),
    "asterisk": (
        {"event": "MEDIA_START", "connection_id": "i", "channel": "WebSocket/x", "format": "ulaw",
            "optimal_frame_size": 160, "channel_variables": {"caller": "1", "called": "2"}},
        {"event": "MEDIA_START", "connection_id": "i", "channel_id": "x", "format": "slin16",
            "optimal_frame_size": "640"},
        {"event": "DTMF_END", "digit": "5"},
        {"event": "MEDIA_MARK_PROCESSED", "correlation_id": "1"},
        {"event": "MEDIA_XOFF"},
        {"event": "MEDIA_XON"},
        {"event": "ERROR", "error_text": "x"},
    ),
}  # fmt: skip
WORDS_OF_ASTERISK: Final = (
    b"MEDIA_START connection_id:e226 channel:WebSocket/x format:ulaw optimal_frame_size:160",
    b"MEDIA_MARK_PROCESSED correlation_id:1",
    b"DTMF_END digit:5",
    b"MEDIA_XOFF",
)
BINARY: Final = b"\x00" + b"\x00\x01" * 160
GRAMMAR: Final = JsonGrammar([each for samples in SAMPLES.values() for each in samples])


def examine(data: bytes) -> None:
    """One stream, until it is refused or hung up."""
    if not data:
        return
    carrier = CARRIERS[KEYS[data[0] % len(KEYS)]]
    line = PhoneLine(carrier.media_stream(), detects_keys=data[0] > 127)
    said = iter(REPLY)
    try:
        for piece in data[1:].split(b"\n", MAX_FRAMES - 1):
            is_binary = piece[:1] == b"\x00"
            frame: Frame = piece[1:] if is_binary else piece.decode(errors="replace")
            if line.started is None:
                line.open(frame)
            else:
                _check_requests(line, line.receive(frame))
            if line.started is not None and (notice := next(said, None)) is not None:
                line.send(notice)
                line.take_cleared()
                for sent in line.frames():
                    _check_sent(carrier.key, sent)
    except (StreamError, HungUp) as refused:
        assert str(refused), refused
        assert len(str(refused)) <= MAX_MESSAGE_CHARS, refused
    for sent in line.hang_up():
        _check_sent(carrier.key, sent)


def _check_requests(line: PhoneLine, requests: list[Request]) -> None:
    for request in requests:
        assert isinstance(request, Request), request
        if isinstance(request, AppendAudio):
            assert request.pcm.dtype == np.int16, request
            assert request.pcm.ndim == 1, request
            assert request.rate_hz == line.media.rate_hz, request
    for key in line.take_keys():
        assert key in "0123456789*#ABCD", key


def _check_sent(carrier: str, frame: Frame) -> None:
    if isinstance(frame, bytes):
        assert carrier in ("vonage", "jambonz", "asterisk"), frame
        assert 0 < len(frame) <= 65_500, frame
    elif carrier != "asterisk":
        assert isinstance(json.loads(frame.encode()), dict), frame
    else:
        assert 0 < len(frame) <= 128, frame


def change(data: bytes, chance: random.Random) -> bytes | None:
    """As JSON, or with another carrier's frame, or as bytes."""
    what = chance.random()
    if what < 0.1:
        extra = chance.choice((*WORDS_OF_ASTERISK, BINARY))
        return data + b"\n" + extra
    return GRAMMAR.change_lines(data, chance, MAX_FRAMES)


def seeds() -> list[bytes]:
    whole = [
        bytes([KEYS.index(key) + (len(KEYS) * 20 if detects else 0)])
        + b"\n".join(json.dumps(each).encode() for each in samples)
        for key, samples in SAMPLES.items()
        for detects in (False, True)
    ]
    starts = {key: next(each for each in SAMPLES[key] if _starts(each)) for key in KEYS}
    binary = [
        bytes([KEYS.index(key)]) + json.dumps(start).encode() + b"\n" + BINARY
        for key, start in starts.items()
    ]
    words = bytes([KEYS.index("asterisk")]) + b"\n".join((*WORDS_OF_ASTERISK, BINARY))
    return [*whole, *binary, words]


def _starts(sample: dict[str, Any]) -> bool:
    return sample.get("event") in ("start", "websocket:connected", "MEDIA_START", None)


TARGET: Final = Target(
    examine,
    seeds,
    change,
    words=[*(f'"{name}"'.encode() for name in GRAMMAR.names), *WORDS_OF_ASTERISK, b"\n\x00"],
)
