"""Turns in virtual time: a detector that hears loudness, a recognizer that counts."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

import asr
from agent.turn_taking.end_of_turn import TurnRules, required_silence_ms
from agent.turn_taking.end_of_turn_model import Evidence
from asr.recognition.transcripts import Hypothesis
from benchmarks.end_of_turn.simulation import Played, Timing, Track, play

Float32 = npt.NDArray[np.float32]

TIMING = Timing(reply_ms=100, final_ms=50)
LISTENING = asr.ListenerConfig()
FIXED = TurnRules(silence_ms=480)


class Loudness:
    def __init__(self) -> None:
        self.frames = 0

    def probability(self, frame: Float32, state: asr.VadState) -> float:
        self.frames += 1
        return float(np.abs(frame).max() > 0.1)


class Counting:
    """Says so many words as the audio has half seconds, a full stop behind every even number."""

    def __init__(self) -> None:
        self.passes = 0

    def transcribe(self, pcm: Float32, *, fallback: bool = True) -> Hypothesis:
        self.passes += 1
        count = len(pcm) // 8000
        return Hypothesis(" ".join(["word"] * count) + ("." if count % 2 == 0 else ""))


class Judge:
    """Always says the same."""

    def __init__(self, log_odds: float = 0.0) -> None:
        self.asked = 0
        self._log_odds = log_odds

    def log_odds(self, pcm: Float32) -> float:
        self.asked += 1
        return self._log_odds

    def warm(self) -> None: ...


def sound(*seconds: float) -> Float32:
    """Voice and silence in turns, beginning with voice; whole frames of the detector."""
    parts = [
        np.resize(np.array([0.5, -0.5], np.float32), round(each * 16_000 / 512) * 512)
        * np.float32(number % 2 == 0)
        for number, each in enumerate(seconds)
    ]
    return np.concatenate(parts)


def track(*seconds: float, log_odds: float = 0.0) -> Track:
    pcm = sound(*seconds)
    return Track(pcm, len(pcm), Loudness(), Counting(), Judge(log_odds))


def test_a_turn_is_answered_after_the_silence_that_the_rule_wants() -> None:
    """480 ms are 15 frames; the reply was guessed when the words came, so nothing is added."""
    assert play(track(1.6), LISTENING, FIXED, timing=TIMING) == Played(480.0, False, False)


def test_at_another_scale_every_wait_is_that_much_longer() -> None:
    one = track(1.6)
    waits = [
        play(one, LISTENING, FIXED, scale, TIMING).latency_ms for scale in (0.3, 0.5, 1.0, 2.0, 4.0)
    ]
    # In the end the reply is what is waited for: 96 for the pause, whose words are known by then,
    # and 100. Frames have 32.
    assert waits == [pytest.approx(196.0), 256.0, 480.0, 960.0, 1920.0]


def test_words_and_probabilities_are_computed_once() -> None:
    detector, recognizer, judge = Loudness(), Counting(), Judge()
    pcm = sound(1.6, 0.32, 0.8)
    one = Track(pcm, len(pcm), detector, recognizer, judge)
    for scale in (1.0, 1.1, 2.0):
        play(one, LISTENING, FIXED, scale, TIMING)
    assert detector.frames == len(one.frames)
    assert recognizer.passes == judge.asked == 2  # early ones, which the finals take over


def test_a_final_takes_the_words_of_the_early_pass_or_waits_for_them() -> None:
    """The early pass begins 32 ms after the voice, the pause is noticed at 96."""
    waits = {
        final_ms: play(
            track(1.6), LISTENING, FIXED, 0.3, Timing(reply_ms=100, final_ms=final_ms)
        ).latency_ms
        for final_ms in (10, 64, 200)
    }
    assert waits == {10: pytest.approx(196.0), 64: pytest.approx(196.0), 200: pytest.approx(332.0)}


def test_without_early_passes_the_final_begins_at_the_pause() -> None:
    late = replace(LISTENING, early_ms=0)
    assert play(track(1.6), late, FIXED, 0.3, TIMING).latency_ms == pytest.approx(96 + 50 + 100)


def test_words_that_were_not_believed_are_decoded_after_all() -> None:
    class Doubtful(Counting):
        def transcribe(self, pcm: Float32, *, fallback: bool = True) -> Hypothesis:
            return super().transcribe(pcm) if fallback else Hypothesis("")

    pcm = sound(1.6)
    one = Track(pcm, len(pcm), Loudness(), Doubtful(), Judge())
    assert play(one, LISTENING, FIXED, 0.3, TIMING).latency_ms == pytest.approx(96 + 50 + 100)


def test_a_pause_that_is_longer_than_the_wait_is_a_cut_in() -> None:
    one = track(1.6, 0.8, 1.0)
    assert play(one, LISTENING, FIXED, timing=TIMING) == Played(None, True, True)
    assert play(one, LISTENING, FIXED, 2.0, TIMING) == Played(960.0, False, False)


def test_a_reply_that_was_cut_before_it_was_heard_is_a_re_opened_turn() -> None:
    """The turn ends at 480 ms of silence, the caller goes on, and the reply would have come only
    after that."""
    slow = Timing(reply_ms=600, final_ms=50)
    played = play(track(1.6, 0.544, 1.0), LISTENING, FIXED, timing=slow)
    assert not played.cut_in
    assert played.reopened
    assert played.latency_ms == pytest.approx(696.0)


def test_the_sound_decides_where_no_silence_is_fixed() -> None:
    surely, hardly = (
        play(track(1.6, log_odds=odds), LISTENING, TurnRules(), timing=TIMING).latency_ms
        for odds in (6.0, -6.0)
    )
    assert surely is not None
    assert hardly is not None
    assert surely + 300 < hardly


def test_a_turn_in_which_nothing_is_understood_is_missed() -> None:
    class Deaf(Counting):
        def transcribe(self, pcm: Float32, *, fallback: bool = True) -> Hypothesis:
            return Hypothesis("")

    pcm = sound(1.6)
    one = Track(pcm, len(pcm), Loudness(), Deaf(), Judge())
    assert play(one, LISTENING, FIXED, timing=TIMING) == Played(None, False, False)
    click = track(0.128)  # too little voice to be decoded
    assert play(click, LISTENING, FIXED, timing=TIMING) == Played(None, False, False)


def test_without_a_given_time_a_pass_takes_what_it_took() -> None:
    class Slow(Counting):
        def transcribe(self, pcm: Float32, *, fallback: bool = True) -> Hypothesis:
            return Hypothesis("Yes.", encode_ms=700, decode_ms=100)

    pcm = sound(1.6)
    one = Track(pcm, len(pcm), Loudness(), Slow(), Judge())
    played = play(one, LISTENING, FIXED, timing=Timing(reply_ms=100))
    assert played.latency_ms == pytest.approx(32 + 800 + 100)


def test_a_decision_from_outside_gets_the_evidence_and_its_silence_ends_the_turn() -> None:
    seen: list[Evidence] = []

    def wait_ms(evidence: Evidence) -> float:
        seen.append(evidence)
        return 640 if evidence.sound is None or evidence.sound < 1 else 320

    unsure, sure = (
        play(track(1.6, log_odds=odds), LISTENING, FIXED, timing=TIMING, decision=wait_ms)
        for odds in (0.0, 2.0)
    )
    assert (unsure.latency_ms, sure.latency_ms) == (640.0, 320.0)
    assert seen[0] == Evidence("", None)
    assert seen[-1] == Evidence("word word word", 2.0)


def test_a_pause_s_evidence_is_not_that_of_the_pause_before() -> None:
    """The caller's own pauses are."""
    seen: list[Evidence] = []

    def wait_ms(evidence: Evidence) -> float:
        seen.append(evidence)
        return 1000

    one = track(1.6, 0.8, 1.0, 0.8, 1.0, 0.8, 1.0, log_odds=2.0)
    assert play(one, LISTENING, FIXED, timing=TIMING, decision=wait_ms).latency_ms == 1024.0
    order = [each for each, before in zip(seen, [None, *seen], strict=False) if each != before]
    known = [each for each in order if each.words]
    assert [len(each.words.split()) for each in known if each.sound is not None] == [3, 6, 10, 14]
    assert all(each.sound is None for each in order if not each.words)
    assert known[-1].own_pause_ms == 800 > known[0].own_pause_ms


