"""Sound files of any rate and channel count as a stream of 16 kHz blocks.

WAV, FLAC, OGG and whatever else libsndfile reads. A file is never held whole: ten minutes of
stereo at 48 kHz would be 230 MB of floats.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
import soundfile

from .audio import Pcm
from .errors import AudioError
from .resample import Resampler

BLOCK_S: Final = 1.0
"""Read at a time. Smaller spends its time in calls, larger only memory."""


def read_blocks(path: Path) -> Iterator[Pcm]:
    """The file at `path` as float32 [n] blocks, 16 kHz mono, about a second each.

    Raises AudioError, naming the file and what is wrong with it, when it is not audio, is empty, or
    ends before its header says.
    """
    if not path.is_file():
        raise AudioError(f"{path}: no such file")
    if path.stat().st_size == 0:
        raise AudioError(f"{path}: the file is empty (0 bytes)")
    try:
        with soundfile.SoundFile(path) as sound:
            yield from _resampled(sound, path)
    except soundfile.LibsndfileError as error:
        raise AudioError(
            f"{path}: not readable as audio ({error.error_string.rstrip('.')}); "
            "give a WAV, FLAC or OGG file"
        ) from error


def _resampled(sound: soundfile.SoundFile, path: Path) -> Iterator[Pcm]:
    resampler = Resampler(sound.samplerate)
    _check_length(sound, path)
    seen = 0
    while True:
        block = sound.read(max(1, int(sound.samplerate * BLOCK_S)), dtype="float32")
        if len(block) == 0:
            break
        seen += len(block)
        yield resampler.push(block)
    if seen == 0:
        raise AudioError(f"{path}: the file has no audio in it")
    if 0 < seen < sound.frames < _UNKNOWN_LENGTH:
        raise AudioError(
            f"{path}: the file is cut short: {seen} of {sound.frames} frames are there"
        )
    yield resampler.flush()


_UNKNOWN_LENGTH: Final = 2**62
"""libsndfile's frame count for streams that do not say their length is near 2**63."""


def _check_length(sound: soundfile.SoundFile, path: Path) -> None:
    """libsndfile shortens WAV and OGG to what is there without a word; the file knows better."""
    if sound.format == "OGG":
        _check_last_page(path)
    if sound.format not in ("WAV", "WAVEX"):
        return
    with path.open("rb") as file:
        size = path.stat().st_size
        file.seek(12)
        while len(header := file.read(8)) == 8:
            length = int.from_bytes(header[4:8], "little")
            if header[:4] == b"data":
                # 0xFFFFFFFF and 0 are what programs write that stream to a pipe.
                if length not in (0, 0xFFFFFFFF) and file.tell() + length > size:
                    raise AudioError(
                        f"{path}: the file is cut short: {size - file.tell()} of {length} bytes "
                        "of audio are there"
                    )
                return
            file.seek(length + length % 2, 1)


def _check_last_page(path: Path) -> None:
    """The last page of an Ogg file says that it is the last (RFC 3533, section 6)."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _MAX_PAGE))
        end = file.read()
    page = end.rfind(b"OggS")
    if page < 0 or len(end) < page + 27 or not end[page + 5] & 4:
        raise AudioError(f"{path}: the file is cut short: its last page is missing")


_MAX_PAGE: Final = 65_307
"""Bytes of an Ogg page, at most."""


def read_file(path: Path) -> Pcm:
    """The whole file, float32 [n] at 16 kHz: for recordings known to be short."""
    return np.concatenate(list(read_blocks(path)))
