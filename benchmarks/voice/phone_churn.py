"""`halfsec bench phone --churn N`: resources of the server after many short telephone calls.

Every call is greeted, says a little and ends: by the carrier's `stop`, by a close without it, or by
a connection that breaks. As many calls as are held at once come before, so that what is built with
the first ones counts as there already. Then memory, threads and open files of the server's process
are read, with the lines that it counts as busy, and again when all calls are over. Memory is judged
by its growth over the run.
"""

import argparse
import asyncio
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import httpx

from agent.client.call import wait_ready
from agent.client.errors import CallEndedError, ConnectError
from agent.client.simulated_caller.spoken_turn import Int16
from agent.errors import BenchError
from agent.http.auth.cli_credentials import entry_at
from benchmarks.callers.lossy_line import LineQuality
from benchmarks.callers.server_process import own_server
from benchmarks.callers.simulated_carrier import FRAME_MS, TwilioCall, twilio_call
from benchmarks.callers.telephone_channel import LINE_RATE_HZ, over_telephone
from benchmarks.signals.noise import make_sound
from latency_budget.account.clock import SystemClock
from latency_budget.host import resident_mb

from .options import positive
from .report import heading, in_ms, save

AT_ONCE: Final = 20

GREETING: Final = "Hello."

SAID_S: Final = 0.3

GREETED_S: Final = 20.0
"""Timeout in s of a greeting, with twenty calls at once on few cores."""

LEFT_S: Final = 30.0
"""Timeout in s of releasing what the calls held."""

POLL_S: Final = 0.1

START_TIMEOUT_S: Final = 120.0

GROWTH_MB: Final = 24.0
"""Limit in MB of memory growth in the second half of the calls. In the first half bounded stores
fill: accounts of the latest turns, allocators' caches."""

GROWN_FILES: Final = 4
"""Limit of additional open files: the connections of status requests stay open."""

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Held:
    """Resources of the server's process at one moment; None: not reported by the platform."""

    memory_mb: float | None
    threads: int | None
    files: int | None
    lines: int
    """Calls that the server counts as in progress."""


async def held(url: str, pid: int) -> Held:
    """Read the resources once no call is in progress, or after `LEFT_S`."""
    clock = SystemClock()
    gives_up_ns = clock.now_ns() + round(LEFT_S * 1e9)
    address = url.replace("ws", "http", 1).partition("/v1/")[0] + "/v1/sessions"
    async with httpx.AsyncClient(trust_env=False, headers=entry_at(url).headers()) as http:
        while True:
            lines = len((await http.get(address)).json()["sessions"])
            if not lines or clock.now_ns() > gives_up_ns:
                break
            await asyncio.sleep(POLL_S)
    return Held(resident_mb(pid), *_process(pid), lines)


def _process(pid: int) -> tuple[int | None, int | None]:
    """Number of threads and of open files of a process."""
    try:
        threads = len(list(Path(f"/proc/{pid}/task").iterdir()))
        files = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    except OSError:
        return None, None
    return threads, files


async def churn(
    url: str, num_calls: int, at_once: int = AT_ONCE, agent: str | None = None
) -> list[str]:
    """Hold that many calls, each greeted by `agent`. Returns the errors."""
    errors: list[str] = []
    numbers = iter(range(num_calls))
    async with asyncio.TaskGroup() as group:
        for _ in range(min(at_once, num_calls)):
            group.create_task(_call_again(url, numbers, errors, agent))
    return errors


async def _call_again(
    url: str, numbers: Iterator[int], errors: list[str], agent: str | None
) -> None:
    for number in numbers:
        try:
            await _one(url, number, agent)
        except* (ConnectError, CallEndedError) as found:
            errors.append(str(found.exceptions[0]))
        except* TimeoutError:
            errors.append(f"call {number} was not greeted within {GREETED_S:g} s")


async def _one(url: str, number: int, agent: str | None) -> None:
    calling = twilio_call(url, LineQuality("good"), number, agent=agent)
    async with calling as call, asyncio.TaskGroup() as group:
        running = group.create_task(call.run())
        try:
            async with asyncio.timeout(GREETED_S):
                await _greeted(call)
            await _say(call, _murmur(number))
            if number % 3 == 0:
                await call.hang_up()
            elif number % 3 == 1:
                await call.hang_up(says_so=False)
            else:
                call.abort()
        finally:
            running.cancel()


