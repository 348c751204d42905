"""`halfsec bench soak`: callers of every kind for as long as asked; fails where anything grows.

A server is started with a home of its own, and N callers visit it again and again (`callers.py`),
with pauses that keep it at a share of the machine's capacity (`pacer.py`). Every few seconds the
server's process is sampled (`samples.py`). At the end lines are fitted (`trends.py`): the exit
status is 1 where a metric grows, the latency of the last tenth is above that of the first, turns
had no answer, visits failed or were refused, or where one of these could not be judged. Then the
rates are carried on to thirty days (`horizon.py`).

A soak that broke off goes on with `--resume DIR`: with a new server, whose memory and threads begin
at a level of their own. It has its options, its length included.
"""

import argparse
import asyncio
import contextlib
import math
import os
import random
import resource
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np

from agent.client.call import wait_ready
from agent.client.errors import ConnectError
from agent.config.home import halfsec_home
from agent.config.schema import LatencySettings
from agent.errors import BenchError
from benchmarks.callers.control_socket import SOCKET_VARIABLE
from benchmarks.callers.server_process import OwnServer, ServerLaunch, own_server
from benchmarks.signals.recordings import TurnRecording, find_recordings
from benchmarks.voice.options import positive
from benchmarks.voice.report import heading, save
from latency_budget.account.clock import SystemClock
from latency_budget.host import memory_mb, usable_cores
from llm_engine.chat.conversation_pool import MAX_IDLE

from .callers import KINDS, TURNS_A_VISIT, VisitContext, make_visit
from .horizon import rows_of
from .interned_strings import set_apart
from .pacer import Pacer
from .page import save_page
from .samples import Sample, SampledServer, take_sample
from .state import SoakState
from .trends import (
    ALLOWANCES,
    HEAP_ALLOWANCE_MB,
    WARM_UP,
    Drift,
    Trend,
    fit_drift,
    fit_trend,
)

Json = dict[str, Any]

MINUTES: Final = 30.0
START_TIMEOUT_S: Final = 180.0
NUM_RECORDINGS: Final = 200
SAMPLES: Final = 200
"""Samples of a soak, whatever its length; at least `SAMPLE_S` apart."""
SAMPLE_S: Final = 2.0
HEAP_EVERY: Final = 5
"""Every so many samples have the heap by subsystem."""
REST_S: Final = 90.0
"""Timeout in s of the rest after the last call. A call that lost its client is kept for a minute.
"""
AT_REST: Final = {
    "calls": 0,
    "store_waiting": 0,
    "sequences": MAX_IDLE,
    "tasks": 2,
    "descriptors": 4,
    "threads": 1,
}
"""What may be more after the last call than before the first. The HTTP API keeps idle
conversations; connections of the bench stay open; the first visits make one more thread, which
stays."""
MAX_FAILED: Final = 0.01
"""Greatest share of turns without an answer, of visits that failed, and of those that were refused:
the server has a line more than there are callers."""
MIN_SAMPLED: Final = 0.5
"""Least share of the samples that have a metric; with fewer it is not judged."""
MAX_SUBSYSTEMS: Final = 12
"""Subsystems of the heap that are judged: the largest at the end."""


