"""`halfsec bench voice`: voice to voice at the caller's ear, over recordings of people.

Starts a server of its own unless one is named, plays every recording in real time, and prints the
table and, with `--json`, the result as data. Times of set-up and memory are measured on the way.
"""

import argparse
import asyncio
import contextlib
import json
import os
import platform
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from latency_budget.clock import SystemClock, unix_ns

from .caller import Exchange, RecordingError, load_recording
from .client import wait_ready
from .client_errors import ConnectError
from .figures import median_stages, summarize_exchanges, wilson_interval
from .talk import TalkError, hold_call

SUFFIXES: Final = (".wav", ".flac", ".ogg")
MIN_S: Final = 1.0
MAX_S: Final = 12.0
"""Turns of a conversation; shorter files are single words, longer ones announcements."""

START_TIMEOUT_S: Final = 120.0


@dataclass(slots=True)
class ServerFigures:
    """What a server of our own told about itself."""

    listening_s: float | None = None
    ready_s: float | None = None
    rest_mb: float | None = None
    call_mb: float | None = None


@dataclass(slots=True)
class OwnServer:
    """A server that was started for the measurement."""

    url: str
    pid: int
    figures: ServerFigures

    def memory_mb(self) -> float | None:
        """Resident memory now; None where the platform does not tell."""
        try:
            status = Path(f"/proc/{self.pid}/status").read_text()
        except OSError:
            return None
        kilobytes = next(line.split()[1] for line in status.splitlines() if "VmRSS" in line)
        return int(kilobytes) / 1024


@contextlib.contextmanager
def own_server(arguments: Sequence[str]) -> Iterator[OwnServer]:
    """Run `halfsec serve` on a free port for the length of the block. Raises TalkError."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    clock = SystemClock()
    started_ns = clock.now_ns()
    command = [sys.executable, "-m", "agent", "serve", "--port", str(port), *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ)
    figures = ServerFigures()
    try:
        assert process.stdout is not None
        for line in process.stdout:
            since_s = (clock.now_ns() - started_ns) / 1e9
            if figures.listening_s is None and "listens" in line:
                figures.listening_s = since_s
            if line.startswith("Ready"):
                figures.ready_s = since_s
                break
        else:
            raise TalkError("The server did not start; run `halfsec serve` to see why.")
        server = OwnServer(f"ws://127.0.0.1:{port}/v1/realtime", process.pid, figures)
        figures.rest_mb = server.memory_mb()
        yield server
    finally:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
        process.kill()
        process.wait()


def find_recordings(paths: Sequence[Path], turns: int, seed: int) -> list[Path]:
    """`turns` recordings of a turn's length out of files and folders, shuffled by the seed."""
    files = [path for path in paths if path.is_file()]
    for folder in (path for path in paths if path.is_dir()):
        files += sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)
    random.Random(seed).shuffle(files)
    chosen: list[Path] = []
    for path in files:
        if len(chosen) == turns:
            break
        with contextlib.suppress(RecordingError):
            pcm, rate_hz = load_recording(path)
            if MIN_S <= len(pcm) / rate_hz <= MAX_S:
                chosen.append(path)
    if not chosen:
        raise TalkError(
            f"There is no recording of {MIN_S:g} to {MAX_S:g} s in {', '.join(map(str, paths))}."
        )
    return chosen


async def measure(
    recordings: Sequence[Path], url: str, turns_a_call: int, server: OwnServer | None
) -> tuple[list[Exchange], list[str]]:
    """All recordings, `turns_a_call` in each call. Raises ConnectError."""
    exchanges: list[Exchange] = []
    errors: list[str] = []
    await wait_ready(url, START_TIMEOUT_S)
    for first in range(0, len(recordings), turns_a_call):
        loaded = [load_recording(path) for path in recordings[first : first + turns_a_call]]
        talk = await hold_call(loaded, url, wait_s=10.0)
        exchanges += talk.exchanges
        errors += talk.report()["errors"]
        if server is not None:
            memory_mb = server.memory_mb()
            if memory_mb is not None:
                server.figures.call_mb = max(memory_mb, server.figures.call_mb or 0.0)
        print(f"{len(exchanges)}/{len(recordings)} turns", file=sys.stderr, flush=True)
    return exchanges, errors


