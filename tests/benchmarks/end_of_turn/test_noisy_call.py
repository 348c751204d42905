"""A turn in noise, in virtual time: a detector that hears loudness, a recognizer that counts."""

from dataclasses import replace

import numpy as np

import asr
from asr.stream.asr_stream import Listener
from benchmarks.end_of_turn.noisy_call import (
    LEAD_S,
    ROOM_LEVEL,
    TAIL_S,
    NoisyCall,
    NoisyOutcome,
    SpokenSpan,
    lengthened,
)
from benchmarks.end_of_turn.simulation import NEVER_MS
from tests.benchmarks.test_simulation import Counting, Float32, Judge, Loudness, sound

LISTENING = replace(asr.ListenerConfig(), partial_interval_ms=NEVER_MS)


def call(*seconds: float) -> tuple[Float32, SpokenSpan]:
    """A turn of voice and silence in turns, with lead and tail."""
    pcm = sound(*seconds)
    return lengthened(pcm, SpokenSpan(0, len(pcm)))


def heard(pcm: Float32, span: SpokenSpan, log_odds: float = 0.0) -> NoisyOutcome:
    listener = Listener(LISTENING, Loudness())
    return NoisyCall(span, listener, Counting(), Judge(log_odds)).hear(pcm)


def with_noise(pcm: Float32, first_s: float, end_s: float) -> Float32:
    noisy = pcm.copy()
    first, end = round(first_s * 16_000), round(end_s * 16_000)
    noisy[first:end] = np.resize(np.array([0.3, -0.3], np.float32), end - first)
    return noisy


def test_a_turn_keeps_its_place_in_the_call() -> None:
    pcm = sound(1.6)
    long, span = lengthened(np.concatenate([pcm, np.zeros(160_000, np.float32)]), SpokenSpan(5, 99))
    lead = int(LEAD_S * 16_000)
    assert span == SpokenSpan(lead + 5, lead + 99)
    assert len(long) >= span.end + TAIL_S * 16_000
    assert len(long) % 512 == 0
    assert np.array_equal(long[lead : lead + len(pcm)], pcm)
    assert 0.5 * ROOM_LEVEL < np.std(long[:lead]) < 2 * ROOM_LEVEL


def test_a_clean_turn_is_answered_and_nothing_else_happens() -> None:
    outcome = heard(*call(1.6))
    assert outcome.wait_ms is not None
    assert 300 < outcome.wait_ms < 1500
    assert outcome == NoisyOutcome(outcome.wait_ms, False, False, False, False)
    assert heard(*call(1.6)) == outcome


def test_noise_that_begins_before_the_caller_is_a_false_start() -> None:
    pcm, span = call(1.6)
    outcome = heard(with_noise(pcm, 1.0, LEAD_S), span)
    assert outcome.false_start
    assert not outcome.answered_noise
    assert outcome.wait_ms is not None


def test_a_detector_that_is_a_little_early_is_no_false_start() -> None:
    pcm, span = call(1.6)
    assert not heard(with_noise(pcm, LEAD_S - 0.15, LEAD_S), span).false_start


def test_an_answer_to_noise_is_interrupted_by_the_caller_who_is_answered_then() -> None:
    pcm, span = call(2.56)
    longer = np.concatenate([np.zeros(4 * 16_000, np.float32), pcm])
    moved = SpokenSpan(span.first + 64_000, span.end + 64_000)
    outcome = heard(with_noise(longer, 0.5, 2.1), moved)
    assert outcome.answered_noise
    assert outcome.false_start
    assert not outcome.cut_in
    assert outcome.wait_ms is not None


def test_noise_without_a_pause_leaves_the_turn_without_an_answer() -> None:
    pcm, span = call(1.6)
    outcome = heard(with_noise(pcm, LEAD_S + 1.6, LEAD_S + 6.6), span)
    assert outcome.missed
    assert outcome.wait_ms is None
    assert not outcome.cut_in


def test_an_answer_in_a_pause_of_the_caller_is_a_cut_in() -> None:
    outcome = heard(*call(1.6, 2.56, 1.6))
    assert outcome.cut_in
    assert not outcome.missed


def test_noise_interrupts_the_answer() -> None:
    pcm, span = call(1.6)
    quiet = heard(pcm, span)
    assert quiet.wait_ms is not None
    at_s = LEAD_S + 1.6 + quiet.wait_ms / 1000 + 0.5
    outcome = heard(with_noise(pcm, at_s, at_s + 1.0), span)
    assert outcome == replace(quiet, interrupted=True)
