from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from asr.audio.files import read_file
from asr.audio.samples import RATE_HZ, VOICED_FRAME
from asr.recognition.transcripts import DecodeJob, FinalTranscript, Hypothesis, PartialTranscript
from asr.speech_detection.endpointing import (
    EndpointEvent,
    SpeechPaused,
    SpeechResumed,
    SpeechStarted,
)
from asr.speech_detection.vad import FRAME, SileroVad, VadState, VoiceDetector
from asr.stream.asr_stream import Listener
from asr.stream.utterance import ListenerConfig
from tests.asr.test_files import RECORDINGS
from tests.support.models import model_path

Pcm = npt.NDArray[np.float32]


class LoudnessVad:
    """Takes whatever is loud for speech."""

    def probability(self, frame: Pcm, state: VadState) -> float:
        return 0.95 if np.abs(frame).mean() > 0.05 else 0.02


def said(seconds: float) -> Pcm:
    """Something loud, a whole number of frames long."""
    count = round(seconds * RATE_HZ / FRAME) * FRAME
    return np.random.default_rng(0).uniform(-0.5, 0.5, count).astype(np.float32)


def silence(seconds: float) -> Pcm:
    return np.zeros(round(seconds * RATE_HZ / FRAME) * FRAME, np.float32)


def listener(**config: object) -> Listener:
    return Listener(ListenerConfig(**config), LoudnessVad())  # type: ignore[arg-type]


def push_to_talk(**config: object) -> Listener:
    return listener(endpointing=None, **config)


def feed(ears: Listener, *stretches: Pcm) -> tuple[list[EndpointEvent], list[DecodeJob]]:
    """20 ms at a time; jobs are done at once, with a text that says what they covered."""
    events: list[EndpointEvent] = []
    jobs: list[DecodeJob] = []
    pcm = np.concatenate(stretches)
    for start in range(0, len(pcm), 320):
        heard = ears.feed(pcm[start : start + 320])
        events += heard.events
        for job in heard.jobs:
            jobs.append(job)
            ears.complete(job, Hypothesis(f"{job.kind} words here"))
    return events, jobs


def paused(ears: Listener, seconds: float = 1.0) -> SpeechPaused:
    """Speak, then pause."""
    events, _ = feed(ears, said(seconds), silence(0.128))
    (pause,) = (event for event in events if isinstance(event, SpeechPaused))
    return pause


def only_final(ears: Listener, job: DecodeJob, text: str) -> FinalTranscript:
    (final,) = ears.complete(job, Hypothesis(text, avg_logprob=-0.2))
    assert isinstance(final, FinalTranscript)
    return final


@pytest.mark.models
@pytest.mark.parametrize("make", [LoudnessVad, lambda: SileroVad.load(silero())])
def test_the_detector_of_these_tests_agrees_with_the_real_one(
    make: Callable[[], VoiceDetector],
) -> None:
    pcm = read_file(RECORDINGS / "conf-locked.wav")
    loud = pcm[8 * FRAME : 40 * FRAME]
    vad, state = make(), VadState()
    judged = [vad.probability(loud[at : at + FRAME], state) for at in range(0, len(loud), FRAME)]
    assert np.median(judged) > 0.5
    assert vad.probability(np.zeros(FRAME, np.float32), VadState()) < 0.35


def silero() -> str:
    return str(model_path("silero-vad") / "silero_vad.onnx")


# --- utterances ---


def test_a_final_covers_the_utterance_with_preroll_and_tail() -> None:
    ears = listener()
    feed(ears, silence(1.024))
    pause = paused(ears)
    job = ears.finalize(1, pause.at_sample)
    assert job is not None
    onset = round(1.024 * RATE_HZ)
    assert job.first_sample == onset - round(0.4 * RATE_HZ)
    assert job.end_sample == pause.at_sample + round(0.096 * RATE_HZ)
    final = only_final(ears, job, "hello there")
    assert (final.utterance, final.revision, final.text) == (1, 1, "hello there")
    assert (final.first_sample, final.avg_logprob, final.fell_back) == (onset, -0.2, False)
    assert final.last_voiced_sample is not None
    assert -320 < final.last_voiced_sample - pause.at_sample < 320


def test_the_last_voiced_sample_is_found_in_the_audio_not_by_the_detector() -> None:
    ears = listener()
    soft = said(0.064) * np.float32(0.09)
    feed(ears, said(1), soft, silence(0.2))
    job = ears.finalize(1, len(said(1)))
    assert job is not None
    assert job.last_voiced_sample is not None
    assert job.last_voiced_sample - (len(said(1)) + len(soft)) in range(-1, 320)


