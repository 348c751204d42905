"""MP3 reader by dr_mp3 (in miniaudio), which writes nothing to stderr.

libsndfile reads MP3 too, by libmpg123, which writes a line to the process's stderr for each frame
that it can't decode: 8 MB of junk are 66,000 lines in our log, past every setting of it. dr_mp3
skips such frames silently, and quickly refuses a file without frames that fit together.
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
"""First bytes of MP3 files."""


class Mp3File:
    """One MP3 file, with the part of `soundfile.SoundFile`'s interface that `files.py` uses."""

    def __init__(self, path: Path, name: str) -> None:
        """Read the length. Raises AudioError for a file that is no MP3, calling it `name`."""
        try:
            info = miniaudio.mp3_get_file_info(str(path))
        except miniaudio.DecodeError:
            problem = "not readable as audio: there are no MP3 frames that fit together"
            raise AudioError(f"{name}: {problem}") from None
        self.channels: Final[int] = info.nchannels
        self.samplerate: Final[int] = info.sample_rate
        self.frames: Final[int] = info.num_frames
        """Samples of one channel: from the first frame's header, or else counted."""
        self._path = path

    def blocks(self, block_s: float) -> Generator[NDArray[np.float32], None, None]:
        """Decode float32 [n, channels] blocks. Ending or closing the iterator closes the file."""
        num_each = max(1, int(self.samplerate * block_s))
        for block in miniaudio.mp3_stream_file(str(self._path), num_each):
            samples = np.frombuffer(block, np.int16).reshape(-1, self.channels)
            yield samples.astype(np.float32) / np.float32(32768)
