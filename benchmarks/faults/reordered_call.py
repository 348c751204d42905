"""Packets that are reordered: the caller calls by WebRTC, and RTP packets overtake one another.

Each packet has a delay of its own in both directions (`benchmarks/callers/lossy_line.py`), none is
lost. The whole call is on such a line, from its first packet on.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from benchmarks.callers.lossy_line import LineQuality
from benchmarks.callers.webrtc_call import WebRtcCall, webrtc_call

from .fault_case import Aftermath, FaultCase, FaultSite, Surroundings, nothing

LINE: Final = LineQuality("reordered", jitter_ms=60.0)


class ReorderingLine(Surroundings):
    """Calls by WebRTC on a line that reorders."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.calls: list[WebRtcCall] = []

    @asynccontextmanager
    async def dial(self, url: str) -> AsyncIterator[Any]:
        async with webrtc_call(url, LINE) as call, asyncio.TaskGroup() as group:
            self.calls.append(call)
            running = group.create_task(call.run())
            yield _WithItems(call)
            running.cancel()


class _WithItems:
    """A call by WebRTC with the event that the witness sends beside speech."""

    def __init__(self, call: WebRtcCall) -> None:
        self._call = call

    def __getattr__(self, name: str) -> Any:
        return getattr(self._call, name)

    async def send(self, event: dict[str, Any]) -> None:
        fields = {name: value for name, value in event.items() if name != "type"}
        self._call.client.send(event["type"], **fields)


@asynccontextmanager
async def around_line(folder: Path) -> AsyncIterator[ReorderingLine]:
    """A line that reorders."""
    yield ReorderingLine(folder)


async def overtaken(site: FaultSite) -> Aftermath:
    """How many packets were overtaken; the row fails where none was, in either direction."""
    assert isinstance(site.around, ReorderingLine)
    paths = [path for call in site.around.calls for path in (call.up, call.down)]
    seen = [f"{each.num_overtaken} of {each.num_packets} packets overtaken" for each in paths]
    is_felt = bool(paths) and all(each.num_overtaken for each in paths)
    return Aftermath(seen, why=[] if is_felt else ["no packet was overtaken"])


def _no_aiortc() -> str:
    try:
        import aiortc  # noqa: F401
    except ImportError:
        return "needs the package aiortc: pip install 'halfsec[webrtc]'"
    return ""


REORDER_CASES: Final[tuple[FaultCase, ...]] = (
    FaultCase(
        "network: reordered packets (RTP, up to 60 ms)",
        nothing,
        not_here=_no_aiortc,
        around=around_line,
        look=overtaken,
    ),
)
