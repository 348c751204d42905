"""Reader of sound files of any rate and channel count, as a stream of 16 kHz blocks.

It reads WAV, FLAC, OGG and the other formats of libsndfile. A file is never held whole: ten minutes
of stereo at 48 kHz would be 230 MB of floats. Of an untrusted file only what `FileLimits` allow is
decoded, since a small file can decode to a very large one, and only common formats: each parser is
one more to attack.
"""

from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
import numpy.typing as npt
import soundfile

from asr.errors import AudioError

from . import mp3_file
from .conversion import Resampler
from .mp3_file import Mp3File
from .samples import Pcm
from .stated_length import check_stated_length
from .wav_header import OpenEndedWav, SoundBytes, audio_begins

BLOCK_S: Final = 1.0
"""Seconds read at a time. Smaller costs calls, larger memory."""

_UNKNOWN_LENGTH: Final = 2**62
"""libsndfile's frame count for streams that do not say their length is near 2**63."""

MAX_LEVEL: Final = 100.0
"""Largest sample of a float file, of full scale: 40 dB above it, which no recording chain leaves.
Beyond it lie files scaled to integers, and damage, in which the recognizer hears words."""

_MAGIC: Final = (
    *(b"RIFF", b"RF64", b"riff", b"fLaC", b"OggS", b"FORM", b".snd", b"caff"),
    *mp3_file.MAGIC,
)
"""First bytes of the formats accepted from clients."""

_HOW_TO_CONVERT: Final = (
    "give WAV, FLAC, OGG (Vorbis or Opus), MP3, AIFF, AU or CAF; "
    "`ffmpeg -i FILE out.wav` makes one of anything else"
)


@dataclass(frozen=True, slots=True)
class FileLimits:
    """Limits of an untrusted file."""

    max_s: float
    """Seconds decoded at most. Where the header states more, nothing is decoded."""
    max_channels: int = 8


def read_blocks(
    path: Path, name: str | None = None, limits: FileLimits | None = None
) -> Generator[Pcm, None, None]:
    """The file at `path` as float32 [n] blocks, 16 kHz mono, about a second each.

    Raises AudioError, naming the file (or what `name` calls it) and what is wrong with it, when it
    cannot be read, is not audio, is empty, ends before its header says, or goes beyond the limits.
    """
    name = name or str(path)
    if not path.is_file():
        raise AudioError(f"{name}: no such file")
    try:
        with path.open("rb") as file:
            start = file.read(4)
    except OSError as error:
        raise AudioError(f"{name}: the file cannot be read: {error.strerror}") from error
    if not start:
        raise AudioError(f"{name}: the file is empty (0 bytes)")
    if limits is not None and not start.startswith(_MAGIC):
        raise AudioError(f"{name}: this is no sound file of a kind known here; {_HOW_TO_CONVERT}")
    with closing(_blocks(path, start, name, limits)) as blocks:
        yield from blocks


def _blocks(
    path: Path, start: bytes, name: str, limits: FileLimits | None
) -> Generator[Pcm, None, None]:
    if start.startswith(mp3_file.MAGIC):
        mp3 = Mp3File(path, name)
        _check_limits(mp3, name, limits)
        with closing(mp3.blocks(BLOCK_S)) as blocks:
            yield from _resampled(mp3, blocks, name, limits)
        return
    try:
        with ExitStack() as stack:
            file = stack.enter_context(_opened(path, start, name))
            sound = stack.enter_context(soundfile.SoundFile(file))
            if sound.subtype.startswith("MPEG"):  # it would be read in the way of `mp3_file.py`
                raise AudioError(
                    f"{name}: MP3 inside {sound.format} is not read here; {_HOW_TO_CONVERT}"
                )
            _check_limits(sound, name, limits)
            yield from _resampled(sound, _read(sound), name, limits)
    except soundfile.LibsndfileError as error:
        raise AudioError(
            f"{name}: not readable as audio ({error.error_string.rstrip('.')}); {_HOW_TO_CONVERT}"
        ) from error


def _opened(path: Path, start: bytes, name: str) -> BinaryIO:
    """Open the file in the form that libsndfile reads correctly. Raises AudioError where the file
    ends too early, which libsndfile ignores."""
    check_stated_length(path, start, name)
    if start.startswith(b"RIFF") and (begins := audio_begins(path, name)) is not None:
        return OpenEndedWav(path, begins)
    return SoundBytes(path)


def _read(sound: soundfile.SoundFile) -> Iterator[npt.NDArray[np.float32]]:
    num_each = max(1, int(sound.samplerate * BLOCK_S))
    while len(block := sound.read(num_each, dtype="float32")):
        yield block


def _check_limits(
    sound: soundfile.SoundFile | Mp3File, name: str, limits: FileLimits | None
) -> None:
    """Check the header against the limits, before anything is decoded."""
    if limits is None:
        return
    if sound.channels > limits.max_channels:
        raise AudioError(
            f"{name}: the file has {sound.channels} channels, more than {limits.max_channels}; "
            "mix them down first"
        )
    if sound.frames < _UNKNOWN_LENGTH and sound.frames > limits.max_s * sound.samplerate:
        raise _too_long(name, limits)


def _too_long(name: str, limits: FileLimits) -> AudioError:
    return AudioError(f"{name}: the recording is longer than {limits.max_s:g} s; send it in parts")


def _resampled(
    sound: soundfile.SoundFile | Mp3File,
    blocks: Iterator[npt.NDArray[np.float32]],
    name: str,
    limits: FileLimits | None,
) -> Iterator[Pcm]:
    try:
        resampler = Resampler(sound.samplerate)
    except AudioError as error:
        raise AudioError(f"{name}: {error}") from None
    seen = 0
    for block in blocks:
        seen += len(block)
        if limits is not None and seen > limits.max_s * sound.samplerate:
            raise _too_long(name, limits)
        if len(block) and (level := _level(block)) > MAX_LEVEL:
            raise AudioError(
                f"{name}: the file has samples of {level:.3g} times full scale: it is damaged, or "
                "not scaled to -1..1"
            )
        yield resampler.push(block)
    if seen == 0:
        raise AudioError(f"{name}: the file has no audio in it")
    if 0 < seen < sound.frames < _UNKNOWN_LENGTH:
        raise AudioError(
            f"{name}: the file is damaged or cut short: {seen} of {sound.frames} frames are there"
        )
    yield resampler.flush()


def _level(block: npt.NDArray[np.float32]) -> float:
    """Largest absolute value; what is no number counts as 0, as in the resampler."""
    return float(np.max(np.abs(block), initial=0.0, where=~np.isnan(block)))


def read_file(path: Path) -> Pcm:
    """Read the whole file, float32 [n] at 16 kHz: for recordings known to be short."""
    return np.concatenate(list(read_blocks(path)))
