"""Check of server and client marks against a stereo recording of the call.

Each answer in the recording is matched with the reply that the caller's loudspeaker began to play
there, and that reply with the server's account of its turn. Three numbers for
one wait are compared: the file's, the sum of the server's exposed stages, and the client clock's.
An answer that can't be matched is reported with the reason, and is not counted.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from agent.client.simulated_caller.caller import SimulatedCaller
from agent.client.simulated_caller.playback import NS_PER_S
from agent.client.simulated_caller.spoken_turn import NS_PER_MS, SpokenTurn
from agent.client.simulated_caller.stereo_recording import stereo, write_stereo
from agent.client.simulated_caller.summary import percentiles_ms

from .stereo_latency import FileTurn, FileTurns, read_turns

Json = dict[str, Any]

SAME_S: Final = 0.05
"""Greatest distance in s between an answer's first audible sample in the file and in the client's
account. Both come from the same samples; a greater distance means another answer."""

GATE_SHARE: Final = 0.95
"""Share of the compared turns that must agree."""

AGREES_MS: Final = 20.0
"""Tolerance in ms, one frame: a voice ends somewhere within one."""


@dataclass(frozen=True, slots=True)
class Account:
    """Server's and client's account of one reply."""

    exchange: int
    """Number of the exchange in its call, from 1."""
    onset_s: float
    """Time in s of the recording at which the reply was first audible, by the client's clock."""
    client_ms: float | None
    """Time in ms from the last voiced sample to the onset; None for a cut-in."""
    report: Json | None
    """The server's account of the turn; None if it can't be identified."""


@dataclass(slots=True)
class StereoCall:
    """A recorded call."""

    name: str
    """Name of the file."""
    found: FileTurns
    accounts: list[Account] = field(default_factory=list)


def recorded_call(caller: SimulatedCaller, path: Path) -> StereoCall:
    """Write the recording of a call that is over, and measure it. Raises BenchError."""
    sound = stereo(caller.microphone, caller.loudspeaker)
    write_stereo(path, sound, caller.microphone.rate_hz)
    return StereoCall(path.name, read_turns(path), accounts_of(caller))


def accounts_of(caller: SimulatedCaller) -> list[Account]:
    """Accounts of every reply that was heard in a call, in order."""
    return [account for exchange in caller.exchanges for account in _accounts(exchange, caller)]


def _accounts(exchange: SpokenTurn, caller: SimulatedCaller) -> list[Account]:
    start_ns = caller.microphone.started_ns or 0
    onsets = [caller.loudspeaker.onset_ns(reply) for reply in exchange.replies]
    # Each reply is accounted for once, in order, whether or not it was heard.
    reports: Sequence[Json | None] = exchange.reports
    if len(reports) != len(onsets):
        reports = [None] * len(onsets)
    accounts = []
    for onset_ns, report in zip(onsets, reports, strict=True):
        if onset_ns is None:
            continue
        spoken_ns = exchange.last_voiced_ns
        waited = None if spoken_ns is None or onset_ns < spoken_ns else onset_ns - spoken_ns
        client_ms = None if waited is None else waited / NS_PER_MS
        onset_s = (onset_ns - start_ns) / NS_PER_S
        accounts.append(Account(exchange.number, onset_s, client_ms, report))
    return accounts


def stereo_figures(calls: Sequence[StereoCall]) -> Json | None:
    """`{calls, turns, compared, within_20_ms, difference_ms: {p50, ..., max}, not_compared}`; None
    without recordings."""
    if not calls:
        return None
    turns: list[Json] = []
    left_out: list[Json] = []
    for call in calls:
        unmatched = list(call.accounts)
        for turn in call.found.turns:
            account = _matching(turn, unmatched)
            if account is not None:
                unmatched.remove(account)
            row, why = _row(call.name, turn, account)
            (turns if why is None else left_out).append({**row, **({"why": why} if why else {})})
        left_out += _rest(call, unmatched)
    differences = [abs(row["difference_ms"]) for row in turns]
    return {
        "calls": [call.name for call in calls],
        "turns": turns,
        "not_compared": left_out,
        "compared": len(turns),
        "within_20_ms": sum(ms <= AGREES_MS for ms in differences),
        "difference_ms": {**percentiles_ms(differences), "max": max(differences, default=None)},
    }


