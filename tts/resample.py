"""Streaming resampler for speech output, without a seam between chunks.

A voice speaks at its own rate (16 to 24 kHz), a phone line hears 8 kHz. Resampling each chunk by
itself would put a click at every joint, so the filter's state is carried from chunk to chunk, and
the output does not depend on how the input was split. `soxr` does the work; this class fixes the
number format, and makes equal rates free.
"""

import numpy as np
import numpy.typing as npt
import soxr

Pcm = npt.NDArray[np.int16]

_QUALITY = "HQ"
"""Transparent at 16 bits. It holds back up to 80 ms (to 8 kHz; 42 ms for 22.05 to 24 kHz), because
soxr works in blocks; MQ holds as much. That delays nothing audible: a voice's chunk is longer, its
beginning comes out at once, and what stays inside is mostly the pause after the piece."""


class StreamResampler:
    """Resampler of int16 mono from `from_hz` to `to_hz`. One stream; any one thread."""

    def __init__(self, from_hz: int, to_hz: int) -> None:
        """Raises ValueError for rates that are not positive."""
        if from_hz <= 0 or to_hz <= 0:
            raise ValueError(f"sample rates are positive, not {from_hz} and {to_hz}")
        self.from_hz = from_hz
        self.to_hz = to_hz
        self._stream = self._new_stream()

    def _new_stream(self) -> soxr.ResampleStream | None:
        if self.from_hz == self.to_hz:
            return None
        return soxr.ResampleStream(self.from_hz, self.to_hz, 1, dtype="float32", quality=_QUALITY)

    def push(self, pcm: Pcm) -> Pcm:
        """Take in samples; returns those that are complete, possibly none."""
        if self._stream is None:
            return pcm
        # float32 inside: soxr dithers int16 at random, and no two runs would be equal.
        return _to_int16(self._stream.resample_chunk(pcm.astype(np.float32)))

    def flush(self) -> Pcm:
        """Return the rest of the stream, and start the next one."""
        if self._stream is None:
            return np.zeros(0, np.int16)
        rest = self._stream.resample_chunk(np.zeros(0, np.float32), last=True)
        self.reset()
        return _to_int16(rest)

    def reset(self) -> None:
        """Drop the audio held back, as after a barge-in."""
        self._stream = self._new_stream()


def _to_int16(samples: npt.NDArray[np.float32]) -> Pcm:
    # The filter overshoots at full scale; wrapping around would be a loud click.
    return np.clip(np.rint(samples), -32768, 32767).astype(np.int16)
