"""Sound files of clients: WAV, FLAC, Ogg (Vorbis, Opus), MP3, AIFF, AU, CAF, RF64, with G.711.

A file is decoded or refused with an AudioError; what is decoded is finite sound, no longer than
the limit. The decoders are native code: run this in a process that may crash. A changed page of
an Ogg file gets its checksum again, or libogg would drop it unread.
"""

import io
import random
from typing import Any, Final

import numpy as np
import soundfile

from asr.audio.files import FileLimits, read_blocks
from asr.audio.samples import RATE_HZ
from asr.errors import AudioError
from tests.fuzz.scratch import file_of
from tests.fuzz.target import Target, changed_bytes

LIMITS: Final = FileLimits(max_s=20)
MAX_MESSAGE_CHARS: Final = 400

KINDS: Final = (
    ("WAV", "PCM_16", 8000), ("WAV", "PCM_24", 44100), ("WAV", "FLOAT", 16000),
    ("WAV", "DOUBLE", 16000), ("WAV", "ULAW", 8000), ("WAV", "ALAW", 8000),
    ("WAV", "IMA_ADPCM", 8000), ("WAV", "MS_ADPCM", 8000), ("WAV", "GSM610", 8000),
    ("WAVEX", "PCM_16", 16000), ("RF64", "PCM_16", 8000), ("FLAC", "PCM_16", 16000),
    ("FLAC", "PCM_24", 8000), ("OGG", "VORBIS", 16000), ("OGG", "OPUS", 16000),
    ("MP3", "MPEG_LAYER_III", 16000), ("AIFF", "PCM_16", 8000), ("AIFF", "ULAW", 8000),
    ("AU", "ULAW", 8000), ("AU", "PCM_16", 16000), ("AU", "G721_32", 8000),
    ("CAF", "PCM_16", 8000), ("CAF", "ALAC_16", 16000), ("CAF", "ULAW", 8000),
)  # fmt: skip
"""Format, encoding and rate of the files to begin with."""

CHUNKS: Final = (
    b"RIFF", b"RIFX", b"RF64", b"ds64", b"WAVE", b"fmt ", b"data", b"fact", b"LIST", b"fLaC",
    b"OggS", b"OpusHead", b"OpusTags", b"\x01vorbis", b"FORM", b"AIFF", b"AIFC", b"COMM", b"SSND",
    b".snd", b"caff", b"desc", b"pakt", b"kuki", b"chan", b"ID3", b"\xff\xfb", b"Xing", b"Info",
    b"\xff\xf8", b"\x55\x00", b"\x11\x00", b"\x02\x00", b"\x31\x00", b"\xfe\xff", b"bext", b"cue ",
    b"PEAK", b"smpl", b"\x06\x00", b"\x07\x00", b"\x03\x00",
)  # fmt: skip
"""Names of chunks, and numbers of encodings in WAV."""


def examine(data: bytes) -> None:
    """One file."""
    num_samples = 0
    with file_of(data) as path:
        try:
            for block in read_blocks(path, "file", LIMITS):
                assert block.dtype == np.float32, block.dtype
                assert block.ndim == 1, block.shape
                assert np.isfinite(block).all(), "samples that are no numbers"
                num_samples += len(block)
                assert num_samples <= (LIMITS.max_s + 1) * RATE_HZ, num_samples
        except AudioError as error:
            assert str(error).startswith("file: "), error
            assert len(str(error)) <= MAX_MESSAGE_CHARS, error


def change(data: bytes, chance: random.Random) -> bytes | None:
    """As bytes, most often in the head; Ogg with right checksums, most often."""
    if chance.random() < 0.3:
        return None
    if data[:4] == b"OggS" and chance.random() < 0.8:
        return with_checksums(changed_bytes(data, chance, CHUNKS))
    head = chance.choice((32, 64, 256))
    return changed_bytes(data[:head], chance, CHUNKS) + data[head:]


def with_checksums(ogg: bytes) -> bytes:
    """The pages of an Ogg file with their checksums (RFC 3533, section 6)."""
    data = bytearray(ogg)
    at = data.find(b"OggS")
    while at >= 0 and at + 27 <= len(data):
        num_segments = data[at + 26]
        end = at + 27 + num_segments + sum(data[at + 27 : at + 27 + num_segments])
        data[at + 22 : at + 26] = bytes(4)
        data[at + 22 : at + 26] = _checksum(data[at:end]).to_bytes(4, "little")
        at = data.find(b"OggS", at + 4)
    return bytes(data)


def _table() -> list[int]:
    table = []
    for index in range(256):
        value = index << 24
        for _ in range(8):
            value = (value << 1 ^ (0x04C11DB7 if value & 1 << 31 else 0)) & 0xFFFFFFFF
        table.append(value)
    return table


_TABLE: Final = _table()


def _checksum(page: bytearray) -> int:
    value = 0
    for byte in page:
        value = (value << 8 & 0xFFFFFFFF) ^ _TABLE[value >> 24 ^ byte]
    return value


def seeds() -> list[bytes]:
    return [_file(*kind) for kind in KINDS]


def _file(kind: str, encoding: str, rate_hz: int) -> bytes:
    """A twentieth of a second of a tone."""
    tone = 0.3 * np.sin(np.arange(rate_hz // 20) * 0.2)
    target: Any = io.BytesIO()
    soundfile.write(target, tone, rate_hz, format=kind, subtype=encoding)
    data: bytes = target.getvalue()
    return data


TARGET: Final = Target(examine, seeds, change, words=CHUNKS, max_bytes=8192)