def test_a_decision_that_is_the_rules_own_changes_nothing() -> None:
    for seconds in ((1.6,), (1.6, 0.8, 1.0), (1.6, 0.32, 0.8)):
        for odds in (-3.0, 0.0, 3.0):
            one = track(*seconds, log_odds=odds)
            by_rules = play(one, LISTENING, TurnRules(), timing=TIMING)
            outside = play(
                one, LISTENING, FIXED, timing=TIMING,
                decision=lambda evidence: required_silence_ms(TurnRules(), evidence),
            )  # fmt: skip
            assert outside == by_rules


def test_another_turn_model_judges_the_same_words_with_more_of_the_silence() -> None:
    class Lengths(Judge):
        def __init__(self) -> None:
            super().__init__(0.0)
            self.lengths: list[int] = []

        def log_odds(self, pcm: Float32) -> float:
            self.lengths.append(len(pcm))
            return 0.0

    recognizer, first, other = Counting(), Lengths(), Lengths()
    pcm = sound(1.6)
    one = Track(pcm, len(pcm), Loudness(), recognizer, first)
    play(one, LISTENING, FIXED, timing=TIMING)
    passes = recognizer.passes
    play(one.judged_by(other, more_ms=100), LISTENING, FIXED, timing=TIMING)
    assert recognizer.passes == passes
    assert other.lengths == [each + 1600 for each in first.lengths]
    play(one, LISTENING, FIXED, 1.1, timing=TIMING)
    assert len(first.lengths) == len(other.lengths) == 1
