"""Voices of other packages: loaded by name, checked at each sentence."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tts
from engine_plugins.contract import ContractError
from tests.support.plugins import Install
from tests.tts.test_voice import HummingEngine, speak
from tts import RawSpeech, VoiceError
from tts.voice import PostprocessedVoice
from tts.voices.plugin import CheckedEngine

pytest_plugins = ["tests.support.plugin_fixtures"]

SOURCE = """
    from tests.tts.test_voice import HummingEngine

    class Hum(HummingEngine):
        def __init__(self, argument, options):
            super().__init__()
            self.rate_hz = RATE
            self.threads = options.threads
"""


def test_a_plugin_is_a_voice_by_its_name(install: Install, tmp_path: Path) -> None:
    install("mine", "halfsec.voices", "hum = hum_voice:Hum", SOURCE.replace("RATE", "22_050"))
    voice = tts.load_voice("hum:low", tmp_path, threads=2)
    assert (voice.name, voice.rate_hz) == ("hum:low", 22_050)
    voice.warm()
    (chunk,) = speak(voice, "Hello there.")
    assert chunk.rate_hz == 22_050
    assert len(chunk.word_times) == 2


@pytest.mark.parametrize("rate", ["0", "7_999", "48_001", "-16_000", "16_000.5", "'16000'", "True"])
def test_an_odd_rate_is_refused_when_it_is_loaded(
    install: Install, tmp_path: Path, rate: str
) -> None:
    install("mine", "halfsec.voices", "hum = hum_voice:Hum", SOURCE.replace("RATE", rate))
    with pytest.raises(VoiceError, match=r"the voice hum:low has rate_hz = .*8000 to 48000.*resam"):
        tts.load_voice("hum:low", tmp_path)


@pytest.mark.parametrize("rate_hz", [8_000, 11_025, 22_051, 44_100, 48_000])
def test_any_rate_of_speech_passes_the_contract(rate_hz: int) -> None:
    engine = HummingEngine()
    engine.rate_hz = rate_hz
    assert len(tts.check_voice(engine)) == 9


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (np.zeros(9, np.float32), "returned ndarray, and must return tts.RawSpeech"),
        (RawSpeech(np.zeros(9, np.int16)), r"samples that are int16 \[9\], and must return a fl"),
        (RawSpeech(np.zeros((1, 9), np.float32)), r"samples that are float32 \[1, 9\]"),
        (RawSpeech([0.0]), r"samples that are list \[\]"),  # type: ignore[arg-type]
        (RawSpeech(np.full(9, np.nan, np.float32)), r"not finite \(NaN or infinite\)"),
    ],
)
def test_what_is_no_speech_is_named(result: Any, said: str) -> None:
    class Wrong(HummingEngine):
        def speak(self, line: str, speed: float = 1.0) -> Any:
            return result

    voice = PostprocessedVoice(CheckedEngine(Wrong(), "the voice hum:"), "hum:")
    with pytest.raises(
        VoiceError, match=rf"the voice hum: could not speak \d+ characters: .*{said}"
    ):
        voice.warm()


def test_an_error_s_text_goes_to_the_log_only(caplog: pytest.LogCaptureFixture) -> None:
    """It may hold an address with a key, and the voice's error is sent to clients."""

    class Broken(HummingEngine):
        def speak(self, line: str, speed: float = 1.0) -> RawSpeech:
            raise OSError("401 for https://api/speak?key=SECRET")

    voice = PostprocessedVoice(CheckedEngine(Broken(), "the voice hum:"), "hum:")
    with pytest.raises(VoiceError, match=r"OSError$") as caught:
        voice.warm()
    assert "SECRET" not in str(caught.value)
    assert "SECRET" in caplog.text


def test_the_contract_names_what_is_broken() -> None:
    class Deaf(HummingEngine):
        def speak(self, line: str, speed: float = 1.0) -> RawSpeech:
            return super().speak(line)

    with pytest.raises(ContractError, match=r"^speaks faster.*is `speed` used\?$"):
        tts.check_voice(Deaf())
