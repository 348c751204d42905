"""`halfsec bench voice`: voice-to-voice latency at the caller's ear in multi-turn conversations.

Starts a server unless `--url` names one, plays every recording in real time, and hears every answer
(or interrupts it, or says "mm-hmm" over it). Prints the table and, with `--json`, saves the result
as data. Also measures set-up times and memory.
"""

import argparse
import asyncio
import contextlib
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from agent.client.call import wait_ready
from agent.client.errors import ConnectError
from agent.errors import BenchError
from benchmarks.callers.server_process import OwnServer, own_server
from benchmarks.signals.backchannels import Backchannel, recorded, synthesized
from benchmarks.signals.recordings import TurnRecording

from .harness import CallerPlan, HeldCall, hold_round, in_batches
from .options import add_common, chosen_recordings
from .report import missed_backchannels, missed_gates, report, save, show
from .stereo_check import missed_stereo
from .variants import WHOLE

START_TIMEOUT_S: Final = 120.0

TEMPORARY: Final = Path()
"""Placeholder for a folder: recordings are measured and not kept."""


async def measure(
    rounds: Sequence[Sequence[Sequence[TurnRecording]]],
    url: str,
    plan: CallerPlan,
    server: OwnServer | None,
) -> list[HeldCall]:
    """Hold all rounds, one after the other, each call with its own seeds. Raises ConnectError."""
    held: list[HeldCall] = []
    await wait_ready(url, START_TIMEOUT_S)
    total = sum(len(batch) for batches in rounds for batch in batches)
    for number, batches in enumerate(rounds):
        first = number * len(batches)
        plans = [_of_call(plan, first + caller) for caller in range(len(batches))]
        with contextlib.nullcontext() if server is None else server.calls():
            held += await hold_round(batches, url, plans)
        done = sum(len(call.exchanges) for call in held)
        print(f"{done}/{total} turns", file=sys.stderr, flush=True)
    return held


def _of_call(plan: CallerPlan, number: int) -> CallerPlan:
    """Plan for call `number`, with seeds and a file of its own."""
    seeds = (plan.barge_in_seed, plan.aside_seed)
    barge_in, aside = (None if seed is None else seed + number for seed in seeds)
    stereo = None if plan.stereo is None else plan.stereo / f"call-{number + 1:03}.wav"
    return replace(plan, barge_in_seed=barge_in, aside_seed=aside, stereo=stereo)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line. Returns 0 if every turn was answered, no history differs, and no gate
    was missed."""
    options = _parser().parse_args(argv)
    recordings = chosen_recordings(options)
    rounds = in_batches(recordings, options.turns_a_call, options.callers)
    source, sounds = _backchannels(options)
    plan = CallerPlan(
        barge_in_seed=options.seed if options.barge_in else None,
        aside_seed=options.seed if sounds else None,
        backchannels=sounds,
        is_stock=options.stock,
    )
    with contextlib.ExitStack() as stack:
        if options.stereo is not None:
            plan = replace(plan, stereo=stack.enter_context(_folder(options.stereo)))
        server = None
        if options.url is None:
            server = stack.enter_context(own_server(options.serve_args.split()))
        url = options.url if server is None else server.url
        try:
            calls = asyncio.run(measure(rounds, url, plan, server))
        except ConnectError as error:
            raise BenchError(str(error)) from None
    figures = {} if server is None else {WHOLE.name: server.figures}
    result = report("voice", calls, vars(options), servers=figures)
    result["backchannel_source"] = source
    show(result)
    save(result, options.json)
    missed = missed_gates(
        result,
        options.gate_p50,
        options.gate_p95,
        options.gate_cut_ins,
        options.gate_barge_in,
    )
    missed += missed_backchannels(result, options.gate_backchannels)
    missed += missed_stereo(result["stereo"], options.gate_stereo)
    print("".join(f"{line}\n" for line in missed), end="")
    complete = len(result["turns"]) == len(recordings) and not result["missed"]
    return int(bool(missed or result["barge_ins"]["mismatches"]) or not complete)


def _backchannels(options: argparse.Namespace) -> tuple[str | None, list[Backchannel]]:
    """Source and recordings of backchannels. None and empty without the option."""
    if not options.backchannels:
        return None, []
    folder = options.backchannels_from
    return synthesized() if folder is None else recorded(folder)


@contextlib.contextmanager
def _folder(wanted: Path) -> Iterator[Path]:
    """Folder for recordings of calls; temporary unless one is named. Raises BenchError."""
    if wanted != TEMPORARY:
        try:
            wanted.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BenchError(f"Can't write to {wanted}: {error.strerror}") from None
        yield wanted
        return
    with tempfile.TemporaryDirectory(prefix="halfsec-stereo-") as folder:
        yield Path(folder)


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
        help="fail where a barge-in took longer, from its first voiced sample until the caller "
        "hears the reply stop: silence with --stock, otherwise the reply being turned down",
    )
    parser.add_argument(
        "--backchannels",
        action="store_true",
        help='say "mm-hmm" and the like over some answers at random times, and report if they '
        "go on; synthesized by the voice of the settings, the agent's own",
    )
    parser.add_argument(
        "--backchannels-from",
        type=Path,
        metavar="DIR",
        help="say the short recordings of this folder, and of those within it, instead, each named "
        "for its words",
    )
    parser.add_argument(
        "--gate-backchannels",
        type=float,
        metavar="PERCENT",
        help="fail where fewer of the replies went on to their end; questions that the words "
        "answered do not count",
    )
    parser.add_argument(
        "--stock",
        action="store_true",
        help="call as a stock client, which stops playing at once instead of turning it down",
    )
    parser.add_argument(
        "--stereo",
        nargs="?",
        type=Path,
        const=TEMPORARY,
        metavar="DIR",
        help="record every call, caller left and agent right, measure the recordings, and compare "
        "the accounts of server and client with them; kept in DIR, if it is named",
    )
    parser.add_argument(
        "--gate-stereo",
        type=float,
        metavar="MS",
        help="fail where more than 5 %% of the turns differ from the recording by more",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
