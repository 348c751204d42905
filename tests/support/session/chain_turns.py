"""Turns whose chain took given times, for tests of what is learned from them."""

from typing import Any

from latency_budget import Mark, MarkName, TurnId, TurnRecord, records_of
from latency_budget.account.actions import ActionTaken

MS = 1_000_000


def chain_turn(*links: float, **more: Any) -> TurnRecord:
    """The record of `chain_marks`."""
    (record,) = records_of(chain_marks(*links, **more))
    return record


def chain_marks(  # noqa: PLR0913
    words: float = 200,
    prefill: float = 30,
    clause: float = 90,
    tts: float = 30,
    *,
    pass_ms: float = 100,
    decided: float = 420,
    after: float = 40,
    speech: float = 2000,
    actions: tuple[ActionTaken, ...] = (),
    number: int = 1,
) -> list[Mark]:
    """Links in ms. The reply is asked for with the words, and heard `after` ready and decided."""
    token, piece = words + prefill, words + prefill + clause
    ready = piece + tts
    end = max(ready, decided) + after
    turn = TurnId(number)
    times = (
        *(("speech_started", -speech), ("caller_last_voiced", 0), ("audio_received", 10)),
        *(("speech_paused", 90), ("asr_start", words - pass_ms), ("asr_final", words)),
        *(("reply_requested", words), ("llm_first_token", token), ("first_piece", piece)),
        *(("tts_start", piece), ("first_audible_ready", ready)),
        *(("endpoint", decided), ("released", end)),
    )
    return [
        *(Mark(turn, MarkName(name), round(at_ms * MS)) for name, at_ms in times),
        *(Mark(turn, MarkName.ACTED, 0, taken=taken) for taken in actions),
    ]
