"""Heap of the process: frozen for Python's garbage collector, trimmed for the system.

**Freezing.** A full collection visits every object: models, modules, settings. On two cores that
stops every thread for 130 ms, whenever Python thinks it due, also in the middle of a call. So the
objects that exist when the service is ready are excluded. A model that is rebuilt leaves its old
one among them, and only a collection can free that: then everything is collected again, as Python
likes.

**Trimming.** glibc keeps freed memory for the thread that freed it, in pieces between what is in
use. That is 70 MB once the models are loaded, and 60 to 80 after some minutes with four callers
(two cores, half-billion model). Giving it back takes 10 to 50 ms of another thread, so it is done
when the service is ready, when the last call is over, and beside calls once per `GROWTH_BYTES`: on
a busy server the last call is never over.
"""

import ctypes
import gc
from pathlib import Path
from typing import Final

GROWTH_BYTES: Final = 48 << 20
"""Growth of the process's own memory from which a trim beside calls is worth it. Lower: what calls
in progress use counts. Higher: more lies idle."""

_STATUS: Final = Path("/proc/self/status")


def freeze_heap() -> None:
    """Collect now, exclude what is left from later collections, and trim. Takes 0.15 s."""
    gc.collect()
    gc.freeze()
    trim_heap()


def unfreeze_heap() -> None:
    """Include the excluded objects again: some of them are garbage now."""
    gc.unfreeze()


def trim_heap() -> None:
    """Give freed memory back to the system. Does nothing where the C library is not glibc. Any
    thread; others that allocate wait for a few milliseconds."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


class HeapTrims:
    """Times at which the heap is to be trimmed. One caller at a time."""

    def __init__(self) -> None:
        self._admitted = 0
        """Calls so far at the last trim with none in progress."""
        self._least_bytes: int | None = None
        """Least memory of the process since the last trim."""

    def is_due(self, num_calls: int, num_admitted: int) -> bool:
        """True where a trim is worth its time now. `num_admitted`: calls so far."""
        if not num_calls and num_admitted != self._admitted:
            self._admitted = num_admitted
            self._least_bytes = None
            return True
        now_bytes = own_bytes()
        if now_bytes is None:
            return False
        least = now_bytes if self._least_bytes is None else min(self._least_bytes, now_bytes)
        has_grown = now_bytes - least >= GROWTH_BYTES
        self._least_bytes = None if has_grown else least
        return has_grown


def own_bytes() -> int | None:
    """Memory of the process that no file backs; None where the system does not say."""
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return None
    sizes = [line.split()[1] for line in lines if line.startswith("RssAnon:")]
    return int(sizes[0]) * 1024 if sizes else None
