"""Loudness normalization: one level for every piece and every voice.

A caller should not reach for the volume when the second sentence starts or the voice changes.
Peaks say little about loudness, and scaling every piece to full range (what Piper does by default)
makes a short "Yes." shout, so the measure is the RMS of the parts that are speech, and each piece
is moved to one target. How far is bounded: a piece that is quiet on purpose, or hardly contains
speech, stays somewhat quiet.
"""

import numpy as np
import numpy.typing as npt

from .trim import Samples

TARGET_DBFS = -20.0
"""RMS of active speech. ITU-T P.56 practice for telephony is -26 dBov; browsers and phones play
assistants at -16 to -20. Louder than this and the peaks of speech (16-18 dB above) are limited."""
_GATE_DB = 20.0
"""Frames this far under the loudest one are pauses and do not count."""
_FRAME_MS = 20.0
_MAX_DEVIATION_DB = 4.0
"""Largest difference of a piece's gain from the voice's own. Less leaves "Yes." audibly quieter
than the sentence after it (3 dB with hibari and Piper); more lifts breaths and near-silent
pieces."""
_KNEE = 0.7
_CEILING = 0.95
"""Above the knee peaks are bent towards the ceiling: int16 never clips."""


def active_dbfs(samples: Samples, rate_hz: int) -> float | None:
    """Measure the RMS of the frames that are speech, in dB of full scale; None for silence."""
    frame = max(1, round(rate_hz * _FRAME_MS / 1000))
    num_frames = max(1, len(samples) // frame)
    usable = samples[: num_frames * frame]
    if not len(usable):
        return None
    framed = usable.reshape(num_frames, -1)
    energy = np.mean(np.square(framed, dtype=np.float64), axis=1)
    loudest = float(energy.max())
    if loudest < 1e-10:
        return None
    active = energy[energy > loudest * 10 ** (-_GATE_DB / 10)]
    return float(10 * np.log10(active.mean()))


def gain_db(level_dbfs: float, voice_gain_db: float) -> float:
    """Gain for a piece of this level, near the gain that suits its voice."""
    wanted = TARGET_DBFS - level_dbfs
    low, high = voice_gain_db - _MAX_DEVIATION_DB, voice_gain_db + _MAX_DEVIATION_DB
    return min(max(wanted, low), high)


def apply_gain(samples: Samples, gain: float) -> Samples:
    """Scale by `gain` dB and bend the peaks. Any thread."""
    scaled = samples * np.float32(10 ** (gain / 20))
    magnitude = np.abs(scaled)
    over = magnitude > _KNEE
    if np.any(over):
        room = _CEILING - _KNEE
        bent = _KNEE + room * np.tanh((magnitude[over] - _KNEE) / room)
        scaled[over] = np.copysign(bent, scaled[over])
    return scaled


def to_int16(samples: Samples) -> npt.NDArray[np.int16]:
    """Convert float32 in [-1, 1] to 16-bit PCM."""
    scaled: Samples = np.rint(np.clip(samples, -1.0, 1.0) * np.float32(32767.0))
    return scaled.astype(np.int16)