async def soak(
    state: SoakState,
    server: OwnServer,
    recordings: Sequence[TurnRecording],
    options: argparse.Namespace,
    control: Path,
) -> None:
    """Visit and sample until the soak's time is over. Raises BenchError where the server ends."""
    await wait_ready(server.url, START_TIMEOUT_S)
    clock = SystemClock()
    before_s, part = state.elapsed_s, state.part + 1
    began_ns = clock.now_ns()

    def elapsed_s() -> float:
        return before_s + (clock.now_ns() - began_ns) / 1e9

    end_s = options.minutes * 60
    pacer = Pacer(options.load, usable_cores())
    sampled = SampledServer(
        server.url,
        server.pid,
        control,
        {
            "store_mb": state.folder / "home" / "turns.sqlite",
            "log_mb": state.folder / "server.log",
            "recordings_mb": state.folder / "recordings",
        },
    )
    order = list(KINDS)

    async def caller(number: int) -> None:
        rng = random.Random(f"{options.seed} {part} {number}")
        place = number * len(order) // options.callers
        while elapsed_s() < end_s:
            some = rng.sample(list(recordings), min(TURNS_A_VISIT, len(recordings)))
            context = VisitContext(server.url, some, rng, options.patience)
            visit = await make_visit(order[place % len(order)], context, elapsed_s)
            state.add_visit(visit)
            place += 1
            left_s = end_s - elapsed_s()
            await asyncio.sleep(max(0.0, min(pacer.pause_s * rng.uniform(0.5, 1.5), left_s)))

    state.add_rest(await take_sample(sampled, before_s, part, heap=False))
    every_s = max(SAMPLE_S, end_s / SAMPLES)
    async with asyncio.TaskGroup() as group:
        callers = [group.create_task(caller(number)) for number in range(options.callers)]
        count = 0
        while elapsed_s() < end_s:
            with_heap = not options.no_heap and count % HEAP_EVERY == 0
            sample = await take_sample(sampled, elapsed_s(), part, heap=with_heap)
            used = pacer.note(sample.at_s, sample.values.get("cpu_s", 0.0))
            if used is not None:
                sample.values["load"] = used
            sample.values["machine_load"] = os.getloadavg()[0]
            sample.values["pause_s"] = pacer.pause_s
            state.add_sample(sample)
            _progress(state, end_s)
            count += 1
            await asyncio.sleep(max(0.0, min(every_s, end_s - elapsed_s())))
        await asyncio.wait(callers)
    await _rest(sampled, state, part, elapsed_s)
    state.end(options.minutes)
    print(file=sys.stderr)


async def _rest(
    server: SampledServer, state: SoakState, part: int, elapsed_s: Callable[[], float]
) -> None:
    """Take a last sample once no call is in progress and no turn waits for the store, or after
    `REST_S`."""
    for _ in range(round(REST_S / SAMPLE_S)):
        sample = await take_sample(server, elapsed_s(), part, heap=False)
        if not (sample.values.get("calls") or sample.values.get("store_waiting")):
            break
        await asyncio.sleep(SAMPLE_S)
    state.add_rest(sample)


def _progress(state: SoakState, end_s: float) -> None:
    values = state.samples[-1].values
    turns = sum(len(visit.latencies_ms) for visit in state.visits)
    failed = sum(bool(visit.errors) or visit.missed > 0 for visit in state.visits)
    text = (
        f"{state.elapsed_s / 60:.1f}/{end_s / 60:.0f} min  visits {len(state.visits)}  "
        f"answers {turns}  failed {failed}  load {100 * values.get('load', 0):.0f} %  "
        f"{values.get('rss_mb', 0):.0f} MB  threads {values.get('threads', 0):.0f}  "
        f"tasks {values.get('tasks', 0):.0f}  fds {values.get('descriptors', 0):.0f}"
    )
    end = "\r" if sys.stderr.isatty() else "\n"
    print(f"{text:<118}", end=end, file=sys.stderr, flush=True)


