"""Marks in, an account out: which marks count, and where their time goes."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from latency_budget import (
    Mark,
    MarkName,
    Origin,
    Outcome,
    Stage,
    StageTime,
    TurnId,
    TurnLedger,
    TurnRecord,
    records_of,
)

MS = 1_000_000
TURN = TurnId(7)

# A tight turn: the endpoint is decided at 200, the reply is ready at 320.
TIGHT: dict[str, float] = {
    "caller_last_voiced": 0,
    "audio_received": 12,
    "speech_paused": 96,
    "asr_start": 97,
    "endpoint": 200,
    "asr_final": 230,
    "reply_requested": 231,
    "llm_first_token": 250,
    "first_piece": 290,
    "tts_start": 291,
    "tts_first_chunk": 300,
    "first_audible_ready": 320,
    "released": 325,
}


def ledger_of(*marks: tuple[str, float]) -> TurnLedger:
    ledger = TurnLedger(TURN)
    for name, at_ms in marks:
        ledger.add(Mark(TURN, MarkName(name), round(at_ms * MS)))
    return ledger


def account(**at_ms: float) -> TurnRecord:
    return ledger_of(*at_ms.items()).record()


def exposed_ms(record: TurnRecord) -> dict[str, float]:
    return {
        stage.value: time.exposed_ms for stage, time in record.stages.items() if time.exposed_ns
    }


def spent_ms(record: TurnRecord, stage: Stage) -> float:
    return record.stages[stage].spent_ms


def test_a_tight_turn_waits_for_every_stage() -> None:
    record = account(**TIGHT)
    assert record.incomplete == ()
    assert record.origin is Origin.CALLER_LAST_VOICED
    assert record.e2e_server_ms == 325
    assert record.e2e_ear_ms is None
    assert exposed_ms(record) == {
        "capture": 12,
        "endpoint": 84,
        "asr": 134,  # and the millisecond in which it was being started
        "llm_prefill": 20,
        "llm_clause": 40,
        "tts": 30,
        "pacing": 5,
    }
    assert spent_ms(record, Stage.ENDPOINT) == 188
    assert spent_ms(record, Stage.ASR) == 133


def test_a_reply_ready_before_the_endpoint_exposes_only_the_wait() -> None:
    record = account(**{**TIGHT, "endpoint": 600, "released": 602})
    assert exposed_ms(record) == {"capture": 12, "endpoint": 588, "pacing": 2}
    assert spent_ms(record, Stage.PACING) == 2
    assert spent_ms(record, Stage.TTS) == 29


def test_played_turn_ends_at_playback() -> None:
    record = account(**TIGHT, heard=385)
    assert (record.e2e_server_ms, record.e2e_ear_ms) == (325, 385)
    assert exposed_ms(record)["transport"] == 60
    assert sum(exposed_ms(record).values()) == 385


def test_a_typed_turn_starts_when_the_message_arrives() -> None:
    spoken = {"caller_last_voiced", "audio_received", "speech_paused", "asr_start", "asr_final"}
    typed = {name: at for name, at in TIGHT.items() if name not in spoken | {"endpoint"}}
    record = account(**typed)
    assert record.origin is Origin.REPLY_REQUESTED
    assert record.incomplete == ()
    assert record.e2e_server_ms == 325 - 231
    assert exposed_ms(record) == {"llm_prefill": 19, "llm_clause": 40, "tts": 30, "pacing": 5}


def test_an_unexplained_start_of_a_typed_turn_is_the_engines() -> None:
    record = account(reply_requested=100, tts_start=150, first_audible_ready=160, released=160)
    assert exposed_ms(record) == {"llm_prefill": 50, "tts": 10}
    record = account(reply_requested=100, released=160)
    assert exposed_ms(record) == {"llm_prefill": 60}
    assert record.incomplete == (
        "no llm_first_token",
        "no first_piece",
        "no tts_start",
        "no first_audible_ready",
    )


def test_a_spoken_turn_without_its_origin_has_no_time() -> None:
    record = account(**{name: at for name, at in TIGHT.items() if name != "caller_last_voiced"})
    assert record.origin is Origin.UNKNOWN
    assert record.e2e_server_ns is None
    assert record.answered
    assert exposed_ms(record) == {}
    assert record.path == record.spans == ()
    assert spent_ms(record, Stage.ASR) == 133
    assert record.incomplete == ("no caller_last_voiced",)


def test_a_turn_that_was_never_answered() -> None:
    record = account(caller_last_voiced=0, audio_received=10, speech_paused=96)
    assert not record.answered
    assert record.e2e_server_ns is None
    assert not record.cut_in
    assert "no released" in record.incomplete
    assert spent_ms(record, Stage.ENDPOINT) == 86


def test_an_empty_ledger_has_a_record() -> None:
    record = TurnLedger(TURN).record()
    assert record.origin is Origin.UNKNOWN
    assert set(record.stages.values()) == {StageTime()}
    assert tuple(record.stages) == tuple(Stage)


def test_audible_before_the_last_voiced_frame_is_a_cut_in() -> None:
    record = account(**{**TIGHT, "caller_last_voiced": 900, "audio_received": 910})
    assert record.cut_in
    assert record.e2e_server_ns is None
    assert exposed_ms(record) == {}


def test_released_before_and_heard_after_the_last_voiced_frame_is_no_cut_in() -> None:
    record = account(**{**TIGHT, "caller_last_voiced": 330, "audio_received": 340}, heard=350)
    assert not record.cut_in
    assert record.e2e_server_ns is None
    assert record.e2e_ear_ms == 20
    assert exposed_ms(record) == {"transport": 20}


def test_speech_after_the_release_moves_the_origin() -> None:
    ledger = ledger_of(*TIGHT.items(), ("caller_last_voiced", 500), ("audio_received", 512))
    assert ledger.record().cut_in


def test_speech_that_went_on_after_the_release_is_a_cut_in_without_a_time() -> None:
    record = account(**TIGHT, cut_in=900, interrupted=1000)
    assert record.cut_in
    assert record.outcome is Outcome.CUT_IN
    assert not record.interrupted, "the caller had not finished"
    assert (record.e2e_server_ns, record.path) == (None, ())
    assert exposed_ms(record) == {}


def test_a_reply_that_nobody_heard_did_not_cut_in() -> None:
    never = {name: at for name, at in TIGHT.items() if name != "released"}
    record = account(**never, withdrawn=100, interrupted=200)
    assert record.outcome is Outcome.REOPENED
    assert (record.answered, record.cut_in, record.interrupted) == (False, False, False)
    assert not account(**never, cut_in=900).cut_in
    assert account(**TIGHT, withdrawn=900).outcome is None


def test_an_early_opener_that_was_spoken_over_is_no_answer() -> None:
    record = account(**TIGHT, opener=200, early_opener=200, interrupted=700, withdrawn=600)
    assert (record.outcome, record.opener) == (Outcome.REOPENED, True)
    assert (record.answered, record.cut_in, record.interrupted) == (False, False, False)
    assert (record.e2e_server_ns, record.path) == (None, ())


def test_a_turn_with_an_early_opener_has_the_time_of_the_opener() -> None:
    record = account(**TIGHT, opener=200, early_opener=200, answer_audible=900)
    assert (record.outcome, record.answered, record.e2e_server_ms) == (None, True, 325)
    assert dict(record.marks)[MarkName.ANSWER_AUDIBLE] == 900 * MS
    spoken_over = account(**TIGHT, opener=200, early_opener=200, answer_audible=900, cut_in=1000)
    assert (spoken_over.outcome, spoken_over.answered) == (Outcome.CUT_IN, True)


def test_a_turn_with_nothing_but_an_early_opener_is_not_answered() -> None:
    noise = account(**TIGHT, opener=200, early_opener=200)
    assert (noise.outcome, noise.opener, noise.answered) == (None, True, False)
    assert (noise.e2e_server_ms, noise.e2e_ear_ms, noise.path) == (None, None, ())
    cancelled = account(**TIGHT, opener=200, early_opener=200, interrupted=700)
    assert (cancelled.outcome, cancelled.answered) == (Outcome.INTERRUPTED, False)


def test_a_turn_with_a_late_opener_is_answered_by_it() -> None:
    record = account(**TIGHT, opener=200, withdrawn=600)
    assert (record.outcome, record.answered, record.e2e_server_ms) == (None, True, 325)


def test_a_repeated_pass_counts_once_and_the_first_is_wasted() -> None:
    ledger = ledger_of(
        ("caller_last_voiced", -400),
        ("audio_received", -388),
        ("speech_paused", -304),
        ("asr_start", -303),
        ("asr_final", -173),
        ("reply_requested", -172),
        ("llm_first_token", -150),
        ("discarded", -100),
        *TIGHT.items(),
    )
    record = ledger.record()
    assert record.incomplete == ()
    assert exposed_ms(record) == exposed_ms(account(**TIGHT))
    assert record.wasted_ms == 130 + 22 + 50
    assert spent_ms(record, Stage.ASR) == 133


def test_new_pass_discards_the_previous_one() -> None:
    record = ledger_of(("asr_start", 10), ("asr_start", 50), ("asr_final", 90)).record()
    assert record.wasted_ms == 40
    assert spent_ms(record, Stage.ASR) == 40


def test_an_endpoint_before_a_new_pause_is_void() -> None:
    reopened = {"endpoint": -20.0, **{k: v for k, v in TIGHT.items() if k != "endpoint"}}
    record = account(**reopened)
    assert record.incomplete == ("no endpoint",)
    assert ledger_of(("endpoint", -20), *TIGHT.items()).record().incomplete == ()


def test_marks_of_cancelled_work_are_dropped() -> None:
    late = ledger_of(
        ("reply_requested", -172),
        ("discarded", -100),
        ("llm_first_token", -99),  # the engine had not heard of it yet
        ("asr_final", -98),
        *TIGHT.items(),
    )
    assert exposed_ms(late.record()) == exposed_ms(account(**TIGHT))
    assert late.record().wasted_ms == 72


def test_a_stale_mark_after_the_new_request_is_dropped() -> None:
    record = ledger_of(
        ("reply_requested", 0),
        ("reply_requested", 50),
        ("llm_first_token", 40),
        ("llm_first_token", 70),
    ).record()
    assert spent_ms(record, Stage.LLM_PREFILL) == 20


def test_later_pieces_do_not_move_the_first_sound() -> None:
    ledger = ledger_of(
        *TIGHT.items(),
        ("first_piece", 400),
        ("tts_start", 401),
        ("first_audible_ready", 450),
        ("released", 451),
        ("endpoint", 452),
        ("reply_requested", 453),
        ("reply_done", 900),
        ("discarded", 950),
    )
    record = ledger.record()
    assert exposed_ms(record) == exposed_ms(account(**TIGHT))
    assert record.wasted_ns == 0


def test_a_mark_made_before_the_release_may_arrive_after_it() -> None:
    late = [(name, at) for name, at in TIGHT.items() if name != "first_audible_ready"]
    ledger = ledger_of(*late, ("first_audible_ready", 320), ("asr_final", 900))
    assert ledger.record() == account(**TIGHT)


def test_a_re_opened_turn_says_so() -> None:
    assert account(**TIGHT, reopened=0).reopened
    assert not account(**TIGHT).reopened


def test_an_interrupted_turn_says_so() -> None:
    assert account(**TIGHT, interrupted=800).interrupted
    assert account(**TIGHT, interrupted=800).outcome is Outcome.INTERRUPTED
    assert account(**TIGHT).outcome is None
    assert not account(**TIGHT).interrupted


def test_wrong_order_is_labelled_and_never_negative() -> None:
    record = account(**{**TIGHT, "asr_final": 90})
    assert record.incomplete == ("asr_final before asr_start",)
    assert spent_ms(record, Stage.ASR) == 0
    assert record.e2e_server_ms == 325
    assert sum(exposed_ms(record).values()) == 325
    assert account(**TIGHT, heard=300).e2e_ear_ns is None
    assert account(**TIGHT, heard=300).incomplete == ("heard before released",)


def test_an_inversion_between_two_threads_hides_no_stage() -> None:
    record = account(**{**TIGHT, "tts_start": 289.99})
    assert record.incomplete == ("tts_start before first_piece",)
    assert exposed_ms(record)["llm_clause"] == 40


def test_both_passes_around_a_tool_count() -> None:
    ledger = ledger_of(
        *[(name, at) for name, at in TIGHT.items() if at <= 250],
        ("tool_start", 280),
        ("tool_start", 285),
        ("tool_done", 300),
        ("tool_done", 380),
        ("reply_requested", 381),
        ("llm_first_token", 400),
        ("first_piece", 430),
        ("tts_start", 430),
        ("first_audible_ready", 450),
        ("released", 450),
    )
    record = ledger.record()
    assert record.incomplete == ()
    assert record.wasted_ns == 0
    assert spent_ms(record, Stage.LLM_PREFILL) == 19 + 19
    assert exposed_ms(record) == {
        "capture": 12,
        "endpoint": 84,
        "asr": 134,
        "llm_prefill": 20 + 20,
        "llm_clause": 30 + 30,
        "tool": 100,
        "tts": 20,
    }


def test_a_tool_called_after_the_first_piece_changes_nothing() -> None:
    before = [(name, at) for name, at in TIGHT.items() if at <= 291]
    after = [(name, at) for name, at in TIGHT.items() if at > 291]
    tool = [("tool_start", 292.0), ("tool_done", 295.0), ("reply_requested", 296.0)]
    record = ledger_of(*before, *tool, *after).record()
    assert exposed_ms(record) == exposed_ms(account(**TIGHT))
    assert record.wasted_ns == 0


def test_a_tool_called_by_discarded_work_is_wasted() -> None:
    record = ledger_of(
        ("reply_requested", 0),
        ("llm_first_token", 20),
        ("tool_start", 50),
        ("tool_done", 80),
        ("discarded", 90),
    ).record()
    assert record.wasted_ms == 80
    assert spent_ms(record, Stage.TOOL) == 0


def test_endless_tool_rounds_are_bounded_and_labelled() -> None:
    rounds = [
        (name, 10.0 * round_ + offset)
        for round_ in range(60)
        for name, offset in (
            ("reply_requested", 0),
            ("llm_first_token", 3),
            ("tool_start", 5),
            ("tool_done", 9),
        )
    ]
    record = ledger_of(*rounds, ("released", 700)).record()
    assert "more than 96 spans of tool rounds" in record.incomplete
    assert sum(exposed_ms(record).values()) == 700


def test_a_mark_of_another_turn_is_refused() -> None:
    with pytest.raises(ValueError, match="turn 8 came to the ledger of turn 7"):
        TurnLedger(TURN).add(Mark(TurnId(8), MarkName.RELEASED, 0))


def test_records_come_by_turn() -> None:
    marks = [Mark(TurnId(turn), MarkName.RELEASED, turn) for turn in (3, 1, 2, 1)]
    assert [record.turn for record in records_of(marks)] == [1, 2, 3]


ANY_MARKS = st.lists(
    st.tuples(st.sampled_from(list(MarkName)), st.integers(-(10**12), 10**12)), max_size=40
)


@given(ANY_MARKS)
def test_any_marks_give_an_exact_account(marks: list[tuple[MarkName, int]]) -> None:
    ledger = TurnLedger(TURN)
    for name, at_ns in marks:
        ledger.add(Mark(TURN, name, at_ns))
    record = ledger.record()
    assert record == ledger.record()
    assert sum(time.exposed_ns for time in record.stages.values()) == (record.e2e_ns or 0)
    assert all(time.spent_ns >= 0 <= time.exposed_ns for time in record.stages.values())
    assert record.wasted_ns >= 0
    assert 0 <= record.paced_ns <= (record.e2e_ns or 0)
    assert record.e2e_ns is None or record.e2e_ns >= 0
    assert all(span.start_ns <= span.end_ns for span in (*record.spans, *record.path))
    assert record.answered == any(name is MarkName.RELEASED for name, _ in marks)
    assert not (record.cut_in and record.e2e_ns is not None)


@given(st.lists(st.integers(0, 10**9), min_size=len(TIGHT), max_size=len(TIGHT)), st.data())
def test_marks_may_arrive_in_any_order_within_a_plain_turn(
    steps: list[int], data: st.DataObject
) -> None:
    """One attempt, times rising: the account does not depend on the order of arrival."""
    at_ns, marks = 0, []
    for name, step in zip(TIGHT, steps, strict=True):
        at_ns += step
        marks.append(Mark(TURN, MarkName(name), at_ns))
    in_order, shuffled = TurnLedger(TURN), TurnLedger(TURN)
    # A request or a new pass opens an attempt: only the marks of other threads may come late.
    openers = {"asr_start", "reply_requested", "speech_paused"}
    late = [mark for mark in marks if mark.name not in openers]
    for mark in marks:
        in_order.add(mark)
    for mark in [m for m in marks if m.name in openers] + data.draw(st.permutations(late)):
        shuffled.add(mark)
    assert shuffled.record() == in_order.record()
    assert math.isclose(shuffled.record().e2e_server_ms or 0, sum(steps[1:]) / MS)


def test_a_greeting_has_no_latency_and_lacks_nothing() -> None:
    spoken = ledger_of(
        ("greeting", 0),
        ("reply_requested", 1),
        ("first_piece", 1),
        ("tts_start", 2),
        ("first_audible_ready", 40),
        ("released", 40),
    ).record()
    assert (spoken.origin, spoken.e2e_ns, spoken.incomplete) == (Origin.GREETING, None, ())
    assert (spoken.answered, spent_ms(spoken, Stage.TTS), spoken.path) == (True, 38, ())
    cut = ledger_of(("greeting", 0), ("reply_requested", 1), ("interrupted", 2)).record()
    assert (cut.answered, cut.interrupted, cut.incomplete) == (False, True, ())
