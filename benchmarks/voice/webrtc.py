"""`halfsec bench webrtc`: calls by WebRTC, on good lines and bad ones, beside the WebSocket.

Every recording is a turn of a call with a real server, in real time; of each answer a second is
heard, then it is stopped. The same recordings are played over the WebSocket, by WebRTC on a clean
line, and with 1, 3 and 5 % of the RTP packets lost and delays of up to 60 ms, in both directions
(`benchmarks/callers/lossy_line.py`). The rows alternate after each round of calls, so that other
load on the machine falls on all alike. Measured:

    voice to voice    from the caller's last voiced sample to the first audible sample that is
                      played; a missed turn is one that no answer was heard to
    later             than the answer to the same recording over the WebSocket, in the median: of
                      few turns it is known better than the difference of two medians
    words             word error rate of the service's transcripts. The reference is what was said,
                      where a text is known, else what the service understood over the WebSocket
    packets           RTP and RTCP of the bad line in both directions: lost, and overtaken by later
                      ones

The client's jitter buffer is the service's own, and waits only for packets that are missing; what
the one of a browser adds is not in the times. Over the WebSocket the client offers no extensions,
since there are none by WebRTC. The stages are the server's own account of the same turns.
"""

import argparse
import asyncio
import contextlib
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx

from agent.client.call import wait_ready
from agent.client.errors import CallEndedError, ConnectError
from agent.client.simulated_caller.caller import SimulatedCaller
from agent.client.simulated_caller.summary import percentiles_ms
from agent.errors import BenchError
from asr.errors import AudioError
from benchmarks.asr.latency import read_transcripts
from benchmarks.asr.scoring import WordErrors, load_jiwer, normalized, word_errors
from benchmarks.callers.lossy_line import DatagramPath, LineQuality
from benchmarks.callers.server_process import own_server
from benchmarks.signals.recordings import SUFFIXES, TurnRecording, find_recordings
from benchmarks.statistics import median_stages

from . import harness
from .backchannel_metric import Asides
from .harness import CallerPlan, HeldCall, converse, in_batches
from .options import positive
from .report import figures_of, heading, in_ms, save
from .server_latency import Accounts
from .turns import HEARD_S, PATIENCE_S, START_TIMEOUT_S

TEXTS: Final = "transcripts.json"
"""File beside the recordings that has their texts."""

SOCKET: Final = "WebSocket"

JITTER_MS: Final = 60.0

CLEAN: Final = LineQuality("WebRTC, clean")
WORST: Final = LineQuality("WebRTC, 5 % lost", 0.05, JITTER_MS)
LINES: Final = (
    CLEAN,
    LineQuality("WebRTC, 1 % lost", 0.01, JITTER_MS),
    LineQuality("WebRTC, 3 % lost", 0.03, JITTER_MS),
    WORST,
)

PLAN: Final = CallerPlan(HEARD_S, PATIENCE_S, is_stock=True)

Json = dict[str, Any]


@dataclass(slots=True)
class RowCalls:
    """Calls of one row."""

    held: list[HeldCall] = field(default_factory=list)
    paths: list[DatagramPath] = field(default_factory=list)
    """Both directions of each call by WebRTC."""
    turns: list[Json] = field(default_factory=list)
    """The server's accounts of the turns."""


@dataclass(frozen=True, slots=True)
class UnderstoodTurn:
    """What was said in a turn, and what the service understood."""

    recording: str
    said: str
    heard: str


async def hold(
    recordings: Sequence[TurnRecording], url: str, line: LineQuality, seed: int
) -> tuple[HeldCall, tuple[DatagramPath, DatagramPath]]:
    """Hold one call by WebRTC; returns it with the line's two directions. A call that ends early
    returns the turns so far, with an error. Raises ConnectError."""
    from benchmarks.callers.webrtc_call import webrtc_call  # imports aiortc

    held = HeldCall(recordings)
    async with webrtc_call(url, line, seed) as call, asyncio.TaskGroup() as group:
        watching = group.create_task(call.run())
        caller = SimulatedCaller(call, cut_after_s=PLAN.cut_after_s)
        group.create_task(caller.run())
        try:
            await converse(caller, Asides("stock"), recordings, PLAN)
        except CallEndedError as error:
            held.errors.append(str(error))
        caller.stop()
        watching.cancel()
    held.exchanges = caller.exchanges
    return held, (call.up, call.down)


async def measure(
    calls: Sequence[Sequence[TurnRecording]], url: str, lines: Sequence[LineQuality], seed: int
) -> dict[str, RowCalls]:
    """Hold each call in each row, in another order every time. Returns calls by the row's name.
    Raises ConnectError."""
    await wait_ready(url, START_TIMEOUT_S)
    rows: list[LineQuality | None] = [None, *lines]
    found = {_name(line): RowCalls() for line in rows}
    accounts = Accounts(url)
    for number, recordings in enumerate(calls):
        for line in rows:
            row = found[_name(line)]
            if line is None:
                row.held.append(await harness.hold(recordings, url, PLAN))
            else:
                held, paths = await hold(recordings, url, line, seed + number)
                row.held.append(held)
                row.paths += paths
            try:
                row.turns += await accounts.take()
            except httpx.HTTPError as error:
                raise ConnectError(f"{url}: {error!r}") from None
        rows.append(rows.pop(0))
        print(f"{number + 1}/{len(calls)} rounds", file=sys.stderr, flush=True)
    return found