def judged(state: SoakState, without: Collection[str] = ()) -> Json:
    """Trends, drift, failures and the load of a soak. `without`: metrics that may go unjudged."""
    samples = set_apart(state.samples)
    trends = [
        fit_trend(
            name,
            [(s.at_s, s.part, s.values[name]) for s in samples if name in s.values],
            allowance,
        )
        for name, allowance in ALLOWANCES.items()
    ]
    trends += _heap_trends(samples)
    latencies = [
        (visit.at_s, visit.kind, ms) for visit in state.visits for ms in visit.latencies_ms
    ]
    drift = fit_drift(latencies, WARM_UP / 2 * state.elapsed_s)
    missed = sum(visit.missed for visit in state.visits)
    answered = len(latencies)
    failed = [visit for visit in state.visits if visit.errors]
    verdicts = [
        *_growth(trends, drift),
        *_shares(state, missed, answered),
        *left_behind(state),
        *_losses(state),
        *_not_judged(state, trends, drift, without),
    ]
    others = [s.values["machine_load"] for s in state.samples if "machine_load" in s.values]
    loads = [s.values["load"] for s in state.samples if "load" in s.values]
    kinds: Json = {}
    for kind in KINDS:
        found = [visit for visit in state.visits if visit.kind == kind]
        times = [ms for visit in found for ms in visit.latencies_ms]
        kinds[kind] = {
            "visits": len(found),
            "answered": len(times),
            "missed": sum(visit.missed for visit in found),
            "refused": sum(visit.refused for visit in found),
            "failed": sum(bool(visit.errors) for visit in found),
            "p50_ms": float(np.percentile(times, 50)) if times else None,
            "p95_ms": float(np.percentile(times, 95)) if times else None,
        }
    return {
        "minutes": state.elapsed_s / 60,
        "parts": state.part,
        "visits_made": len(state.visits),
        "answered": answered,
        "missed": missed,
        "refused": sum(visit.refused for visit in state.visits),
        "failed": len(failed),
        "errors": dict(Counter(error for visit in failed for error in visit.errors)),
        "load": float(np.mean(loads)) if loads else None,
        "machine_load": float(np.mean(others)) if others else None,
        "rests": [sample.as_json() for sample in state.rests],
        "kinds": kinds,
        "trends": [asdict(trend) for trend in trends],
        "drift": asdict(drift),
        "verdicts": verdicts,
    }


def _heap_trends(samples: Sequence[Sample]) -> list[Trend]:
    having = [sample for sample in samples if sample.heap]
    if not having:
        return []
    largest = Counter(having[-1].heap).most_common(MAX_SUBSYSTEMS)
    return [
        fit_trend(
            f"heap: {name}",
            [(s.at_s, s.part, s.heap.get(name, 0) / (1 << 20)) for s in having],
            HEAP_ALLOWANCE_MB,
        )
        for name, _ in largest
    ]


def _growth(trends: Sequence[Trend], drift: Drift) -> Iterator[str]:
    """What grows, in words."""
    for trend in trends:
        if trend.grows:
            slope = f"{trend.per_hour:.3g} an hour ({trend.low:.3g} to {trend.high:.3g})"
            yield f"GROWS: {trend.name} by {slope}"
    if drift.drifts:
        yield (
            f"DRIFTS: latency of the last tenth is {drift.ratio:.2f} times that of the first "
            f"({drift.low:.2f} to {drift.high:.2f})"
        )


def _shares(state: SoakState, missed: int, answered: int) -> Iterator[str]:
    """What failed too often, in words."""
    num_visits = len(state.visits)
    failed = sum(bool(visit.errors) for visit in state.visits)
    refused = sum(visit.refused for visit in state.visits)
    if missed > MAX_FAILED * (answered + missed):
        yield f"MISSED: {missed} of {answered + missed} turns had no answer"
    if failed > MAX_FAILED * num_visits:
        yield f"FAILED: {failed} of {num_visits} visits"
    if refused > MAX_FAILED * num_visits:
        yield f"REFUSED: {refused} of {num_visits} visits"
    if not answered:
        yield "EMPTY: nothing was answered"


def _losses(state: SoakState) -> Iterator[str]:
    """What the server itself counted, in words. Each part's process counts from 0."""
    restarts, lost = _counted(state, "restarts"), _counted(state, "store_lost")
    if restarts:
        yield f"RESTARTED: stages were rebuilt {restarts:.0f} times"
    if lost:
        yield f"LOST: {lost:.0f} turns are not in the store"


def _counted(state: SoakState, name: str) -> float | None:
    """Sum over the parts of the highest value of a counter; None: never sampled."""
    highest: dict[int, float] = {}
    for sample in (*state.samples, *state.rests):
        if name in sample.values:
            value = sample.values[name]
            highest[sample.part] = max(value, highest.get(sample.part, 0.0))
    return sum(highest.values()) if highest else None


