"""The simulated loudspeaker: when a sample is played, and which ones never are."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.client.simulated_caller.playback import Position, SimulatedPlayback

MS = 1_000_000
RATE_HZ = 8_000


def tone(ms: int, silent_ms: int = 0) -> np.ndarray[tuple[int], np.dtype[np.int16]]:
    pcm = np.full(RATE_HZ * ms // 1000, 1000, np.int16)
    pcm[: RATE_HZ * silent_ms // 1000] = 327
    return pcm


def test_pieces_that_arrive_in_time_follow_each_other() -> None:
    speaker = SimulatedPlayback()
    speaker.push("r", "i", tone(100, silent_ms=30), RATE_HZ, 1000 * MS)
    speaker.push("r", "i", tone(100), RATE_HZ, 1010 * MS)
    assert speaker.onset_ns("r") == 1030 * MS
    assert speaker.dry_ns == 1200 * MS
    assert speaker.underruns_ns == 0
    assert speaker.position(999 * MS) is None
    assert speaker.position(1150 * MS) == Position("i", 150)
    assert speaker.position(9999 * MS) == Position("i", 200)
    assert len(speaker.recording(RATE_HZ)) == 1601


def test_a_late_piece_leaves_a_hole() -> None:
    speaker = SimulatedPlayback()
    speaker.push("r", "i", tone(100), RATE_HZ, 0)
    speaker.push("r", "i", tone(100), RATE_HZ, 140 * MS)
    assert speaker.underruns_ns == 40 * MS
    assert speaker.position(120 * MS) == Position("i", 100)
    sound = speaker.recording(RATE_HZ)
    assert not sound[800:1120].any()
    assert sound[1120:1920].all()


def test_silence_between_replies_is_no_hole() -> None:
    speaker = SimulatedPlayback()
    speaker.push("r1", "i1", tone(100), RATE_HZ, 0)
    speaker.push("r2", "i2", tone(100), RATE_HZ, 500 * MS)
    assert speaker.underruns_ns == 0
    assert speaker.position(300 * MS) == Position("i1", 100)
    assert speaker.position(540 * MS) == Position("i2", 40)


def test_a_flush_takes_back_what_was_not_played() -> None:
    speaker = SimulatedPlayback()
    speaker.push("r1", "i1", tone(100), RATE_HZ, 0)
    speaker.push("r2", "i2", tone(100), RATE_HZ, 10 * MS)
    assert speaker.flush(60 * MS) == Position("i1", 60)
    assert not speaker.playing(60 * MS)
    assert (speaker.onset_ns("r1"), speaker.onset_ns("r2")) == (0, None)
    assert speaker.played_s("r1") == pytest.approx(0.06)
    assert speaker.played_s("r2") == pytest.approx(0.0)
    assert speaker.position(200 * MS) == Position("i1", 60)
    assert speaker.flush(200 * MS) is None
    assert len(speaker.recording(RATE_HZ)) == 481


def test_nothing_and_silence_are_never_audible() -> None:
    speaker = SimulatedPlayback()
    speaker.push("r", "i", np.zeros(0, np.int16), RATE_HZ, 0)
    assert speaker.flush(0) is None
    speaker.push("r", "i", tone(100, silent_ms=100), RATE_HZ, 0)
    assert speaker.onset_ns("r") is None
    assert len(speaker.recording(24_000)) == 0


def test_the_loudest_negative_sample_is_audible() -> None:
    speaker = SimulatedPlayback()
    speaker.push("r", "i", np.array([0, -32768], np.int16), RATE_HZ, 0)
    assert speaker.onset_ns("r") == 125_000


@given(
    pieces=st.lists(st.tuples(st.integers(0, 300), st.integers(0, 120)), min_size=1, max_size=12),
    flush_ms=st.none() | st.integers(0, 2000),
)
def test_recording_or_not_the_times_are_the_same(
    pieces: list[tuple[int, int]], flush_ms: int | None
) -> None:
    kept, bare = SimulatedPlayback(), SimulatedPlayback(record=False)
    now_ms = 0
    total_ms = 0
    for wait_ms, length_ms in pieces:
        now_ms += wait_ms
        total_ms += length_ms
        for speaker in (kept, bare):
            speaker.push("r", "i", tone(length_ms), RATE_HZ, now_ms * MS)
        assert kept.dry_ns == bare.dry_ns
        assert kept.position(now_ms * MS) == bare.position(now_ms * MS)
    if flush_ms is not None:
        assert kept.flush((now_ms + flush_ms) * MS) == bare.flush((now_ms + flush_ms) * MS)
    assert kept.onset_ns("r") == bare.onset_ns("r")
    assert kept.underruns_ns == bare.underruns_ns
    assert kept.played_s("r") <= total_ms / 1000 + 1e-9
