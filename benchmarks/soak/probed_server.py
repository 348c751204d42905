"""`halfsec serve` with a probe: asyncio tasks and Python heap by subsystem, on request.

Run by the bench as `python -m benchmarks.soak.probed_server serve ...`. The heap is traced
(`tracemalloc`) from the first request on, that is when the models are loaded: what the calls
allocate is seen. A snapshot takes a few hundredths of a second, and tens of MB for as long; what it
leaves to the allocator is given back at once, or the server's memory would go up with each. What
the tracing itself takes is told as well, to be taken off. What native code allocates is not in the
heap: of the whole process the allocator says how much is in use (`allocator.py`). The lines that
hold most are named with their callers, since memory that a library allocates says nothing of who
keeps it.
"""

import asyncio
import sys
import threading
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any, Final

from agent.__main__ import main
from agent.stages.heap import trim_heap
from benchmarks.callers.control_socket import Json, RecordedLoop, listen

from .allocator import allocated

ROOT: Final = Path(__file__).resolve().parents[2]

POOLS: Final = ("asyncio_", "uvloop_", "AnyIO worker thread")
"""How the names of their threads begin."""

NUM_FRAMES: Final = 3
"""Frames of an allocation: the line itself and two callers."""

LARGE_BYTES: Final = 512 << 10
MAX_LARGE: Final = 10
"""Lines that are named: so many, each with at least `LARGE_BYTES`."""


def subsystem(file: str) -> str:
    """Subsystem of a source file: the folder below its top package for our own ("agent/session"),
    the package for those of others, "python" for the rest."""
    path = Path(file)
    parts = path.parts
    if "site-packages" in parts:
        return parts[parts.index("site-packages") + 1].removesuffix(".py")
    if path.is_relative_to(ROOT):
        return "/".join(path.relative_to(ROOT).parts[:-1][:2]) or path.stem
    return "python"


class Probe:
    """Answers the bench's requests."""

    def __init__(self) -> None:
        self.loop = RecordedLoop()

    def install(self) -> None:
        """Record the server's loop. Before it starts."""
        self.loop.install()

    def handle(self, request: Json) -> Json:
        """`{"heap": bool}` -> `{"tasks", "pool_threads", "threads", "tracing", "malloc", "free",
        "heap", "large"}`: threads of the pools that make them as they are needed, and all of
        Python's by name; bytes that the tracing takes, and that the allocator has in use without
        it, and free (None where it does not say); the heap in bytes by subsystem, and by line the
        largest parts of it. Raises RuntimeError where there is no loop."""
        loop = self.loop.loop
        if loop is None:
            raise RuntimeError("the server has no event loop")
        tracing = tracemalloc.get_tracemalloc_memory() if tracemalloc.is_tracing() else 0
        held = allocated()
        sizes, large = self._heap() if request.get("heap") else ({}, {})
        if sizes:
            trim_heap()
        threads = [each.name for each in threading.enumerate()]
        return {
            "tasks": len(asyncio.all_tasks(loop)),
            "pool_threads": sum(name.startswith(POOLS) for name in threads),
            "threads": Counter(name.rstrip("0123456789") for name in threads),
            "tracing": tracing,
            "malloc": None if held is None else held.heap_bytes - tracing,
            "free": None if held is None else held.free_bytes,
            "heap": sizes,
            "large": large,
        }

    def _heap(self) -> tuple[dict[str, int], dict[str, int]]:
        if not tracemalloc.is_tracing():
            tracemalloc.start(NUM_FRAMES)
            return {}, {}
        snapshot = tracemalloc.take_snapshot()
        sizes: Counter[str] = Counter()
        for each in snapshot.statistics("filename"):
            sizes[subsystem(each.traceback[-1].filename)] += each.size
        largest = snapshot.statistics("traceback")[:MAX_LARGE]
        large = {_told(each.traceback): each.size for each in largest if each.size >= LARGE_BYTES}
        return dict(sizes), large


def _told(traceback: tracemalloc.Traceback) -> str:
    """The line that allocated, then its callers: "numeric.py:12 < log_mel.py:34"."""
    frames = reversed(list(traceback))  # the line itself is the last
    return " < ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames)


def run(argv: list[str] | None = None) -> Any:
    """Run `halfsec` with the probe."""
    probe = Probe()
    probe.install()
    listen(probe.handle)
    return main(argv)


if __name__ == "__main__":
    sys.exit(run())
