"""Report of `bench voice` and `bench turns`: data, tables, gates."""

import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

from agent.client.simulated_caller.spoken_turn import SpokenTurn
from agent.client.simulated_caller.summary import PERCENTILES, percentiles_ms, summarize_exchanges
from benchmarks.callers.server_process import ServerFigures
from benchmarks.statistics import (
    Speculation,
    actions_of,
    chains_ms,
    median_stages,
    speculation,
    wilson_interval,
)
from latency_budget.account.clock import unix_ns
from latency_budget.host import machine

from .backchannel_metric import aside_figures
from .harness import HeldCall
from .stereo_check import show_stereo, stereo_figures
from .variants import WHOLE

Json = dict[str, Any]


def turn_figures(exchanges: Sequence[SpokenTurn]) -> Json:
    """`{summary, cut_in_interval, missed, reopened}` at the ear. Missed: no answer was heard after
    the last word. Re-opened: a reply began before the last word, audible (a cut-in) or not."""
    return {
        "summary": summarize_exchanges(exchanges),
        "cut_in_interval": wilson_interval(sum(e.cut_in for e in exchanges), len(exchanges)),
        "missed": sum(not exchange.answered for exchange in exchanges),
        "reopened": sum(exchange.reopened for exchange in exchanges),
    }


def figures_of(calls: Sequence[HeldCall], server: ServerFigures | None = None) -> Json:
    """Figures of all calls with one variant: `turn_figures`, also by kind of turn where the
    recordings name one; each turn's time at the ear, in order, so that variants are compared turn
    by turn; speculation; the replies' own time (`chains_ms`); actions against late answers, each
    with its number of turns; median stages; barge-ins; backchannels by kind of client; errors."""
    exchanges = [exchange for call in calls for exchange in call.exchanges]
    by_kind: dict[str, list[SpokenTurn]] = {}
    for call in calls:
        for recording, exchange in zip(call.recordings, call.exchanges, strict=False):
            by_kind.setdefault(recording.kind, []).append(exchange)
    return {
        **turn_figures(exchanges),
        "ear_ms": [exchange.e2e_ear_ms for exchange in exchanges],
        "kinds": {kind: turn_figures(found) for kind, found in sorted(by_kind.items()) if kind},
        "speculation": sum((speculation(call.marks) for call in calls), Speculation()).as_json(),
        "chain": percentiles_ms(ms for call in calls for ms in chains_ms(call.marks)),
        "actions": dict(Counter(action for call in calls for action in actions_of(call.marks))),
        "cpu_ms_per_turn": _cpu_ms_per_turn(server, len(exchanges)),
        "stages": median_stages(exchange.turn_json() for exchange in exchanges),
        "barge_ins": {
            **_barge_in_times(exchanges),
            "replies_checked": sum(call.num_checked for call in calls),
            "mismatches": [line for call in calls for line in call.mismatches],
        },
        "backchannels": aside_figures([aside for call in calls for aside in call.asides]),
        "stereo": stereo_figures([call.stereo for call in calls if call.stereo is not None]),
        "errors": [error for call in calls for error in call.all_errors()],
    }


def _cpu_ms_per_turn(server: ServerFigures | None, num_turns: int) -> float | None:
    """CPU time of the server per turn in ms; None if the bench did not start the server."""
    if server is None or server.calls_cpu_s is None or not num_turns:
        return None
    return 1000 * server.calls_cpu_s / num_turns


def _barge_in_times(exchanges: Sequence[SpokenTurn]) -> Json:
    """Barge-in times from the caller's first voiced sample. `ducked_ms`: until the reply was turned
    down, for clients that duck; `silenced_ms`: until it was silent for good; `stopped_ms`: the
    former if there is one, else the latter: what a caller perceives as the stop."""
    times: Json = {"count": sum(exchange.stopped_ms is not None for exchange in exchanges)}
    for name in ("ducked_ms", "silenced_ms", "stopped_ms"):
        known = [ms for exchange in exchanges if (ms := getattr(exchange, name)) is not None]
        times[name] = percentiles_ms(known)
        times[name.replace("_ms", "_max_ms")] = max(known, default=None)
    return times


