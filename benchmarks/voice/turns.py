"""`halfsec bench turns`: latency and cut-ins of the end of turn, over many turns.

Every recording is a turn of a call with a real server, in real time; of each answer a second is
heard, then it is cancelled, so that two hundred turns take a quarter of an hour. Other variants of
answering (`variants.py`) are measured in the same run, on the same recordings, each on a server
of its own and never two at the same time: the variants alternate after each round of calls, in
another order every time, so that other load on the machine falls on all alike. `--warm-up` plays
turns that are not counted, so that what a service learns from its latest turns is learnt.

With `--virtual` nothing is played: the real detector and recognizer listen once, then the
turn-taking machine decides at many thresholds (`benchmarks/end_of_turn/simulation.py`).
"""

import argparse
import asyncio
import contextlib
import sys
from collections.abc import Sequence
from typing import Final

from agent.client.call import wait_ready
from agent.client.errors import ConnectError
from agent.errors import BenchError
from benchmarks.callers.server_process import OwnServer, own_server
from benchmarks.end_of_turn import simulation_report
from benchmarks.signals.recordings import TurnRecording

from .harness import CallerPlan, HeldCall, hold_round, in_batches
from .options import add_common, chosen_recordings
from .report import missed_gates, report, save, show
from .variants import PARTS, WHOLE, ServiceVariant, variants

START_TIMEOUT_S: Final = 180.0
"""Timeout in s of a server's start. Several servers may load at the same time."""

HEARD_S: Final = 1.0
"""Time in s of each answer that is heard. With less the next turn begins before the machine has
settled; the words heard stay in the conversation, so later turns have a history."""

PATIENCE_S: Final = 6.0
"""Timeout in s of an answer. The longest wait of the rules is 1.5 s; a later answer is missed."""


Rounds = Sequence[Sequence[Sequence[TurnRecording]]]


async def measure(
    rounds: Rounds,
    urls: dict[ServiceVariant, str],
    servers: dict[ServiceVariant, OwnServer],
    *,
    warm_up: Rounds = (),
) -> dict[ServiceVariant, list[HeldCall]]:
    """Hold all rounds, with every variant, after those of `warm_up`. Raises ConnectError."""
    for url in urls.values():
        await wait_ready(url, START_TIMEOUT_S)
    if warm_up:
        print("warming up", file=sys.stderr, flush=True)
        await _hold_all(warm_up, urls, {})
    return await _hold_all(rounds, urls, servers)


async def _hold_all(
    rounds: Rounds, urls: dict[ServiceVariant, str], servers: dict[ServiceVariant, OwnServer]
) -> dict[ServiceVariant, list[HeldCall]]:
    """Hold the rounds. `servers`: those whose resources are measured."""
    held: dict[ServiceVariant, list[HeldCall]] = {variant: [] for variant in urls}
    order = list(urls)
    for number, batches in enumerate(rounds, start=1):
        for variant in order:
            plan = CallerPlan(HEARD_S, PATIENCE_S, variant.turn_detection)
            with servers[variant].calls() if variant in servers else contextlib.nullcontext():
                held[variant] += await hold_round(batches, urls[variant], [plan] * len(batches))
        order.append(order.pop(0))
        print(f"{number}/{len(rounds)} rounds", file=sys.stderr, flush=True)
    return held


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line. Returns 0 if no gate was missed and no call broke."""
    options = _parser().parse_args(argv)
    chosen = variants(naive=options.naive, without=options.without)
    if options.url is not None and len(chosen) > 1:
        raise BenchError("--naive and --without start servers of their own: leave out --url.")
    count = options.turns + options.warm_up
    recordings = chosen_recordings(options, beside=options.warm_up)
    if options.warm_up and len(recordings) < count:
        raise BenchError(f"--warm-up: {count} recordings are needed, {len(recordings)} were found.")
    if options.telephony:
        recordings = [recording.by_telephone() for recording in recordings]
    recordings, first = recordings[: options.turns], recordings[options.turns :]
    if options.virtual:
        return simulation_report.main(recordings, options)
    rounds = in_batches(recordings, options.turns_a_call, options.callers)
    warm_up = in_batches(first, options.turns_a_call, options.callers) if first else []
    with contextlib.ExitStack() as stack:
        servers: dict[ServiceVariant, OwnServer] = {}
        if options.url is None:
            given = options.serve_args.split()
            for variant in chosen:
                servers[variant] = stack.enter_context(own_server([*given, *variant.serve_args]))
        urls = {
            variant: servers[variant].url if variant in servers else options.url
            for variant in chosen
        }
        try:
            held = asyncio.run(measure(rounds, urls, servers, warm_up=warm_up))
        except ConnectError as error:
            raise BenchError(str(error)) from None
    calls = held.pop(WHOLE)
    compared = {variant.name: found for variant, found in held.items()}
    figures = {variant.name: server.figures for variant, server in servers.items()}
    result = report("turns", calls, vars(options), compared=compared, servers=figures)
    show(result)
    save(result, options.json)
    missed = missed_gates(result, options.gate_p50, options.gate_p95, options.gate_cut_ins)
    print("".join(f"{line}\n" for line in missed), end="")
    return int(bool(missed) or any(call.errors for call in calls))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="halfsec bench turns",
        description="Play recordings as turns of calls and measure how long answers take at the "
        "caller's ear, how many come too early, and what preparing them in advance brings. "
        "A folder may say where its turns end: see benchmarks/signals/recordings.py.",
        epilog="example: halfsec bench turns DIR --turns 200 --naive --gate-p50 500",
    )
    add_common(parser, turns=200)
    parser.add_argument(
        "--telephony", action="store_true", help="through 300-3400 Hz and mu-law first"
    )
    parser.add_argument(
        "--naive",
        action="store_true",
        help="measure beside it each stage after the other, 500 ms of silence before the first",
    )
    parser.add_argument(
        "--without",
        action="append",
        default=[],
        choices=tuple(PARTS),
        help="measure beside it the service without this part; may be repeated",
    )
    parser.add_argument(
        "--warm-up", type=int, default=0, metavar="N", help="so many turns before, not counted"
    )
    simulation_report.add_options(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
