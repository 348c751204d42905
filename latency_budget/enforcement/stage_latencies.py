"""Latency of each stage of a turn's chain, and the progress of a turn under way.

The chain is the sequence of stages that a reply needs: the words, the model's first token, a piece
worth speaking, its first audible sample. A caller waits for the longer of the chain and the wait
for the end of the turn; but only the chain can be made shorter.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from latency_budget.account.actions import Action
from latency_budget.account.marks import MarkName
from latency_budget.account.turn import Span, Stage
from latency_budget.account.turn_record import NS_PER_MS, Origin, TurnRecord

_M = MarkName


@dataclass(frozen=True, slots=True)
class StageLatencies:
    """Stage latencies of a finished turn, in ms. None where a mark is missing."""

    words_ms: float | None = None
    """From the caller's last voiced sample to the words of the pass that counted."""
    speech_ms: float | None = None
    """Length of the caller's speech."""
    pass_ms: float | None = None
    """From the request for that pass to its words."""
    wait_ms: float | None = None
    """From the words, or from the end of the turn where that came later, to the request for a
    reply: next to nothing."""
    prefill_ms: float | None = None
    clause_ms: float | None = None
    tts_ms: float | None = None
    """From the first piece to its first audible sample, the wait for the voice included."""
    ready_ms: float | None = None
    """The whole chain: from the last voiced sample to the reply's first audible sample, without the
    wait for the end of the turn where the reply was not prepared."""
    after_ms: float | None = None
    """From the later of ready and the decision that the turn is over to the ear, or to the release
    where the client reports no playback. Without the time in which the reply was held back on
    purpose."""


def stage_latencies_of(record: TurnRecord) -> StageLatencies | None:
    """The stage latencies of a record. None for a turn without speech, for one whose end or reply
    the client asked for (the client decides when), and for one without an end-to-end time."""
    is_spoken = record.origin is Origin.CALLER_LAST_VOICED and record.e2e_ns is not None
    if not is_spoken or record.asked:
        return None
    assert record.e2e_ns is not None
    last: dict[Stage, Span] = {}
    for span in record.spans:
        known = last.get(span.stage)
        if known is None or span.end_ns > known.end_ns:
            last[span.stage] = span
    words, prefill, clause, tts, endpoint = (
        last.get(stage)
        for stage in (
            *(Stage.ASR, Stage.LLM_PREFILL, Stage.LLM_CLAUSE),
            *(Stage.TTS, Stage.ENDPOINT),
        )
    )
    wait_ms, waited_ms = None, 0.0
    if words is not None and prefill is not None:
        wait_ms = _ms(words.end_ns, prefill.start_ns)
        if endpoint is not None and words.end_ns < endpoint.end_ns <= prefill.start_ns:
            waited_ms = _ms(words.end_ns, endpoint.end_ns)
            wait_ms -= waited_ms
    latencies = StageLatencies(
        words_ms=None if words is None else _ms(0, words.end_ns),
        speech_ms=None if record.speech_ns is None else record.speech_ns / NS_PER_MS,
        pass_ms=None if words is None else _ms(words.start_ns, words.end_ns),
        wait_ms=wait_ms,
    )
    if record.opener:  # the reply's own links were not waited for, and the account ends before them
        return replace(latencies, ready_ms=_own_ready_ms(record))
    if prefill is None or tts is None:
        return latencies
    piece_ns = prefill.end_ns if clause is None else clause.end_ns
    after_ns = record.e2e_ns - record.paced_ns - tts.end_ns
    if endpoint is not None:
        after_ns = min(after_ns, record.e2e_ns - record.paced_ns - endpoint.end_ns)
    return replace(
        latencies,
        prefill_ms=_ms(prefill.start_ns, prefill.end_ns),
        clause_ms=_ms(prefill.end_ns, piece_ns),
        tts_ms=_ms(piece_ns, tts.end_ns),
        ready_ms=_ms(0, tts.end_ns) - waited_ms,
        after_ms=max(0.0, after_ns / NS_PER_MS),
    )


def was_prepared(record: TurnRecord) -> bool:
    """True where the reply was requested before the turn was decided to be over."""
    asked = [span.start_ns for span in record.spans if span.stage is Stage.LLM_PREFILL]
    decided = [span.end_ns for span in record.spans if span.stage is Stage.ENDPOINT]
    return bool(asked and decided) and min(asked) < max(decided)


def _own_ready_ms(record: TurnRecord) -> float | None:
    """Time at which a reply with an opener could have been heard without it, in ms."""
    for taken in record.actions:
        if taken.action is Action.OPENER and taken.saved_ms is not None:
            assert record.e2e_ns is not None
            return record.e2e_ns / NS_PER_MS + taken.saved_ms
    return None


def _ms(start_ns: int, end_ns: int) -> float:
    return max(0.0, (end_ns - start_ns) / NS_PER_MS)


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of the chain of a turn under way: times in ns on one clock; None: not reached."""

    now_ns: int
    voiced_ns: int
    """The caller's last voiced sample."""
    words_ns: int | None = None
    asked_ns: int | None = None
    token_ns: int | None = None
    piece_ns: int | None = None
    ready_ns: int | None = None


def progress_of(at: Mapping[MarkName, int], now_ns: int) -> Progress | None:
    """The progress by the marks so far. None where no caller was heard."""
    voiced_ns = at.get(_M.CALLER_LAST_VOICED)
    if voiced_ns is None:
        return None
    return Progress(
        now_ns,
        voiced_ns,
        at.get(_M.ASR_FINAL),
        at.get(_M.REPLY_REQUESTED),
        at.get(_M.LLM_FIRST_TOKEN),
        at.get(_M.FIRST_PIECE),
        at.get(_M.FIRST_AUDIBLE_READY),
    )
