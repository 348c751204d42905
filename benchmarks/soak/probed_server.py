"""`halfsec serve` with a probe: asyncio tasks and Python heap by subsystem, on request.

Run by the bench as `python -m benchmarks.soak.probed_server serve ...`. The heap is traced
(`tracemalloc`) from the first request on, that is when the models are loaded: what the calls
allocate is seen, and a snapshot takes a few hundredths of a second. What native code allocates is
in none of these figures; it is in the process's memory.
"""

import asyncio
import sys
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any, Final

from agent.__main__ import main
from benchmarks.callers.control_socket import Json, RecordedLoop, listen

ROOT: Final = Path(__file__).resolve().parents[2]


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
        """`{"heap": bool}` -> `{"tasks", "heap"}`; the heap in bytes by subsystem. Raises
        RuntimeError where there is no loop."""
        loop = self.loop.loop
        if loop is None:
            raise RuntimeError("the server has no event loop")
        return {
            "tasks": len(asyncio.all_tasks(loop)),
            "heap": self._heap() if request.get("heap") else {},
        }

    def _heap(self) -> dict[str, int]:
        if not tracemalloc.is_tracing():
            tracemalloc.start()
            return {}
        sizes: Counter[str] = Counter()
        for each in tracemalloc.take_snapshot().statistics("filename"):
            sizes[subsystem(each.traceback[0].filename)] += each.size
        return dict(sizes)


def run(argv: list[str] | None = None) -> Any:
    """Run `halfsec` with the probe."""
    probe = Probe()
    probe.install()
    listen(probe.handle)
    return main(argv)


if __name__ == "__main__":
    sys.exit(run())
