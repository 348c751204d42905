"""Sound conditions of a turn: levels over voiced frames, the same mixture for the same seed."""

from pathlib import Path

import numpy as np
import pytest
import soundfile

from agent.errors import BenchError
from asr.audio.samples import RATE_HZ, Pcm, voiced_rms
from benchmarks.signals.noise_mixing import (
    FAR_DB,
    GENERATED,
    NUM_VOICES,
    PEAK,
    Mixer,
    SoundCondition,
    babble,
    impulse_response,
    looped,
    noise_under,
    pink_noise,
    read_noises,
    reverberant,
)


def voice(hz: float = 200.0) -> Pcm:
    """A second of a tone between two of silence."""
    time = np.arange(RATE_HZ) / RATE_HZ
    rest = np.zeros(RATE_HZ, np.float32)
    return np.concatenate([rest, (0.2 * np.sin(2 * np.pi * hz * time)).astype(np.float32), rest])


def rms(pcm: Pcm) -> float:
    return float(np.sqrt(np.mean(pcm.astype(np.float64) ** 2)))


@pytest.mark.parametrize(
    "text", ["clean", "babble@10", "room", "telephone", "street@5+room+telephone", "fan@-2.5"]
)
def test_a_condition_is_written_as_it_is_read(text: str) -> None:
    assert str(SoundCondition.parse(text)) == text


@pytest.mark.parametrize(
    "text", ["", "babble", "@5", "fan@", "fan@5+street@5", "fan@nan", "clean+"]
)
def test_what_is_no_condition_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"condition|float|dB"):
        SoundCondition.parse(text)


@pytest.mark.parametrize("snr_db", [20.0, 10.0, 5.0, -3.0])
def test_the_level_is_that_of_the_voiced_frames(snr_db: float) -> None:
    """Pauses don't count: as much silence again changes nothing."""
    noise = pink_noise(np.random.default_rng(1), 3 * RATE_HZ)
    long = np.concatenate([voice(), np.zeros(RATE_HZ, np.float32)])
    for pcm in (voice(), long):
        scaled = noise_under(pcm, noise, snr_db)
        assert 20 * np.log10(0.2 / np.sqrt(2) / rms(scaled)) == pytest.approx(snr_db, abs=0.1)


def test_the_same_turn_has_the_same_noise_at_each_level() -> None:
    mixer = Mixer(GENERATED, seed=3)
    five, ten = (mixer.mixed("a", voice(), SoundCondition("fan", db)) for db in (5.0, 10.0))
    again = Mixer(GENERATED, seed=3).mixed("a", voice(), SoundCondition("fan", 5.0))
    assert np.array_equal(five, again)
    assert five - voice() == pytest.approx((ten - voice()) * 10 ** (5 / 20), abs=1e-4)
    others = [
        mixer.mixed("b", voice(), SoundCondition("fan", 5.0)),
        Mixer(GENERATED, seed=4).mixed("a", voice(), SoundCondition("fan", 5.0)),
        mixer.mixed("a", voice(), SoundCondition("keyboard", 5.0)),
    ]
    assert not any(np.array_equal(five, other) for other in others)


def test_clean_turns_are_left_as_they_are() -> None:
    assert np.array_equal(Mixer({}).mixed("a", voice(), SoundCondition()), voice())


def test_babble_has_three_to_eight_voices_as_loud_as_each_other() -> None:
    """Each voice is a tone of its own, at a level of its own, so the spectrum tells them apart."""
    tones = [100 * (index + 2) for index in range(10)]
    voices = [
        voice(hz)[RATE_HZ : 2 * RATE_HZ] * np.float32(0.1 * (index + 1))
        for index, hz in enumerate(tones)
    ]
    make = babble(voices)
    counts = set()
    for seed in range(30):
        mixture = make(np.random.default_rng(seed), RATE_HZ)
        heard = np.abs(np.fft.rfft(mixture))[tones] / (RATE_HZ / 2)
        loud = heard[heard > 0.5]
        assert loud == pytest.approx(np.sqrt(2), rel=0.01)
        counts.add(len(loud))
    assert min(counts) == NUM_VOICES[0]
    assert max(counts) == NUM_VOICES[1]


