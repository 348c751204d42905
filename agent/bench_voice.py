"""`halfsec bench voice`: voice to voice at the caller's ear, over conversations of several turns.

Starts a server of its own unless one is named, plays every recording in real time, hears every
answer (or interrupts it), and prints the table and, with `--json`, saves the result as data. Times
of set-up and memory are measured on the way.
"""

import argparse
import asyncio
import contextlib
import sys
from collections.abc import Sequence
from typing import Final

from .bench_calls import CallPlan, HeldCall, hold_round, in_batches
from .bench_options import add_common
from .bench_report import missed_gates, report, save, show
from .client import wait_ready
from .client_errors import ConnectError
from .errors import BenchError
from .own_server import OwnServer, own_server
from .turn_recordings import TurnRecording, find_recordings

START_TIMEOUT_S: Final = 120.0


async def measure(
    rounds: Sequence[Sequence[Sequence[TurnRecording]]],
    url: str,
    barge_in_seed: int | None,
    server: OwnServer | None,
    *,
    is_stock: bool = False,
) -> list[HeldCall]:
    """All rounds, one after the other. Raises ConnectError."""
    held: list[HeldCall] = []
    await wait_ready(url, START_TIMEOUT_S)
    total = sum(len(batch) for batches in rounds for batch in batches)
    for number, batches in enumerate(rounds):
        plans = [CallPlan(is_stock=is_stock)] * len(batches)
        if barge_in_seed is not None:
            first = barge_in_seed + number * len(batches)
            plans = [
                CallPlan(barge_in_seed=first + caller, is_stock=is_stock)
                for caller in range(len(batches))
            ]
        held += await hold_round(batches, url, plans)
        if server is not None:
            server.note_memory()
        done = sum(len(call.exchanges) for call in held)
        print(f"{done}/{total} turns", file=sys.stderr, flush=True)
    return held


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 0 where every turn was answered, no history differs, and no gate was missed."""
    options = _parser().parse_args(argv)
    recordings = find_recordings(options.recordings, options.turns, options.seed)
    rounds = in_batches(recordings, options.turns_a_call, options.callers)
    barge_in_seed = options.seed if options.barge_in else None
    with contextlib.ExitStack() as stack:
        server = None
        if options.url is None:
            server = stack.enter_context(own_server(options.serve_args.split()))
        url = options.url if server is None else server.url
        try:
            calling = measure(rounds, url, barge_in_seed, server, is_stock=options.stock)
            calls = asyncio.run(calling)
        except ConnectError as error:
            raise BenchError(str(error)) from None
    figures = None if server is None else server.figures
    result = report("voice", calls, vars(options), server=figures)
    show(result)
    save(result, options.json)
    missed = missed_gates(
        result,
        options.gate_p50,
        options.gate_p95,
        options.gate_cut_ins,
        options.gate_barge_in,
    )
    print("".join(f"{line}\n" for line in missed), end="")
    complete = len(result["turns"]) == len(recordings) and not result["missed"]
    return int(bool(missed or result["barge_ins"]["mismatches"]) or not complete)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="halfsec bench voice",
        description="Play recordings of people to the server in real time and measure, at the "
        "caller's ear, how long each answer takes.",
        epilog="example: halfsec bench voice tests/recordings --turns 20 --gate-p50 900",
    )
    add_common(parser, turns=20)
    parser.add_argument(
        "--barge-in",
        action="store_true",
        help="interrupt some answers at random times, and compare the history with what was heard",
    )
    parser.add_argument(
        "--gate-barge-in",
        type=float,
        metavar="MS",
        help="fail where a barge-in took longer, from its first voiced sample to silence",
    )
    parser.add_argument(
        "--stock",
        action="store_true",
        help="call as a stock client, which stops playing at once instead of turning it down",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
