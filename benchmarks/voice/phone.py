"""`halfsec bench phone`: telephone calls in Twilio's protocol over good and bad lines.

Starts a server unless `--url` names one. Every recording goes through 300-3400 Hz and mu-law
and is spoken in real time, the same ones over each line: a good one, 1 % and 3 % of the packets
lost, 40 ms of jitter (defined in `benchmarks/callers/simulated_carrier.py`). In a last round the
good line's caller interrupts the answers. Measured:

    voice to voice    from the caller's last voiced sample to the first audible sample that the
                      carrier's queue plays; the sample's own 20 ms frame is in it, the network
                      between us and the carrier is not
    cut in            audible before that last voiced sample
    greeting          from `start` to the first audible sample
    interrupted       from the caller's first voiced sample to the `clear` sent to the carrier
    processor         CPU seconds of the server per minute of call: in these calls, in which caller
                      and agent take turns, and in a silent one

The stages' times before the carrier come from the server's own account of the same turns.

With `--churn N` that many calls are begun and ended instead, twenty at once and in every way that
calls end, and the server's resources are compared before and after (`phone_churn.py`).
"""

import argparse
import asyncio
import contextlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

from agent.client.call import wait_ready
from agent.client.errors import CallEndedError, ConnectError
from agent.client.simulated_caller.caller import SimulatedCaller
from agent.client.simulated_caller.spoken_turn import NS_PER_MS
from agent.client.simulated_caller.summary import percentiles_ms
from agent.errors import BenchError
from benchmarks.callers.lossy_line import LineQuality
from benchmarks.callers.server_process import OwnServer, own_server
from benchmarks.callers.simulated_carrier import TwilioCall, twilio_call
from benchmarks.signals.recordings import TurnRecording
from benchmarks.statistics import median_stages
from latency_budget.account.clock import SystemClock
from latency_budget.host import cpu_s

from . import phone_churn
from .backchannel_metric import Asides
from .harness import CallerPlan, HeldCall, converse, in_batches
from .options import add_common, chosen_recordings
from .report import figures_of, heading, in_ms, missed_gates, save
from .server_latency import Accounts

START_TIMEOUT_S: Final = 120.0

GREETING: Final = "Hello, this is your assistant, how can I help you?"
"""Greeting of the server that the bench starts."""

GREETED_S: Final = 20.0
"""Timeout in s of a greeting's end. Without a greeting the caller speaks after `SILENT_S`."""

SILENT_S: Final = 2.0

IDLE_S: Final = 10.0
"""Silence in s of the idle call. After 12 s the agent asks whether the caller is there."""

GOOD: Final = LineQuality("good line")

LINES: Final = (
    GOOD,
    LineQuality("1 % lost", loss=0.01),
    LineQuality("3 % lost", loss=0.03),
    LineQuality("40 ms jitter", jitter_ms=40.0),
)

INTERRUPTING: Final = "interrupting"

Json = dict[str, Any]


@dataclass(slots=True)
class PhoneCalls:
    """Calls of one round."""

    held: list[HeldCall] = field(default_factory=list)
    greetings_ms: list[float | None] = field(default_factory=list)
    num_lost: int = 0
    """Frames lost on the line."""
    calls_s: float = 0.0
    """Total length of the calls in s."""
    cpu_s: float | None = None
    """CPU time in s of the server's process during the calls; None if unknown."""
    turns: list[Json] = field(default_factory=list)
    """The server's accounts of the turns."""


async def hold(
    recordings: Sequence[TurnRecording], url: str, plan: CallerPlan, line: LineQuality, seed: int
) -> tuple[HeldCall, TwilioCall]:
    """Hold one call: hear the greeting, say each recording, hear the answers. A call that ends
    early returns the turns so far, with an error. Raises ConnectError."""
    held = HeldCall(recordings)
    async with twilio_call(url, line, seed) as call:
        caller = SimulatedCaller(call)
        async with asyncio.TaskGroup() as group:
            group.create_task(call.run())
            group.create_task(caller.run())
            try:
                await _hear_greeting(call, caller)
                await converse(caller, Asides("stock"), recordings, plan)
            except CallEndedError as error:
                held.errors.append(str(error))
            caller.stop()
            await call.hang_up()
        held.exchanges = caller.exchanges
    return held, call


async def _hear_greeting(call: TwilioCall, caller: SimulatedCaller) -> None:
    silent_ns = SystemClock().now_ns() + round(SILENT_S * 1e9)

    def is_over(now_ns: int) -> bool:
        return caller.is_quiet(now_ns) and (
            call.queue.first_sound_ns is not None or now_ns > silent_ns
        )

    await caller.wait_until(is_over, GREETED_S)


