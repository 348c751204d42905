"""Backchannel sounds: "mm-hmm" and the like, from a listening caller.

Synthesized by the voice of the settings, so that a fresh machine has them, or the recordings of a
folder, each named for its words ("mm-hmm.wav"). A synthesized "yeah" is not a person's, and in the
agent's own voice it is harder to tell from the agent's echo: results name the source.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from agent.client.simulated_caller.microphone import RecordingError, load_recording
from agent.client.simulated_caller.spoken_turn import Int16
from agent.errors import BenchError

from .recordings import SUFFIXES

WORDS: Final = ("mm-hmm", "yeah", "okay", "right")

MAX_S: Final = 2.0
"""Greatest length of a recording in s: a longer one is a turn."""


@dataclass(frozen=True, slots=True)
class Backchannel:
    """One backchannel sound."""

    words: str
    pcm: Int16
    """[n], mono."""
    rate_hz: int


def synthesized() -> tuple[str, list[Backchannel]]:
    """Name of the source, and `WORDS` in the voice of the settings. Raises BenchError."""
    import tts  # imports take seconds, and only this option needs them
    from agent.config.sources import read_config
    from agent.stages.model_store.catalogue import ModelStore, ModelStoreError
    from tts.text_chunker import SpeakablePiece

    name = read_config().tts.voice
    made = []
    try:
        voice = tts.load_voice(name, ModelStore().directory)
        for words in WORDS:
            text = f"{words.capitalize()}."
            piece = SpeakablePiece(text, (0, len(text)), 0, is_last=True)
            pcm = np.concatenate([chunk.pcm for chunk in voice.synthesize(piece)])
            made.append(Backchannel(words, pcm, voice.rate_hz))
    except (tts.VoiceError, ModelStoreError) as error:
        raise BenchError(f"No backchannels can be made: {error}") from None
    return f"synthesized ({name})", made


def recorded(folder: Path) -> tuple[str, list[Backchannel]]:
    """Name of the source, and the short recordings of a folder and those within it (a voice each,
    `benchmarks/overlaps/clips.py`), by name. Raises BenchError."""
    found: list[Backchannel] = []
    files: Sequence[Path] = sorted(folder.rglob("*"))
    for path in files:
        if path.suffix.lower() not in SUFFIXES:
            continue
        try:
            pcm, rate_hz = load_recording(path)
        except RecordingError as error:
            raise BenchError(str(error)) from None
        if len(pcm) <= MAX_S * rate_hz:
            found.append(Backchannel(path.stem, pcm, rate_hz))
    if not found:
        raise BenchError(f"There is no recording of at most {MAX_S:g} s in {folder}.")
    return f"recorded ({folder})", found
