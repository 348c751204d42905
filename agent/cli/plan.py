"""`halfsec plan`: how many replicas a load needs, how many calls are refused, which settings."""

import argparse
import json
import math
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

import httpx
from prometheus_client.parser import text_string_to_metric_families

from agent.errors import HalfsecError
from agent.http.auth.cli_credentials import KEY_VARIABLE, entry_at
from agent.server.ray_options import serve_config
from latency_budget.capacity.fleet import FleetResult, ReplicaFigures
from latency_budget.capacity.load import HOUR_S, CallBurst, CallLoad, Distribution
from latency_budget.capacity.plan import CapacityPlan, capacity_plan, worst_hours

MAX_DRAIN_S: Final = 3600.0
"""Limit of `agent.drain_s`, for which the plan is made."""

TIMEOUT_S: Final = 10.0

METRICS: Final = {
    "calls": "halfsec_calls_capacity",
    "start_s": "halfsec_start_seconds",
    "memory_bytes": "process_resident_memory_bytes",
}
"""Figures of a replica, and the metrics that hold them."""

_BURST: Final = re.compile(r"(\d+)@(\d{1,2}):(\d\d)/(\d+(?:\.\d+)?)")
_HOUR: Final = re.compile(r"(\d{1,2})=(\d+(?:\.\d+)?)")


def main(argv: Sequence[str] | None = None) -> int:
    """Print a plan. Returns 0. Raises HalfsecError."""
    options = _parser().parse_args(argv)
    measured = {} if options.url is None else measured_at(options.url, options.key)
    try:
        load = load_of(options)
        figures = ReplicaFigures(
            _figure("--calls", options.calls, measured.get("calls")),
            _figure("--start-s", options.start_s, measured.get("start_s")),
            options.drain_s,
        )
        plan = capacity_plan(load, figures, options.refused, options.seed)
    except ValueError as error:
        raise HalfsecError(f"This can't be planned: {error}.") from None
    memory_mb = options.memory_mb
    if memory_mb is None and (num_bytes := measured.get("memory_bytes")) is not None:
        memory_mb = num_bytes / 1e6
    if options.serve_config:
        print(serve_config(plan.rules, figures.calls, figures.drain_s), end="")
    elif options.json:
        print(json.dumps(plan_json(plan, memory_mb), indent=2))
    else:
        print("\n".join(lines_of(plan, load, memory_mb)))
    return 0


def load_of(options: argparse.Namespace) -> CallLoad:
    """The load that the arguments describe. Raises ValueError."""
    if options.length_s <= 0:
        raise ValueError("calls have some length")
    if options.at_once is not None:
        per_hour: tuple[float, ...] = (options.at_once * HOUR_S / options.length_s,)
    else:
        per_hour = hours_of(options.per_hour)
    bursts = tuple(burst_of(each) for each in options.burst)
    distribution: Distribution = "fixed" if options.fixed_length else "exponential"
    return CallLoad(per_hour, options.length_s, distribution, bursts)


def hours_of(text: str) -> tuple[float, ...]:
    """Calls an hour: one number, or `8=300,12=400,20=100`, each from that hour on. Raises
    ValueError."""
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return (float(text),)
    found: dict[int, float] = {}
    for part in text.split(","):
        match = _HOUR.fullmatch(part.strip())
        if match is None or int(match[1]) > 23:
            raise ValueError(f"calls an hour are like 400 or 0=20,8=300,20=100, not {text!r}")
        found[int(match[1])] = float(match[2])
    rate, hours = found[max(found)], []
    for hour in range(24):
        rate = found.get(hour, rate)
        hours.append(rate)
    return tuple(hours)


def burst_of(text: str) -> CallBurst:
    """`500@09:00/60`: 500 calls within 60 s from 9 o'clock on. Raises ValueError."""
    match = _BURST.fullmatch(text)
    if match is None or int(match[2]) > 23 or int(match[3]) > 59 or not float(match[4]):
        raise ValueError(f"a burst is like 500@09:00/60, not {text!r}")
    return CallBurst(int(match[2]) * HOUR_S + int(match[3]) * 60, int(match[1]), float(match[4]))


def measured_at(url: str, key: str | None) -> dict[str, float]:
    """Figures of the server at this address, of those that it knows. Raises HalfsecError."""
    parts = urlsplit(url)
    scheme = {"ws": "http", "wss": "https"}.get(parts.scheme, parts.scheme)
    address = urlunsplit((scheme, parts.netloc, "/metrics", "", ""))
    try:
        with httpx.Client(timeout=TIMEOUT_S, trust_env=False) as http:
            answer = http.get(address, headers=entry_at(url, key).headers())
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise HalfsecError(
            f"There is no server at {address}: {error or type(error).__name__}."
        ) from None
    if answer.status_code != 200:
        raise HalfsecError(f"{address} answers {answer.status_code}; a key goes behind --key.")
    return figures_in(answer.text)


def figures_in(text: str) -> dict[str, float]:
    """Figures of a replica in the text of its `/metrics`. Raises HalfsecError."""
    try:
        samples = {
            sample.name: sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name in METRICS.values()
        }
    except ValueError:
        raise HalfsecError("What answers there is no halfsec.") from None
    return {name: samples[metric] for name, metric in METRICS.items() if metric in samples}