async def measure(
    rounds: Sequence[Sequence[Sequence[TurnRecording]]],
    url: str,
    server: OwnServer | None,
    seed: int,
) -> dict[str, PhoneCalls]:
    """Hold all rounds over every line, and the interrupting round. Returns calls by the line's
    name. The lines alternate, so that other load on the machine falls on all alike. Raises
    ConnectError."""
    await wait_ready(url, START_TIMEOUT_S)
    plans = {line.name: (line, CallerPlan()) for line in LINES}
    plans[INTERRUPTING] = (GOOD, CallerPlan(barge_in_seed=seed))
    found = {name: PhoneCalls() for name in plans}
    accounts = Accounts(url)
    for number, batches in enumerate(rounds, start=1):
        for name, (line, plan) in plans.items():
            with _counted(found[name], server):
                await _hold_round(found[name], batches, url, plan, line)
            try:
                found[name].turns += await accounts.take()
            except httpx.HTTPError as error:
                raise ConnectError(f"{url}: {error}") from None
        print(f"{number}/{len(rounds)} rounds", file=sys.stderr, flush=True)
    return found


async def _hold_round(
    calls: PhoneCalls,
    batches: Sequence[Sequence[TurnRecording]],
    url: str,
    plan: CallerPlan,
    line: LineQuality,
) -> None:
    clock = SystemClock()

    async def one(batch: Sequence[TurnRecording], seed: int) -> None:
        began_ns = clock.now_ns()
        held, call = await hold(batch, url, plan, line, seed)
        calls.held.append(held)
        calls.calls_s += (clock.now_ns() - began_ns) / 1e9
        calls.num_lost += call.uplink.num_lost
        if call.started_ns is not None and call.queue.first_sound_ns is not None:
            calls.greetings_ms.append((call.queue.first_sound_ns - call.started_ns) / NS_PER_MS)

    try:
        async with asyncio.TaskGroup() as group:
            for batch in batches:
                group.create_task(one(batch, len(calls.held)))
    except* ConnectError as errors:
        raise ConnectError(str(errors.exceptions[0])) from None


async def idle_cpu_s(url: str, pid: int) -> float | None:
    """CPU time in s of the server's process per minute of a silent call. None if the platform does
    not report it. Raises ConnectError."""
    async with twilio_call(url, GOOD, seed=0) as call, asyncio.TaskGroup() as group:
        caller = SimulatedCaller(call)
        group.create_task(call.run())
        group.create_task(caller.run())
        await _hear_greeting(call, caller)
        before_s, clock = cpu_s(pid), SystemClock()
        began_ns = clock.now_ns()
        await asyncio.sleep(IDLE_S)
        after_s, lasted_s = cpu_s(pid), (clock.now_ns() - began_ns) / 1e9
        caller.stop()
        await call.hang_up()
    return None if before_s is None or after_s is None else 60 * (after_s - before_s) / lasted_s


@contextlib.contextmanager
def _counted(calls: PhoneCalls, server: OwnServer | None) -> Iterator[None]:
    before_s = None if server is None else cpu_s(server.pid)
    yield
    after_s = None if server is None else cpu_s(server.pid)
    if before_s is not None and after_s is not None:
        calls.cpu_s = (calls.cpu_s or 0.0) + after_s - before_s


def figures(calls: PhoneCalls) -> Json:
    """Figures of one line."""
    known = [ms for ms in calls.greetings_ms if ms is not None]
    per_s = calls.cpu_s / calls.calls_s if calls.cpu_s is not None and calls.calls_s else None
    answered = [turn for turn in calls.turns if turn["e2e_server_ms"] is not None]
    return {
        **figures_of(calls.held),
        "stages": median_stages(answered),
        "server": percentiles_ms(turn["e2e_server_ms"] for turn in answered),
        "greeting": {**percentiles_ms(known), "most": max(known, default=None)},
        "lost_frames": calls.num_lost,
        "calls_s": round(calls.calls_s, 1),
        "cpu_s_per_call_min": None if per_s is None else round(60 * per_s, 2),
    }


def budget_ms(calls: Iterable[PhoneCalls]) -> int | None:
    """Budget in ms of the calls' turns; None if no account names one."""
    totals = [turn["budget"]["total_ms"] for each in calls for turn in each.turns]
    return max(totals, key=totals.count, default=None)


