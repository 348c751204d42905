"""Bytes of streamed speech to samples: PCM and WAV, cut anywhere, and what is neither."""

import io
import struct

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from agent.stages.remote.event_stream import MalformedStreamError
from agent.stages.remote.pcm_reader import MAX_HEADER_BYTES, MAX_SPEECH_S, Int16, PcmReader

SAMPLES: Int16 = np.random.default_rng(3).integers(-9000, 9000, 500, np.int16)


def wav(samples: Int16, rate_hz: int = 16_000, *, length: int | None = None) -> bytes:
    """A WAV file as soundfile writes it; `length`: another one in its header."""
    file = io.BytesIO()
    soundfile.write(file, samples, rate_hz, format="WAV", subtype="PCM_16")
    data = file.getvalue()
    if length is not None:
        at = data.index(b"data") + 4
        data = data[:at] + struct.pack("<I", length) + data[at + 4 :]
    return data


def read(pieces: list[bytes]) -> tuple[Int16, int]:
    reader = PcmReader(24_000)
    found = [reader.push(piece) for piece in pieces]
    return np.concatenate(found), reader.rate_hz


@given(st.lists(st.integers(1, 60), max_size=20), st.booleans())
def test_samples_are_the_same_however_the_bytes_are_cut(cuts: list[int], is_wav: bool) -> None:
    data = wav(SAMPLES) if is_wav else SAMPLES.astype("<i2").tobytes()
    pieces, at = [], 0
    for cut in cuts:
        pieces.append(data[at : at + cut])
        at += cut
    samples, rate_hz = read([*pieces, data[at:]])
    assert np.array_equal(samples, SAMPLES)
    assert rate_hz == (16_000 if is_wav else 24_000)


def test_the_samples_of_a_wav_end_where_it_says() -> None:
    trailing = wav(SAMPLES) + b"LIST\x04\x00\x00\x00INFO"
    assert np.array_equal(read([trailing])[0], SAMPLES)
    for length in (0, 0xFFFFFFFF):  # written into a pipe
        assert np.array_equal(read([wav(SAMPLES, length=length)])[0], SAMPLES)


def test_stereo_becomes_mono() -> None:
    pairs = np.stack([SAMPLES, SAMPLES], axis=1)
    assert np.array_equal(read([wav(pairs)])[0], SAMPLES)


def test_half_a_sample_at_the_end_is_dropped() -> None:
    assert np.array_equal(read([SAMPLES.astype("<i2").tobytes() + b"x"])[0], SAMPLES)


def float_wav() -> bytes:
    file = io.BytesIO()
    soundfile.write(file, SAMPLES / 32768, 16_000, format="WAV", subtype="FLOAT")
    return file.getvalue()


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"ID3\x04more", "sent MP3 where PCM was asked for"),
        (b"OggSmore", "sent Ogg where PCM was asked for"),
        (b"fLaCmore", "sent FLAC where PCM was asked for"),
        (float_wav(), "sent a WAV file that is not 16-bit PCM"),
        (wav(SAMPLES, 400), "sent audio of 400 Hz"),
        (
            b"RIFF\xff\xff\xff\xffWAVELIST\xff\xff\xff\x7f" + bytes(64),
            "sent a WAV file without samples",
        ),
        (b"RIFF" + bytes(MAX_HEADER_BYTES + 8), "sent a WAV file without samples"),
        (bytes(2 * 24_000 * MAX_SPEECH_S + 2), f"sent more than {MAX_SPEECH_S} s of speech"),
    ],
)
def test_what_is_no_such_audio_is_refused(data: bytes, problem: str) -> None:
    with pytest.raises(MalformedStreamError, match=problem):
        read([data])
