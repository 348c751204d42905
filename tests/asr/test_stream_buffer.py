"""Push-to-talk: the client says when the caller is done."""

import numpy as np
import pytest

from asr.audio.samples import RATE_HZ
from asr.errors import BufferFullError
from asr.recognition.transcripts import Hypothesis
from asr.speech_detection.endpointing import (
    EndpointingConfig,
    SilenceGrew,
    SpeechPaused,
    SpeechStarted,
)
from asr.stream.asr_stream import Listener
from asr.stream.utterance import ListenerConfig
from tests.asr.test_stream import Unsure, feed, listener, only_final, push_to_talk, said, silence


def test_a_commit_takes_everything_since_the_last() -> None:
    ears = push_to_talk(partial_interval_ms=0)
    events, _ = feed(ears, silence(0.512), said(1), silence(2), said(1))
    assert events == []
    first = ears.commit_buffer()
    assert first.utterance == 1
    assert first.job is not None
    assert (first.job.first_sample, first.job.end_sample) == (0, ears.position)
    final = only_final(ears, first.job, "one two")
    assert final.first_sample == round(0.512 * RATE_HZ)
    feed(ears, said(0.512))
    second = ears.commit_buffer()
    assert second.utterance == 2
    assert second.job is not None
    assert second.job.first_sample == first.job.end_sample


def test_a_cleared_buffer_is_forgotten() -> None:
    ears = push_to_talk()
    (job,) = ears.feed(said(1)).jobs
    ears.clear()
    assert ears.complete(job, Hypothesis("gone")) == ()
    feed(ears, silence(0.5))
    committed = ears.commit_buffer()
    assert (committed.utterance, committed.job) == (2, None)


def test_a_cleared_utterance_is_not_learned_as_an_echo() -> None:
    ears = listener()
    ears.echo.played(0, [0.3] * 40)
    feed(ears, said(1))
    ears.clear()
    ears.echo.played(ears.position, [0.3] * 40)
    feed(ears, silence(0.2), said(0.6) * np.float32(0.3), silence(0.2))
    ears.end(2, was_echo=True)
    assert ears.echo.gain == pytest.approx(0.3, abs=0.05)


def test_an_empty_commit() -> None:
    committed = push_to_talk().commit_buffer()
    assert (committed.utterance, committed.job) == (1, None)


def test_a_full_buffer_says_what_to_do_and_goes_on_after_it() -> None:
    ears = push_to_talk(max_buffer_s=10.0)
    ears.feed(said(9))
    with pytest.raises(BufferFullError, match="10 s without a commit; commit or clear"):
        ears.feed(said(2))
    assert ears.position == len(said(9))
    assert ears.commit_buffer().job is not None
    ears.feed(said(9))


def test_a_commit_ends_an_utterance_that_was_detected() -> None:
    ears = listener()
    feed(ears, said(1))
    committed = ears.commit_buffer()
    assert committed.utterance == 1
    assert committed.job is not None
    events, _ = feed(ears, said(1))
    assert [event.utterance for event in events] == [2]


def test_speech_that_had_resumed_before_a_commit_begins_no_other_utterance() -> None:
    ears = listener()
    feed(ears, said(1), silence(0.3), said(0.5))
    assert ears.commit_buffer().utterance == 1
    assert feed(ears, silence(1))[0] == []
    events, _ = feed(ears, said(1))
    assert [(event.utterance, type(event)) for event in events] == [(2, SpeechStarted)]


def test_switching_to_push_to_talk_in_a_pause_goes_on_with_partials() -> None:
    ears = listener()
    feed(ears, said(1), silence(0.3))
    ears.configure(None)
    _, jobs = feed(ears, said(2))
    assert {job.kind for job in jobs} == {"partial"}


def test_unlikely_words_count_once_the_client_says_that_it_was_speech() -> None:
    ears = Listener(ListenerConfig(), Unsure())
    feed(ears, said(1))
    ears.configure(None)
    feed(ears, said(1))
    job = ears.commit_buffer().job
    assert job is not None
    (final,) = ears.complete(job, Hypothesis("hardly any words", (), -0.9, 0.5))
    assert final.text == "hardly any words"


def test_switching_to_push_to_talk_keeps_the_open_utterance() -> None:
    ears = listener(partial_interval_ms=0)
    feed(ears, said(1))
    ears.configure(None)
    assert feed(ears, silence(1), said(1))[0] == []
    committed = ears.commit_buffer()
    assert committed.utterance == 1
    assert committed.job is not None
    assert len(committed.job.pcm) / RATE_HZ == pytest.approx(3, abs=0.1)


def test_switching_back_clears() -> None:
    ears = push_to_talk(partial_interval_ms=0)
    feed(ears, said(1))
    ears.configure(EndpointingConfig(pause_ms=160))
    events, _ = feed(ears, silence(0.5), said(0.512), silence(0.2))
    assert [type(event) for event in events] == [SpeechStarted, SpeechPaused, SilenceGrew]
    assert events[0].utterance == 2
