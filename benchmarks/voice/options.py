"""Options that `bench turns`, `bench voice` and `bench phone` share."""

import argparse
from pathlib import Path

from benchmarks.signals.recordings import TurnRecording, find_recordings
from benchmarks.signals.stereo_calls import CHANNELS


def positive(text: str) -> int:
    """Parse an integer of at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return number


def add_common(parser: argparse.ArgumentParser, *, turns: int) -> None:
    """Add the shared options. `turns`: default number of turns."""
    add = parser.add_argument
    add("recordings", nargs="+", type=Path, help="files or folders")
    add("--turns", type=positive, default=turns, help="number of turns (%(default)s)")
    add("--turns-a-call", type=positive, default=5, help="in each call (%(default)s)")
    add("--callers", type=positive, default=1, help="calls at once (%(default)s)")
    add("--seed", type=int, default=1, help="which recordings, in which order (%(default)s)")
    add("--half", choices=("a", "b"), default="", help="only recordings with this label")
    add("--kind", default="", help='only this kind of turn: "command", "hesitant"')
    add(
        "--caller-channel",
        choices=CHANNELS,
        default="found",
        help="of recordings of whole calls with two channels, whose turns are played; found: the "
        "one that does not speak first",
    )
    add("--url", help="URL of a running server; without it one is started")
    add("--serve-args", default="", help='for the server that is started: "--preset cpu"')
    add("--json", type=Path, metavar="FILE", help="save the result")
    add("--gate-p50", type=float, metavar="MS", help="fail above this")
    add("--gate-p95", type=float, metavar="MS", help="fail above this")
    add("--gate-cut-ins", type=float, metavar="PERCENT", help="fail above this")


def chosen_recordings(options: argparse.Namespace, *, beside: int = 0) -> list[TurnRecording]:
    """Recordings to play, with `beside` more that are not counted. Raises BenchError."""
    number = options.turns + beside
    return find_recordings(
        options.recordings,
        number,
        options.seed,
        half=options.half,
        kind=options.kind,
        caller=options.caller_channel,
    )
