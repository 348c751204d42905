"""What the C library's allocator holds: in use by native code, and freed but not given back.

Resident memory can't tell the two apart. What is in use grows only where something is kept: models'
own buffers, weights, Python's larger objects. What is free grows by fragmentation and goes back to
the system with the next trim. Python's small objects (pymalloc) and the language model's cache are
mapped without the allocator and are in neither.
"""

import ctypes
from dataclasses import dataclass
from typing import Final

_NAMES: Final = (
    "arena",
    "ordblks",
    "smblks",
    "hblks",
    "hblkhd",
    "usmblks",
    "fsmblks",
    "uordblks",
    "fordblks",
    "keepcost",
)


class _Mallinfo2(ctypes.Structure):
    """`struct mallinfo2` of malloc.h (glibc 2.33 and later)."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in _NAMES)


@dataclass(frozen=True, slots=True)
class Allocated:
    """State of the allocator, all arenas together."""

    heap_bytes: int
    """In use, of blocks that have no mapping of their own: those below 128 KB, and up to 32 MB once
    one of that size has been freed."""
    mapped_bytes: int
    """In use, of larger blocks. They count whole: of an arena of ONNX Runtime, which doubles, most
    may never be written."""
    free_bytes: int
    """Freed and kept by the allocator, resident or not."""


def allocated() -> Allocated | None:
    """Ask the allocator, on any thread; None where the C library is not glibc, or an old one."""
    mallinfo2 = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo2 is None:
        return None
    mallinfo2.restype = _Mallinfo2
    info = mallinfo2()
    return Allocated(info.uordblks, info.hblkhd, info.fordblks)
