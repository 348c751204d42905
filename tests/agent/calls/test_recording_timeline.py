"""Positions of sounds in a call's recording: exact to the sample, whatever the network does."""

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.calls.recording_timeline import HOLD_NS, CallTimeline

MS = 1_000_000
RATE_HZ = 24_000
PER_MS = RATE_HZ // 1000
T0 = 7_000 * MS
Int16 = npt.NDArray[np.int16]


def noise(ms: int, seed: int = 1, rate_hz: int = RATE_HZ) -> Int16:
    """Loud everywhere, and like nothing but itself."""
    rng = np.random.default_rng(seed)
    return rng.integers(1000, 20_000, rate_hz * ms // 1000).astype(np.int16)


def say(timeline: CallTimeline, pcm: Int16, at_ms: float, frame_ms: int = 20) -> float:
    """In real time from then on, as the least delayed frames arrive. Returns when it is over."""
    size = frame_ms * PER_MS
    for first in range(0, len(pcm), size):
        frame = pcm[first : first + size]
        at_ms += len(frame) / PER_MS
        timeline.caller(frame, RATE_HZ, T0 + round(at_ms * MS))
    return at_ms


def play(timeline: CallTimeline, reply: int, pcm: Int16, at_ms: float, first: int = 0) -> None:
    """Frames of 100 ms, of which the first is played then."""
    for start in range(0, len(pcm), 100 * PER_MS):
        at_ns = T0 + round(at_ms * MS + start * 1e6 / PER_MS)
        frame = pcm[start : start + 100 * PER_MS]
        timeline.agent(reply, first + start, frame, RATE_HZ, at_ns)


def whole(timeline: CallTimeline, end_ms: float) -> Int16:
    """Taken every half second, as the recorder does."""
    parts = [timeline.take(T0 + ms * MS) for ms in range(0, round(end_ms), 500)]
    return np.concatenate([*parts, timeline.finish(T0 + round(end_ms * MS))])


def test_both_channels_are_placed_at_playback_time() -> None:
    question, answer = noise(1000), noise(800, 2)
    timeline = CallTimeline(RATE_HZ, T0 + 20 * MS)
    say(timeline, np.concatenate([question, np.zeros(3000 * PER_MS, np.int16)]), 0)
    play(timeline, 1, answer, 1430)
    sound = whole(timeline, 5000)
    assert len(sound) == 4000 * PER_MS
    assert np.array_equal(sound[: len(question), 0], question)
    assert not sound[len(question) :, 0].any()
    at = 1430 * PER_MS
    assert np.array_equal(sound[at : at + len(answer), 1], answer)
    assert np.count_nonzero(sound[:, 1]) == len(answer)


def test_unplayed_audio_is_not_recorded() -> None:
    """Cut after 300 ms of it; what had been sent ahead, and comes late, is left out."""
    answer, next_one = noise(2000, 2), noise(100, 3)
    timeline = CallTimeline(RATE_HZ, T0 + 20 * MS)
    say(timeline, noise(4000), 0)
    play(timeline, 1, answer[: 700 * PER_MS], 1000)
    timeline.cut(1, 300 * PER_MS)
    play(timeline, 1, answer[700 * PER_MS :], 1700, first=700 * PER_MS)
    play(timeline, 2, next_one, 2500)
    sound = whole(timeline, 4000)[:, 1]
    assert np.array_equal(sound[1000 * PER_MS :][: 300 * PER_MS], answer[: 300 * PER_MS])
    assert not sound[1300 * PER_MS : 2500 * PER_MS].any()
    assert np.array_equal(sound[2500 * PER_MS :][: len(next_one)], next_one)
    assert not sound[2600 * PER_MS :].any()


def test_playback_reported_by_the_client_takes_precedence() -> None:
    answer = noise(1000, 2)
    timeline = CallTimeline(RATE_HZ, T0 + 20 * MS)
    say(timeline, noise(3000), 0)
    play(timeline, 1, answer, 1000)
    timeline.cut(1, 300 * PER_MS)
    timeline.cut(1, 420 * PER_MS)  # it truncates the item
    sound = whole(timeline, 3000)[:, 1]
    assert np.array_equal(sound[1000 * PER_MS :][: 420 * PER_MS], answer[: 420 * PER_MS])
    assert not sound[1420 * PER_MS :].any()


def test_playback_report_moves_a_reply() -> None:
    answer = noise(1000, 2)
    timeline = CallTimeline(RATE_HZ, T0 + 20 * MS)
    say(timeline, noise(3000), 0)
    play(timeline, 1, answer, 1000)
    timeline.heard(1, 10 * PER_MS, T0 + 1090 * MS)  # 80 ms later than it was taken for
    sound = whole(timeline, 3000)[:, 1]
    assert np.array_equal(sound[1080 * PER_MS :][: len(answer)], answer)
    assert np.count_nonzero(sound) == len(answer)


def test_late_playback_report_leaves_no_gap() -> None:
    answer = noise(6000, 2)
    timeline = CallTimeline(RATE_HZ, T0 + 20 * MS)
    say(timeline, noise(9000), 0)
    play(timeline, 1, answer, 1000)
    first = timeline.take(T0 + 5000 * MS)
    timeline.heard(1, 0, T0 + 1200 * MS)
    sound = np.concatenate([first, whole(timeline, 9000)])[:, 1]
    assert np.array_equal(sound[1000 * PER_MS :][: len(answer)], answer)


def test_recording_ends_when_the_caller_hangs_up() -> None:
    answer = noise(2000, 2)
    timeline = CallTimeline(RATE_HZ, T0 + 20 * MS)
    say(timeline, noise(1500), 0)
    play(timeline, 1, answer, 1000)
    sound = whole(timeline, 1700)
    assert len(sound) == 1700 * PER_MS
    assert np.array_equal(sound[1000 * PER_MS :, 1], answer[: 700 * PER_MS])


def test_a_greeting_before_the_callers_first_word() -> None:
    greeting, words = noise(800, 2), noise(500)
    timeline = CallTimeline(RATE_HZ, T0)
    play(timeline, 1, greeting, 0)
    say(timeline, words, 2000)
    sound = whole(timeline, 3000)
    assert np.array_equal(sound[: len(greeting), 1], greeting)
    assert not sound[: 2000 * PER_MS, 0].any()
    assert np.array_equal(sound[2000 * PER_MS :, 0], words)


@pytest.mark.parametrize("stalled_ms", [100, 900, 2500])
def test_network_stall_leaves_no_gap_within_a_word(stalled_ms: int) -> None:
    """All that was held up arrives at once, and the agent's sound lies where it did."""
    words, answer = noise(6000), noise(300, 2)
    timeline = CallTimeline(RATE_HZ, T0 + 20 * MS)
    taken = []
    for number, first in enumerate(range(0, len(words), 20 * PER_MS), 1):
        at_ms = number * 20
        if 1000 < at_ms <= 1000 + stalled_ms:
            at_ms = 1000 + stalled_ms
        timeline.caller(words[first : first + 20 * PER_MS], RATE_HZ, T0 + at_ms * MS)
        taken.append(timeline.take(T0 + at_ms * MS))
    play(timeline, 1, answer, 5000)
    taken.append(timeline.finish(T0 + 6000 * MS))
    sound = np.concatenate(taken)
    assert np.array_equal(sound[:, 0], words)
    assert np.array_equal(sound[5000 * PER_MS :][: len(answer), 1], answer)


def test_muted_interval_is_recorded_as_silence() -> None:
    before, after = noise(1000), noise(1000, 3)
    timeline = CallTimeline(RATE_HZ, T0 + 20 * MS)
    say(timeline, before, 0)
    say(timeline, after, 61_000)
    sound = whole(timeline, 63_000)[:, 0]
    assert np.array_equal(sound[: len(before)], before)
    assert not sound[len(before) : 61_000 * PER_MS].any()
    assert np.array_equal(sound[61_000 * PER_MS :], after)


def test_audio_sent_at_once_is_kept_whole_before_the_answer() -> None:
    words, answer = noise(20_000), noise(300, 2)
    timeline = CallTimeline(RATE_HZ, T0)
    for first in range(0, len(words), 100 * PER_MS):
        timeline.caller(words[first : first + 100 * PER_MS], RATE_HZ, T0 + first // 1000)
    play(timeline, 1, answer, 1500)
    sound = whole(timeline, 3000)
    assert np.array_equal(sound[: len(words), 0], words)
    (heard,) = np.nonzero(sound[:, 1])
    assert len(heard) == len(answer)
    assert 20_000 * PER_MS <= heard[0] <= 21_500 * PER_MS


def test_client_underrun_is_recorded_as_silence() -> None:
    answer = noise(400, 2)
    timeline = CallTimeline(RATE_HZ, T0 + 20 * MS)
    say(timeline, noise(3000), 0)
    play(timeline, 1, answer[: 200 * PER_MS], 1000)
    play(timeline, 1, answer[200 * PER_MS :], 1450, first=200 * PER_MS)
    sound = whole(timeline, 3000)[:, 1]
    assert np.array_equal(sound[1000 * PER_MS :][: 200 * PER_MS], answer[: 200 * PER_MS])
    assert not sound[1200 * PER_MS : 1450 * PER_MS].any()
    assert np.array_equal(sound[1450 * PER_MS :][: 200 * PER_MS], answer[200 * PER_MS :])


def test_telephone_call_is_recorded_at_its_own_rate() -> None:
    """The caller in 8 kHz as received, a reply of 24 kHz within a sample or two of its place."""
    words = noise(2000, rate_hz=8000)
    at = np.arange(24_000)
    tone = (np.sin(at * 2 * np.pi * 440 / RATE_HZ) * 8000).astype(np.int16)
    timeline = CallTimeline(8000, T0 + 20 * MS)
    for number, first in enumerate(range(0, len(words), 160), 1):
        timeline.caller(words[first : first + 160], 8000, T0 + number * 20 * MS)
    play(timeline, 1, tone, 500)
    sound = whole(timeline, 2000)
    assert np.array_equal(sound[:, 0], words)
    expected = np.zeros(len(sound))
    expected[4000:12_000] = tone[::3]
    lags = np.correlate(sound[:, 1].astype(float), expected[100:], "valid")
    assert abs(int(np.argmax(lags)) - 100) <= 1
    assert not sound[:3990, 1].any()


def test_lost_audio_keeps_its_duration() -> None:
    words = noise(3000)
    timeline = CallTimeline(RATE_HZ, T0 + 20 * MS)
    end_ms = say(timeline, words[: 1000 * PER_MS], 0)
    lost = 200 * PER_MS
    rest = words[1000 * PER_MS + lost :]
    at_ns = T0 + round((end_ms + 200 + 20) * MS)
    timeline.caller(rest[: 20 * PER_MS], RATE_HZ, at_ns, num_lost=lost)
    say(timeline, rest[20 * PER_MS :], end_ms + 220)
    sound = whole(timeline, 3000)[:, 0]
    assert not sound[1000 * PER_MS : 1200 * PER_MS].any()
    assert np.array_equal(sound[1200 * PER_MS :], rest)


def test_burst_of_small_chunks_is_placed_in_one_pass() -> None:
    """Ten thousand that make up for a stall are looked through once: else it takes a minute."""
    words = noise(3000)
    timeline = CallTimeline(RATE_HZ, T0 + 20 * MS)
    say(timeline, words[: 480 * 2], 0)
    for at in range(480 * 2, len(words), 7):
        timeline.caller(words[at : at + 7], RATE_HZ, T0 + 3000 * MS)
    sound = whole(timeline, 5000)
    assert np.array_equal(sound[:, 0], words)


@settings(max_examples=40, deadline=None)
@given(
    jitter=st.lists(st.integers(0, 250), min_size=100, max_size=100),
    steps=st.lists(st.integers(1, 700), max_size=20),
)
def test_samples_do_not_depend_on_jitter_or_read_times(jitter: list[int], steps: list[int]) -> None:
    words, answer = noise(2000), noise(300, 2)
    timeline = CallTimeline(RATE_HZ, T0 + 20 * MS)
    at_ms = 0
    for number, late_ms in enumerate([0, *jitter[1:]], 1):
        at_ms = max(at_ms, number * 20 + late_ms)
        frame = words[(number - 1) * 20 * PER_MS : number * 20 * PER_MS]
        timeline.caller(frame, RATE_HZ, T0 + at_ms * MS)
    play(timeline, 1, answer, 1000)
    now_ns, taken = T0 + at_ms * MS, []
    for step_ms in steps:
        now_ns += step_ms * MS
        taken.append(timeline.take(now_ns))
        assert sum(map(len, taken)) * 1000 <= (now_ns - T0 - HOLD_NS) // MS * RATE_HZ or not any(
            map(len, taken)
        )
    taken.append(timeline.finish(now_ns + 1))
    sound = np.concatenate(taken)
    assert np.array_equal(sound[:, 0], words)
    assert np.array_equal(sound[1000 * PER_MS :][: len(answer), 1], answer)
