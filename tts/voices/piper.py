"""Engine of Piper voices, by the `piper-tts` package: GPL-3, an extra imported only when chosen.

Piper's package opens its ONNX session with default options (all cores, spinning); here the session
is ours and the package does what it is needed for: espeak's phonemes and their ids.
"""

import json
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tts.onnx_session import open_session
from tts.word_times import PhonemeGroup

from .engine import RawSpeech, VoiceError, joined

_DURATIONS = "/Ceil_output_0"
"""The tensor of durations in the graphs that Piper's exporter writes, in hops of the vocoder."""


class PiperEngine:
    """One loaded Piper voice."""

    def __init__(self, name: str, model: Path, *, threads: int) -> None:
        """Raises `VoiceError` when the extra is not installed or the model cannot be read."""
        self._piper = _import_piper()
        try:
            settings = json.loads(Path(f"{model}.json").read_text(encoding="utf-8"))
            config = self._piper.PiperConfig.from_dict(settings)
            session = open_session(model, threads=threads, extra_output=_DURATIONS)
        except Exception as error:
            raise VoiceError(
                f"the voice {name} cannot be loaded from {model} ({error}); get it again from "
                "where it came (one of halfsec's own: `halfsec models fetch`)"
            ) from error
        self._voice = self._piper.PiperVoice(config=config, session=session)
        self.rate_hz: int = config.sample_rate

    def speak(self, line: str, speed: float = 1.0) -> RawSpeech:
        sentences = self._voice.phonemize(line)
        return joined([self._speak_phonemes(phonemes, speed) for phonemes in sentences])

    def _speak_phonemes(self, phonemes: list[str], speed: float) -> RawSpeech:
        ids: list[int] = self._voice.phonemes_to_ids(phonemes)
        length = self._voice.config.length_scale / speed
        settings = self._piper.SynthesisConfig(length_scale=length)
        result = self._voice.phoneme_ids_to_audio(ids, settings, include_alignments=True)
        samples, durations = result if isinstance(result, tuple) else (result, None)
        flat = np.atleast_1d(np.asarray(samples, np.float32))
        if durations is None or len(durations) != len(ids):
            return RawSpeech(flat)
        return RawSpeech(flat, self._groups(ids, durations))

    def _groups(
        self, ids: Sequence[int], durations: npt.NDArray[np.int64]
    ) -> tuple[PhonemeGroup, ...]:
        """Samples of phoneme ids between blanks; pads belong to the phoneme before them."""
        id_map = self._voice.config.phoneme_id_map
        blank = id_map[" "][0]
        silent = {id_map[mark][0] for mark in ("_", "^", "$") if mark in id_map}
        edges = np.concatenate([[0], np.cumsum(durations)])
        groups: list[PhonemeGroup] = []
        for is_blank, run in groupby(range(len(ids)), key=lambda index: ids[index] == blank):
            indices = [index for index in run if ids[index] not in silent]
            if not is_blank and indices:
                first, last = int(edges[indices[0]]), int(edges[indices[-1] + 1])
                groups.append(PhonemeGroup(first, last))
        return tuple(groups)


def _import_piper() -> Any:
    try:
        import piper
    except ImportError as error:
        raise VoiceError(
            "Piper voices need the package piper-tts, which is under GPL-3 and therefore not "
            "installed by default. If its terms suit you: pip install 'halfsec[piper]'. The voice "
            "hibari needs nothing more."
        ) from error
    return piper