def report(
    exchanges: Sequence[Exchange], errors: Sequence[str], figures: ServerFigures | None
) -> dict[str, Any]:
    """The result as data, with machine, date and command."""
    turns = [exchange.turn_json() for exchange in exchanges]
    cut_ins = sum(exchange.cut_in for exchange in exchanges)
    return {
        "bench": "voice",
        "machine": machine(),
        "date": datetime.fromtimestamp(unix_ns() / 1e9, UTC).isoformat(timespec="seconds"),
        "command": "halfsec bench voice",
        "session": None,
        "turns": turns,
        "summary": summarize_exchanges(exchanges),
        "cut_in_interval": wilson_interval(cut_ins, len(exchanges)),
        "stages": median_stages(turns),
        "server": None
        if figures is None
        else {
            "listening_s": figures.listening_s,
            "ready_s": figures.ready_s,
            "rest_mb": figures.rest_mb,
            "call_mb": figures.call_mb,
        },
        "errors": list(errors),
    }


def machine() -> str:
    """Processor and cores, as far as the platform tells."""
    name = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                name = line.partition(":")[2].strip()
                break
    return f"{name}, {os.cpu_count()} cores"


def show(result: dict[str, Any]) -> None:
    summary = result["summary"]
    low, high = result["cut_in_interval"]
    print(f"\n{result['machine']}, {result['date']}")
    print(
        f"{summary['turns']} turns, {summary['answered']} answered, cut in on "
        f"{100 * (summary['cut_in_rate'] or 0):.1f} % (95 %: {100 * low:.1f}-{100 * high:.1f} %)"
    )
    ranks = "  ".join(f"{rank} {_ms(summary[rank])}" for rank in ("p50", "p90", "p95", "p99"))
    print(f"voice to voice at the ear, ms: {ranks}\n")
    print(f"{'median ms':<14}{'spent':>8}{'exposed':>9}")
    for stage, times in result["stages"].items():
        print(f"{stage:<14}{times['spent_ms']:>8.0f}{times['exposed_ms']:>9.0f}")
    server = result["server"]
    if server is not None:
        print(
            f"\nlistening after {server['listening_s']:.1f} s, ready after "
            f"{server['ready_s']:.1f} s; memory {server['rest_mb'] or 0:.0f} MB at rest, "
            f"{server['call_mb'] or 0:.0f} MB in a call"
        )
    for error in result["errors"]:
        print(f"error: {error}")


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 0 where every turn was answered and no gate was missed."""
    parser = argparse.ArgumentParser(
        prog="halfsec bench voice",
        description="Play recordings of people to the server in real time and measure, at the "
        "caller's ear, how long each answer takes.",
        epilog="example: halfsec bench voice tests/recordings --turns 20 --gate-p50 900",
    )
    parser.add_argument("recordings", nargs="+", type=Path, help="files or folders")
    parser.add_argument("--turns", type=int, default=20, help="how many (%(default)s)")
    parser.add_argument("--turns-a-call", type=int, default=5, help="in each call (%(default)s)")
    parser.add_argument(
        "--seed", type=int, default=1, help="which recordings, in which order (%(default)s)"
    )
    parser.add_argument("--url", help="of a running server; without it one is started")
    parser.add_argument(
        "--serve-args", default="", help='for the server that is started: "--preset cpu"'
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="save the result")
    parser.add_argument("--gate-p50", type=float, metavar="MS", help="fail above this")
    options = parser.parse_args(argv)
    recordings = find_recordings(options.recordings, options.turns, options.seed)
    try:
        if options.url is not None:
            outcome = asyncio.run(measure(recordings, options.url, options.turns_a_call, None))
            result = report(*outcome, None)
        else:
            with own_server(options.serve_args.split()) as server:
                outcome = asyncio.run(measure(recordings, server.url, options.turns_a_call, server))
                result = report(*outcome, server.figures)
    except ConnectError as error:
        raise TalkError(str(error)) from None
    show(result)
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    p50 = result["summary"]["p50"]
    missed = options.gate_p50 is not None and (p50 is None or p50 > options.gate_p50)
    if missed:
        print(f"GATE MISSED: p50 {_ms(p50)} ms > {options.gate_p50:g} ms")
    return int(missed or result["summary"]["answered"] < len(recordings))


if __name__ == "__main__":
    sys.exit(main())
