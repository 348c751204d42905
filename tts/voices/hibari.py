"""Engine of hibari, the default voice: Apache-2.0, weights in the wheel, 24 kHz, four times Piper's
speed.

The package's own `Hibari` class splits and normalizes text and opens its session itself; we have
done the first two, and need our own session options, so its parts are used one by one: text to
phonemes, phonemes to spectra (ONNX), spectra to samples (numpy).
"""

import base64
import hashlib
import importlib.metadata
import json
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import hibari.dsp
import hibari.g2p
import hibari.voices
import numpy as np
import numpy.typing as npt

from tts.onnx_session import open_session
from tts.trim import Samples
from tts.word_times import PhonemeGroup

from .engine import RawSpeech, VoiceError, joined

_DURATIONS = "/Round_output_0"
"""The tensor of phoneme durations in hibari 0.2's graph, in steps of `_STEP_SAMPLES`."""
_STEP_SAMPLES = 2 * hibari.dsp.HOP
_MAX_PHONEMES = 400
"""Longest input of the network's training."""
_SEED = 20250101
"""Consonants are shaped noise; with a fixed seed the same text is the same audio."""


class HibariEngine:
    """One loaded hibari voice: "hibari", or "hibari-emma" and the like if downloaded before."""

    rate_hz: int = hibari.dsp.SR

    def __init__(self, name: str, *, threads: int) -> None:
        """Raises `VoiceError` for a voice that is not on this machine."""
        voice = name.removeprefix("hibari").removeprefix("-") or hibari.voices.DEFAULT
        if voice not in hibari.voices.VOICES:
            known = ", ".join(f"hibari-{known}" for known in hibari.voices.VOICES)
            raise VoiceError(f"hibari has no voice {voice!r}; it has {known}")
        try:
            _check_files()
            model = Path(hibari.voices.voice_path(voice, download_missing=False))
            vocabulary = Path(hibari.voices.ASSETS, "vocab.json")
            self._ids: dict[str, int] = json.loads(vocabulary.read_text(encoding="utf-8"))
            self._session = open_session(model, threads=threads, extra_output=_DURATIONS)
            self._g2p = hibari.g2p.G2P(british=hibari.voices.VOICES[voice]["british"])
        except FileNotFoundError as error:
            raise VoiceError(
                f"the voice {name} is not on this machine ({error.filename or error}): run "
                f"`hibari hello --voice {voice} -o hello.wav` once to download it"
            ) from error
        except Exception as error:
            raise VoiceError(
                f"the voice {name} cannot be loaded ({error}); reinstall it with "
                "`pip install --force-reinstall hibari-tts`"
            ) from error

    def speak(self, line: str, speed: float = 1.0) -> RawSpeech:
        # The line is words already; a second normalization could only change what was decided.
        phonemes: str = self._g2p(line, normalize_text=False)
        known = [phoneme for phoneme in phonemes if phoneme in self._ids]
        return joined([self._speak_phonemes(part, speed) for part in _parts(known)])

    def _speak_phonemes(self, phonemes: Sequence[str], speed: float) -> RawSpeech:
        ids = np.array([[0, *(self._ids[phoneme] for phoneme in phonemes), 0]], np.int64)
        outputs = self._session.run(None, {"ids": ids, "speed": np.full(1, speed, np.float32)})
        spectra = [np.asarray(output)[0] for output in outputs[:6]]
        samples: Samples = hibari.dsp.synth(*spectra, np.random.default_rng(_SEED))
        durations = np.ravel(outputs[6]) if len(outputs) > 6 else np.zeros(0)
        # A later hibari may number its tensors anew: then there are no durations.
        is_known = len(durations) == ids.shape[1]
        return RawSpeech(samples, _groups(phonemes, durations) if is_known else ())


def _check_files() -> None:
    """Raise ValueError for a data file that is not as the package was built: its record has the
    hashes. Without a record, as of a copy that pip did not install, nothing is checked."""
    folder = Path(hibari.__file__).parent
    try:
        files = importlib.metadata.files("hibari-tts") or []
    except importlib.metadata.PackageNotFoundError:
        return
    for file in files:
        path = folder.joinpath(*file.parts[1:])
        if file.hash is None or file.hash.mode != "sha256" or file.parts[1:2] != ("assets",):
            continue
        if not path.is_file():
            raise ValueError(f"{file.name} is missing")
        digest = base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest())
        if digest.decode().rstrip("=") != file.hash.value:
            raise ValueError(f"{file.name} is damaged")


def _parts(phonemes: Sequence[str]) -> list[Sequence[str]]:
    """Split phonemes into parts of at most `_MAX_PHONEMES`, at a blank where there is one."""
    parts: list[Sequence[str]] = []
    start = 0
    while len(phonemes) - start > _MAX_PHONEMES:
        limit = start + _MAX_PHONEMES
        blanks = [index for index in range(start + 1, limit) if phonemes[index] == " "]
        end = blanks[-1] if blanks else limit
        parts.append(phonemes[start:end])
        start = end
    if start < len(phonemes):
        parts.append(phonemes[start:])
    return parts


def _groups(
    phonemes: Sequence[str], durations: npt.NDArray[np.float64]
) -> tuple[PhonemeGroup, ...]:
    """Samples of the phonemes between blanks. The first and last duration are the pads'."""
    edges = np.concatenate([[0], np.cumsum(durations)]).astype(np.int64) * _STEP_SAMPLES
    groups: list[PhonemeGroup] = []
    for is_blank, run in groupby(enumerate(phonemes, start=1), key=lambda item: item[1] == " "):
        indices = [index for index, _ in run]
        if not is_blank:
            first, last = int(edges[indices[0]]), int(edges[indices[-1] + 1])
            groups.append(PhonemeGroup(first, last))
    return tuple(groups)
