"""PCM codec: samples to bytes and back, in the sockets' encodings."""

import binascii

import numpy as np
import numpy.typing as npt

from agent.session.api.settings import AudioEncoding

from .g711 import alaw_decode, alaw_encode, mulaw_decode, mulaw_encode


def encode_audio(pcm: npt.NDArray[np.int16], encoding: AudioEncoding) -> bytes:
    """Samples as they travel. `pcm` is int16 [n] at the encoding's rate."""
    if encoding == "pcm16":
        return pcm.astype("<i2").tobytes()
    return mulaw_encode(pcm) if encoding == "pcmu" else alaw_encode(pcm)


def decode_base64(text: str, encoding: AudioEncoding) -> npt.NDArray[np.int16]:
    """Decode base64 of audio to int16 [n] at the encoding's rate. Raises ValueError for what is no
    base64, and for half a sample."""
    try:
        data = binascii.a2b_base64(text, strict_mode=True)
    except ValueError as error:
        raise ValueError(f"is not base64: {error}") from None
    return decode_audio(data, encoding)


def decode_audio(data: bytes, encoding: AudioEncoding) -> npt.NDArray[np.int16]:
    """int16 [n] at the encoding's rate. Raises ValueError for half a sample."""
    if encoding == "pcm16":
        if len(data) % 2:
            raise ValueError(f"has {len(data)} bytes; a sample of pcm has two")
        return np.frombuffer(data, dtype="<i2").astype(np.int16)
    return mulaw_decode(data) if encoding == "pcmu" else alaw_decode(data)