def _not_judged(
    state: SoakState, trends: Sequence[Trend], drift: Drift, without: Collection[str]
) -> Iterator[str]:
    """What a soak says nothing of, in words: it is no pass."""
    for trend in trends:
        if trend.name in without or trend.name.startswith("heap: "):  # with `heap_mb`
            continue
        having = sum(trend.name in sample.values for sample in state.samples)
        if not trend.is_judged:
            yield f"NOT JUDGED: {trend.name}: {having} samples are too few"
        elif trend.name != "heap_mb" and having < MIN_SAMPLED * len(state.samples):
            yield f"NOT JUDGED: {trend.name}: only {having} of {len(state.samples)} samples have it"
    if not drift.is_judged:
        yield f"NOT JUDGED: drift of the latency: {drift.num_tenth} answers in a tenth"
    for name in ("restarts", "store_lost"):
        if name not in without and _counted(state, name) is None:
            yield f"NOT JUDGED: {name}: never sampled"
    rests = _rests(state, state.part)
    if rests is None:
        yield "NOT JUDGED: what is left behind: the soak broke off before its end"
    else:
        for name in AT_REST:
            if name not in without and not all(name in each.values for each in rests):
                yield f"NOT JUDGED: what is left behind: {name} was not sampled"


def _rests(state: SoakState, part: int) -> tuple[Sample, Sample] | None:
    """Samples before a part's first call and after its last; None where it broke off."""
    rests = [sample for sample in state.rests if sample.part == part]
    return (rests[0], rests[-1]) if len(rests) > 1 else None


def left_behind(state: SoakState) -> list[str]:
    """What the calls of each part that came to its end did not release, in words."""
    found = []
    for part in sorted({sample.part for sample in state.rests}):
        rests = _rests(state, part)
        if rests is None:
            continue
        before, after = (sample.values for sample in rests)
        for name, more in AT_REST.items():
            if name in before and name in after and after[name] > before[name] + more:
                text = f"{before[name]:.0f} before the first call, {after[name]:.0f} after the last"
                if name == "threads":
                    text += _more_threads(*rests)
                found.append(f"LEFT BEHIND: {name}: {text}")
    return found


def _more_threads(before: Sample, after: Sample) -> str:
    """Names of the threads of which there are more, in words."""
    more = Counter(after.threads)
    more.subtract(before.threads)
    told = [f"{count} {name}" for name, count in sorted(more.items()) if count > 0]
    return f" (more: {', '.join(told)})" if told else ""


def horizon(state: SoakState, result: Json) -> list[Json]:
    """Rows of the thirty days."""
    hours = max(1e-9, state.elapsed_s / 3600)
    per_hour: dict[str, float] = {"visits": len(state.visits) / hours, "turns": 0.0}
    for part in {sample.part for sample in state.samples}:
        own = [sample for sample in state.samples if sample.part == part]
        per_hour["turns"] += own[-1].values.get("turns", 0.0) / hours
    for name in ("store_mb", "log_mb", "recordings_mb"):
        values = [s.values[name] for s in state.samples if name in s.values]
        per_hour[name] = (values[-1] - values[0]) / hours if values else 0.0
    slopes = {
        trend["name"]: (trend["low"], trend["high"])
        for trend in result["trends"]
        if trend["high"] is not None and trend["name"] in ("rss_mb", "threads", "descriptors")
    }
    defaults = LatencySettings()
    settings: dict[str, float] = {
        "store_turns": defaults.store_turns,
        "store_days": defaults.store_days,
        "free_mb": shutil.disk_usage(state.folder).free / (1 << 20),
        "memory_mb": memory_mb(),
    }
    limits = {"soft_files": _soft_limit(resource.RLIMIT_NOFILE), "soft_threads": max_threads()}
    settings |= {name: limit for name, limit in limits.items() if limit is not None}
    return [row.as_json() for row in rows_of(per_hour, slopes, settings)]


