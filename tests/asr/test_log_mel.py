import numpy as np
import numpy.typing as npt
import pytest
from faster_whisper.feature_extractor import FeatureExtractor

from asr.audio.files import read_file
from asr.recognition.log_mel import WINDOW, LogMel
from tests.asr.test_files import RECORDINGS

Pcm = npt.NDArray[np.float32]
SECONDS = 10 * 16_000


def assert_alike(pcm: Pcm) -> None:
    """That silence left out changes nothing."""
    slow = FeatureExtractor(feature_size=80)
    quick = LogMel(FeatureExtractor.get_mel_filters(16_000, WINDOW, 80))
    ours = quick(pcm)
    assert ours.dtype == np.float32
    np.testing.assert_allclose(ours, slow(pcm, padding=0), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["conf-locked.wav", "ill-disposed.wav", "vm-changeto.wav"])
def test_the_features_of_a_recording_between_silences(name: str) -> None:
    pcm = np.zeros(SECONDS, np.float32)
    said = read_file(RECORDINGS / name)[: SECONDS - 3200]
    pcm[3200 : 3200 + len(said)] = said
    assert_alike(pcm)


@pytest.mark.parametrize("at", [0, 1, 159, 160, 199, 200, 201, 360, 400, 16_000])
@pytest.mark.parametrize("end", [0, 1, 40, 41, 160, 200, 201, 7_999])
def test_sound_that_begins_and_ends_anywhere(at: int, end: int) -> None:
    pcm = np.random.default_rng(at).standard_normal(32_000).astype(np.float32)
    pcm[:at] = 0
    pcm[len(pcm) - end :] = 0
    assert_alike(pcm)


def test_silence_and_a_single_sample() -> None:
    pcm = np.zeros(1_600, np.float32)
    assert_alike(pcm)
    pcm[777] = 0.5
    assert_alike(pcm)


def test_samples_behind_the_last_whole_frame() -> None:
    assert_alike(np.random.default_rng(1).standard_normal(16_123).astype(np.float32))
