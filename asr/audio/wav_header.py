"""Length of a WAV file's audio, from its header or from the file's size."""

import io
from pathlib import Path
from typing import BinaryIO, Final

from asr.errors import AudioError

from .stated_length import MAX_CHUNKS

_STREAMED: Final = 0xFFFFFFFF
"""Length in the header of a WAV streamed to a pipe. libsndfile reads on to the end."""


class SoundBytes(io.FileIO):
    """The bytes of a sound file as libsndfile reads them through soundfile's callbacks, where an
    exception of a seek to nowhere, which damaged files cause, would only print a traceback."""

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Stays where it is if there is no such position: libsndfile asks where it is."""
        try:
            return super().seek(offset, whence)
        except (OSError, OverflowError):
            return self.tell()


class OpenEndedWav(SoundBytes):
    """A WAV file whose header states a length of 0, read as if it stated the real one.

    Programs that write the length at the end leave 0 there when they can't: into a pipe, or when
    they were killed. libsndfile takes that literally.
    """

    def __init__(self, path: Path, data_at: int) -> None:
        """`data_at`: offset of the audio, bytes; its length stands just before."""
        super().__init__(path)
        length = min(path.stat().st_size - data_at, _STREAMED - 1)
        self._first = data_at - 4
        self._length = length.to_bytes(4, "little")

    def readinto(self, buffer: "bytearray | memoryview") -> int:  # type: ignore[override]
        first = self.tell()
        num_read = super().readinto(buffer) or 0
        view = memoryview(buffer)
        for position, byte in enumerate(self._length, self._first - first):
            if 0 <= position < num_read:
                view[position : position + 1] = bytes([byte])
        return num_read


def audio_begins(path: Path, name: str) -> int | None:
    """Offset of audio whose length the header leaves at 0, bytes; None where the header is right.

    Raises AudioError where the header states more than there is: libsndfile shortens that silently;
    and where the audio has too many chunks before it.
    """
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(12)
        for _ in range(MAX_CHUNKS):
            header = file.read(8)
            if len(header) < 8:
                return None
            length = int.from_bytes(header[4:], "little")
            if header[:4] == b"data":
                begins = file.tell()
                if length == 0:
                    return None if _only_chunks(file, size) else begins
                if length != _STREAMED and begins + length > size:
                    raise AudioError(
                        f"{name}: the file is cut short: {size - begins} of {length} bytes of "
                        "audio are there"
                    )
                return None
            file.seek(length + length % 2, 1)
    raise AudioError(f"{name}: none of its first {MAX_CHUNKS} chunks is audio")


def _only_chunks(file: BinaryIO, size: int) -> bool:
    """The rest of the file is RIFF chunks, `MAX_CHUNKS` at most, or nothing."""
    for _ in range(MAX_CHUNKS):
        header = file.read(8)
        if len(header) < 8:
            return not header
        if not header[:4].isascii() or not header[:4].decode().isprintable():
            return False
        length = int.from_bytes(header[4:], "little")
        if file.seek(length + length % 2, 1) > size + 1:
            return False
    return False
