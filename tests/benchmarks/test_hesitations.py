"""Pauses of room tone are spliced into speech between its words."""

import numpy as np

from asr.audio.samples import RATE_HZ
from benchmarks.signals.hesitations import (
    FADE,
    LEVEL_FRAME,
    levels_of,
    quietest_frame,
    room_tone,
    spliced,
)


def test_speech_is_moved_and_not_lost() -> None:
    pcm = np.linspace(0.1, 0.9, RATE_HZ, dtype=np.float32)
    longer, pauses = spliced(pcm, [4000, 9000], [800, 1600])
    assert pauses == ((4000, 4800), (9800, 11_400))
    assert len(longer) == len(pcm) + 2400
    for first, end in pauses:
        assert not longer[first:end].any()
    kept = np.concatenate([longer[:4000], longer[4800:9800], longer[11_400:]])
    changed = np.flatnonzero(kept != pcm)
    assert len(changed) <= 4 * FADE
    assert all(min(abs(at - 4000), abs(at - 9000)) <= FADE for at in changed)


def test_speech_without_pauses_is_as_it_was() -> None:
    pcm = np.full(RATE_HZ, 0.5, np.float32)
    same, pauses = spliced(pcm, [], [])
    assert pauses == ()
    assert np.array_equal(same, pcm)


def test_the_quietest_place_near_a_boundary() -> None:
    pcm = 0.2 * np.random.default_rng(1).standard_normal(RATE_HZ).astype(np.float32)
    pcm[8000 : 8000 + 2 * LEVEL_FRAME] *= 0.01
    place = quietest_frame(levels_of(pcm), 0.46, 0.48)
    assert place is not None
    assert 8000 <= place[0] < 8000 + 2 * LEVEL_FRAME
    assert place[1] < 0.01
    assert quietest_frame(levels_of(pcm), 2.0, 2.1) is None


def test_room_tone_is_quiet_and_never_silent() -> None:
    tone = room_tone(RATE_HZ, np.random.default_rng(2))
    level_dbfs = 20 * np.log10(np.std(tone))
    assert -67 < level_dbfs < -53
    assert np.count_nonzero(tone) > 0.99 * len(tone)
    assert np.array_equal(tone, room_tone(RATE_HZ, np.random.default_rng(2)))