def _name(line: LineQuality | None) -> str:
    return SOCKET if line is None else line.name


def understood(
    calls: Mapping[str, RowCalls], texts: Mapping[str, str]
) -> dict[str, list[UnderstoodTurn]]:
    """The turns of each row, in order. `texts`: what is said in recordings, by their stems; for the
    others the words that the service understood over the WebSocket, if it did."""
    over_socket: dict[Path, str] = {}
    for held in calls[SOCKET].held:
        for one, exchange in zip(held.recordings, held.exchanges, strict=False):
            over_socket[one.path] = exchange.caller_text
    found: dict[str, list[UnderstoodTurn]] = {}
    for name, row in calls.items():
        found[name] = []
        for held in row.held:
            for one, exchange in zip(held.recordings, held.exchanges, strict=False):
                said = texts.get(one.path.stem) or over_socket.get(one.path, "")
                if normalized(said):
                    turn = UnderstoodTurn(one.path.stem, said, exchange.caller_text)
                    found[name].append(turn)
    return found


def later_ms(calls: RowCalls, socket: RowCalls) -> dict[str, float | None]:
    """Percentiles of the times by which answers came later at the ear than those to the same
    recordings over the WebSocket, of turns that were answered in both, in ms."""
    over_socket = _ear_ms(socket)
    found = _ear_ms(calls)
    return percentiles_ms(
        ms - over_socket[path] for path, ms in found.items() if path in over_socket
    )


def _ear_ms(calls: RowCalls) -> dict[Path, float]:
    return {
        one.path: exchange.e2e_ear_ms
        for held in calls.held
        for one, exchange in zip(held.recordings, held.exchanges, strict=False)
        if exchange.e2e_ear_ms is not None
    }


def figures(calls: RowCalls, turns: Sequence[UnderstoodTurn], socket: RowCalls) -> Json:
    """Figures of one row, beside those of the WebSocket's."""
    words = word_errors([turn.said for turn in turns], [turn.heard for turn in turns])
    answered = [turn for turn in calls.turns if turn["e2e_server_ms"] is not None]
    return {
        **figures_of(calls.held),
        "stages": median_stages(answered),
        "later": later_ms(calls, socket),
        "words": _words_json(words),
        "transcripts": [
            {"recording": turn.recording, "said": turn.said, "heard": turn.heard} for turn in turns
        ],
        "packets": {
            name: sum(getattr(path, f"num_{name}") for path in calls.paths)
            for name in ("packets", "lost", "overtaken")
        },
    }


def _words_json(words: WordErrors) -> Json:
    return {
        "words": words.words,
        "errors": words.errors,
        "rate": words.rate if words.words else None,
    }


def show(result: Json) -> None:
    """Print the table."""
    print(f"\n{result['machine']}, {result['date']}\n")
    print(f"{'':<18}{'turns':>6}{'missed':>7}{'p50':>6}{'p95':>6}{'later':>7}{'cut in':>8}", end="")
    print(f"{'words':>7}{'wrong':>7}{'rate':>8}{'packets':>9}{'lost':>6}{'overtaken':>11}")
    for name, row in result["rows"].items():
        summary, words, packets = row["summary"], row["words"], row["packets"]
        cut_ins = f"{100 * (summary['cut_in_rate'] or 0):.1f} %"
        rate = "-" if words["rate"] is None else f"{100 * words['rate']:.1f} %"
        print(
            f"{name:<18}{summary['turns']:>6}{row['missed']:>7}{in_ms(summary['p50']):>6}"
            f"{in_ms(summary['p95']):>6}{in_ms(row['later']['p50']):>7}{cut_ins:>8}"
            f"{words['words']:>7}{words['errors']:>7}{rate:>8}"
            f"{packets['packets']:>9}{packets['lost']:>6}{packets['overtaken']:>11}"
        )
    print("\nms at the ear; later than over the WebSocket, turn by turn (median)")
    print("words of the service's transcripts; packets of bad lines, both ways")
    for name, row in result["rows"].items():
        parts = [f"{s} {t['exposed_ms']:.0f}" for s, t in row["stages"].items()]
        if parts:
            print(f"{name}, the server's account: exposed, medians: {', '.join(parts)}")
    for name, row in result["rows"].items():
        for error in row["errors"]:
            print(f"error ({name}): {error}")


