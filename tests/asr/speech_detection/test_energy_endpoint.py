import numpy as np
import pytest

from asr.audio.samples import Pcm
from asr.speech_detection.energy_endpoint import (
    DIP_DB,
    HALF,
    LEAST_HALVES,
    MAX_DISAGREED,
    MAX_RANGE_DB,
    MEAN_HALVES,
    NEAR_DB,
    NOISE_BELOW_DB,
    NOISE_HALVES,
    ONSET_BELOW_DB,
    RANGE_DB,
    VOICE_HALVES,
    EnergyEndpoint,
)

FRAME = 2 * HALF


def tone(level_db: float, num_samples: int = FRAME) -> Pcm:
    """A sine of this RMS level."""
    amplitude = np.float32(np.sqrt(2) * 10 ** (level_db / 20))
    wave: Pcm = np.sin(np.arange(num_samples) * 0.7).astype(np.float32)
    return amplitude * wave


def after_speech(level_db: float = -20.0, num_frames: int = 30) -> EnergyEndpoint:
    loudness = EnergyEndpoint()
    for _ in range(num_frames):
        assert loudness.loud_samples(tone(level_db), is_speech=True) == FRAME
    return loudness


@pytest.mark.parametrize("level_db", [-50.0, -20.0, 0.0])
def test_loud_is_what_lies_within_25_db_of_the_voice(level_db: float) -> None:
    loudness = after_speech(level_db)
    assert loudness.loud_samples(tone(level_db - 23), is_speech=False) == FRAME
    assert loudness.loud_samples(tone(level_db - 28), is_speech=False) == 0
    assert loudness.loud_samples(np.zeros(FRAME, np.float32), is_speech=False) == 0


def test_a_frame_is_loud_up_to_its_last_loud_half() -> None:
    loudness = after_speech()
    ends = np.concatenate([tone(-20, HALF), np.zeros(HALF, np.float32)])
    assert loudness.loud_samples(ends, is_speech=True) == HALF
    assert loudness.loud_samples(ends[::-1].copy(), is_speech=True) == FRAME


def test_every_sample_is_loud_before_the_first_voice() -> None:
    assert EnergyEndpoint().loud_samples(tone(-70), is_speech=False) == FRAME


def test_noise_does_not_move_the_reference() -> None:
    loudness = after_speech(-40)
    for _ in range(30):
        loudness.loud_samples(tone(-5), is_speech=False)
    assert loudness.loud_samples(tone(-60), is_speech=False) == FRAME


def test_a_bang_does_not_silence_the_caller_for_long() -> None:
    loudness = EnergyEndpoint()
    loudness.loud_samples(tone(0), is_speech=True)
    heard = [loudness.loud_samples(tone(-40), is_speech=True) for _ in range(MAX_DISAGREED + 20)]
    assert heard == [0] * (MAX_DISAGREED - 1) + [FRAME] * 21


def test_the_next_utterance_has_a_reference_of_its_own() -> None:
    loudness = after_speech(-10)
    loudness.reset()
    assert loudness.loud_samples(tone(-50), is_speech=True) == FRAME


