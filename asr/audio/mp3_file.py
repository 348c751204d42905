"""MP3 files, read by a decoder that keeps what it thinks of them to itself.

libsndfile reads them too, by libmpg123, which writes a line to the process's stderr for each frame
that it can't make sense of: 8 MB of a stranger's junk are 66,000 lines in our log, past every
setting of it. dr_mp3 (in miniaudio) leaves such frames out without a word, and is quick to refuse
what has none that fit together.
"""

from collections.abc import Generator
from pathlib import Path
from typing import Final

import miniaudio
import numpy as np
from numpy.typing import NDArray

from asr.errors import AudioError

MAGIC: Final = (
    b"ID3",
    *(bytes([0xFF, second]) for second in (0xFB, 0xFA, 0xF3, 0xF2, 0xE3, 0xE2)),  # layer III
)
"""How such files begin."""


class Mp3File:
    """As much of a `soundfile.SoundFile` as reading from the beginning to the end takes."""

    def __init__(self, path: Path, name: str) -> None:
        """Reads how long it is. Raises AudioError for what is no MP3, calling it `name`."""
        try:
            info = miniaudio.mp3_get_file_info(str(path))
        except miniaudio.DecodeError:
            problem = "not readable as audio: there are no MP3 frames that fit together"
            raise AudioError(f"{name}: {problem}") from None
        self.channels: Final[int] = info.nchannels
        self.samplerate: Final[int] = info.sample_rate
        self.frames: Final[int] = info.num_frames
        """Samples of one channel: as the first frame says, or else counted."""
        self._path = path

    def blocks(self, block_s: float) -> Generator[NDArray[np.float32], None, None]:
        """[n, channels] each. Nothing stays open when the iterator has ended, or is closed."""
        num_each = max(1, int(self.samplerate * block_s))
        for block in miniaudio.mp3_stream_file(str(self._path), num_each):
            samples = np.frombuffer(block, np.int16).reshape(-1, self.channels)
            yield samples.astype(np.float32) / np.float32(32768)
