"""A reader that raises, crashes and hangs: the runner must find all of it, and go on."""

import ctypes
import random
import time
from typing import Final

from tests.fuzz.target import Target

FAULTS: Final = (b"raise", b"crash", b"hang")


def examine(data: bytes) -> None:
    """Good inputs do nothing."""
    match data:
        case b"raise":
            raise ValueError("planted")
        case b"crash":
            ctypes.string_at(0)
        case b"hang":
            time.sleep(60)


def change(data: bytes, chance: random.Random) -> bytes | None:
    """A fault in one of ten."""
    return bytes(data[:1]) if chance.random() < 0.9 else chance.choice(FAULTS)


def seeds() -> list[bytes]:
    return [b"good"]


TARGET: Final = Target(examine, seeds, change, max_bytes=16)