def _soft_limit(kind: int) -> float | None:
    """A soft limit of this process, which the server inherits; None where there is none."""
    soft = resource.getrlimit(kind)[0]
    return None if soft == resource.RLIM_INFINITY else soft


def max_threads() -> float | None:
    """The most threads that this process's user, machine or container allows; None: not known."""
    found = [_soft_limit(resource.RLIMIT_NPROC)]
    for path in ("/proc/sys/kernel/threads-max", "/sys/fs/cgroup/pids.max"):
        with contextlib.suppress(OSError, ValueError):  # "max" is no number
            found.append(float(Path(path).read_text()))
    return min((limit for limit in found if limit is not None), default=None)


def show(result: Json) -> None:
    """Print the tables."""
    load = "-" if result["load"] is None else f"{100 * result['load']:.0f} %"
    print(f"\n{result['machine']}, {result['date']}")
    print(
        f"{result['minutes']:.1f} min in {result['parts']} part(s), {result['callers']} callers, "
        f"load {load} of the processor; load average of the machine "
        f"{result['machine_load'] or 0:.1f}\n"
    )
    print(f"{'':<16}{'visits':>8}{'answers':>9}{'missed':>8}{'failed':>8}{'p50':>7}{'p95':>7}")
    for kind, row in result["kinds"].items():
        times = "".join(
            f"{'-' if row[p] is None else round(row[p]):>7}" for p in ("p50_ms", "p95_ms")
        )
        counts = f"{row['visits']:>8}{row['answered']:>9}{row['missed']:>8}{row['failed']:>8}"
        print(f"{kind:<16}{counts}{times}")
    head = f"{'level':>10}{'an hour':>10}{'95 % interval':>24}{'found from':>12}"
    print(f"\n{'':<28}{head}")
    for trend in result["trends"]:
        if trend["per_hour"] is None:
            print(f"{trend['name']:<28}{trend['first']:>10.4g}   NOT JUDGED: too few samples")
            continue
        interval = f"{trend['low']:.3g} to {trend['high']:.3g}"
        mark = "  GROWS" if trend["grows"] else ""
        figures = f"{trend['first']:>10.4g}{trend['per_hour']:>10.3g}{interval:>24}"
        figures += f"{trend['smallest']:>12.3g}"
        print(f"{trend['name']:<28}{figures}{mark}")
    drift = result["drift"]
    if drift["ratio"] is None:
        print(f"latency: NOT JUDGED, {drift['num_tenth']} answers in a tenth")
    else:
        interval = f"{drift['low']:.2f} to {drift['high']:.2f}"
        print(f"latency, last tenth / first: {drift['ratio']:.2f} ({interval})")
    print("\nThirty days of this load")
    for row in result["thirty_days"]:
        mark = {True: "holds", False: "DOES NOT HOLD", None: "see to it"}[row["holds"]]
        print(f"  {row['what']}: {row['in_30_days']}; {row['bound'] or 'no bound'}: {mark}")
    for error, number in result["errors"].items():
        print(f"error ({number}): {error}")
    print("".join(f"{line}\n" for line in result["verdicts"]), end="")


