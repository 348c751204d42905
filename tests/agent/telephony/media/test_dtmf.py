"""Keys of a telephone, sounded and heard: on good lines, on bad ones, and in speech."""

from pathlib import Path

import numpy as np
import pytest
import soundfile
import soxr

from agent.codec.g711 import alaw_decode, alaw_encode, mulaw_decode, mulaw_encode
from agent.telephony.media.dtmf import HIGH_HZ, KEYS, LOW_HZ, RATE_HZ, DtmfDetector, Int16, sound_of

RECORDINGS = Path(__file__).parents[3] / "recordings"


def tones(low_hz: float, high_hz: float, ms: float, low_db: float, high_db: float) -> Int16:
    time_s = np.arange(round(RATE_HZ * ms / 1000)) / RATE_HZ
    sound = 10 ** (low_db / 20) * np.sin(2 * np.pi * low_hz * time_s)
    sound += 10 ** (high_db / 20) * np.sin(2 * np.pi * high_hz * time_s)
    around = np.zeros(RATE_HZ // 10)
    return np.asarray(np.concatenate([around, sound, around]) * 32767, np.int16)


@pytest.mark.parametrize("level_db", [-3.1, -12.0, -30.0])
def test_every_key_is_heard_once(level_db: float) -> None:
    assert "".join(DtmfDetector().push(sound_of(KEYS * 2, level_db=level_db - 3))) == KEYS * 2


@pytest.mark.parametrize("size", [1, 37, 160, 2000])
def test_pieces_make_no_difference(size: int) -> None:
    sound, ear = sound_of("0123#"), DtmfDetector()
    pieces = (sound[first : first + size] for first in range(0, len(sound), size))
    assert "".join(key for piece in pieces for key in ear.push(piece)) == "0123#"


def test_the_same_key_twice_is_two() -> None:
    assert "".join(DtmfDetector().push(sound_of("5555", on_ms=50, off_ms=50))) == "5555"


def test_a_long_key_is_one() -> None:
    assert DtmfDetector().push(sound_of("9", on_ms=5000)) == ["9"]


def test_keys_survive_the_codecs_of_the_line() -> None:
    sound = sound_of(KEYS, level_db=-20)
    for travelled in (mulaw_decode(mulaw_encode(sound)), alaw_decode(alaw_encode(sound))):
        assert "".join(DtmfDetector().push(travelled)) == KEYS


def test_keys_are_heard_in_noise() -> None:
    sound = sound_of(KEYS, level_db=-15).astype(float)
    noise = np.random.default_rng(1).normal(0, 32767 * 10 ** (-35 / 20), len(sound))
    assert "".join(DtmfDetector().push(np.asarray(sound + noise, np.int16))) == KEYS


@pytest.mark.parametrize(
    ("low_db", "high_db", "is_heard"),
    [(-15, -12, True), (-12, -19, True), (-20, -12, False), (-10, -22, False)],
)
def test_one_tone_may_be_weaker_but_not_much(low_db: float, high_db: float, is_heard: bool) -> None:
    assert bool(DtmfDetector().push(tones(770, 1336, 60, low_db, high_db))) == is_heard


def test_short_tones_are_none_and_those_of_40_ms_are_keys() -> None:
    for low_hz in LOW_HZ:
        for high_hz in HIGH_HZ:
            assert DtmfDetector().push(tones(low_hz, high_hz, 40, -12, -12)) != []
            assert DtmfDetector().push(tones(low_hz, high_hz, 12, -12, -12)) == []


@pytest.mark.parametrize("share", [-0.015, 0.015])
def test_frequencies_may_be_off_a_little(share: float) -> None:
    for low_hz in LOW_HZ:
        for high_hz in HIGH_HZ:
            sound = tones(low_hz * (1 + share), high_hz * (1 + share), 60, -12, -12)
            assert len(DtmfDetector().push(sound)) == 1


def test_speech_has_no_keys() -> None:
    paths = sorted(RECORDINGS.glob("*.wav"))
    assert paths
    for path in paths:
        speech, rate_hz = soundfile.read(path, dtype="float64")
        narrow = soxr.resample(speech, rate_hz, RATE_HZ)
        assert DtmfDetector().push(np.asarray(narrow * 32767, np.int16)) == []


def test_single_tones_and_silence_are_none() -> None:
    ear = DtmfDetector()
    assert ear.push(np.zeros(RATE_HZ, np.int16)) == []
    assert ear.push(tones(697, 0, 500, -12, -12)) == []
    assert ear.push(tones(350, 440, 500, -12, -12)) == []  # the dial tone


def test_what_is_no_key_is_refused() -> None:
    with pytest.raises(ValueError, match="'x' is no key"):
        sound_of("1x")
    assert len(sound_of("")) == 0
