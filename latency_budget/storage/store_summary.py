"""Percentiles over a store of any size, by profile, stage and time window.

Theory of operation
-------------------
A summary of three months must not disturb the calls of this minute. Reading whole records would:
decoding one takes some 90 us under Python's lock, and sorting a column of a large store holds that
lock for as long as two frames of audio. So the database counts, without the lock (SQLite releases
it while it works): how often does each time occur, rounded as an HDR histogram would? The result
has at most a few thousand rows for each profile and stage, however many turns there are; the words
and spans of a stored turn are never decoded. 200 000 turns in SQLite took 5 s of one processor, in
which the lock was never held for longer than a thread may anyway (two-core EPYC, 2026-11-21).

Times are rounded by 0.05 % at most, or half a microsecond where that is more. Those are three
significant digits; and as rounding keeps the order, each percentile is the exact one, rounded.

The `hdrhistogram` package (0.10.8) was tried for the counting, and left. A value takes it 1.1 us
under the lock, a turn with its stages 33 us, where SQLite takes 26 us without. It can't be imported
without its C codec, which has no wheel for Linux on ARM, where every other package of ours has one;
and it asks for setuptools and pbr at run time and uses neither. The work left for it, given
SQLite's counts, is `aggregate.percentiles_ms`.
"""

from dataclasses import replace
from typing import Final

from latency_budget.account.clock import NS_PER_S, iso_of
from latency_budget.account.turn import Stage
from latency_budget.account.turn_record import NS_PER_MS
from latency_budget.statistics.aggregate import Json, Times, TurnAggregate
from latency_budget.statistics.report import report_json

from .database import Place, StoreConnection
from .store_query import TurnFilter, WindowError, connected

MAX_WINDOW_S: Final = 10 * 366 * 86_400
"""Longest window: ten years, longer than anything is kept."""

MAX_WINDOWS: Final = 100
"""Most windows of one request: four days of hours, or three months of days. As JSON they are 0.5
MB, and encoding that holds Python's lock for some 5 ms."""

STEPS: Final = tuple(
    (below * unit_ns, step * unit_ns)
    for unit_ns in (10**3, 10**4, 10**5, 10**6, 10**7)
    for below, step in ((2000, 1), (5000, 2), (10_000, 5))
)
"""Rounding `(below, step)` in ns: to a microsecond below 2 ms, to 2 us below 5 ms, ..."""

LAST_STEP_NS: Final = 10**8
"""Rounding step from 100 s on."""

_IS_TIMED: Final = "answered = 1 AND (e2e_ear_ns IS NOT NULL OR e2e_server_ns IS NOT NULL)"

_COUNTED: Final = tuple(
    f"count(*) FILTER (WHERE {condition})"
    for condition in (
        "1 = 1",
        "answered = 1",
        "answered = 1 AND opener = 1",
        "answered = 1 AND cut_in = 1",
        "answered = 1 AND interrupted = 1",
        "withdrawn = 1",
        _IS_TIMED,
        f"{_IS_TIMED} AND e2e_ear_ns IS NOT NULL",
        f"{_IS_TIMED} AND coalesce(e2e_ear_ns, e2e_server_ns) - paced_ns > total_ms * {NS_PER_MS}",
    )
)
"""The first fields of a `TurnAggregate`."""


def summarize_store(
    place: Place, wanted: TurnFilter, window_s: int | None = None, *, histograms: bool = False
) -> Json:
    """JSON `{session, summary, errors, profiles: {name: summary}, replicas: {name: turns}}` of all
    selected turns (its `max_turns` is ignored), each summary as `report.summarize` has it.
    `replicas` are the servers with turns in the period, whichever is selected.

    With `window_s` also `windows: [{since, until, summary, profiles}]`, oldest first, from the
    oldest turn to the newest, those without turns included. Windows begin at whole multiples of
    their length since 1970, so that the same request has the same windows tomorrow; the selection
    may cut the first and last short. With `histograms` those of all turns as well, as
    `TurnAggregate.histograms` has them. Blocks: some 26 us a turn. Raises StoreError, and
    WindowError for more than MAX_WINDOWS windows or for one below a second.
    """
    profiles: dict[str, TurnAggregate] = {}
    windows = []
    with connected(place) as connection:
        replicas = _replicas(connection, wanted)
        if window_s is None:
            profiles = _aggregates(connection, wanted)
        else:
            for since, until in _windows(connection, wanted, window_s):
                within = replace(wanted, since_unix_ns=since, until_unix_ns=until)
                found = _aggregates(connection, within)
                windows.append(
                    {"since": iso_of(since), "until": iso_of(until), **_summaries(found)}
                )
                for name, aggregate in found.items():
                    profiles.setdefault(name, TurnAggregate()).add(aggregate)
    whole = _summaries(profiles)
    answer = {
        **report_json(wanted.session, None, whole["summary"]),
        "profiles": whole["profiles"],
        "replicas": replicas,
    }
    if histograms:
        answer["histograms"] = _whole(profiles).histograms()
    return answer if window_s is None else {**answer, "windows": windows}


