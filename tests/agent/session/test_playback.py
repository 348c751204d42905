"""Pacing, and what counts as heard."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.session.ports.playback import FRAME_MS, HeardWord, Playback

RATE_HZ = 24_000
MS = 1_000_000


def pcm(ms: int) -> np.ndarray[tuple[int], np.dtype[np.int16]]:
    return np.arange(ms * RATE_HZ // 1000, dtype=np.int16)


def two_words() -> Playback:
    """Characters 0-5 are heard after 300 ms, 5-11 after 600 ms, then 400 ms more without words."""
    playback = Playback(RATE_HZ, lead_ms=400)
    words = (HeardWord(5, 300 * 24), HeardWord(11, 600 * 24))
    playback.push(pcm(1000), (0, 11), words)
    playback.finish()
    return playback


def test_at_most_the_lead_is_sent_ahead_of_real_time() -> None:
    playback = two_words()
    assert len(playback.due(0)) == 400 // FRAME_MS
    assert playback.due(0) == []
    due_ns = playback.next_due_ns()
    assert due_ns is not None
    assert playback.due(due_ns - 1) == []
    assert len(playback.due(due_ns)) == 1


def test_the_text_goes_with_the_first_frame_that_speaks_it() -> None:
    frames = two_words().due(0)
    assert [frame.text for frame in frames] == [(0, 11), None, None, None]
    assert [frame.first_sample for frame in frames] == [0, 2400, 4800, 7200]


def test_how_long_it_lasts_counts_what_is_not_sent_yet() -> None:
    playback = two_words()
    assert playback.lasts_until_ns(50 * MS) == 1050 * MS
    playback.due(100 * MS)  # held back until then
    assert playback.lasts_until_ns(100 * MS) == 1100 * MS
    assert playback.lasts_until_ns(300 * MS) == 1100 * MS
    assert playback.lasts_until_ns(900 * MS) == 1500 * MS  # dry after the 400 ms that were sent


def test_speech_in_front_holds_the_rest_back() -> None:
    playback = two_words()
    playback.put_in_front(pcm(250), 6, (HeardWord(5, 250 * 24),), holds_rest=True)
    frames = playback.due(0) + playback.due(2000 * MS)
    assert [(frame.first_sample, frame.text) for frame in frames] == [
        (0, (0, 6)), (100 * 24, None), (200 * 24, None)
    ]  # fmt: skip
    assert playback.next_due_ns() is None
    assert not playback.all_sent
    assert playback.chars_heard(playback.heard_samples(2000 * MS)) == 6
    playback.release_rest()
    rest = playback.due(2000 * MS)
    assert rest[0].at_ns == 2000 * MS, "the opener was over"
    assert (rest[0].first_sample, rest[0].text) == (250 * 24, (6, 17))
    assert np.array_equal(rest[0].pcm, pcm(1000)[: 100 * 24])
    heard = [playback.chars_heard((250 + ms) * 24) for ms in (299, 300, 600, 1000)]
    assert heard == [6, 11, 17, 17]


def test_speech_in_front_that_holds_nothing_back_is_followed_at_once() -> None:
    playback = two_words()
    playback.put_in_front(pcm(250), 6, (), holds_rest=False)
    spans = [frame.text for frame in playback.due(0) if frame.text is not None]
    assert spans == [(0, 6), (6, 17)]


def test_word_counts_as_heard_after_its_last_sample() -> None:
    playback = two_words()
    assert playback.chars_heard(300 * 24 - 1) == 0
    assert playback.chars_heard(300 * 24) == 5
    assert playback.chars_heard(600 * 24) == 11


def test_position_follows_the_clock_and_never_passes_what_was_sent() -> None:
    playback = two_words()
    playback.due(0)
    assert playback.position(150 * MS) == 150 * 24
    assert playback.position(5000 * MS) == 400 * 24
    assert playback.end_ns() == 400 * MS


def test_a_client_that_ran_dry_starts_again_with_the_next_sample() -> None:
    playback = Playback(RATE_HZ, lead_ms=400)
    playback.push(pcm(100), (0, 1), ())
    playback.due(0)
    playback.push(pcm(100), (1, 2), ())
    playback.due(1000 * MS)
    assert playback.position(1050 * MS) == 150 * 24
    assert playback.end_ns() == 1100 * MS


def test_a_response_is_heard_from_the_end_of_the_one_before() -> None:
    playback = two_words()
    playback.play_after(350 * MS)
    assert playback.lasts_until_ns(100 * MS) == 1350 * MS
    frames = playback.due(100 * MS)
    assert [frame.at_ns // MS for frame in frames] == [350, 450, 550, 650]
    assert playback.next_due_ns() == 350 * MS + 41_667
    assert playback.lasts_until_ns(100 * MS) == 1350 * MS
    assert playback.position(350 * MS) == 0
    assert playback.position(400 * MS) == 50 * 24
    playback.due(850 * MS)  # dry since 750 ms
    assert playback.position(900 * MS) == 450 * 24


def test_a_client_is_believed_only_where_it_claims_less() -> None:
    playback = two_words()
    playback.due(0)
    playback.report(50, now_ns=200 * MS)
    assert playback.heard_samples(200 * MS) == 50 * 24
    assert playback.heard_samples(210 * MS) == 60 * 24
    playback.report(99_999, now_ns=200 * MS)
    assert playback.heard_samples(200 * MS) == 200 * 24


@pytest.mark.parametrize(("claimed_ms", "samples"), [(-5, 0), (10, 240), (99_999, 400 * 24)])
def test_claims_are_clamped_to_what_was_sent(claimed_ms: int, samples: int) -> None:
    playback = two_words()
    playback.due(0)
    assert playback.samples_claimed(claimed_ms) == samples


@given(
    lengths=st.lists(st.integers(1, 9000), max_size=8),
    steps=st.lists(st.integers(0, 300), min_size=1, max_size=60),
)
def test_every_sample_leaves_once_and_in_order(lengths: list[int], steps: list[int]) -> None:
    playback = Playback(RATE_HZ, lead_ms=200)
    whole = np.arange(sum(lengths)).astype(np.int16)
    offset = 0
    for index, length in enumerate(lengths):
        playback.push(whole[offset : offset + length], (index, index + 1), ())
        offset += length
    playback.finish()
    sent = []
    now_ns = 0
    for step in [*steps, *[10_000] * 2]:
        now_ns += step * MS
        sent += playback.due(now_ns)
        assert playback.position(now_ns) <= sum(len(frame.pcm) for frame in sent)
    while not playback.all_sent:
        due_ns = playback.next_due_ns()
        assert due_ns is not None
        now_ns = max(now_ns, due_ns)
        sent += playback.due(now_ns)
    joined = np.concatenate([frame.pcm for frame in sent]) if sent else whole[:0]
    assert np.array_equal(joined, whole)
    assert [frame.text for frame in sent if frame.text] == [
        (index, index + 1) for index in range(len(lengths))
    ]