def report(
    bench: str,
    calls: Sequence[HeldCall],
    options: Json,
    *,
    compared: Mapping[str, Sequence[HeldCall]] | None = None,
    servers: Mapping[str, ServerFigures] = MappingProxyType({}),
) -> Json:
    """Make the result as JSON data, with machine, date, command and options. `compared`: calls over
    the same recordings with other variants. `servers`: figures of the servers that were started, by
    variant."""
    server = servers.get(WHOLE.name)
    return {
        **heading(bench, options),
        "session": None,
        "turns": [exchange.turn_json() for call in calls for exchange in call.exchanges],
        **figures_of(calls, server),
        "compared": {
            name: figures_of(held, servers.get(name)) for name, held in (compared or {}).items()
        },
        "server": None if server is None else asdict(server),
    }


def heading(bench: str, options: Json) -> Json:
    """First members of every result: machine, date, command, options."""
    return {
        "bench": bench,
        "machine": machine(),
        "date": datetime.fromtimestamp(unix_ns() / 1e9, UTC).isoformat(timespec="seconds"),
        "command": " ".join(["halfsec", "bench", bench, *sys.argv[_first_own() :]]),
        "options": {name: _plain(value) for name, value in options.items()},
    }


def _plain(value: Any) -> Any:
    """Convert a value to JSON types: paths become strings."""
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value if isinstance(value, str | int | float | None) else str(value)


def _first_own() -> int:
    return sys.argv.index("bench") + 2 if "bench" in sys.argv else 1


def show(result: Json) -> None:
    """Print the tables."""
    print(f"\n{result['machine']}, {result['date']}\n")
    print(
        f"{'':<24}{'turns':>6}{'missed':>7}" + "".join(f"{f'p{r}':>6}" for r in PERCENTILES), end=""
    )
    print(f"{'cut in':>8}{'(95 %)':>12}{'re-opened':>10}{'hits':>7}{'waste ms':>9}", end="")
    print(f"{'waste tok':>12}{'cpu ms':>8}")
    _show_row("whole", result)
    for kind, figures in result["kinds"].items():
        _show_row(f"  {kind}", figures)
    for name, figures in result["compared"].items():
        _show_row(name, figures)
        for kind, part in figures["kinds"].items():
            _show_row(f"  {kind}", part)
    _show_pace(result["summary"])
    print("\nms at the ear, from the last voiced frame to the first audible sample; cut-ins apart")
    print(
        "replies alone: had not to be waited for whether the turn is over; what was done for them"
    )
    print("waste, a turn: what guesses in vain cost; tokens prefilled + generated")
    print("cpu ms, a turn: of the server's process in its calls, listening included")
    print(f"\n{'median ms':<14}{'spent':>8}{'exposed':>9}")
    for stage, times in result["stages"].items():
        print(f"{stage:<14}{times['spent_ms']:>8.0f}{times['exposed_ms']:>9.0f}")
    _show_barge_ins(result["barge_ins"])
    _show_backchannels(result["backchannels"])
    show_stereo(result["stereo"])
    _show_server(result["server"])
    for error in result["errors"]:
        print(f"error: {error}")


def _show_row(name: str, figures: Json) -> None:
    summary, (low, high) = figures["summary"], figures["cut_in_interval"]
    times = "".join(f"{in_ms(summary[f'p{rank}']):>6}" for rank in PERCENTILES)
    cut_ins = f"{100 * (summary['cut_in_rate'] or 0):.1f} %"
    interval = f"{100 * low:.1f}-{100 * high:.1f}"
    line = f"{name:<24}{summary['turns']:>6}{figures['missed']:>7}{times}{cut_ins:>8}{interval:>12}"
    line += f"{figures['reopened']:>10}"
    guessed = figures.get("speculation")
    if guessed is not None and guessed["turns"]:
        tokens = "{wasted_prompt_tokens_per_turn:.0f} + {wasted_output_tokens_per_turn:.0f}"
        line += f"{100 * guessed['hit_rate']:>5.0f} %{guessed['wasted_ms_per_turn']:>9.0f}"
        line += f"{tokens.format_map(guessed):>12}{in_ms(figures['cpu_ms_per_turn']):>8}"
    print(line)
    if figures.get("chain", {}).get("p50") is not None:
        times = "".join(f"{in_ms(figures['chain'][f'p{rank}']):>6}" for rank in PERCENTILES)
        acted = ", ".join(f"{name} in {count}" for name, count in figures["actions"].items())
        print(f"{'  replies alone':<37}{times}{f'  {acted}' if acted else ''}")