def _summaries(profiles: dict[str, TurnAggregate]) -> Json:
    by_profile = {name: aggregate.summary() for name, aggregate in sorted(profiles.items())}
    return {"summary": _whole(profiles).summary(), "profiles": by_profile}


def _whole(profiles: dict[str, TurnAggregate]) -> TurnAggregate:
    whole = TurnAggregate()
    for aggregate in profiles.values():
        whole.add(aggregate)
    return whole


def _windows(
    connection: StoreConnection, wanted: TurnFilter, window_s: int
) -> list[tuple[int, int]]:
    """The windows, as `(since, until)` in ns since 1970."""
    if not 1 <= window_s <= MAX_WINDOW_S:
        raise WindowError(
            f"a window lasts a second or more, not {window_s}"
            if window_s < 1
            else f"a window lasts {MAX_WINDOW_S} s at most, not {window_s}"
        )
    where, values = wanted.where()
    oldest, newest = connection.execute(
        f"SELECT min(at_unix_ns), max(at_unix_ns) FROM turns WHERE {where}", values
    ).fetchone()
    if oldest is None:
        return []
    length = window_s * NS_PER_S
    first, last = oldest // length, newest // length
    if last - first >= MAX_WINDOWS:
        raise WindowError(
            f"these turns lie in {last - first + 1} windows of {window_s} s, and at most"
            f" {MAX_WINDOWS} fit one answer: ask for longer ones, or for a shorter period with"
            " since and until"
        )
    found = [[place * length, (place + 1) * length] for place in range(first, last + 1)]
    if wanted.since_unix_ns is not None:
        found[0][0] = max(found[0][0], wanted.since_unix_ns)
    if wanted.until_unix_ns is not None:
        found[-1][1] = min(found[-1][1], wanted.until_unix_ns)
    return [(since, until) for since, until in found]


def _replicas(connection: StoreConnection, wanted: TurnFilter) -> dict[str, int]:
    """Number of turns of each server in the period."""
    period = TurnFilter(since_unix_ns=wanted.since_unix_ns, until_unix_ns=wanted.until_unix_ns)
    where, values = period.where()
    rows = connection.execute(
        f"SELECT replica, count(*) FROM turns WHERE {where} GROUP BY replica ORDER BY replica",
        values,
    )
    return dict(rows.fetchall())


def _aggregates(connection: StoreConnection, wanted: TurnFilter) -> dict[str, TurnAggregate]:
    """Aggregates by profile."""
    where, values = wanted.where()
    counted = connection.execute(
        f"SELECT profile, {', '.join(_COUNTED)} FROM turns WHERE {where} GROUP BY profile", values
    )
    found = {profile: TurnAggregate(*numbers) for profile, *numbers in counted}
    for field, column in (
        ("at_ear", "e2e_ear_ns"),
        ("at_server", "e2e_server_ns"),
        ("raw_at_ear", "(e2e_ear_ns - paced_ns)"),
        ("raw_at_server", "(e2e_server_ns - paced_ns)"),
    ):
        rows = connection.execute(
            f"SELECT profile, {_rounded(column)}, count(*) FROM turns WHERE {where}"
            f" AND {_IS_TIMED} AND {column} IS NOT NULL GROUP BY 1, 2",
            values,
        )
        for profile, time_ns, times in rows:
            getattr(found[profile], field)[time_ns] = times
    for field in ("spent", "exposed"):
        rows = connection.execute(
            # CROSS, because SQLite's planner would rather walk through all stages there are.
            f"SELECT profile, stage, {_rounded(f'{field}_ns')}, count(*) FROM turns"
            f" CROSS JOIN stages WHERE stages.turn_id = turns.id AND {where} AND {_IS_TIMED}"
            " GROUP BY 1, 2, 3",
            values,
        )
        for profile, stage, time_ns, times in rows:
            getattr(found[profile], field)[Stage(stage)][time_ns] = times
        for aggregate in found.values():
            _complete(getattr(aggregate, field), aggregate.timed)
    return found


def _complete(stages: dict[Stage, Times], timed: int) -> None:
    """Count turns that were stored without a stage as 0 ns of it, as the reader of turns does."""
    for times in stages.values():
        if missing := timed - times.total():
            times[0] += missing


def _rounded(column: str) -> str:
    """SQL expression for nanoseconds, rounded to the next step of `STEPS`."""
    steps = "".join(
        f" WHEN {column} < {below_ns} THEN ({column} + {step_ns // 2}) / {step_ns} * {step_ns}"
        for below_ns, step_ns in STEPS
    )
    return (
        f"CASE{steps} ELSE ({column} + {LAST_STEP_NS // 2}) / {LAST_STEP_NS} * {LAST_STEP_NS} END"
    )