def in_noise(level_db: float, num_frames: int = NOISE_HALVES // 2) -> EnergyEndpoint:
    loudness = EnergyEndpoint()
    for _ in range(num_frames):
        loudness.loud_samples(tone(level_db), is_speech=False)
    return loudness


def kept_up(loudness: EnergyEndpoint, level_db: float) -> int:
    """Loud samples of the last frame of a level that is kept up for as long as the mean goes
    over."""
    for _ in range(MEAN_HALVES // 2 + 1):
        num_loud = loudness.loud_samples(tone(level_db), is_speech=True)
    return num_loud


@pytest.mark.parametrize("voice_db", [-18.0, -13.0])
def test_what_is_no_louder_than_the_noise_is_not_loud(voice_db: float) -> None:
    """However sure the detector is: it may be another voice."""
    loudness = in_noise(-40)
    loudness.loud_samples(tone(voice_db), is_speech=True)
    assert kept_up(loudness, -40 + RANGE_DB - 2) == 0
    assert kept_up(loudness, -40 + RANGE_DB + 3) == FRAME


def test_noise_near_the_voice_takes_none_of_its_syllables() -> None:
    loudness = in_noise(-25)
    loudness.loud_samples(tone(-20), is_speech=True)
    assert kept_up(loudness, -20 - NOISE_BELOW_DB + 2) == FRAME
    assert kept_up(loudness, -20 - NOISE_BELOW_DB - 2) == 0


def test_a_syllable_of_another_voice_is_not_loud() -> None:
    loudness = in_noise(-40)
    loudness.loud_samples(tone(-20), is_speech=True)
    assert kept_up(loudness, -41) == 0
    heard = [loudness.loud_samples(tone(level), is_speech=True) for level in (-35, -41, -41)]
    assert heard == [0, 0, 0]
    assert loudness.loud_samples(tone(-20), is_speech=True) == FRAME, "the caller's is"


def test_over_noise_that_is_no_match_for_the_voice_a_pause_is_quiet_at_once() -> None:
    noise_db = -20 - NOISE_BELOW_DB - NEAR_DB - RANGE_DB - 3
    loudness = in_noise(noise_db)
    loudness.loud_samples(tone(-20), is_speech=True)
    assert loudness.loud_samples(tone(noise_db + RANGE_DB - 2), is_speech=True) == 0


def test_what_is_far_below_the_noise_s_limit_is_quiet_at_once() -> None:
    loudness = in_noise(-25)
    loudness.loud_samples(tone(-20), is_speech=True)
    assert loudness.loud_samples(tone(-20 - NOISE_BELOW_DB - DIP_DB - 2), is_speech=True) == 0


def test_a_quiet_room_changes_nothing() -> None:
    loudness = in_noise(-70)
    loudness.loud_samples(tone(-20), is_speech=True)
    assert loudness.loud_samples(tone(-43), is_speech=True) == FRAME
    assert loudness.loud_samples(tone(-47), is_speech=False) == 0


def test_too_little_of_a_call_tells_nothing_of_its_noise() -> None:
    loudness = in_noise(-40, LEAST_HALVES // 2 - 2)
    loudness.loud_samples(tone(-20), is_speech=True)
    assert loudness.loud_samples(tone(-40), is_speech=True) == FRAME


def test_a_noise_that_has_stopped_is_forgotten() -> None:
    loudness = in_noise(-30)
    for _ in range(NOISE_HALVES // 2):
        loudness.loud_samples(tone(-80), is_speech=False)
    loudness.loud_samples(tone(-15), is_speech=True)
    assert loudness.loud_samples(tone(-35), is_speech=True) == FRAME


def test_the_noise_outlives_the_utterance() -> None:
    loudness = in_noise(-40)
    loudness.loud_samples(tone(-20), is_speech=True)
    loudness.reset()
    loudness.loud_samples(tone(-20), is_speech=True)
    assert kept_up(loudness, -40) == 0


def test_noise_that_varies_as_voices_do_reaches_further_up() -> None:
    loudness = EnergyEndpoint()
    for number in range(NOISE_HALVES // 2):
        loudness.loud_samples(tone(-44 if number % 5 == 0 else -40), is_speech=False)
    loudness.loud_samples(tone(-15), is_speech=True)
    assert kept_up(loudness, -44 + MAX_RANGE_DB - 2) == 0
    assert kept_up(loudness, -44 + MAX_RANGE_DB + 2) == FRAME


def test_a_voice_that_becomes_quieter_is_no_noise_for_long() -> None:
    loudness = in_noise(-34)
    for level_db in (-15.0, *[-27.0] * (VOICE_HALVES // 2)):
        loudness.loud_samples(tone(level_db), is_speech=True)
    assert loudness.loud_samples(tone(-27 - NOISE_BELOW_DB + 2), is_speech=True) == FRAME


def test_a_caller_as_quiet_as_the_noise_is_heard_again_after_a_shout() -> None:
    """What the noise explains may be the caller nevertheless."""
    loudness = in_noise(-40)
    loudness.loud_samples(tone(-10), is_speech=True)
    heard = [loudness.loud_samples(tone(-39), is_speech=True) for _ in range(4 * MAX_DISAGREED)]
    assert heard[: 3 * MAX_DISAGREED] == [0] * (3 * MAX_DISAGREED)
    assert heard[-1] == FRAME


def after_a_turn(noise_db: float, voice_db: float) -> EnergyEndpoint:
    loudness = in_noise(noise_db)
    loudness.loud_samples(tone(voice_db), is_speech=True)
    loudness.note_end()
    return loudness


def is_noise(loudness: EnergyEndpoint, level_db: float) -> bool:
    loudness.loud_samples(tone(level_db), is_speech=True)
    return loudness.is_noise


def test_after_a_turn_the_noise_begins_no_other() -> None:
    loudness = after_a_turn(-40, -20)
    assert is_noise(loudness, -40 + RANGE_DB - 2)
    assert not is_noise(loudness, -40 + RANGE_DB + 3)


def test_a_caller_nearly_as_loud_as_before_is_no_noise() -> None:
    loudness = after_a_turn(-25, -20)
    assert not is_noise(loudness, -20 - ONSET_BELOW_DB + 2)
    assert is_noise(loudness, -20 - ONSET_BELOW_DB - 2)


def test_nothing_is_noise_in_a_quiet_room_or_before_the_first_turn() -> None:
    assert not is_noise(after_a_turn(-80, -20), -60)
    assert not is_noise(in_noise(-40), -40)
