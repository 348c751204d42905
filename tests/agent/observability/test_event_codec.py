"""Events and commands survive being written and read; everything else is refused by name."""

import json
from dataclasses import fields
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.observability.event_codec import (
    Record,
    RecordError,
    command_from_record,
    event_from_record,
    to_record,
)
from agent.turn_taking import commands as cmd
from agent.turn_taking import events as ev
from agent.turn_taking.end_of_turn import IdleRules, TurnRules
from latency_budget.account.turn import TurnId

EVENTS = st.one_of([st.from_type(kind) for kind in get_args(ev.Event)])
COMMANDS = st.one_of([st.from_type(kind) for kind in get_args(cmd.Command)])

SPEECH: Record = {"type": "SpeechStarted", "utterance": 1, "at_sample": 160}
RULES = to_record(ev.RulesChanged(TurnRules()))
CUT = to_record(cmd.CutReply(TurnId(3), "turn_detected"))


@settings(derandomize=True)
@given(EVENTS)
def test_event_comes_back(event: ev.Event) -> None:
    record = json.loads(json.dumps(to_record(event)))
    assert event_from_record(record) == event
    assert type(event_from_record(record)) is type(event)
    assert all(value is None or isinstance(value, str | int | float) for value in record.values())


@settings(derandomize=True)
@given(COMMANDS)
def test_command_comes_back(command: cmd.Command) -> None:
    record = json.loads(json.dumps(to_record(command)))
    assert command_from_record(record) == command
    assert type(command_from_record(record)) is type(command)


def test_record_is_flat_and_named() -> None:
    assert to_record(ev.TranscriptReady(2, 1, "Hi.")) == {
        "type": "TranscriptReady",
        "utterance": 2,
        "revision": 1,
        "text": "Hi.",
    }
    names = {field.name for kind in (TurnRules, IdleRules) for field in fields(kind)}
    assert set(RULES) == {"type"} | names - {"idle"}


def test_no_event_has_a_field_of_a_trace_line_twice() -> None:
    for kind in (*get_args(ev.Event), *get_args(cmd.Command)):
        assert not {"at_ns", "kind", "type"} & {field.name for field in fields(kind)}


def test_turn_of_the_line_is_passed_over_where_there_is_no_field_for_it() -> None:
    assert event_from_record({**SPEECH, "turn": 7}) == ev.SpeechStarted(1, 160)
    assert event_from_record({"type": "ReplySent", "turn": 7}) == ev.ReplySent(TurnId(7))


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({}, "unknown event type None; known: AudioStalled, BackgroundChanged"),
        ({"type": "Hello"}, "unknown event type 'Hello'"),
        ({"type": ["SpeechStarted"]}, r"unknown event type \['SpeechStarted'\]"),
        ({"type": "StartReply", "turn": 1}, "unknown event type 'StartReply'"),
        ({**SPEECH, "pitch": 3, "gain": 1}, "^SpeechStarted has no field 'gain', 'pitch'$"),
        ({"type": "SpeechStarted", "utterance": 1}, "^SpeechStarted lacks its field 'at_sample'$"),
        ({"type": "ReplySent"}, "^ReplySent lacks its field 'turn'$"),
        ({**SPEECH, "utterance": "1"}, "^SpeechStarted.utterance can't be '1'$"),
        ({**SPEECH, "utterance": True}, "^SpeechStarted.utterance can't be True$"),
        ({**SPEECH, "utterance": 1.0}, "^SpeechStarted.utterance can't be 1.0$"),
        ({"type": "ReplySent", "turn": None}, "^ReplySent.turn can't be None$"),
        ({**RULES, "eagerness": "wild"}, "^TurnRules.eagerness can't be 'wild'$"),
        ({**RULES, "eagerness": []}, r"^TurnRules.eagerness can't be \[\]$"),
        ({**RULES, "silence_ms": "200"}, "^TurnRules.silence_ms can't be '200'$"),
        ({**RULES, "enabled": 1}, "^TurnRules.enabled can't be 1$"),
        ({**RULES, "rules": {}}, "^RulesChanged has no field 'rules'$"),
        ({"type": "RulesChanged"}, "^TurnRules lacks its field 'enabled'$"),
    ],
)
def test_what_is_no_event_is_refused(record: Record, message: str) -> None:
    with pytest.raises(RecordError, match=message):
        event_from_record(record)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (SPEECH, "unknown command type 'SpeechStarted'"),
        ({**CUT, "reason": "boredom"}, "^CutReply.reason can't be 'boredom'$"),
        ({"type": "RefuseRequest", "code": None}, "^RefuseRequest.code can't be None$"),
    ],
)
def test_what_is_no_command_is_refused(record: Record, message: str) -> None:
    with pytest.raises(RecordError, match=message):
        command_from_record(record)


@settings(derandomize=True)
@given(
    EVENTS,
    st.sampled_from([*SPEECH, *RULES, "turn", "text"]),
    st.none() | st.booleans() | st.integers() | st.text() | st.floats() | st.just([]),
)
def test_changed_record_is_read_as_it_stands_or_refused(
    event: ev.Event, name: str, value: object
) -> None:
    record = {**to_record(event), name: value}
    try:
        again = event_from_record(record)
    except RecordError:
        return
    assert to_record(again).items() <= record.items()
