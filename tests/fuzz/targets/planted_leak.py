"""A reader that keeps what it reads: the runner must notice."""

from typing import Final

from tests.fuzz.target import Target

HELD: Final[list[bytes]] = []


def examine(data: bytes) -> None:
    """Hold 64 KiB more."""
    HELD.append(b"x" * (1 << 16))


def seeds() -> list[bytes]:
    return [b"good"]


TARGET: Final = Target(examine, seeds, max_bytes=16)
