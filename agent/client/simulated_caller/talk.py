"""`halfsec talk`: play recordings to a server in real time, and show the latency of the answers."""

import argparse
import asyncio
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

import httpx
import numpy as np
import numpy.typing as npt

from agent.client import events as ev
from agent.client.call import connect
from agent.client.errors import CallEndedError, ConnectError
from agent.config.local_urls import local_voice_url
from agent.config.sources import read_config
from agent.config.suggestions import nearest
from agent.errors import HalfsecError
from agent.http.auth.cli_credentials import (
    KEY_VARIABLE,
    WITHOUT_KEY,
    CliCredentials,
    entry_at,
    entry_here,
)
from agent.http.auth.tls import trust
from latency_budget.account.ledger import records_of
from latency_budget.account.turn_record import Outcome, TurnRecord
from latency_budget.reporting.trace import TraceError, read_trace
from latency_budget.reporting.waterfall import waterfall
from latency_budget.statistics.report import report_json
from latency_budget.storage.private_files import write_private_file

from .caller import RecordingError, SimulatedCaller, SpokenTurn, load_recording
from .stereo_recording import wave_bytes
from .summary import summarize_exchanges

REPLY_RATE_HZ: Final = 24_000
SAMPLE: Final = Path(__file__).resolve().parents[3] / "web_demo" / "sample-question.wav"
"""A question that comes with the package."""


class TalkError(HalfsecError):
    """A recording that can't be played, or a file that can't be written."""

    def __init__(self, message: str):
        super().__init__(message, code="talk")


@dataclass(slots=True)
class Talk:
    """Result of one call."""

    session_id: str
    exchanges: list[SpokenTurn]
    reply: npt.NDArray[np.int16]
    """The agent's audio as it was heard, int16 [n] at `REPLY_RATE_HZ`."""
    trace: str = ""
    """JSON lines; empty where the server keeps none."""
    errors: list[str] = field(default_factory=list)

    def records(self) -> tuple[TurnRecord, ...]:
        """The server's record of every turn, from its trace."""
        return records_of(read_trace(self.trace.splitlines()).marks()) if self.trace else ()

    def report(self) -> dict[str, Any]:
        """The JSON of `talk --json`."""
        turns = [exchange.turn_json() for exchange in self.exchanges]
        errors = [*self.errors, *(error for each in self.exchanges for error in each.errors)]
        return report_json(self.session_id, turns, summarize_exchanges(self.exchanges), errors)


async def hold_call(
    recordings: Sequence[tuple[npt.NDArray[np.int16], int]],
    url: str,
    *,
    model: str | None = None,
    entry: CliCredentials = WITHOUT_KEY,
    wait_s: float = 0.0,
    patience_s: float = 20.0,
    on_event: Callable[[ev.ClientEvent], None] | None = None,
    on_wait: Callable[[ConnectError], None] | None = None,
) -> Talk:
    """Speak each recording in real time, and play its answer before the next.

    Raises ConnectError. A call that ends early gives the result so far, with an error.
    """
    errors: list[str] = []
    options: dict[str, Any] = {"model": model, "api_key": entry.api_key, "tls": entry.tls}
    async with connect(url, **options, wait_s=wait_s, on_wait=on_wait) as call:
        caller = SimulatedCaller(call, on_event=on_event)
        async with asyncio.TaskGroup() as group:
            group.create_task(caller.run())
            try:
                for pcm, rate_hz in recordings:
                    await caller.ask(pcm, rate_hz, patience_s=patience_s)
                await caller.wait_reports()
            except CallEndedError as error:
                errors.append(str(error))
            caller.stop()
        if caller.num_restarted:
            errors.append("The connection broke, and the agent has forgotten what was said before.")
        if model is not None and (unknown := await _unknown_agent(url, model, entry)):
            errors.append(unknown)
        trace = await fetch_trace(url, call.session_id, entry)
        reply = caller.loudspeaker.recording(REPLY_RATE_HZ)
        return Talk(call.session_id, caller.exchanges, reply, trace, errors)


async def fetch_trace(url: str, session_id: str, entry: CliCredentials = WITHOUT_KEY) -> str:
    """The trace of a call at this server; empty where it has none."""
    answer = await _get(url, f"/v1/sessions/{session_id}/trace", entry)
    return "" if answer is None else answer.text


async def _unknown_agent(url: str, agent: str, entry: CliCredentials) -> str | None:
    """Error message where the server has no such agent: then its default agent answers."""
    answer = await _get(url, "/v1/models", entry)
    try:
        listed = answer.json()["data"] if answer is not None else []
        known = [str(model["id"]) for model in listed if model.get("kind", "agent") == "agent"]
    except (ValueError, KeyError, TypeError, AttributeError):
        known = []
    if not known or agent in known:
        return None
    return (
        f"The server has no agent {agent!r}, so its default one answered. It has: "
        f"{', '.join(known)}.{nearest(agent, known)}"
    )


