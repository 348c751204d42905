"""AudioSocket: messages in a stream that is cut anywhere, and what they say."""

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.telephony.carriers.audiosocket import (
    CLEAR,
    END,
    ERROR,
    HANG_UP,
    KEY,
    MARK,
    MAX_PAYLOAD,
    RATES,
    UUID,
    AudioSocket,
    MessageReader,
    message,
)
from agent.telephony.carriers.media_stream import (
    CallerAudio,
    KeyPressed,
    MarkReached,
    MediaFormat,
    PhoneEvent,
    StreamError,
    StreamStarted,
    StreamStopped,
)

CALL = uuid.UUID("40325ec2-5efd-4bd3-805f-53576e581d13")
"""Of the protocol's page."""
NAMED = message(UUID, CALL.bytes)
SLIN, SLIN16 = 0x10, 0x12
AUDIO = bytes(range(256)) + bytes(64)
"""20 ms at 8 kHz."""

messages = st.lists(
    st.tuples(st.sampled_from([HANG_UP, UUID, KEY, ERROR, *RATES]), st.binary(max_size=700))
)


def started(*ahead: bytes, agent: str = "") -> AudioSocket:
    dialect = AudioSocket(agent)
    for each in (NAMED, message(SLIN, AUDIO), *ahead):
        dialect.receive(each)
    return dialect


@given(messages, st.lists(st.integers(1, 40), min_size=1))
def test_any_cut_gives_the_same_messages(sent: list[tuple[int, bytes]], sizes: list[int]) -> None:
    stream = b"".join(message(*each) for each in sent)
    reader = MessageReader()
    found: list[tuple[int, bytes]] = []
    first = turn = 0
    while first < len(stream):
        size = sizes[turn % len(sizes)]
        found += reader.feed(stream[first : first + size])
        first, turn = first + size, turn + 1
    assert found == sent
    assert list(MessageReader().feed(stream)) == sent


@given(st.binary(max_size=2000), st.integers(1, 50))
def test_what_a_stranger_sends_is_taken_or_refused_alike(data: bytes, size: int) -> None:
    def outcome(pieces: list[bytes]) -> tuple[list[PhoneEvent], str | None]:
        dialect, events = AudioSocket(), []
        try:
            for piece in pieces:
                events += dialect.receive(piece)
            events += dialect.receive(b"")
        except StreamError as error:
            return [], str(error)
        return events, None

    pieces = [data[first : first + size] for first in range(0, len(data), size)]
    assert outcome(pieces) == outcome([data])


@pytest.mark.parametrize("kind", [HANG_UP, ERROR])
@pytest.mark.parametrize("behind", [b"\x99\0\0", message(0x15, b"\0\0")])
def test_what_stands_behind_the_end_counts_for_nothing(kind: int, behind: bytes) -> None:
    """Found by fuzzing: the call ended as a bad stream where both came in one piece."""
    *_, stopped = started().receive(message(kind) + behind)
    assert isinstance(stopped, StreamStopped)


@given(st.lists(st.binary(min_size=1, max_size=5000), max_size=20))
def test_no_more_than_one_message_is_kept(pieces: list[bytes]) -> None:
    reader = MessageReader()
    for piece in pieces:
        try:
            list(reader.feed(piece))
        except StreamError:
            return
        assert len(reader._data) < MAX_PAYLOAD + 3


@pytest.mark.parametrize(("kind", "rate_hz"), RATES.items())
def test_a_call_begins_with_its_first_audio(kind: int, rate_hz: int) -> None:
    dialect = AudioSocket("sales")
    assert dialect.receive(NAMED) == []
    assert dialect.receive(message(kind, AUDIO)) == [
        StreamStarted(
            str(CALL), str(CALL), MediaFormat("pcm16", rate_hz), parameters={"agent": "sales"}
        )
    ]
    assert dialect.receive(message(kind, b"\1\2")) == [
        CallerAudio(AUDIO),
        CallerAudio(b"\1\2"),
    ], "none is lost"
    assert dialect.receive(message(kind, b"\3\4")) == [CallerAudio(b"\3\4")]
    assert dialect.audio(AUDIO) == [bytes([kind]) + AUDIO], "answers travel as the caller's audio"


def test_what_is_said_in_a_call() -> None:
    dialect = started(message(SLIN, AUDIO))
    assert dialect.receive(message(KEY, b"#")) == [KeyPressed("#")]
    assert dialect.receive(message(SLIN)) == []
    assert dialect.receive(message(HANG_UP)) == [StreamStopped("the caller hung up")]
    assert dialect.receive(message(ERROR, b"\2")) == [
        StreamStopped("Asterisk reports an error (02)")
    ]
    assert dialect.receive(message(ERROR)) == [StreamStopped("Asterisk reports an error (no code)")]
    assert AudioSocket().receive(message(HANG_UP)) == [StreamStopped("the caller hung up")]


def test_what_the_queue_is_told_and_tells() -> None:
    dialect = started()
    assert dialect.mark("7") == [f"{MARK}7"]
    assert dialect.receive(f"{MARK}7") == [MarkReached("7")]
    assert dialect.clear() == [CLEAR]
    assert dialect.hang_up() == [END]
    assert dialect.keys("1") == []


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (message(SLIN, AUDIO), "UUID"),
        (message(KEY, b"1"), "UUID"),
        (NAMED + NAMED, "twice"),
        (message(UUID, b"short"), "5 bytes"),
        (NAMED + message(SLIN, b"odd"), "3 bytes"),
        (NAMED + message(SLIN, AUDIO) + message(SLIN16, AUDIO), "does not change"),
        (b"GET / HTTP/1.1\r\n", "0x47"),
        (bytes([SLIN, 0xFF, 0xFF]), "65535 bytes"),
    ],
)
def test_what_is_no_audiosocket_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(StreamError, match=reason):
        AudioSocket().receive(data)


def test_what_is_no_key_is_passed_over() -> None:
    for pressed in (b"x", b"12", b""):
        assert not any(
            isinstance(event, KeyPressed)
            for event in AudioSocket().receive(NAMED + message(KEY, pressed))
        )
