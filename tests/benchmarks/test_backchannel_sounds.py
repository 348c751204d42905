"""Backchannel sounds of a folder."""

from pathlib import Path

import numpy as np
import soundfile

from benchmarks.signals.backchannels import MAX_S, recorded


def test_short_recordings_of_all_folders_are_named_for_their_words(tmp_path: Path) -> None:
    for voice, words, seconds in (("a", "yeah", 0.3), ("b", "okay", 0.4), ("b", "turn", 2.5)):
        (tmp_path / voice).mkdir(exist_ok=True)
        sound = np.full(round(seconds * 16_000), 0.1, np.float32)
        soundfile.write(tmp_path / voice / f"{words}.wav", sound, 16_000, subtype="PCM_16")
    _, found = recorded(tmp_path)
    assert [(each.words, len(each.pcm)) for each in found] == [("yeah", 4800), ("okay", 6400)]
    assert all(len(each.pcm) <= MAX_S * each.rate_hz for each in found)
