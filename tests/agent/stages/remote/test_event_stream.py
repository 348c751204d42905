"""Server-sent events: the same events however the bytes are cut, and limits."""

from itertools import pairwise
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.stages.remote import event_stream
from agent.stages.remote.event_stream import MalformedStreamError, SseReader

STREAM: Final = (
    ': ping\r\n\r\ndata: {"a": "ü€😀\u2028"}\n\nevent: x\rid: 1\rdata:two\rdata: lines\r\r'
    "data: last"
).encode()
EVENTS: Final = ['{"a": "ü€😀\u2028"}', "two\nlines", "last"]


def push_often(reader: SseReader, piece: bytes, number: int) -> None:
    for _ in range(number):
        assert reader.push(piece) == []


def read(pieces: list[bytes]) -> list[str]:
    reader = SseReader()
    found = [event for piece in pieces for event in reader.push(piece)]
    return [*found, *reader.flush()]


def test_whole_and_one_byte_at_a_time() -> None:
    assert read([STREAM]) == EVENTS
    assert read([STREAM[i : i + 1] for i in range(len(STREAM))]) == EVENTS


@given(st.sets(st.integers(0, len(STREAM))))
def test_cut_anywhere(cuts: set[int]) -> None:
    edges = pairwise([0, *sorted(cuts), len(STREAM)])
    assert read([STREAM[first:end] for first, end in edges]) == EVENTS


def test_a_line_without_end_is_refused_before_it_fills_the_memory() -> None:
    reader = SseReader()
    with pytest.raises(MalformedStreamError, match="event of more than 1 MiB"):
        push_often(reader, b"x" * (1 << 16), 160)
    assert len(reader._line) <= event_stream.MAX_EVENT_BYTES


def test_an_event_of_many_lines_is_refused_too() -> None:
    reader = SseReader()
    with pytest.raises(MalformedStreamError, match="event of more than 1 MiB"):
        push_often(reader, b"data: " + b"x" * 1018 + b"\n", 1 << 11)


def test_comments_count_for_no_event(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = SseReader()
    comment = b": " + b"x" * 1022 + b"\n"
    push_often(reader, comment, 1 << 11)
    assert reader.push(b"data: on\n\n") == ["on"]
    monkeypatch.setattr(event_stream, "MAX_STREAM_BYTES", 3 << 20)
    with pytest.raises(MalformedStreamError, match="more than 3 MiB"):
        push_often(reader, comment, 1 << 11)


def test_bytes_that_are_no_text_are_refused() -> None:
    with pytest.raises(MalformedStreamError, match="UTF-8"):
        SseReader().push(b"data: \xff\n\n")
