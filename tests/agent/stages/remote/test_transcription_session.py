"""Realtime transcription sessions without a socket: events sent for jobs, words made of events."""

import base64
import json
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

import asr
from agent.stages.remote.event_stream import MalformedStreamError
from agent.stages.remote.transcription_session import (
    MAX_TEXT_CHARS,
    WIRE_HZ,
    FailedSessionError,
    TranscriptionSession,
)

AUDIO = np.random.default_rng(5).uniform(-0.5, 0.5, 16_000 * 30).astype(np.float32)
PREFIX = "conversation.item.input_audio_transcription."


def job(kind: Any, end: int, *, utterance: int = 1, first: int = 0) -> asr.DecodeJob:
    return asr.DecodeJob(kind, utterance, 1, first, AUDIO[first:end])


def kinds(events: Iterable[str]) -> list[str]:
    return [json.loads(event)["type"].removeprefix("input_audio_buffer.") for event in events]


def num_samples(events: Iterable[str]) -> int:
    parsed = [json.loads(event) for event in events]
    return sum(len(base64.b64decode(each["audio"])) // 2 for each in parsed if "audio" in each)


def tell(told: TranscriptionSession, kind: str, **fields: Any) -> Any:
    return told.receive(json.dumps({"type": kind, **fields}))


@pytest.fixture
def session() -> TranscriptionSession:
    return TranscriptionSession("whisper", "en")


def test_the_settings_ask_for_a_transcription_that_the_client_commits(
    session: TranscriptionSession,
) -> None:
    assert json.loads(session.configuration()) == {
        "type": "session.update",
        "session": {
            "type": "transcription",
            "audio": {
                "input": {
                    "format": {"type": "audio/pcm", "rate": 24_000},
                    "transcription": {"model": "whisper", "language": "en"},
                    "turn_detection": None,
                }
            },
        },
    }
    assert not session.is_ready
    tell(session, "session.created", session={})
    assert not session.is_ready
    tell(session, "session.updated", session={})
    assert session.is_ready


def test_audio_is_sent_once_while_the_caller_speaks(session: TranscriptionSession) -> None:
    sent = []
    for end in (8_000, 12_000, 40_000):
        sent += list(session.hear(job("partial", end)))
    assert set(kinds(sent)) == {"append"}
    made, last = session.commit(job("final", 41_000))
    assert kinds(last)[-1] == "commit"
    assert num_samples([*sent, *last]) == 41_000 * WIRE_HZ // asr.RATE_HZ
    assert not made.is_over
    longest = max(num_samples([event]) for event in [*sent, *last])
    assert longest < 1.1 * WIRE_HZ  # the resampler holds some back


def test_after_a_pause_that_was_none_the_utterance_is_sent_again(
    session: TranscriptionSession,
) -> None:
    session.commit(job("early", 10_000))
    again = list(session.hear(job("partial", 16_000)))
    assert set(kinds(again)) == {"append"}, "the commit has emptied the buffer"
    _, rest = session.commit(job("final", 20_000))
    assert num_samples([*again, *rest]) == 20_000 * WIRE_HZ // asr.RATE_HZ


def test_what_the_buffer_must_not_hold_is_cleared(session: TranscriptionSession) -> None:
    list(session.hear(job("partial", 30_000)))
    assert kinds(session.hear(job("partial", 50_000, utterance=2, first=40_000)))[0] == "clear"
    list(session.hear(job("partial", 90_000, utterance=2, first=40_000)))
    _, events = session.commit(job("segment", 60_000, utterance=2, first=40_000))
    assert kinds(events)[0] == "clear", "a segment ends where less was said"
    assert num_samples(events) == 20_000 * WIRE_HZ // asr.RATE_HZ


def test_a_final_may_end_in_silence_that_was_sent_already(session: TranscriptionSession) -> None:
    list(session.hear(job("partial", 21_000)))
    _, events = session.commit(job("final", 20_000))
    assert "clear" not in kinds(events)
    list(session.hear(job("partial", 22_000)))
    _, events = session.commit(job("final", 20_000))
    assert kinds(events)[0] == "clear"


def test_words_belong_to_their_commits_in_the_order_of_the_server(
    session: TranscriptionSession,
) -> None:
    first, _ = session.commit(job("early", 10_000))
    second, _ = session.commit(job("final", 20_000))
    tell(session, "input_audio_buffer.committed", item_id="a")
    tell(session, "input_audio_buffer.committed", item_id="b")
    assert tell(session, f"{PREFIX}delta", item_id="b", delta="wo") is None
    assert tell(session, f"{PREFIX}completed", item_id="b", transcript=" words ") is second
    assert tell(session, f"{PREFIX}failed", item_id="a", error={"message": "no"}) is first
    assert (second.text, second.failure, first.text, first.failure) == ("words", None, None, "no")
    assert tell(session, f"{PREFIX}completed", item_id="a", transcript="x") is None, "it is over"
    assert tell(session, f"{PREFIX}completed", item_id="?", transcript="x") is None


def test_words_of_the_open_buffer_come_as_deltas_or_whole(session: TranscriptionSession) -> None:
    list(session.hear(job("partial", 10_000)))
    tell(session, f"{PREFIX}delta", item_id="a", delta="one ")
    tell(session, f"{PREFIX}delta", item_id="a", delta="two")
    assert session.words == "one two"
    tell(session, "halfsec.partial", item_id="a", text="one too many", stable_chars=3)
    assert session.words == "one too many"
    session.commit(job("final", 12_000))
    assert session.words == ""
    list(session.hear(job("partial", 50_000, utterance=2, first=40_000)))
    tell(session, "halfsec.partial", item_id="a", text="late", stable_chars=0)
    assert session.words == "", "the commit was not acknowledged: these are the words before it"
    tell(session, "input_audio_buffer.committed", item_id="a")
    tell(session, f"{PREFIX}delta", item_id="a", delta="late")
    assert session.words == ""
    tell(session, "halfsec.partial", item_id="b", text="new", stable_chars=0)
    assert session.words == "new"
    list(session.hear(job("partial", 70_000, utterance=3, first=60_000)))
    tell(session, "halfsec.partial", item_id="b", text="new words", stable_chars=0)
    assert session.words == ""
    tell(session, "input_audio_buffer.cleared")
    tell(session, "halfsec.partial", item_id="c", text="newest", stable_chars=0)
    assert session.words == "newest"


@pytest.mark.parametrize(
    ("frame", "problem"),
    [
        ("{nonsense", "sent what is not a JSON object"),
        ("[1]", "sent what is not a JSON object"),
        (b"\xff", "sent what is not a JSON object"),
        ('{"type": "input_audio_buffer.committed"}', "sent an event whose item_id is no text"),
        (
            f'{{"type": "{PREFIX}completed", "item_id": "a", "transcript": 1}}',
            "sent an event whose transcript is no text",
        ),
        (
            json.dumps(
                {
                    "type": f"{PREFIX}completed",
                    "item_id": "a",
                    "transcript": "x" * (MAX_TEXT_CHARS + 1),
                }
            ),
            f"sent more than {MAX_TEXT_CHARS} characters",
        ),
    ],
)
def test_nonsense_is_refused(
    session: TranscriptionSession, frame: str | bytes, problem: str
) -> None:
    session.commit(job("final", 10_000))
    tell(session, "input_audio_buffer.committed", item_id="a")
    with pytest.raises(MalformedStreamError, match=problem):
        session.receive(frame)


def test_an_error_of_the_session_is_told(session: TranscriptionSession) -> None:
    with pytest.raises(FailedSessionError, match="no such model"):
        tell(session, "error", error={"message": "no such model"})
    assert tell(session, "rate_limits.updated", rate_limits=[]) is None
    assert session.receive('{"type": 7}') is None