async def _greeted(call: TwilioCall) -> None:
    async for _ in call.events():
        if call.queue.first_sound_ns is not None:
            return
    raise ConnectError(f"the call was ended before its greeting: {call.close_reason}")


async def _say(call: TwilioCall, pcm: Int16) -> None:
    size = LINE_RATE_HZ * FRAME_MS // 1000
    for first in range(0, len(pcm) // size * size, size):
        await call.send_audio(pcm[first : first + size], LINE_RATE_HZ)
        await asyncio.sleep(FRAME_MS / 1000)


def _murmur(seed: int) -> Int16:
    """Pink noise that does not open a turn."""
    sound = make_sound("pink noise", seed, SAID_S)
    return over_telephone((sound * 32767).astype("int16"), 16_000)


def main(options: argparse.Namespace) -> int:
    """Run `--churn`. Returns 0 if every call was accepted and released everything. Raises
    BenchError."""
    if options.url is not None:
        raise BenchError("--churn looks into a server of its own: leave out --url.")
    lines = str(2 * AT_ONCE)
    given = ["--set", f"agent.max_sessions={lines}", "--set", f"agents.default.greeting={GREETING}"]
    with own_server([*given, *options.serve_args.split()]) as server:
        result = asyncio.run(_measured(server.url, server.pid, options.churn))
    result = {**heading("phone", vars(options)), **result}
    show(result)
    save(result, options.json)
    return int(bool(result["errors"]) or bool(left(result)))


async def _measured(url: str, pid: int, num_calls: int) -> Json:
    await wait_ready(url, START_TIMEOUT_S)
    errors = await churn(url, AT_ONCE)
    before = await held(url, pid)
    clock = SystemClock()
    began_ns = clock.now_ns()
    course: list[float | None] = []
    batch = max(AT_ONCE, num_calls // 10)
    for first in range(0, num_calls, batch):
        done = min(first + batch, num_calls)
        errors += await churn(url, done - first)
        course.append(resident_mb(pid))
        print(f"{done}/{num_calls} calls, {in_ms(course[-1])} MB", file=sys.stderr, flush=True)
    took_s = (clock.now_ns() - began_ns) / 1e9
    after = await held(url, pid)
    return {
        "calls": num_calls,
        "took_s": round(took_s, 1),
        "before": asdict(before),
        "after": asdict(after),
        "course_mb": course,
        "errors": errors,
    }


def left(result: Json) -> list[str]:
    """Resources that the calls did not release, in words."""
    course = result["course_mb"]
    before, after = result["before"] | {"memory_mb": course[len(course) // 2]}, result["after"]
    allowed = {"memory_mb": GROWTH_MB, "threads": 0, "files": GROWN_FILES, "lines": 0}
    return [
        f"LEFT BEHIND: {name}: {before[name]:.0f} before, {after[name]:.0f} after"
        for name, more in allowed.items()
        if before[name] is not None and after[name] > before[name] + more
    ]


def show(result: Json) -> None:
    """Print the table."""
    print(f"\n{result['machine']}, {result['date']}\n")
    print(f"{result['calls']} calls, {AT_ONCE} at once, in {result['took_s']:.0f} s\n")
    print(f"{'':<14}{'before':>8}{'after':>8}")
    for name in result["before"]:
        values = (result[when][name] for when in ("before", "after"))
        print(f"{name:<14}" + "".join(f"{'-' if v is None else f'{v:.0f}':>8}" for v in values))
    for text in dict.fromkeys(result["errors"]):
        print(f"error ({result['errors'].count(text)}): {text}")
    print("".join(f"{line}\n" for line in left(result)), end="")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `--churn`."""
    parser.add_argument(
        "--churn",
        type=positive,
        metavar="N",
        help=f"begin and end N calls instead, {AT_ONCE} at once, and report the resources that "
        "are not released; 20000 take a quarter of an hour on two cores",
    )