async def _get(url: str, path: str, entry: CliCredentials) -> httpx.Response | None:
    """GET another path of the voice socket's server; None for an error or any status but 200."""
    parts = urlsplit(url)
    scheme = {"ws": "http", "wss": "https"}.get(parts.scheme, parts.scheme)
    address = urlunsplit((scheme, parts.netloc, path, "", ""))
    key = entry.api_key()
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    verify = True if entry.tls is None else entry.tls
    async with httpx.AsyncClient(
        timeout=10.0, trust_env=False, headers=headers, verify=verify
    ) as http:
        try:
            answer = await http.get(address)
        except httpx.HTTPError:
            return None
    return answer if answer.status_code == 200 else None


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 0 where every recording was answered, 1 where one was not."""
    options = _parser().parse_args(argv)
    recordings = [_load(path) for path in options.recordings]
    for path in (options.out, options.trace):
        if path is not None:
            _check_place(path)
    if options.url is None:
        config = read_config()
        url, entry = local_voice_url(config), entry_here(config, options.key)
    else:
        url, entry = options.url, entry_at(options.url, options.key)
    if options.ca is not None:
        entry = replace(entry, tls=trust(options.ca))
    talk = asyncio.run(
        hold_call(
            recordings,
            url,
            model=options.agent,
            entry=entry,
            wait_s=options.wait,
            on_event=None if options.json else _show_live,
            on_wait=_Waiting(options.wait).show,
        )
    )
    if options.out is not None:
        _write_wav(options.out, talk.reply)
    if options.trace is not None:
        _write_text(options.trace, talk.trace)
    if options.json:
        print(json.dumps(talk.report(), indent=2, ensure_ascii=False))
    else:
        _show_summary(talk, options)
    return 0 if all(exchange.answered for exchange in talk.exchanges) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="halfsec talk",
        description="Play recordings to a running server in real time, as a caller would, hear the "
        "answers, and show where each answer's time went.",
        epilog="example: halfsec talk question.wav --out answer.wav",
    )
    parser.add_argument(
        "recordings",
        nargs="*",
        type=Path,
        default=[SAMPLE],
        help="WAV, FLAC or OGG; a turn each. None: a question that comes with halfsec",
    )
    parser.add_argument("--out", type=Path, metavar="WAV", help="save what was heard")
    parser.add_argument("--trace", type=Path, metavar="JSONL", help="save the server's trace")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument(
        "--url", help="of the server; without it the one that the settings and PORT describe, here"
    )
    parser.add_argument("--agent", help="which [agents.NAME] answers")
    parser.add_argument(
        "--key",
        "--api-key",
        help=f"for a server that asks for one; else {KEY_VARIABLE}. A server on this machine needs "
        "none of its owner's",
    )
    parser.add_argument(
        "--ca", metavar="PEM", help="a certificate to trust, as a self-signed server has it"
    )
    parser.add_argument(
        "--wait",
        type=float,
        default=60.0,
        metavar="S",
        help="seconds, for a server that starts, warms up or is full (%(default)g)",
    )
    return parser


def _load(path: Path) -> tuple[npt.NDArray[np.int16], int]:
    try:
        return load_recording(path)
    except RecordingError as error:
        raise TalkError(str(error)) from None


def _check_place(path: Path) -> None:
    """Check an output path before the call. Raises TalkError."""
    if path.is_dir():
        raise TalkError(f"Can't write {path}: it is a directory.")
    if not path.parent.is_dir():
        raise TalkError(f"Can't write {path}: there is no directory {path.parent}.")


class _Waiting:
    """Prints why there is no call yet, once for each reason."""

    def __init__(self, wait_s: float) -> None:
        self._wait_s = wait_s
        self._printed = ""

    def show(self, error: ConnectError) -> None:
        if str(error) != self._printed:
            self._printed = str(error)
            print(f"{error} Waiting up to {self._wait_s:g} s.", file=sys.stderr, flush=True)


def _show_live(event: ev.ClientEvent) -> None:
    match event:
        case ev.Transcript(text=text):
            print(f"caller: {text}", flush=True)
        case ev.ReplyDone(text=text, status=status):
            note = "" if status == "completed" else f"  [{status}]"
            print(f"agent:  {text}{note}", flush=True)
        case ev.Reconnecting(reason=reason):
            print(f"(the connection broke: {reason}; trying again)", flush=True)
        case ev.Resumed():
            print("(back in the call)", flush=True)
        case ev.Restarted():
            print("(in another call: the agent starts afresh)", flush=True)
        case ev.ServerError(message=message):
            print(f"error:  {message}", file=sys.stderr, flush=True)


_NOTES: Final[dict[Outcome | None, str]] = {
    None: "",
    Outcome.CUT_IN: ", cut in on the caller",
    Outcome.REOPENED: ", re-opened before an answer was heard",
    Outcome.INTERRUPTED: ", interrupted",
}


def _show_summary(talk: Talk, options: argparse.Namespace) -> None:
    try:
        records = talk.records()
    except TraceError as error:
        print(f"The server's trace can't be read: {error}", file=sys.stderr)
        records = ()
    for record in records:
        print(f"\n{waterfall(record)}")
    for exchange in talk.exchanges:
        if exchange.e2e_ear_ms is None:
            print(f"\nRecording {exchange.number} was not answered.")
        else:
            note = _NOTES[exchange.outcome]
            if exchange.e2e_raw_ms != exchange.e2e_ear_ms:
                note += f" ({exchange.e2e_raw_ms:.0f} ms but for the pace)"
            note += ", with an opener" if exchange.opener else ""
            print(
                f"\nRecording {exchange.number}: first sound at the caller's ear "
                f"{exchange.e2e_ear_ms:.0f} ms after the last word{note}."
            )
    for message in talk.errors:
        print(message, file=sys.stderr)
    if options.out is not None:
        print(f"Saved {len(talk.reply) / REPLY_RATE_HZ:.1f} s of answers to {options.out}.")


def _write_wav(path: Path, pcm: npt.NDArray[np.int16]) -> None:
    try:
        write_private_file(path, wave_bytes(pcm, REPLY_RATE_HZ))
    except OSError as error:
        raise TalkError(f"Can't write {path}: {error.strerror}") from None


def _write_text(path: Path, text: str) -> None:
    try:
        write_private_file(path, text.encode())
    except OSError as error:
        raise TalkError(f"Can't write {path}: {error.strerror}") from None


if __name__ == "__main__":
    sys.exit(main())