def missed_gates(result: Json, over_ms: float, over_points: float) -> list[str]:
    """Gates missed: p50 of the clean line above the WebSocket's, and the median of the differences,
    in ms; word error rate of the worst line above the clean one's, in points. An unknown figure
    misses its gate."""
    rows = result["rows"]
    p50s = [rows[name]["summary"]["p50"] for name in (SOCKET, CLEAN.name)]
    rates = [rows[name]["words"]["rate"] for name in (CLEAN.name, WORST.name)]
    later = [0.0, rows[CLEAN.name]["later"]["p50"]]
    checks = [
        ("the clean line's answers later than the WebSocket's", later, 1.0, over_ms, "ms"),
        ("p50 of the clean line over the WebSocket's", p50s, 1.0, over_ms, "ms"),
        (
            "word error rate with 5 % lost over the clean line's",
            rates,
            100.0,
            over_points,
            "points",
        ),
    ]
    lines = []
    for what, (first, second), scale, limit, unit in checks:
        over = None if first is None or second is None else scale * (second - first)
        if over is None or over > limit:
            shown = "-" if over is None else f"{over:.1f}"
            lines.append(f"GATE MISSED: {what}: {shown} {unit} > {limit:g} {unit}")
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line. Returns 0 if no gate was missed and no call broke."""
    options = _parser().parse_args(argv)
    load_jiwer()
    if importlib.util.find_spec("aiortc") is None:
        raise BenchError("No aiortc, which calls by WebRTC: pip install 'halfsec[webrtc]'")
    texts = find_texts(options.recordings, options.transcripts)
    paths = options.recordings
    if options.transcripts is not None:
        paths = with_text(paths, texts, options.min_words)
    recordings = find_recordings(paths, options.turns, options.seed)
    calls = [batch for (batch,) in in_batches(recordings, options.turns_a_call, 1)]
    with contextlib.ExitStack() as stack:
        url = options.url
        if url is None:
            url = stack.enter_context(own_server(options.serve_args.split())).url
        try:
            held = asyncio.run(measure(calls, url, LINES, options.seed))
        except ConnectError as error:
            raise BenchError(str(error)) from None
    turns = understood(held, texts)
    result = {
        **heading("webrtc", vars(options)),
        "note": options.note,
        "rows": {name: figures(row, turns[name], held[SOCKET]) for name, row in held.items()},
    }
    show(result)
    save(result, options.json)
    missed = missed_gates(result, options.gate_p50_over, options.gate_words_over)
    print("".join(f"{line}\n" for line in missed), end="")
    return int(bool(missed) or any(row["errors"] for row in result["rows"].values()))


def find_texts(paths: Sequence[Path], given: Path | None) -> dict[str, str]:
    """Texts of the recordings, by their stems: those of the file, else of each `TEXTS` beside them.
    Raises BenchError."""
    folders = {path if path.is_dir() else path.parent for path in paths}
    files = [folder / TEXTS for folder in sorted(folders)] if given is None else [given]
    texts: dict[str, str] = {}
    for file in files:
        if given is None and not file.is_file():
            continue
        try:
            texts |= read_transcripts(file)
        except AudioError as error:
            raise BenchError(str(error)) from None
    return texts


def with_text(paths: Sequence[Path], texts: Mapping[str, str], min_words: int) -> list[Path]:
    """Files among and below `paths` whose text has so many words. Raises BenchError."""
    files = [path for path in paths if path.is_file()]
    for folder in (path for path in paths if path.is_dir()):
        files += sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)
    found = [path for path in files if len(normalized(texts.get(path.stem, ""))) >= min_words]
    if not found:
        raise BenchError(f"--transcripts: no recording has a text of {min_words} words there.")
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="halfsec bench webrtc",
        description="Call by WebRTC, on a clean line and on lines that lose and delay packets, and "
        "by WebSocket, with the same recordings, and compare how long answers take at the caller's "
        "ear and what the service understands.",
        epilog="example: halfsec bench webrtc tests/recordings --json webrtc.json",
    )
    add = parser.add_argument
    add("recordings", nargs="+", type=Path, help="files or folders")
    add("--turns", type=positive, default=40, help="number of turns in each row (%(default)s)")
    add("--turns-a-call", type=positive, default=4, help="in each call (%(default)s)")
    add("--seed", type=int, default=1, help="recordings, packets lost (%(default)s)")
    add(
        "--transcripts",
        type=Path,
        metavar="FILE",
        help="texts of the recordings, as for `bench asr`; only recordings with one are played. "
        f"Without it: {TEXTS} beside the recordings, if there is one",
    )
    add("--min-words", type=positive, default=3, help="of such a text (%(default)s)")
    add("--url", help="URL of a running server; without it one is started")
    add("--serve-args", default="", help='for the server that is started: "--preset cpu"')
    add("--json", type=Path, metavar="FILE", help="save the result")
    add("--note", default="", help="kept in the result: what else the machine did")
    add(
        "--gate-p50-over",
        type=float,
        default=60.0,
        metavar="MS",
        help="fail where the clean line's p50, or the median of its answers' differences, is more "
        "above the WebSocket's (%(default)g)",
    )
    add(
        "--gate-words-over",
        type=float,
        default=2.0,
        metavar="POINTS",
        help="fail where the word error rate with 5 %% lost is more above the clean line's "
        "(%(default)g)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