def _show_pace(summary: Json) -> None:
    raw = summary["e2e_raw_ms"]
    if any(raw[f"p{rank}"] != summary[f"p{rank}"] for rank in PERCENTILES):
        times = ", ".join(f"p{rank} {in_ms(raw[f'p{rank}'])}" for rank in PERCENTILES)
        print(f"but for the pace that was asked for: {times}")
    if summary["openers"]:
        print(f"{summary['openers']} late answers began with an opener")


def _show_barge_ins(barge_ins: Json) -> None:
    if not barge_ins["count"] and not barge_ins["replies_checked"]:
        return
    print()
    if barge_ins["count"]:
        title = f"{barge_ins['count']} barge-ins, ms"
        print(f"{title:<24}{'p50':>6}{'p95':>6}{'most':>6}")
    for name, label in (("ducked", "turned down after"), ("silenced", "silent after")):
        times = barge_ins[f"{name}_ms"]
        most = barge_ins[f"{name}_max_ms"]
        if most is not None:
            print(f"{label:<24}{in_ms(times['p50']):>6}{in_ms(times['p95']):>6}{in_ms(most):>6}")
    print(
        f"history of {barge_ins['replies_checked']} replies compared with what was played, "
        f"{len(barge_ins['mismatches'])} differ"
    )
    for line in barge_ins["mismatches"]:
        print(f"  {line}")


def _show_backchannels(backchannels: Json) -> None:
    for client, found in backchannels.items():
        low, high = found["kept_interval"]
        rate = "-" if found["kept_rate"] is None else f"{100 * found['kept_rate']:.1f} %"
        times = found["gone_ms"]
        verb = "turned down" if client == "ducks" else "silent"
        print(
            f"\n{found['said']} backchannels, client {client}: {found['kept']} replies went on to "
            f"their end, {found['stopped']} were stopped, {found['answers']} questions answered; "
            f"kept {rate} (95 %: {100 * low:.1f}-{100 * high:.1f}), {verb} for "
            f"{in_ms(times['p50'])} ms (p50), {in_ms(times['p95'])} ms (p95)"
        )


def _show_server(server: Json | None) -> None:
    if server is None:
        return
    print(
        f"\nlistening after {server['listening_s'] or 0:.1f} s, ready after "
        f"{server['ready_s'] or 0:.1f} s; memory {server['rest_mb'] or 0:.0f} MB at rest, "
        f"{server['call_mb'] or 0:.0f} MB in a call"
    )


def in_ms(value: float | None) -> str:
    """Format a value in ms; a dash for None."""
    return "-" if value is None else f"{value:.0f}"


def save(result: Json, path: Path | None) -> None:
    """Write the result as JSON, if `path` is given."""
    if path is not None:
        path.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def missed_gates(
    result: Json,
    p50: float | None,
    p95: float | None,
    cut_ins: float | None,
    barge_in: float | None = None,
) -> list[str]:
    """Gates missed: p50, p95 and the longest barge-in in ms, cut-ins in per cent. An unknown figure
    misses its gate. A barge-in lasts until the caller hears the agent stop: turned down if the
    client ducks, else silent."""
    summary = result["summary"]
    rate = summary["cut_in_rate"]
    checks = [
        ("p50", summary["p50"], p50, "ms"),
        ("p95", summary["p95"], p95, "ms"),
        ("cut-ins", None if rate is None else 100 * rate, cut_ins, "%"),
        ("barge-in", result["barge_ins"]["stopped_max_ms"], barge_in, "ms"),
    ]
    return [
        f"GATE MISSED: {name} {'-' if value is None else f'{value:.1f}'} {unit} > {limit:g} {unit}"
        for name, value, limit, unit in checks
        if limit is not None and (value is None or value > limit)
    ]


def missed_backchannels(result: Json, percent: float | None) -> list[str]:
    """Gates missed by kind of client: a smaller share of replies continued than `percent`. Without
    any backchannel the gate is missed."""
    if percent is None:
        return []
    rates = {client: found["kept_rate"] for client, found in result["backchannels"].items()}
    return [
        f"GATE MISSED: replies kept ({client}) "
        f"{'-' if rate is None else f'{100 * rate:.1f}'} % < {percent:g} %"
        for client, rate in (rates or {"none said": None}).items()
        if rate is None or 100 * rate < percent
    ]
