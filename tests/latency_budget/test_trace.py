"""Traces: written, read back, and refused with the line that is wrong."""

import gc
import json
from contextlib import suppress
from enum import StrEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from latency_budget import Mark, MarkName, SessionId, TraceError, TraceWriter, TurnId, read_trace
from latency_budget.reporting.trace import MAX_LINE_CHARS, Kind, TraceRecord

HEADER = '{"format":1,"session":"s1","started_unix_ns":5,"config_fingerprint":"f"}\n'
RECORD = '{"at_ns":10,"kind":"event","turn":0,"type":"speech_paused"}\n'


def writer(**options: Any) -> TraceWriter:
    return TraceWriter(SessionId("s1"), started_unix_ns=5, config_fingerprint="f", **options)


def test_the_first_lines_stand_as_promised() -> None:
    trace = writer(origin_ns=100)
    trace.append(110, "event", 0, "audio", first_sample=0, voiced=[True, False])
    trace.append_mark(Mark(TurnId(1), MarkName.RELEASED, 130))
    assert list(trace.lines()) == [
        '{"format":1,"session":"s1","started_unix_ns":5,"config_fingerprint":"f","dropped":0}\n',
        '{"at_ns":10,"kind":"event","turn":0,"type":"audio",'
        '"first_sample":0,"voiced":[true,false]}\n',
        '{"at_ns":30,"kind":"mark","turn":1,"type":"released"}\n',
    ]
    assert list(read_trace(trace.lines()).marks()) == [Mark(TurnId(1), MarkName.RELEASED, 30)]


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(),
)
VALUES = st.one_of(SCALARS, st.lists(st.one_of(SCALARS, st.lists(SCALARS, max_size=2)), max_size=3))
NAMES = st.text(min_size=1).filter(lambda n: n not in {"self", "at_ns", "kind", "turn", "type"})
RECORDS = st.builds(
    TraceRecord,
    st.integers(-(2**62), 2**62),
    st.sampled_from(["event", "command"]),
    st.integers(0, 1000),
    st.text(),
    st.dictionaries(NAMES, VALUES, max_size=3),
)


@given(st.lists(RECORDS, max_size=6))
def test_what_was_written_is_read(records: list[TraceRecord]) -> None:
    trace = writer()
    for record in records:
        trace.append(record.at_ns, record.kind, record.turn, record.type, **record.fields)
    text = "".join(trace.lines())
    assert text.isascii()
    assert read_trace(text.splitlines(keepends=True)).records == tuple(records)


@given(st.text())
def test_any_text_is_a_trace_or_a_trace_error(text: str) -> None:
    for lines in (text.splitlines(), [HEADER, text], [HEADER, RECORD, text]):
        with suppress(TraceError):
            read_trace(lines)


def test_the_ring_forgets_the_oldest_and_says_how_many() -> None:
    trace = writer(max_records=3)
    for at_ns in range(10):
        trace.append(at_ns, "event", 0, "tick")
    assert (len(trace), trace.dropped) == (3, 7)
    read = read_trace(trace.lines())
    assert read.header.dropped == 7
    assert [record.at_ns for record in read.records] == [7, 8, 9]


def test_lines_show_the_moment_they_were_asked_for() -> None:
    trace = writer(max_records=2)
    trace.append(1, "event", 0, "tick")
    lines = trace.lines()
    trace.append(2, "event", 0, "tick")
    trace.append(3, "event", 0, "tick")
    assert len(list(lines)) == 2


def test_lists_are_copied_and_subclasses_made_plain() -> None:
    class Colour(StrEnum):
        RED = "red"

    words = ["a"]
    trace = writer()
    trace.append(1, "event", 0, "words", words=words, colour=Colour.RED, pair=(1, 2.5))
    words.append("b")
    (record,) = read_trace(trace.lines()).records
    assert record.fields == {"words": ["a"], "colour": "red", "pair": [1, 2.5]}


