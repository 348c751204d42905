"""Stereo recording of a simulated call: caller left, agent right, on one time axis.

The left channel has each sample where it was spoken, the right one each sample where it was played.
Both count from the microphone's first sample, so that the distance of two sounds in the file is the
latency that a person at the caller's end would have measured.
"""

import io
from pathlib import Path

import numpy as np
import soundfile

from agent.errors import BenchError
from latency_budget.storage.private_files import write_private_file

from .microphone import Microphone
from .playback import SimulatedPlayback
from .spoken_turn import Int16


def stereo(microphone: Microphone, loudspeaker: SimulatedPlayback) -> Int16:
    """Both channels as int16 [n, 2] at the microphone's rate. Both parts need `record`. Replies of
    another rate are left out."""
    spoken = microphone.recording()
    heard = loudspeaker.recording(microphone.rate_hz, microphone.started_ns)
    sound = np.zeros((max(len(spoken), len(heard)), 2), np.int16)
    sound[: len(spoken), 0] = spoken
    sound[: len(heard), 1] = heard
    return sound


def write_stereo(path: Path, sound: Int16, rate_hz: int) -> None:
    """Write a WAV of 16 bits. Raises BenchError."""
    try:
        write_private_file(path, wave_bytes(sound, rate_hz))
    except OSError as error:
        raise BenchError(f"Can't write {path}: {error.strerror}") from None


def wave_bytes(sound: Int16, rate_hz: int) -> bytes:
    """A WAV file of 16 bits with these samples, int16 [n] or [n, channels]."""
    file = io.BytesIO()
    soundfile.write(file, sound, rate_hz, format="WAV", subtype="PCM_16")
    return file.getvalue()
