"""Trimming of the engine's silence around a sentence, and pauses by punctuation.

Leading silence is latency: hibari puts 250-350 ms of it before every sentence. Trailing silence
differs between engines and sentences (160-500 ms), so pauses between pieces would depend on the
voice and on where a reply happened to be cut. Both are trimmed to the speech itself; the pause
after it then follows the punctuation.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Samples = npt.NDArray[np.float32]

_WINDOW_MS = 5.0
_THRESHOLD_BELOW_PEAK_DB = 42.0
"""Speech begins at the first 5 ms window this close to the loudest one. At 30 dB the "s" of "sure"
and the "h" of "hello" lose their beginning; at 50 dB Piper's noise floor counts as speech."""
_FLOOR_RMS = 1e-4
"""Below -80 dBFS everything is silence, however quiet the loudest window is."""
LEAD_MS = 8.0
"""Kept before the first window of speech: it holds the soft onset, and the fade."""
_TAIL_MS = 30.0
"""Kept after the last one: a final vowel decays under the threshold for about so long."""
_FADE_IN_MS = 4.0
_FADE_OUT_MS = 12.0
"""Raised cosines. Shorter ones click in headphones, longer ones eat consonants."""

PAUSE_MS = {
    "": 20.0,
    ",": 120.0,
    ":": 180.0,
    ";": 180.0,
    ".": 250.0,
    "!": 250.0,
    "?": 280.0,
    "…": 350.0,
}
"""Silence after a piece that ends with this mark. No mark: the reply was cut between two words."""
PARAGRAPH_PAUSE_MS = 350.0
"""After a line break: list items and paragraphs are set apart."""


@dataclass(frozen=True, slots=True)
class Voiced:
    """Extent of the speech in a synthesized sentence, in samples."""

    start: int
    """First sample of speech."""
    end: int
    """Sample after the last one."""


def find_voiced(samples: Samples, rate_hz: int) -> Voiced | None:
    """Find the stretch from the first to the last window that is speech; None for silence."""
    window = max(1, round(rate_hz * _WINDOW_MS / 1000))
    num_windows = len(samples) // window
    if not num_windows:
        return None
    framed = samples[: num_windows * window].reshape(num_windows, window)
    rms = np.sqrt(np.mean(np.square(framed, dtype=np.float32), axis=1))
    threshold = max(_FLOOR_RMS, float(rms.max()) * 10 ** (-_THRESHOLD_BELOW_PEAK_DB / 20))
    loud = np.flatnonzero(rms > threshold)
    if not len(loud):
        return None
    return Voiced(int(loud[0]) * window, (int(loud[-1]) + 1) * window)


def pause_after(mark: str, *, paragraph: bool = False) -> float:
    """Silence after a piece with this last mark, milliseconds."""
    pause = PAUSE_MS.get(mark, PAUSE_MS["."])
    return max(pause, PARAGRAPH_PAUSE_MS) if paragraph else pause


def trim(samples: Samples, voiced: Voiced, rate_hz: int, pause_ms: float) -> tuple[Samples, int]:
    """Cut out the speech, with short fades, followed by `pause_ms` of silence.

    Returns the samples, and the number cut off in front, by which word times must be shifted.
    """
    first = max(0, voiced.start - round(rate_hz * LEAD_MS / 1000))
    last = min(len(samples), voiced.end + round(rate_hz * _TAIL_MS / 1000))
    speech = samples[first:last].copy()
    _fade(speech, rate_hz)
    # The tail that was kept is part of the pause.
    kept_tail = last - voiced.end
    silence = max(0, round(rate_hz * pause_ms / 1000) - kept_tail)
    return np.concatenate([speech, np.zeros(silence, np.float32)]), first


def _fade(speech: Samples, rate_hz: int) -> None:
    fade_in = min(len(speech), round(rate_hz * _FADE_IN_MS / 1000))
    fade_out = min(len(speech), round(rate_hz * _FADE_OUT_MS / 1000))
    if fade_in:
        speech[:fade_in] *= _raised_cosine(fade_in)
    if fade_out:
        speech[-fade_out:] *= _raised_cosine(fade_out)[::-1]


def _raised_cosine(num_samples: int) -> Samples:
    """Half a raised cosine from exactly 0, so that neither end of a piece clicks."""
    phase = np.arange(num_samples, dtype=np.float32) / num_samples
    return (0.5 - 0.5 * np.cos(np.pi * phase)).astype(np.float32)
