"""`halfsec bench abuse`: the latency of a caller while other clients attack the server.

One call in progress, in real time, over the recordings given: quiet, then during each attack and
again from five seconds after it. The attackers (`benchmarks/callers/abusive_clients.py`) come from
another address. The gate: during each attack, and from five seconds after it, the caller's p95 is
at most 1.3 times that in quiet.
"""

import argparse
import asyncio
import contextlib
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import soxr

from agent.client.call import wait_ready
from agent.client.errors import ConnectError
from agent.client.simulated_caller.summary import percentiles_ms
from agent.errors import BenchError
from agent.http.auth.cli_credentials import entry_at
from benchmarks.callers.abusive_clients import (
    ATTACKER,
    AttackTarget,
    ask_long,
    chat,
    flood,
    ping,
    read_nothing,
    send_fragments,
    send_one_byte,
    sit,
    speak,
    speak_too_fast,
    talk_too_fast,
    upload,
)
from benchmarks.callers.server_process import own_server
from benchmarks.signals.recordings import TurnRecording, find_recordings
from latency_budget.host import resident_mb

from .harness import CallerPlan, HeldCall, hold
from .options import positive
from .report import report, save
from .turns import HEARD_S, PATIENCE_S

START_TIMEOUT_S: Final = 180.0
WORST: Final = 1.3
"""Limit of the p95, in multiples of the quiet p95."""
RECOVERED_S: Final = 5.0
BEGUN_S: Final = 1.0
"""Time in s from the start of the call to the start of the attack."""

QUIET: Final = "quiet"

Json = dict[str, Any]
Attack = Callable[[AttackTarget], Awaitable[object]]


async def _sustained(target: AttackTarget) -> None:
    while True:
        await flood(target, 100, per_s=100)


async def _bursts(target: AttackTarget) -> None:
    while True:
        await flood(target, 1000)
        await asyncio.sleep(2.0)


async def _idle(target: AttackTarget) -> None:
    while True:
        await sit(target, 200, 5.0, says=b"GET / HTTP/1.1\r\nHost: local")


def _together(attack: Callable[[AttackTarget, float], Awaitable[object]], number: int) -> Attack:
    """`number` clients of a kind at once."""

    async def go(target: AttackTarget) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(number):
                group.create_task(_again(attack, target))

    return go


async def _again(
    attack: Callable[[AttackTarget, float], Awaitable[object]], target: AttackTarget
) -> None:
    """A client that comes back when its call or connection was ended."""
    while True:
        await attack(target, 3600.0)
        await asyncio.sleep(1.0)


async def _greedy(target: AttackTarget) -> None:
    """Both callers who ask for much, at once."""
    async with asyncio.TaskGroup() as group:
        group.create_task(_again(speak_too_fast, target))
        group.create_task(_again(ask_long, target))


ATTACKS: Final[dict[str, Attack]] = {
    "100 connections a second": _sustained,
    "bursts of 1000": _bursts,
    "200 idle connections": _idle,
    "fast senders": _together(talk_too_fast, 2),
    "slow readers": _together(read_nothing, 2),
    "a flood of pings": _together(ping, 2),
    "a flood of fragments": _together(send_fragments, 2),
    "audio of one byte at a time": _together(send_one_byte, 2),
    "four chats at once": _together(chat, 4),
    "uploads to be transcribed": _together(upload, 4),
    "texts to be spoken": _together(speak, 4),
    "a second caller, 15 times too fast": _together(speak_too_fast, 1),
    "a second caller, inputs of 1500 words": _together(ask_long, 1),
    "both of these callers": _greedy,
}


@dataclass(slots=True)
class AbusePhase:
    """One phase: the call that was held, and the server's resident memory around it."""

    call: HeldCall
    before_mb: float | None = None
    """None: the platform does not say."""
    after_mb: float | None = None


async def measure(
    recordings: Sequence[TurnRecording],
    url: str,
    attacks: dict[str, Attack],
    memory_mb: Callable[[], float | None] = lambda: None,
) -> dict[str, AbusePhase]:
    """Hold the call in each phase. `memory_mb` reads the server's memory. Returns phases by name.
    Raises ConnectError."""

    async def held() -> AbusePhase:
        before_mb = memory_mb()
        call = await hold(recordings, url, plan)
        return AbusePhase(call, before_mb, memory_mb())

    await wait_ready(url, START_TIMEOUT_S)
    plan = CallerPlan(HEARD_S, PATIENCE_S)
    target = AttackTarget(url, entry_at(url).api_key(), speech=_speech(recordings))
    await hold(recordings[:2], url, plan)  # warm-up: first calls are slower
    phases = {QUIET: await held()}
    for name, attack in attacks.items():
        print(name, file=sys.stderr, flush=True)
        async with _attacked(attack, target):
            phases[name] = await held()
        await asyncio.sleep(RECOVERED_S)
        phases[f"{name}, after"] = await held()
    return phases


