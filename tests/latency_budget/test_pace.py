"""Replies that are held back on purpose, or begin with an opener, in the account of a turn."""

import pytest

from latency_budget import Stage
from tests.latency_budget.test_ledger import TIGHT, account, exposed_ms, ledger_of


def test_deliberate_wait_is_accounted_as_pacing() -> None:
    record = account(**{**TIGHT, "pace_start": 321, "pace_end": 701, "released": 704}, heard=760)
    assert record.incomplete == ()
    assert exposed_ms(record)["pacing"] == 384
    assert sum(exposed_ms(record).values()) == record.e2e_ear_ms == 760
    assert (record.paced_ms, record.e2e_raw_ms) == (380, 380)
    assert (account(**TIGHT).paced_ns, account(**TIGHT).e2e_raw_ms) == (0, 325)


def test_a_wait_on_purpose_counts_from_the_callers_last_word() -> None:
    paced = {**TIGHT, "pace_start": 321, "pace_end": 701, "released": 704}
    record = account(**{**paced, "caller_last_voiced": 500, "audio_received": 512})
    assert (record.e2e_server_ms, record.paced_ms, record.e2e_raw_ms) == (204, 201, 3)
    cut = account(**{**TIGHT, "pace_start": 321, "interrupted": 400})
    assert (cut.paced_ns, cut.e2e_raw_ms) == (0, 325)
    assert account(pace_start=1, pace_end=2).e2e_raw_ns is None


@pytest.mark.parametrize(
    ("stage", "reached"),
    [
        (Stage.LLM_PREFILL, ("reply_requested",)),
        (Stage.LLM_CLAUSE, ("reply_requested", "llm_first_token")),
        (Stage.TTS, ("reply_requested", "llm_first_token", "first_piece", "tts_start")),
    ],
)
def test_an_opener_ends_the_wait_for_the_stage_at_work(
    stage: Stage, reached: tuple[str, ...]
) -> None:
    work = {"reply_requested", "llm_first_token", "first_piece", "tts_start", "tts_first_chunk"}
    marks = {name: at for name, at in TIGHT.items() if name not in work or name in reached}
    opened = {**marks, "opener": 440, "first_audible_ready": 440, "released": 442}
    record = ledger_of(*opened.items(), ("llm_first_token", 500), ("first_piece", 520)).record()
    assert (record.opener, record.incomplete) == (True, ())
    assert record.e2e_server_ms == sum(exposed_ms(record).values()) == 442
    assert exposed_ms(record)[stage] >= 440 - 291
    assert exposed_ms(record)["pacing"] == 2