def nested(depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


def test_the_garbage_collector_does_not_visit_the_records() -> None:
    """A call's ring holds thousands, and a full collection stops every thread."""
    trace = writer()
    gc.collect()
    before = len(gc.get_objects())
    for at_ns in range(1000):
        trace.append(at_ns, "event", 1, "audio", voiced=[True, False], level=0.5, text=str(at_ns))
    for _ in range(2):  # a tuple may come up before those in it
        gc.collect()
    assert len(gc.get_objects()) - before < 100
    assert len(trace) == 1000


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (float("nan"), "field 'x' is nan"),
        ([float("inf")], "field 'x' is inf"),
        (b"pcm", "field 'x' is a bytes"),
        ({"a": 1}, "field 'x' is a dict"),
        ([object()], "field 'x' is a object"),
        (nested(9), "nests lists more than 8 deep"),
    ],
)
def test_what_json_cannot_hold_is_refused_at_once(value: object, message: str) -> None:
    trace = writer()
    with pytest.raises(TraceError, match=message):
        trace.append(1, "event", 0, "odd", x=value)
    assert len(trace) == 0


@pytest.mark.parametrize(
    ("kind", "turn", "type", "message"),
    [
        ("note", 0, "x", "kind 'note' is none of event, command, mark"),
        ("mark", 1, "relased", "no mark named 'relased'"),
        ("mark", 0, "released", "belongs to no turn"),
        ("event", -1, "x", "turn -1"),
    ],
)
def test_what_could_not_be_read_is_not_written(
    kind: Kind, turn: int, type: str, message: str
) -> None:
    with pytest.raises(TraceError, match=message):
        writer().append(1, kind, turn, type)


def test_a_ring_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one record"):
        writer(max_records=0)


def changed(line: str, **fields: object) -> str:
    return json.dumps({**json.loads(line), **fields}) + "\n"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "line 1: the trace is empty"),
        (["\n", "  \n"], "line 1: the trace is empty"),
        (["RIFF\x00\x00WAVE"], "line 1: not JSON, so this is not a trace"),
        (["[1,2]\n"], "line 1: a JSON object is wanted, not [1,2]"),
        (["{}\n"], "line 1: no trace header"),
        ([changed(HEADER, format=2)], "line 1: format 2; this program reads format 1"),
        ([changed(HEADER, format=True)], "line 1: format True"),
        ([changed(HEADER, session=None)], "line 1: session is None, not a string"),
        ([changed(HEADER, dropped=-1)], "line 1: dropped is -1"),
        ([HEADER, RECORD, RECORD[:-20]], "line 3: cut off in the middle of a record"),
        ([HEADER, RECORD[:-20] + "\n", RECORD], "line 2: not JSON"),
        ([HEADER, "\n", RECORD], "line 2: blank, and the trace goes on after it"),
        ([HEADER, changed(RECORD, at_ns=1.5)], "line 2: at_ns is 1.5, not an integer"),
        ([HEADER, changed(RECORD, at_ns=True)], "line 2: at_ns is True, not an integer"),
        ([HEADER, changed(RECORD, at_ns=2**63)], "not an integer of 64 bits"),
        ([HEADER, '{"at_ns":1,"kind":"event","type":"x"}\n'], "line 2: turn is missing"),
        ([HEADER, changed(RECORD, kind="note")], "line 2: kind 'note'"),
        ([HEADER, changed(RECORD, kind="mark", turn=1)[:-2] + ',"x":{}}\n'], "'x' is a dict"),
        ([HEADER, changed(RECORD, kind="mark", turn=1, type="x")], "line 2: there is no mark"),
        ([HEADER, RECORD[:-2] + ',"x":NaN}\n'], "line 2: not JSON"),
        ([HEADER, RECORD[:-2] + ',"x":1e999}\n'], "line 2: field 'x' is inf"),
        ([HEADER, "[" * 100_000 + "\n"], "line 2: not JSON"),
        ([HEADER, " " * MAX_LINE_CHARS + "{}"], "line 2: longer than"),
    ],
)
def test_a_broken_trace_is_refused_with_its_line(lines: list[str], message: str) -> None:
    with pytest.raises(TraceError) as refused:
        read_trace(lines)
    assert message in str(refused.value)


def test_a_header_alone_and_blank_lines_at_the_end_are_fine() -> None:
    assert read_trace([HEADER]).records == ()
    assert len(read_trace([HEADER, RECORD, "\n", "\n"]).records) == 1
