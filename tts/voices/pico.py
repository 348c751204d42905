"""Engine of the voices pico-de, pico-es and pico-fr: SVOX Pico by the extra `languages`.

Pico (Apache-2.0) is the synthesis of old Android telephones: clear and plain, 16 kHz, 1.5 MB a
voice, 200 times as fast as speech on one core. Its package, `py-nanotts`, calls it without letting
go of the interpreter, so other threads wait for 5 ms a second of speech; `MAX_CALL_CHARS` bounds
that to some 30 ms, and a first clause takes 10. It says nothing of the durations of words.
"""

from typing import Any, Final

import numpy as np

from .engine import RawSpeech, VoiceError

VOICES: Final = {"pico-de": "de-DE", "pico-es": "es-ES", "pico-fr": "fr-FR"}
"""Pico's names of the voices, by ours."""

OWN_SPEED: Final = {"fr-FR": 0.9}
"""Speed of voices that speak too fast. Of the French one the recognizer gets 14 % of the words
wrong at 1, 10 % at 0.9 and 11 % at 0.85 (24 sentences, `halfsec bench languages`)."""

MAX_CALL_CHARS: Final = 80
"""Spoken characters of one call, about 5 s of speech. More: all other threads, among them those of
other calls' audio, wait longer. Fewer: sentences are parted more often."""

_SPELLING: Final = str.maketrans({"<": " ", ">": " ", "\x00": " ", "œ": "oe", "Œ": "Oe"})
"""Pico reads <...> as commands, stops at a zero byte, and has a sound of "œ" that is plain "o": its
French lexicon has "oeuvre" and "oeufs" in two letters, and so are "sœur" and "cœur" read."""

MIN_SPEED: Final = 0.25
MAX_SPEED: Final = 4.0


class PicoEngine:
    """One Pico voice. The voice's data are read with every call."""

    rate_hz: Final = 16_000

    def __init__(self, name: str) -> None:
        """Raises `VoiceError` when there is no such voice, or the extra is not installed."""
        if name not in VOICES:
            raise VoiceError(f"there is no voice {name!r}; of Pico there are {', '.join(VOICES)}")
        self._voice = VOICES[name]
        self._pico = _import_pico().NanoTTS()

    def speak(self, line: str, speed: float = 1.0) -> RawSpeech:
        plain = line.translate(_SPELLING)
        if not any(map(str.isalnum, plain)):
            return RawSpeech(np.zeros(0, np.float32))
        own = OWN_SPEED.get(self._voice, 1.0)
        limited = max(MIN_SPEED, min(MAX_SPEED, own * speed))
        pcm = self._pico.speak(plain, voice=self._voice, speed=limited)
        return RawSpeech(np.frombuffer(pcm, "<i2").astype(np.float32) / np.float32(32768))


def _import_pico() -> Any:
    try:
        import py_nanotts
    except ImportError as error:
        raise VoiceError(
            "Voices of Pico need the package py-nanotts: pip install 'halfsec[languages]'."
        ) from error
    return py_nanotts