def make_home(home: Path) -> None:
    """A home of the bench's own, with the models of the user's."""
    home.mkdir(parents=True, exist_ok=True)
    for name in ("models", "converted", "machine.json", "models.toml"):
        target = halfsec_home() / name
        if target.exists() and not (home / name).exists():
            (home / name).symlink_to(target)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line. Returns 0 if nothing grows, drifts or failed."""
    options = _parser().parse_args(argv)
    state = SoakState(options.resume or options.dir)
    minutes = options.minutes
    if options.resume:
        for name, value in state.resume().items():
            if name not in ("resume", "json", "page"):
                setattr(options, name, value)
    options.minutes = minutes or options.minutes or MINUTES
    # Before the folder is begun: a call that is mistyped leaves nothing there.
    recordings = find_recordings(
        [Path(each) for each in options.recordings], NUM_RECORDINGS, options.seed
    )
    if not options.resume:
        state.begin(heading("soak", vars(options))["options"] | {"recordings": _paths(options)})
    make_home(state.folder / "home")
    if not state.has_ended(options.minutes) and state.elapsed_s < options.minutes * 60:
        _run(state, recordings, options)
    without = {*options.without, *(["heap_mb"] if options.no_heap else [])}
    result = {
        **heading("soak", vars(options)),
        "callers": options.callers,
        **judged(state, without),
    }
    result["thirty_days"] = horizon(state, result)
    show(result)
    result["samples"] = [sample.as_json() for sample in state.samples]
    result["visits"] = [asdict(visit) for visit in state.visits]
    save(result, options.json or state.folder / "soak.json")
    save_page(result, options.page or state.folder / "soak.svg")
    return int(bool(result["verdicts"]))


def _run(
    state: SoakState, recordings: Sequence[TurnRecording], options: argparse.Namespace
) -> None:
    given = ["--set", f"agent.max_sessions={max(4, options.callers + 1)}"]
    given += ["--set", "latency_budget.store=true", "--set", "agent.log_level=info"]
    if options.record:
        given += ["--set", f"agent.record_dir={state.folder.resolve() / 'recordings'}"]
    with TemporaryDirectory(prefix="halfsec-soak-") as folder:
        control = Path(folder) / "probe"
        launch = ServerLaunch(
            "benchmarks.soak.probed_server",
            {
                SOCKET_VARIABLE: str(control),
                "HALFSEC_HOME": str((state.folder / "home").resolve()),
            },
            state.folder / "server.log",
        )
        with own_server([*given, *options.serve_args.split()], launch) as server:
            try:
                asyncio.run(soak(state, server, recordings, options, control))
            except* (ConnectError, BenchError) as errors:
                raise BenchError(str(errors.exceptions[0])) from None


def _paths(options: argparse.Namespace) -> list[str]:
    return [str(path.resolve()) for path in options.recordings]


def _share(text: str) -> float:
    """Parse a share of the machine, above 0 and at most 1."""
    share = float(text)
    if not 0 < share <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not above 0 and at most 1")
    return share


def _minutes(text: str) -> float:
    """Parse a length, above 0."""
    minutes = float(text)
    if not 0 < minutes < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return minutes


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="halfsec bench soak",
        description="Keep callers of every kind busy for as long as asked, sample the server, and "
        "fail where memory, threads, tasks, descriptors, pages or latency grow.",
        epilog="example: halfsec bench soak DIR --minutes 30 --callers 3 --load 0.6",
    )
    add = parser.add_argument
    add("recordings", nargs="*", type=Path, help="files or folders")
    add("--minutes", type=_minutes, help=f"length ({MINUTES:g}; of a resumed soak its own)")
    add("--callers", type=positive, default=3, help="visits at once (%(default)s)")
    add("--load", type=_share, default=0.6, help="share of the processor time (%(default)s)")
    add("--patience", type=float, default=15.0, help="timeout of an answer in s (%(default)s)")
    add("--seed", type=int, default=1, help="which recordings, in which order (%(default)s)")
    add("--dir", type=Path, default=Path("soak"), help="folder for its state (%(default)s)")
    add("--resume", type=Path, metavar="DIR", help="go on with the soak in this folder")
    add("--record", action="store_true", help="let the server record the calls")
    add("--no-heap", action="store_true", help="leave out the heap by subsystem")
    add(
        "--without",
        action="append",
        default=[],
        choices=[*ALLOWANCES, "restarts", "store_lost"],
        metavar="METRIC",
        help="one that this server does not have, and that need not be judged; repeatable",
    )
    add("--serve-args", default="", help='for the server that is started: "--preset cpu"')
    add("--json", type=Path, metavar="FILE", help="save the result here (DIR/soak.json)")
    add("--page", type=Path, metavar="FILE", help="save the page here (DIR/soak.svg)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