def plan_json(plan: CapacityPlan, memory_mb: float | None) -> dict[str, Any]:
    """JSON of `halfsec plan --json`."""
    return {
        **asdict(plan),
        "memory_mb": None if memory_mb is None else round(memory_mb * plan.result.peak_replicas),
    }


def lines_of(plan: CapacityPlan, load: CallLoad, memory_mb: float | None) -> list[str]:
    """The plan as text."""
    figures, fixed = plan.figures, plan.fixed.min_replicas
    memory = "" if memory_mb is None else f", {memory_mb / 1e3:.1f} GB"
    bursts = f", {len(load.bursts)} burst(s)" if load.bursts else ""
    lines = [
        f"load         {max(load.per_hour):.0f} calls an hour at most, {load.length_s:.0f} s each"
        f"{bursts}: {plan.most_offered:.0f} at once",
        f"a replica    {figures.calls} calls, starts in {figures.start_s:.1f} s{memory}",
        f"goal         {_percent(plan.max_refused)} refused in the busiest hour",
        f"fixed        {fixed} replicas: {plan.num_lines} lines by Erlang B; simulated: "
        f"{_refusals(load, plan.fixed_result)}",
    ]
    if plan.rules.is_fixed:
        lines.append("autoscaling  saves nothing here: as many replicas all the time")
    else:
        rules = plan.rules
        lines += [
            f"autoscaling  {rules.min_replicas} to {rules.max_replicas} replicas, "
            f"{rules.target_ongoing_requests:g} calls each: {_refusals(load, plan.result)}",
            f"             {plan.result.mean_replicas:.1f} replicas on average, "
            f"{plan.result.peak_replicas} at once with those that start or drain",
        ]
    if plan.result.ended_by_drain:
        lines.append(
            f"drain        ended {plan.result.ended_by_drain} calls, after {figures.drain_s:.0f} s"
        )
    if memory_mb is not None:
        lines.append(
            f"memory       {memory_mb * plan.result.peak_replicas / 1e3:.0f} GB in all at most"
        )
    return lines


def _refusals(load: CallLoad, result: FleetResult) -> str:
    refused, arrived = worst_hours(load, result)
    return (
        f"{result.refused} of {result.arrived} refused, {_percent(refused / max(1, arrived))} in "
        "the worst hour"
    )


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %"


def _figure(flag: str, given: Any, measured: float | None) -> Any:
    """A figure of a replica: as given, else as measured. Raises HalfsecError."""
    if given is not None:
        return given
    if measured is not None:
        return math.floor(measured) if flag == "--calls" else measured
    raise HalfsecError(
        f"{flag} is missing: measure it with `halfsec bench`, or let a server say it with --url. A "
        "server knows how many calls it holds after 40 turns and 20 s of calls."
    )


def _drain_s(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds <= MAX_DRAIN_S:
        raise argparse.ArgumentTypeError(f"agent.drain_s is 0 to {MAX_DRAIN_S:.0f}")
    return seconds


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="halfsec plan",
        description="Simulate calls that arrive at replicas: how many are needed, how many calls "
        "are refused, which settings of the autoscaler.",
        epilog="example: halfsec plan --calls 2 --start-s 4 --per-hour 0=20,8=300,20=60 "
        "--length-s 180",
    )
    replica = parser.add_argument_group("one replica", "as measured, or as --url says")
    replica.add_argument("--url", help="a server that has held calls: its figures are taken")
    replica.add_argument("--key", help=f"for that server; without it {KEY_VARIABLE}")
    replica.add_argument("--calls", type=int, help="calls at once with p95 within the budget")
    replica.add_argument("--start-s", type=float, help="seconds until a new one takes calls")
    replica.add_argument("--memory-mb", type=float, help="memory of one, for the sum")
    replica.add_argument(
        "--drain-s",
        type=_drain_s,
        default=MAX_DRAIN_S,
        help="longest time that calls of a removed one may go on (3600)",
    )
    load = parser.add_argument_group("load")
    rate = load.add_mutually_exclusive_group(required=True)
    rate.add_argument(
        "--per-hour", help="calls an hour: 400, or by time of day like 0=20,8=300,20=60"
    )
    rate.add_argument("--at-once", type=float, help="calls in progress on average, all day")
    load.add_argument("--length-s", type=float, required=True, help="mean length of a call")
    load.add_argument(
        "--fixed-length", action="store_true", help="all calls as long, instead of exponential"
    )
    load.add_argument(
        "--burst",
        action="append",
        default=[],
        metavar="CALLS@HH:MM/SECONDS",
        help="calls on top, within so many seconds; may be repeated",
    )
    parser.add_argument(
        "--refused", type=float, default=0.001, help="goal, in the busiest hour (0.001)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the simulation (0)")
    out = parser.add_mutually_exclusive_group()
    out.add_argument("--json", action="store_true", help="print all figures as JSON")
    out.add_argument(
        "--serve-config", action="store_true", help="print a configuration for `serve deploy`"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
