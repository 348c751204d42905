"""The plan: every fault, how it strikes, how it passes, and what it needs of the machine."""

import asyncio
import contextlib
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from .disk import DISK_CASES
from .fault_case import Act, FaultCase, FaultSite, nothing
from .faulty_server import HANG_S, HOWS, POINTS
from .network import GOOD, NetworkQuality
from .reordered_call import REORDER_CASES
from .tool_calls import TOOL_CASES
from .webhook_endpoints import WEBHOOK_CASES

STOPPED_S: Final = 3.0
FROZEN_S: Final = 5.0
HEADROOM_MB: Final = 16


def _stage(stage: str, how: str) -> Act:
    async def strike(site: FaultSite) -> None:
        await site.command(stage=stage, how=how)

    return strike


async def _stop_and_continue(site: FaultSite) -> None:
    os.kill(site.pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(STOPPED_S)
    finally:
        os.kill(site.pid, signal.SIGCONT)


async def _kill(site: FaultSite) -> None:
    os.kill(site.pid, signal.SIGKILL)
    await site.restart()


async def _block_loop(site: FaultSite) -> None:
    await site.command(block_s=0.5)


def _step(seconds: float) -> Act:
    async def strike(site: FaultSite) -> None:
        await site.command(step_s=seconds)

    return strike


def _threads(pid: int) -> Iterator[int]:
    for path in Path(f"/proc/{pid}/task").iterdir():
        yield int(path.name)


def _cores(number: int) -> Act:
    async def strike(site: FaultSite) -> None:
        cores = sorted(os.sched_getaffinity(0))[:number] if number else os.sched_getaffinity(0)
        for thread in _threads(site.pid):
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(thread, cores)

    return strike


def _limit(kind: int, soft: Callable[[int], int]) -> Act:
    """Lower a soft limit of the process; `soft` computes it from the process's id."""

    async def strike(site: FaultSite) -> None:
        _, hard = resource.prlimit(site.pid, kind)
        resource.prlimit(site.pid, kind, (soft(site.pid), hard))

    return strike


def _unlimited(kind: int) -> Act:
    async def mend(site: FaultSite) -> None:
        with contextlib.suppress(ProcessLookupError):
            _, hard = resource.prlimit(site.pid, kind)
            resource.prlimit(site.pid, kind, (hard, hard))

    return mend


def _memory_now(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
    return pages * resource.getpagesize() + (HEADROOM_MB << 20)


def _descriptors_now(pid: int) -> int:
    return max(int(path.name) for path in Path(f"/proc/{pid}/fd").iterdir()) + 1


async def _damage_store(site: FaultSite) -> None:
    for path in site.home.glob("turns.sqlite*"):
        size = path.stat().st_size
        with path.open("r+b") as file:
            file.write(b"\xa5" * min(size, 1 << 16))


def _quality(quality: NetworkQuality) -> Act:
    async def strike(site: FaultSite) -> None:
        assert site.network is not None
        site.network.quality = quality

    return strike


async def _cut(site: FaultSite) -> None:
    assert site.network is not None
    site.network.cut()


async def _half_open(site: FaultSite) -> None:
    """Nothing passes for `FROZEN_S`, then the old connections break."""
    assert site.network is not None
    site.network.quality = NetworkQuality(half_open=True)
    await asyncio.sleep(FROZEN_S)
    site.network.quality = GOOD
    site.network.cut()


async def _good_network(site: FaultSite) -> None:
    assert site.network is not None
    site.network.quality = GOOD


def _linux() -> str:
    return "" if sys.platform == "linux" else "needs Linux"


def _two_cores() -> str:
    return _linux() or ("" if len(os.sched_getaffinity(0)) > 1 else "needs two cores")


def _never(reason: str) -> Callable[[], str]:
    return lambda: reason


def _stage_cases() -> Iterator[FaultCase]:
    for stage, point in POINTS.items():
        for how in HOWS:
            if how == "garbage" and point.garbage is None:
                yield FaultCase(
                    f"{stage}: garbage",
                    nothing,
                    not_here=_never("tokens of an engine are valid or raise; there is no garbage"),
                )
            else:
                yield FaultCase(
                    f"{stage}: {how}",
                    _stage(stage, how),
                    spoils=how == "die",
                    stage=stage,
                    hangs_s=HANG_S if how == "hang" else 0.0,
                )


CASES: Final[tuple[FaultCase, ...]] = (
    FaultCase("no fault", nothing),
    *_stage_cases(),
    FaultCase("event loop blocked for 500 ms", _block_loop, at_end_of_speech=True),
    FaultCase("clock stepped by +1 h", _step(3600), _step(0)),
    FaultCase("clock stepped by -1 h", _step(-3600), _step(0)),
    FaultCase(
        "SIGSTOP, SIGCONT after 3 s", _stop_and_continue, at_end_of_speech=True, not_here=_linux
    ),
    FaultCase("one core left", _cores(1), _cores(0), not_here=_two_cores),
    FaultCase(
        "disk full (store, log)",
        _limit(resource.RLIMIT_FSIZE, lambda pid: 0),
        _unlimited(resource.RLIMIT_FSIZE),
        not_here=_linux,
    ),
    FaultCase("store damaged", _damage_store),
    FaultCase(
        "descriptors used up",
        _limit(resource.RLIMIT_NOFILE, _descriptors_now),
        _unlimited(resource.RLIMIT_NOFILE),
        not_here=_linux,
    ),
    FaultCase(
        "network: 150 ms of delay each way",
        _quality(NetworkQuality(delay_s=0.15)),
        _good_network,
        through_network=True,
    ),
    FaultCase(
        "network: 2 % lost (a retransmission each)",
        _quality(NetworkQuality(loss=0.02)),
        _good_network,
        through_network=True,
    ),
    FaultCase(
        "network: slow peer, 40 kB/s",
        _quality(NetworkQuality(bytes_per_s=40_000)),
        _good_network,
        through_network=True,
    ),
    FaultCase("network: connection cut", _cut, through_network=True),
    FaultCase("network: half open for 5 s, then cut", _half_open, through_network=True),
    *REORDER_CASES,
    FaultCase(
        "memory limit reached",
        _limit(resource.RLIMIT_AS, _memory_now),
        _unlimited(resource.RLIMIT_AS),
        spoils=True,
        not_here=_linux,
    ),
    FaultCase("kill -9, started anew", _kill, keeps_call=False, spoils=True),
    *DISK_CASES,
    *TOOL_CASES,
    *WEBHOOK_CASES,
)
"""All rows, in the order in which they are run."""
