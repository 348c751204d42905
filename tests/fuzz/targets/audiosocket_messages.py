"""Messages of Asterisk's AudioSocket: a TCP stream, which may be cut anywhere.

The first byte decides how the rest is cut. However it is, the same events come, or the stream is
refused for the same reason.
"""

import random
from typing import Final

from agent.telephony.carriers.audiosocket import (
    ERROR,
    HANG_UP,
    KEY,
    RATES,
    UUID,
    AudioSocket,
    message,
)
from agent.telephony.carriers.media_stream import PhoneEvent, StreamError, StreamStopped
from tests.fuzz.target import Target

KINDS: Final = (HANG_UP, UUID, KEY, ERROR, *RATES)
CALL: Final = message(UUID, bytes(range(16)))


def examine(data: bytes) -> None:
    """Read the stream whole, and in pieces."""
    size = data[0] % 64 + 1 if data else 1
    stream = data[1:]
    whole = _read([stream])
    pieces = _read([stream[at : at + size] for at in range(0, len(stream), size)])
    assert whole[1] == pieces[1], (whole, pieces)
    if not whole[1]:
        assert whole[0] == pieces[0], (whole, pieces)


def _read(pieces: list[bytes]) -> tuple[list[PhoneEvent], str]:
    """Events up to the end of the call, and why it was refused."""
    protocol = AudioSocket("sales")
    events: list[PhoneEvent] = []
    try:
        for piece in (*pieces, b""):  # events behind the start come with the next piece
            for event in protocol.receive(piece):
                events.append(event)
                if isinstance(event, StreamStopped):
                    return events, ""
    except StreamError as error:
        assert str(error), error
        return events, str(error)
    return events, ""


def change(data: bytes, chance: random.Random) -> bytes | None:
    """With a message more, or as bytes."""
    if chance.random() < 0.6:
        return None
    kind = chance.choice(KINDS)
    length = 16 if kind == UUID else chance.choice((0, 1, 2, 8, 320))
    return data + message(kind, chance.randbytes(length))


def seeds() -> list[bytes]:
    audio = [message(kind, b"\x01\x00" * 16) for kind in RATES]
    return [
        b"\x04" + CALL + audio[0] + message(KEY, b"5") + audio[0] + message(HANG_UP),
        b"\x00" + CALL + audio[2] + message(ERROR, b"\x01"),
        b"\x3f" + CALL + audio[0] + audio[1],
        *(bytes([kind]) + CALL + each for kind, each in zip(RATES, audio, strict=True)),
    ]


TARGET: Final = Target(
    examine, seeds, change, words=[bytes([kind, 0]) for kind in KINDS], max_bytes=700
)