def _speech(recordings: Sequence[TurnRecording]) -> bytes:
    """The recordings, one after the other, PCM16 at 24 kHz."""
    parts = [soxr.resample(each.pcm, each.rate_hz, 24_000) for each in recordings]
    return np.concatenate(parts).astype("<i2").tobytes()


@contextlib.asynccontextmanager
async def _attacked(attack: Attack, target: AttackTarget) -> AsyncIterator[None]:
    """Run an attack for the length of the block, from `BEGUN_S` after its beginning."""

    async def go() -> None:
        await asyncio.sleep(BEGUN_S)
        await attack(target)

    async with asyncio.TaskGroup() as group:
        attacking = group.create_task(go())
        yield
        attacking.cancel()


def verdicts(phases: dict[str, AbusePhase]) -> dict[str, Json]:
    """Verdict on each phase: percentiles at the ear, turns without an answer, memory in MB before
    and after, pass or fail."""
    found: dict[str, Json] = {}
    for name, phase in phases.items():
        call = phase.call
        times = percentiles_ms(each.e2e_ear_ms for each in call.exchanges)
        missed = sum(not each.answered for each in call.exchanges)
        p95, quiet_p95 = times["p95"], found.get(QUIET, times)["p95"]
        is_soon = p95 is not None and quiet_p95 is not None and p95 <= WORST * quiet_p95
        passes = is_soon and not missed and not call.errors
        memory = {"before": phase.before_mb, "after": phase.after_mb}
        found[name] = {**times, "missed": missed, "memory_mb": memory, "passes": passes}
    return found


def show(found: dict[str, Json]) -> None:
    """Print the table."""
    width = max(map(len, found), default=0) + 2
    print(f"{'':<{width}}{'p50':>7}{'p95':>7}{'missed':>8}{'MB before':>11}{'after':>7}")
    for name, each in found.items():
        times = "".join(_rounded(each[p], 7) for p in ("p50", "p95"))
        memory = _rounded(each["memory_mb"]["before"], 11) + _rounded(each["memory_mb"]["after"], 7)
        late = "" if each["passes"] else "   TOO LATE"
        print(f"{name:<{width}}{times}{each['missed']:>8}{memory}{late}")


def _rounded(value: float | None, width: int) -> str:
    return f"{'-' if value is None else round(value):>{width}}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line. Returns 0 if every phase passed."""
    options = _parser().parse_args(argv)
    recordings = find_recordings(options.recordings, options.turns, options.seed)
    recordings = [recordings[n % len(recordings)] for n in range(options.turns)]
    _check_address()
    chosen = {name: ATTACKS[name] for name in options.attack or ATTACKS}
    with own_server(options.serve_args.split()) as server:
        try:
            phases = asyncio.run(
                measure(recordings, server.url, chosen, lambda: resident_mb(server.pid))
            )
        except ConnectError as error:
            raise BenchError(str(error)) from None
    found = verdicts(phases)
    others = {name: [each.call] for name, each in phases.items() if name != QUIET}
    result = report("abuse", [phases[QUIET].call], vars(options), compared=others)
    show(found)
    save({**result, "phases": found}, options.json)
    return int(not all(each["passes"] for each in found.values()))


def _check_address() -> None:
    """Check that attackers can come from an address of their own. Raises BenchError."""
    with socket.socket() as probe:
        try:
            probe.bind((ATTACKER, 0))
        except OSError as error:
            reason = f"The attackers need the address {ATTACKER}, as Linux has it: {error}"
            raise BenchError(reason) from None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="halfsec bench abuse",
        description="Hold a call while others attack the server, and measure how long its answers "
        f"take: no more than {WORST:g} times as long as in quiet (p95), or the exit status is 1.",
        epilog="example: halfsec bench abuse DIR --turns 20",
    )
    add = parser.add_argument
    add("recordings", nargs="+", type=Path, help="files or folders")
    add("--turns", type=positive, default=12, help="in each phase (%(default)s)")
    add("--seed", type=int, default=1, help="which recordings, in which order (%(default)s)")
    add("--attack", action="append", choices=tuple(ATTACKS), help="only this; may be repeated")
    add("--serve-args", default="", help='for the server that is started: "--preset cpu"')
    add("--json", type=Path, metavar="FILE", help="save the result")
    return parser


if __name__ == "__main__":
    sys.exit(main())