def _matching(turn: FileTurn, accounts: Sequence[Account]) -> Account | None:
    near = [each for each in accounts if abs(each.onset_s - turn.onset_s) <= SAME_S]
    return min(near, key=lambda each: abs(each.onset_s - turn.onset_s), default=None)


def _row(name: str, turn: FileTurn, account: Account | None) -> tuple[Json, str | None]:
    """Row of the table, and the reason if it can't be compared."""
    row: Json = {"call": name, "at_s": round(turn.onset_s, 3), "measured_ms": turn.waited_ms}
    if account is None:
        return row, "no reply of the caller's begins there"
    row |= {"exchange": account.exchange, "client_ms": account.client_ms}
    report = account.report
    if report is None:
        return row, "the server took a pause for the end, and it is not known which account is this"
    at_ear = report.get("e2e_ear_ms") is not None
    row |= {
        "turn": report.get("turn"),
        "server_ms": _exposed_ms(report),
        "at_ear": at_ear,
        "goes_on": turn.goes_on,
    }
    if account.client_ms is None or report.get("cut_in"):
        return row, "a cut-in: the caller had not finished"
    if not at_ear:
        return row, "no report of playback reached the server"
    row["difference_ms"] = row["server_ms"] - turn.waited_ms
    row["client_difference_ms"] = account.client_ms - turn.waited_ms
    return row, None


def _exposed_ms(report: Json) -> float:
    return float(sum(stage["exposed_ms"] for stage in report["stages"].values()))


def _rest(call: StereoCall, unmatched: Sequence[Account]) -> list[Json]:
    """Rows for answers that only the file or only the accounts hold."""
    named: list[tuple[float, str]] = [
        *((each.onset_s, "heard, but the recording has no answer there") for each in unmatched),
        *((end_s, "the caller spoke, and no answer followed") for end_s in call.found.unanswered),
        *((onset_s, "the agent spoke first") for onset_s in call.found.unasked),
    ]
    return [{"call": call.name, "at_s": round(at_s, 3), "why": why} for at_s, why in named]


def show_stereo(found: Json | None) -> None:
    """Print the table."""
    if found is None:
        return
    titles = (("at s", 8), ("recorded", 10), ("exposed", 9), ("differ", 8), ("client", 8))
    print(f"\n{'call':<14}" + "".join(f"{title:>{width}}" for title, width in titles) + "  differ")
    for row in found["turns"]:
        print(
            f"{row['call']:<14}{row['at_s']:>8.2f}{row['measured_ms']:>10.1f}"
            f"{row['server_ms']:>9.1f}{row['difference_ms']:>+8.1f}"
            f"{row['client_ms']:>8.1f}{row['client_difference_ms']:>+8.1f}"
        )
    for row in found["not_compared"]:
        print(f"{row['call']:<14}{row['at_s']:>8.2f}  not compared: {row['why']}")
    differ = found["difference_ms"]
    if found["compared"]:
        print(
            f"{found['within_20_ms']} of {found['compared']} turns: the exposed stages add up to "
            f"what the recording shows within {AGREES_MS:g} ms; they differ by "
            f"{differ['p50']:.1f} ms (p50), {differ['p95']:.1f} (p95), {differ['max']:.1f} (most)"
        )


def missed_stereo(found: Json | None, limit_ms: float | None) -> list[str]:
    """Gate missed: fewer than 95 % of the compared turns agree within the limit, or none is."""
    if limit_ms is None:
        return []
    rows = [] if found is None else found["turns"]
    agreeing = sum(abs(row["difference_ms"]) <= limit_ms for row in rows)
    if rows and agreeing >= GATE_SHARE * len(rows):
        return []
    return [
        f"GATE MISSED: {agreeing} of {len(rows)} turns agree with the recording within "
        f"{limit_ms:g} ms; {100 * GATE_SHARE:g} % have to"
    ]