def show(result: Json) -> None:
    """Print the table."""
    print(f"\n{result['machine']}, {result['date']}\n")
    print(
        f"{'':<14}{'turns':>6}{'missed':>7}{'p50':>6}{'p95':>6}{'cut in':>8}{'(95 %)':>12}", end=""
    )
    print(f"{'greeting p50':>14}{'most':>6}{'processor':>11}{'lost':>6}")
    for name, line in result["lines"].items():
        summary, (low, high), hello = line["summary"], line["cut_in_interval"], line["greeting"]
        cut_ins = f"{100 * (summary['cut_in_rate'] or 0):.1f} %"
        per_min = line["cpu_s_per_call_min"]
        print(
            f"{name:<14}{summary['turns']:>6}{line['missed']:>7}{in_ms(summary['p50']):>6}"
            f"{in_ms(summary['p95']):>6}{cut_ins:>8}{f'{100 * low:.1f}-{100 * high:.1f}':>12}"
            f"{in_ms(hello['p50']):>14}{in_ms(hello['most']):>6}"
            f"{'-' if per_min is None else f'{per_min:.1f}':>11}{line['lost_frames']:>6}"
        )
    barge_ins = result["lines"][INTERRUPTING]["barge_ins"]
    times, most = barge_ins["silenced_ms"], barge_ins["silenced_max_ms"]
    print(
        f"\n{barge_ins['count']} interruptions, until the queue is cleared: p50 "
        f"{in_ms(times['p50'])} ms, p95 {in_ms(times['p95'])} ms, longest {in_ms(most)} ms"
    )
    good, idle = result["lines"][GOOD.name], result["idle_cpu_s_per_call_min"]
    if good["cpu_s_per_call_min"] is not None and idle is not None:
        print(
            f"processor for a minute of call: {good['cpu_s_per_call_min']:.1f} s with talk, "
            f"{idle:.1f} s in silence"
        )
    if good["stages"]:
        parts = [f"{name} {times['exposed_ms']:.0f}" for name, times in good["stages"].items()]
        print(
            f"good line, the server's account: p50 {in_ms(good['server']['p50'])} ms; exposed, "
            f"medians: {', '.join(parts)}"
        )
    print(f"a call's budget: {in_ms(result['budget_ms'])} ms, the carrier's leg included")
    for name, line in result["lines"].items():
        for error in line["errors"]:
            print(f"error ({name}): {error}")


def missed(result: Json, options: argparse.Namespace) -> list[str]:
    """Missed gates: figures of the good line above their limits."""
    good, interrupting = result["lines"][GOOD.name], result["lines"][INTERRUPTING]
    lines = missed_gates(
        good | {"barge_ins": interrupting["barge_ins"]},
        options.gate_p50,
        options.gate_p95,
        options.gate_cut_ins,
        options.gate_barge_in,
    )
    greeting_ms, limit = good["greeting"]["p50"], options.gate_greeting
    if limit is not None and (greeting_ms is None or greeting_ms > limit):
        lines.append(f"GATE MISSED: greeting {in_ms(greeting_ms)} ms > {limit:g} ms")
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line. Returns 0 if every turn over every line was answered and no gate was
    missed; with `--churn`, if every call was accepted and released everything it held."""
    options = _parser().parse_args(argv)
    if options.churn is not None:
        return phone_churn.main(options)
    found = chosen_recordings(options)
    recordings = [one.by_telephone() for one in found]
    rounds = in_batches(recordings, options.turns_a_call, options.callers)
    with contextlib.ExitStack() as stack:
        server = None
        if options.url is None:
            given = ["--set", f"agents.default.greeting={GREETING}", *options.serve_args.split()]
            server = stack.enter_context(own_server(given))
        url = options.url if server is None else server.url
        try:
            calls = asyncio.run(measure(rounds, url, server, options.seed))
            idle = None if server is None else asyncio.run(idle_cpu_s(url, server.pid))
        except ConnectError as error:
            raise BenchError(str(error)) from None
    result = {
        **heading("phone", vars(options)),
        "lines": {name: figures(each) for name, each in calls.items()},
        "idle_cpu_s_per_call_min": None if idle is None else round(idle, 2),
        "budget_ms": budget_ms(calls.values()),
    }
    show(result)
    save(result, options.json)
    lines = missed(result, options)
    print("".join(f"{line}\n" for line in lines), end="")
    is_whole = all(
        line["summary"]["turns"] == len(recordings) and not line["missed"] and not line["errors"]
        for line in result["lines"].values()
    )
    return int(bool(lines) or not is_whole)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="halfsec bench phone",
        description="Call as a telephone carrier does, over good lines and bad ones, and measure "
        "how long answers, the greeting and interruptions take at the carrier.",
        epilog="example: halfsec bench phone tests/recordings --gate-p50 630 --gate-greeting 200",
    )
    add_common(parser, turns=20)
    add = parser.add_argument
    add("--gate-greeting", type=float, metavar="MS", help="fail above this (p50)")
    add("--gate-barge-in", type=float, metavar="MS", help="fail where one took longer")
    phone_churn.add_options(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
