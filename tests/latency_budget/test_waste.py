"""Tokens computed for guesses in vain: counted, stored, read, reported."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from latency_budget import Mark, MarkName, TurnId, TurnLedger
from latency_budget.account.actions import Action, ActionTaken
from latency_budget.account.turn import SessionId, Stage
from latency_budget.reporting.trace import TraceError, TraceWriter, read_trace
from latency_budget.reporting.waterfall import waterfall
from latency_budget.statistics.report import waterfall_json

TURN = TurnId(7)
MS = 1_000_000

TIMES = st.integers(-(10**12), 10**12)
COUNTS = st.integers(0, 999)
SPANS_MS = st.floats(-1e6, 1e6)
TAKEN = st.builds(ActionTaken, st.sampled_from(Action), SPANS_MS, st.none() | SPANS_MS)
PLAIN = st.sampled_from([name for name in MarkName if name is not MarkName.ACTED])

MARKS = st.lists(
    st.builds(Mark, st.just(TURN), PLAIN, TIMES, COUNTS, COUNTS)
    | st.builds(Mark, st.just(TURN), st.just(MarkName.ACTED), TIMES, taken=TAKEN),
    max_size=40,
)


@given(MARKS)
def test_no_count_is_lost_whenever_it_comes_and_none_moves_a_time(marks: list[Mark]) -> None:
    ledger, without = TurnLedger(TURN), TurnLedger(TURN)
    for mark in marks:
        ledger.add(mark)
        if mark.name is not MarkName.LLM_WASTED:
            without.add(mark)
    record = ledger.record()
    wasted = [mark for mark in marks if mark.name is MarkName.LLM_WASTED]
    assert record.wasted_prompt_tokens == sum(mark.prompt_tokens for mark in wasted)
    assert record.wasted_output_tokens == sum(mark.output_tokens for mark in wasted)
    assert replace(record, wasted_prompt_tokens=0, wasted_output_tokens=0) == without.record()


def test_other_words_discard_the_guess_and_stay_themselves() -> None:
    """The guess goes because the next pause has other words: their pass is not thrown away."""
    steps = [
        *(("caller_last_voiced", 0), ("audio_received", 10), ("speech_paused", 80)),
        *(("asr_start", 85), ("asr_final", 180), ("reply_requested", 181), ("speech_paused", 480)),
        *(("asr_start", 485), ("asr_final", 590), ("discarded", 591), ("reply_requested", 592)),
        *(("llm_first_token", 610), ("first_piece", 650), ("tts_start", 651)),
        *(("first_audible_ready", 680), ("endpoint", 800), ("released", 801)),
    ]
    ledger = TurnLedger(TURN)
    for name, at_ms in steps:
        ledger.add(Mark(TURN, MarkName(name), at_ms * MS))
    record = ledger.record()
    assert record.incomplete == ()
    assert record.stages[Stage.ASR].spent_ms == 105
    assert record.wasted_ms == 95 + 410


@given(MARKS)
def test_what_was_written_is_read(marks: list[Mark]) -> None:
    writer = TraceWriter(SessionId("s"), started_unix_ns=1, config_fingerprint="c")
    for mark in marks:
        writer.append_mark(mark)
    assert list(read_trace(writer.lines()).marks()) == marks


@pytest.mark.parametrize("count", ["1", 1.5, True, -1, None])
def test_a_count_that_is_none_is_refused(count: object) -> None:
    writer = TraceWriter(SessionId("s"), started_unix_ns=1, config_fingerprint="c")
    writer.append(0, "mark", TURN, "llm_wasted", prompt_tokens=count)
    with pytest.raises(TraceError, match="not a count"):
        list(read_trace(writer.lines()).marks())


def test_waste_stands_beside_its_time() -> None:
    ledger = TurnLedger(TURN)
    for name, at_ms in ((MarkName.REPLY_REQUESTED, 0), (MarkName.DISCARDED, 80)):
        ledger.add(Mark(TURN, name, at_ms * MS))
    assert "discarded work: 80.0 ms" in waterfall(ledger.record()).splitlines()
    ledger.add(Mark(TURN, MarkName.LLM_WASTED, 80 * MS, 30, 7))
    record = ledger.record()
    assert "discarded work: 80.0 ms, 30 + 7 tokens" in waterfall(record).splitlines()
    told = waterfall_json(record)
    assert (told["wasted_prompt_tokens"], told["wasted_output_tokens"]) == (30, 7)
