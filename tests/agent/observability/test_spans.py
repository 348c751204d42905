"""Spans of a turn: right times, the whole wait, and none of the words."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.observability.spans import (
    FinishedCall,
    FinishedTurn,
    SpanData,
    call_id,
    spans_of,
    turn_id,
)
from latency_budget.account.actions import Action, ActionTaken
from latency_budget.account.budget import EMBEDDED
from latency_budget.account.ledger import TurnLedger
from latency_budget.account.marks import Mark, MarkName
from latency_budget.account.turn import SessionId, TurnId
from latency_budget.storage.history import TurnEntry

SESSION = SessionId("sess_a")
OFFSET_NS = 1_800_000_000_000_000_000
NS_PER_MS = 1_000_000

SPOKEN = {
    MarkName.ASR_START: 940,
    MarkName.CALLER_LAST_VOICED: 1000,
    MarkName.AUDIO_RECEIVED: 1008,
    MarkName.ASR_FINAL: 1070,
    MarkName.SPEECH_PAUSED: 1090,
    MarkName.REPLY_REQUESTED: 1100,
    MarkName.LLM_FIRST_TOKEN: 1130,
    MarkName.FIRST_PIECE: 1200,
    MarkName.TTS_START: 1201,
    MarkName.ENDPOINT: 1210,
    MarkName.FIRST_AUDIBLE_READY: 1490,
    MarkName.RELEASED: 1500,
    MarkName.HEARD: 1540,
}


def entry_of(marks: list[tuple[MarkName, int]], **changes: object) -> TurnEntry:
    """Times in ns."""
    ledger = TurnLedger(TurnId(3))
    for name, at_ns in marks:
        ledger.add(Mark(TurnId(3), name, at_ns))
    entry = TurnEntry(SESSION, ledger.record(), EMBEDDED, agent="sales")
    return replace(entry, **changes)  # type: ignore[arg-type]


def entry_at_ms(marks: dict[MarkName, int], **changes: object) -> TurnEntry:
    return entry_of([(name, ms * NS_PER_MS) for name, ms in marks.items()], **changes)


def spans(entry: TurnEntry) -> tuple[SpanData, ...]:
    return spans_of(FinishedTurn(entry, "tiny", OFFSET_NS))


def where(span: SpanData) -> tuple[str, float, float, object]:
    """Name, from, to (ms of the marks' clock), and what of it was exposed."""
    return (
        span.name,
        (span.start_unix_ns - OFFSET_NS) / NS_PER_MS,
        (span.end_unix_ns - OFFSET_NS) / NS_PER_MS,
        span.attributes.get("halfsec.exposed_ms"),
    )


def test_a_spoken_turn() -> None:
    turn, *stages = spans(entry_at_ms(SPOKEN))
    assert where(turn) == ("turn", 1000, 1540, None)
    assert [where(stage) for stage in stages] == [
        ("asr", 940, 1070, 0),
        ("capture", 1000, 1008, 8),
        ("endpoint", 1008, 1090, 82),
        ("endpoint", 1090, 1210, 0),
        ("llm_prefill wait", 1090, 1100, 10),
        ("llm_prefill", 1100, 1130, 30),
        ("llm_clause", 1130, 1200, 70),
        ("tts wait", 1200, 1201, 1),
        ("tts", 1201, 1490, 289),
        ("pacing", 1490, 1500, 10),
        ("transport", 1500, 1540, 40),
    ]
    assert {stage.parent for stage in stages} == {turn.id}
    assert {stage.id.trace for stage in stages} == {turn.id.trace}
    assert len({stage.id for stage in stages} | {turn.id}) == 12
    assert [(each.name, each.at_unix_ns - turn.start_unix_ns) for each in turn.events] == [
        ("released", 500 * NS_PER_MS),
        ("heard", 540 * NS_PER_MS),
    ]
    tts = stages[8].attributes
    assert tts["halfsec.stage"] == "tts"
    assert tts["halfsec.critical"] is True
    assert tts["halfsec.spent_ms"] == 289
    assert stages[7].attributes["halfsec.stage"] == "tts"
    assert stages[7].attributes["halfsec.spent_ms"] == 0
    assert stages[0].attributes["halfsec.critical"] is False


def test_what_is_said_of_a_turn() -> None:
    (turn, *_) = spans(entry_at_ms({**SPOKEN, MarkName.INTERRUPTED: 2000}, reply_s=1.25))
    told = turn.attributes
    assert told["session.id"] == told["gen_ai.conversation.id"] == SESSION
    assert told["gen_ai.agent.name"] == "sales"
    assert told["gen_ai.request.model"] == "tiny"
    ours = {key.removeprefix("halfsec."): told[key] for key in told if key.startswith("halfsec.")}
    assert ours == {
        **{"turn": 3, "profile": "embedded", "total_ms": 500, "widened_ms": 0},
        **{"origin": "caller_last_voiced", "answered": True, "late": True, "cut_in": False},
        **{"interrupted": True, "reopened": False, "opener": False, "reply_s": 1.25},
        "outcome": "interrupted",
        **{"e2e_server_ms": 500, "e2e_ear_ms": 540, "e2e_raw_ms": 540, "paced_ms": 0},
        **{"wasted_ms": 0, "wasted_prompt_tokens": 0, "wasted_output_tokens": 0},
    }
    assert turn.links == (call_id(SESSION),)
    assert turn.parent is None


def test_what_was_done_lest_a_turn_be_late() -> None:
    entry = entry_at_ms(SPOKEN)
    taken = (ActionTaken(Action.TAIL_DECODE, 60.0, 45.5), ActionTaken(Action.OPENER, 200.0))
    (turn, *_) = spans(replace(entry, record=replace(entry.record, actions=taken)))
    assert turn.attributes["halfsec.actions"] == ("tail_decode", "opener")
    assert turn.attributes["halfsec.tail_decode.predicted_ms"] == 60
    assert turn.attributes["halfsec.tail_decode.saved_ms"] == 45.5
    assert turn.attributes["halfsec.opener.predicted_ms"] == 200
    assert "halfsec.opener.saved_ms" not in turn.attributes
    (plain, *_) = spans(entry)
    assert "halfsec.actions" not in plain.attributes


def test_one_call_of_the_model_is_counted_once() -> None:
    told = [span.attributes.get("gen_ai.operation.name") for span in spans(entry_at_ms(SPOKEN))]
    assert [name for name in told if name] == ["invoke_agent", "chat"]


def test_words_only_where_the_entry_has_them() -> None:
    silent = spans(entry_at_ms(SPOKEN))
    assert not [key for span in silent for key in span.attributes if "messages" in key]
    (turn, *stages) = spans(entry_at_ms(SPOKEN, caller_text="Is it open?", agent_text="Yes."))
    asked = json.loads(str(turn.attributes["gen_ai.input.messages"]))
    assert asked == [{"role": "user", "parts": [{"type": "text", "content": "Is it open?"}]}]
    answered = json.loads(str(turn.attributes["gen_ai.output.messages"]))
    assert answered[0]["role"] == "assistant"
    assert answered[0]["parts"][0]["content"] == "Yes."
    assert not [key for span in stages for key in span.attributes if "messages" in key]


def test_unanswered_turn_span_covers_its_work() -> None:
    cut = {name: ms for name, ms in SPOKEN.items() if ms <= 1130}
    turn, *stages = spans(entry_at_ms(cut))
    assert where(turn)[:3] == ("turn", 1000, 1130)
    assert "halfsec.e2e_server_ms" not in turn.attributes
    assert turn.events == ()
    assert {stage.attributes["halfsec.exposed_ms"] for stage in stages} == {0}


def test_a_cut_in_has_no_length() -> None:
    early = {**SPOKEN, MarkName.CALLER_LAST_VOICED: 1700, MarkName.AUDIO_RECEIVED: 1708}
    turn, *_ = spans(entry_at_ms(early))
    assert where(turn)[:3] == ("turn", 1700, 1700)
    assert turn.attributes["halfsec.cut_in"] is True


def test_a_greeting_stands_where_it_began() -> None:
    (turn,) = spans(entry_at_ms({MarkName.GREETING: 5, MarkName.RELEASED: 90}))
    assert where(turn)[:3] == ("turn", 5, 5)
    assert turn.attributes["halfsec.origin"] == "greeting"


def test_a_turn_without_a_mark_is_not_shown() -> None:
    assert spans(entry_of([])) == ()


def test_a_call_is_one_span_that_its_turns_name() -> None:
    (call,) = spans_of(FinishedCall(SESSION, "sales", 5, 95, 2, 480.0))
    assert call.id == call_id(SESSION)
    assert (call.name, call.start_unix_ns, call.end_unix_ns) == ("call", 5, 95)
    assert call.attributes["halfsec.turns"] == 2
    assert call.attributes["halfsec.e2e_p50_ms"] == 480
    (unanswered,) = spans_of(FinishedCall(SESSION, "sales", 5, 95, 0, None))
    assert "halfsec.e2e_p50_ms" not in unanswered.attributes


def test_ids_are_those_of_session_and_turn() -> None:
    entry = entry_at_ms(SPOKEN)
    assert [span.id for span in spans(entry)] == [span.id for span in spans(entry)]
    assert spans(entry)[0].id == turn_id(SESSION, TurnId(3))
    others = [turn_id(SESSION, TurnId(4)), turn_id(SessionId("sess_b"), TurnId(3))]
    assert len({turn_id(SESSION, TurnId(3)), call_id(SESSION), *others}) == 4


@pytest.mark.parametrize("heard", [True, False])
@given(
    st.lists(
        st.tuples(st.sampled_from(list(MarkName)), st.integers(0, 10**12)), min_size=1, max_size=40
    )
)
def test_any_marks_give_whole_spans(heard: bool, marks: list[tuple[MarkName, int]]) -> None:
    entry = entry_of([mark for mark in marks if heard or mark[0] is not MarkName.HEARD])
    if entry.record.started_ns is None:  # all marks were void
        return
    turn, *stages = spans(entry)
    assert all(span.start_unix_ns <= span.end_unix_ns for span in (turn, *stages))
    assert len({span.id for span in (turn, *stages)}) == len(stages) + 1
    exposed_ms = sum(float(str(stage.attributes["halfsec.exposed_ms"])) for stage in stages)
    e2e_ns = entry.record.e2e_ns
    assert exposed_ms == pytest.approx((e2e_ns or 0) / NS_PER_MS)
    if e2e_ns is not None:
        assert turn.end_unix_ns - turn.start_unix_ns == e2e_ns
    work = sorted(span.stage.value for span in entry.record.spans)
    assert sorted(stage.name for stage in stages if "wait" not in stage.name) == work