def test_two_voices_are_no_babble() -> None:
    silent = np.zeros(RATE_HZ, np.float32)
    with pytest.raises(BenchError, match="3 voices"):
        babble([voice(), voice(), silent])


def test_a_far_voice_is_quieter_and_ends_where_it_ended() -> None:
    """Response: a direct sound behind 10 ms of delay, an echo after 100 ms."""
    response = np.zeros(RATE_HZ // 4, np.float32)
    response[160], response[160 + 1600] = 1.0, 0.5
    heard = reverberant(voice(), impulse_response(response))
    assert len(heard) == len(voice())
    assert 20 * np.log10(voiced_rms(heard) / voiced_rms(voice())) == pytest.approx(FAR_DB, abs=0.1)
    direct = heard[RATE_HZ : RATE_HZ + 1600] / voice()[RATE_HZ : RATE_HZ + 1600].max()
    assert np.argmax(direct[:80]) == np.argmax(voice()[RATE_HZ : RATE_HZ + 80]), "no delay"
    tail = rms(heard[2 * RATE_HZ : 2 * RATE_HZ + 1600])
    assert tail == pytest.approx(0.5 * rms(heard[RATE_HZ : RATE_HZ + 1600]), rel=0.01), "the echo"
    assert rms(heard[2 * RATE_HZ + 1700 :]) < 1e-5
    with pytest.raises(BenchError, match="silent"):
        impulse_response(np.zeros(9, np.float32))


def test_nothing_clips() -> None:
    loud = voice() * np.float32(4.9)
    mixed = Mixer(GENERATED).mixed("a", loud, SoundCondition("fan", 0.0))
    assert np.abs(mixed).max() == pytest.approx(PEAK)


def test_noise_goes_through_the_line_with_the_voice() -> None:
    hiss = looped([(0.1 * np.sin(2 * np.pi * 5000 * np.arange(RATE_HZ) / RATE_HZ)).astype("f")])
    mixer = Mixer({"hiss": hiss})
    plain = mixer.mixed("a", voice(1000), SoundCondition("hiss", 10.0))
    line = mixer.mixed("a", voice(1000), SoundCondition("hiss", 10.0, by_telephone=True))
    assert len(line) == len(plain)
    assert rms(plain[:8000]) > 0.03
    assert rms(line[:8000]) < 0.001
    assert rms(line[RATE_HZ : 2 * RATE_HZ]) == pytest.approx(0.2 / np.sqrt(2), rel=0.05)


def test_noises_are_named_by_their_files_or_folders(tmp_path: Path) -> None:
    (tmp_path / "street").mkdir()
    for name in ("street/a.wav", "street/b.wav", "dishes.wav"):
        soundfile.write(tmp_path / name, 0.1 * np.ones(RATE_HZ // 4), RATE_HZ)
    (tmp_path / "notes.txt").write_text("none")
    noises = read_noises(tmp_path)
    assert sorted(noises) == ["dishes", "street"]
    assert len(noises["dishes"](np.random.default_rng(1), RATE_HZ)) == RATE_HZ
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(BenchError, match="no noise"):
        read_noises(empty)
    with pytest.raises(BenchError, match="no such folder"):
        read_noises(tmp_path / "none")


def test_what_is_missing_is_said_before_the_work_begins() -> None:
    mixer = Mixer(GENERATED)
    mixer.check([SoundCondition("fan", 5.0, by_telephone=True)])
    with pytest.raises(BenchError, match=r"no noise 'babble'.*--babble"):
        mixer.check([SoundCondition("babble", 5.0)])
    with pytest.raises(BenchError, match="--room"):
        mixer.check([SoundCondition(in_room=True)])
