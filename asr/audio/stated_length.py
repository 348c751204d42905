"""Check that a file holds the audio that its header states: AIFF, AU, CAF, RF64, W64 and Ogg.

libsndfile shortens a file that was cut off on its way, and says nothing: half a recording would be
transcribed as if it were whole. WAV is checked in `wav_header.py`; FLAC states its number of
frames, which the reader compares; MP3 has its own reader.
"""

from pathlib import Path
from typing import BinaryIO, Final

from asr.errors import AudioError

MAX_CHUNKS: Final = 1000
"""A file of chunks without contents must not be walked for ever. Real ones have a dozen."""

_MAX_PAGE: Final = 65_307
"""Largest size of an Ogg page, bytes."""

_PAGE_HEADER: Final = 27
_LAST_PAGE: Final = 4
_OPEN_ENDED: Final = (0, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF)
"""Lengths of audio that a program states when it does not know them yet."""


def check_stated_length(path: Path, start: bytes, name: str) -> None:
    """Raise AudioError where the file is shorter than its header says. `start`: its first four
    bytes; other formats pass."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        stated: int | None
        if start == b"FORM":
            stated = _end_of_chunk(file, size, b"SSND", first=12, size_bytes=4)
        elif start == b"caff":
            stated = _end_of_chunk(file, size, b"data", first=8, size_bytes=8)
        elif start == b".snd":
            stated = _end_of_au(file)
        elif start == b"RF64":
            stated = _end_of_rf64(file, size)
        elif start == b"riff":
            stated = _end_of_w64(file, size)
        elif start == b"OggS":
            stated = _end_of_last_page(file, size)
        else:
            return
    if stated is None:
        raise AudioError(f"{name}: the file is cut short: it has no end of its audio")
    if stated > size:
        raise AudioError(f"{name}: the file is cut short: {size} of {stated} bytes are there")


def _end_of_chunk(
    file: BinaryIO, size: int, wanted: bytes, *, first: int, size_bytes: int
) -> int | None:
    """End of the chunk of this name, of big-endian chunks with padding to even sizes (AIFF; of CAF
    without); None where there is none."""
    pads = size_bytes == 4
    at = first
    for _ in range(MAX_CHUNKS):
        file.seek(at)
        header = file.read(4 + size_bytes)
        if len(header) < 4 + size_bytes:
            return None
        length = int.from_bytes(header[4:], "big")
        begins = at + len(header)
        if header[:4] == wanted:
            return size if length in _OPEN_ENDED else begins + length
        at = begins + length + (length % 2 if pads else 0)
        if at > size:
            return None
    return None


def _end_of_au(file: BinaryIO) -> int | None:
    file.seek(0)
    header = file.read(24)
    if len(header) < 24:
        return None
    begins, length = (int.from_bytes(header[at : at + 4], "big") for at in (4, 8))
    return begins if length in _OPEN_ENDED else begins + length


def _end_of_rf64(file: BinaryIO, size: int) -> int | None:
    """`ds64` has the length of the audio, where `data` has none (EBU Tech 3306)."""
    at, audio = 12, 0
    for _ in range(MAX_CHUNKS):
        file.seek(at)
        header = file.read(8)
        if len(header) < 8:
            return None
        length = int.from_bytes(header[4:], "little")
        if header[:4] == b"ds64":
            audio = int.from_bytes(file.read(16)[8:], "little")
        if header[:4] == b"data":
            length = audio if length in _OPEN_ENDED else length
            return size if length in _OPEN_ENDED else at + 8 + length
        at += 8 + length + length % 2
    return None


def _end_of_w64(file: BinaryIO, size: int) -> int | None:
    """Chunks of Sony's Wave64: a name of 16 bytes, the length with this header in it, and padding
    to a multiple of 8."""
    at = 40
    for _ in range(MAX_CHUNKS):
        file.seek(at)
        header = file.read(24)
        if len(header) < 24:
            return None
        length = int.from_bytes(header[16:], "little")
        if header[:4] == b"data":
            return size if length in _OPEN_ENDED else at + length
        at += max(len(header), length + -length % 8)
        if at > size:
            return None
    return None


def _end_of_last_page(file: BinaryIO, size: int) -> int | None:
    """End of the last page of an Ogg file, which must be marked as the last (RFC 3533, section 6).
    A page that lost a part of its table of segments is counted as one that lost its first byte."""
    first = max(0, size - 2 * _MAX_PAGE)
    file.seek(first)
    end = file.read()
    page = end.rfind(b"OggS")
    if page < 0 or len(end) < page + _PAGE_HEADER or not end[page + 5] & _LAST_PAGE:
        return None
    num_segments = end[page + _PAGE_HEADER - 1]
    segments = end[page + _PAGE_HEADER : page + _PAGE_HEADER + num_segments]
    if len(segments) < num_segments:
        return size + 1
    return first + page + _PAGE_HEADER + num_segments + sum(segments)