@pytest.mark.parametrize("before", range(4))
def test_the_last_voiced_sample_is_the_same_wherever_speech_was_found(before: int) -> None:
    """Frames count from the call's first sample, so other recordings of the call agree."""
    ears = listener()
    feed(ears, silence(1.0 + 0.032 * before))
    job = ears.finalize(1, paused(ears).at_sample)
    assert job is not None
    assert job.last_voiced_sample is not None
    end = len(silence(1.0 + 0.032 * before)) + len(said(1))
    assert job.last_voiced_sample == -(-end // VOICED_FRAME) * VOICED_FRAME - 1


def test_the_next_utterance_has_none_of_the_last_ones_audio() -> None:
    ears = listener()
    pause = paused(ears)
    ears.finalize(1, pause.at_sample)
    ears.end(1)
    events, _ = feed(ears, silence(0.128), said(0.512))
    assert events == [SpeechStarted(2, pause.at_sample + round(0.256 * RATE_HZ))]
    job = ears.finalize(2, ears.position)
    assert job is not None
    assert job.first_sample == pause.at_sample + round(0.096 * RATE_HZ)


def test_a_final_may_come_after_the_end_of_its_utterance() -> None:
    ears = listener()
    job = ears.finalize(1, paused(ears).at_sample)
    assert job is not None
    ears.end(1)
    feed(ears, silence(0.1), said(0.5))
    assert only_final(ears, job, "first").utterance == 1
    assert ears.counts.stale_results == 0


def test_a_newer_pass_makes_the_older_stale() -> None:
    ears = listener()
    first = ears.finalize(1, paused(ears).at_sample)
    events, _ = feed(ears, said(0.5), silence(0.2))
    assert [type(event) for event in events][:2] == [SpeechResumed, SpeechPaused]
    second = ears.finalize(1, events[1].at_sample)  # type: ignore[union-attr]
    assert first is not None
    assert second is not None
    assert (first.revision, second.revision) == (1, 2)
    assert ears.complete(first, Hypothesis("half")) == ()
    assert ears.counts.stale_results == 1
    assert only_final(ears, second, "all of it").revision == 2


def test_the_owner_may_count_the_passes() -> None:
    ears = listener()
    job = ears.finalize(1, paused(ears).at_sample, revision=7)
    assert job is not None
    assert only_final(ears, job, "x").revision == 7


def test_too_little_voice_is_not_decoded() -> None:
    ears = listener()
    pause = paused(ears, 0.128)
    assert ears.finalize(1, pause.at_sample) is None


def test_an_utterance_that_is_not_open_gives_no_job() -> None:
    ears = listener()
    assert ears.finalize(1, 0) is None
    ears.end(1)
    paused(ears)
    assert ears.finalize(2, ears.position) is None
    assert ears.counts.stale_results == 2


# --- partials ---


def test_partials_follow_the_speech_at_their_interval() -> None:
    _, jobs = feed(listener(), silence(1.024), said(3), silence(1))
    assert [job.kind for job in jobs] == ["partial"] * 5 + ["early"]
    ends = [(job.end_sample - round(1.024 * RATE_HZ)) / RATE_HZ for job in jobs[:5]]
    assert np.diff(ends) == pytest.approx([0.608] * 4)
    assert len({job.first_sample for job in jobs}) == 1


def test_one_partial_at_a_time() -> None:
    ears = listener()
    heard = ears.feed(said(3))
    assert len(heard.jobs) == 1
    assert ears.feed(said(3)).jobs == ()
    (partial,) = ears.complete(heard.jobs[0], Hypothesis("one two"))
    assert partial == PartialTranscript(1, "one two", 0)
    assert len(ears.feed(said(3)).jobs) == 1


def test_a_failed_job_makes_room_for_the_next() -> None:
    ears = listener()
    (job,) = ears.feed(said(3)).jobs
    ears.fail(job)
    assert len(ears.feed(said(1)).jobs) == 1


def test_no_partial_in_a_pause_nor_while_a_final_is_out() -> None:
    ears = listener()
    job = ears.finalize(1, paused(ears, 0.3).at_sample)
    assert job is not None
    assert feed(ears, silence(0.2), said(2))[1] == []
    ears.fail(job)
    assert len(feed(ears, said(2))[1]) > 1


def test_no_partial_once_the_voice_is_gone_nor_for_a_breath_in_a_pause() -> None:
    ears = listener(early_ms=0)
    almost = said(0.576)
    assert feed(ears, almost, silence(0.512), said(0.032), silence(0.5))[1] == []
    assert len(feed(ears, said(0.5))[1]) == 1


def test_longer_audio_is_decoded_less_often() -> None:
    _, jobs = feed(listener(), said(19))
    ends = np.array([job.end_sample for job in jobs]) / RATE_HZ
    assert np.diff(ends)[:5] == pytest.approx([0.608] * 5)
    assert np.diff(ends)[-1] > 1


def test_partials_can_be_turned_off() -> None:
    assert feed(listener(partial_interval_ms=0), said(3))[1] == []


def test_a_partial_that_a_final_overtook_is_dropped() -> None:
    ears = listener()
    (job,) = ears.feed(said(1)).jobs
    pause = next(e for e in ears.feed(silence(0.2)).events if isinstance(e, SpeechPaused))
    ears.finalize(1, pause.at_sample)
    assert ears.complete(job, Hypothesis("late")) == ()
    assert ears.counts.stale_results == 1


def test_unchanged_partials_are_not_repeated() -> None:
    ears = listener()
    told = []
    for _ in range(4):
        (job,) = ears.feed(said(1)).jobs
        told.append(ears.complete(job, Hypothesis("one two three")))
    assert told[0] == (PartialTranscript(1, "one two three", 0),)
    assert told[1] == (PartialTranscript(1, "one two three", len("one two")),)
    assert told[2:] == [(), ()]


# --- long utterances ---


def test_the_older_part_of_a_long_utterance_is_settled_once() -> None:
    ears = listener()
    _, jobs = feed(ears, said(15), silence(0.064), said(9))
    (segment,) = (job for job in jobs if job.kind == "segment")
    assert 15 < segment.end_sample / RATE_HZ < 15.3
    after = jobs[jobs.index(segment) + 1 :]
    assert after
    assert all(job.first_sample == segment.end_sample for job in after)
    events, _ = feed(ears, silence(0.2))
    job = ears.finalize(1, events[0].at_sample)  # type: ignore[union-attr]
    assert job is not None
    assert len(job.pcm) / RATE_HZ < 10
    assert only_final(ears, job, "the end").text == "segment words here the end"


def test_a_final_that_starts_before_a_segment_is_done_covers_everything() -> None:
    ears = listener(partial_interval_ms=0)
    jobs = ears.feed(said(21)).jobs
    assert [job.kind for job in jobs] == ["segment"]
    events = ears.feed(silence(0.2)).events
    final = ears.finalize(1, events[0].at_sample)  # type: ignore[union-attr]
    assert final is not None
    assert len(final.pcm) / RATE_HZ > 20
    ears.complete(jobs[0], Hypothesis("first part"))
    assert only_final(ears, final, "first part and second").text == "first part and second"


def test_a_segment_that_was_given_up_and_comes_late_is_not_taken_twice() -> None:
    ears = listener(partial_interval_ms=0)
    (late,) = ears.feed(said(21)).jobs
    ears.fail(late)
    (again,) = ears.feed(said(0.1)).jobs
    ears.complete(again, Hypothesis("once"))
    ears.complete(late, Hypothesis("twice"))
    job = ears.finalize(1, ears.position)
    assert job is not None
    assert job.settled_text == "once"
    ears.end(1)
    assert ears.complete(late, Hypothesis("thrice")) == ()
    assert ears.counts.stale_results == 2


def test_silence_in_a_long_utterance_is_settled_without_a_job() -> None:
    ears = push_to_talk()
    _, jobs = feed(ears, silence(60))
    assert jobs == []
    assert ears.commit_buffer().job is None


def test_undecoded_audio_is_dropped_and_counted() -> None:
    ears = listener(max_unsettled_s=30.0)
    for _ in range(60):
        ears.feed(said(1))
    assert ears.counts.lost_samples >= 28 * RATE_HZ
    job = ears.finalize(1, ears.position)
    assert job is not None
    assert 28 < len(job.pcm) / RATE_HZ <= 30
    assert ears.counts.held_bytes <= ears.counts.peak_bytes < 4 * 4 * 31 * RATE_HZ


class Unsure(LoudnessVad):
    """As sure of speech as it is of music."""

    def probability(self, frame: Pcm, state: VadState) -> float:
        return 0.7 if super().probability(frame, state) > 0.5 else 0.02


@pytest.mark.parametrize(
    ("vad", "manual", "seconds", "avg_logprob", "no_speech_prob", "text"),
    [
        (Unsure(), False, 1.024, -0.5, 0.5, ""),
        (Unsure(), False, 1.024, -1.1, 0.4, "thank you"),
        (Unsure(), False, 1.024, -0.3, 0.5, "thank you"),
        (Unsure(), False, 0.352, -0.5, 0.5, "thank you"),
        (Unsure(), False, 0.352, -0.3, 0.7, ""),
        (LoudnessVad(), False, 1.024, -0.5, 0.7, "thank you"),
        (Unsure(), True, 1.024, -0.5, 0.7, "thank you"),
    ],
    ids=[
        "music",
        "a far voice",
        "voice in noise",
        "a letter",
        "a chord",
        "a soft voice",
        "push-to-talk",
    ],
)
def test_unlikely_words_of_a_doubtful_voice_are_none(
    vad: VoiceDetector,
    manual: bool,
    seconds: float,
    avg_logprob: float,
    no_speech_prob: float,
    text: str,
) -> None:
    config = ListenerConfig(endpointing=None) if manual else ListenerConfig()
    ears = Listener(config, vad)
    feed(ears, silence(0.512), said(seconds), silence(0.512))
    end = round((0.512 + seconds) * RATE_HZ)
    job = ears.commit_buffer().job if manual else ears.finalize(1, end)
    assert job is not None
    (final,) = ears.complete(job, Hypothesis("thank you", (), avg_logprob, no_speech_prob))
    assert isinstance(final, FinalTranscript)
    assert final.text == text
