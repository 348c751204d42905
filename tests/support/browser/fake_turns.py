"""Made-up turns, as `/v1/latency/turns` tells of them, and summaries of them."""

import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from latency_budget.statistics.intervals import wilson_interval

Json = dict[str, Any]

STAGES: Final = (
    *("capture", "endpoint", "asr", "llm_prefill", "llm_clause", "tool", "tts", "pacing"),
    "transport",
)
BEGAN_S: Final = 1_795_000_000
"""The first turn's end, in seconds since 1970: some day in November 2026."""

USUAL: Final = {
    "capture": 12.0,
    "endpoint": 231.0,
    "asr": 44.0,
    "llm_prefill": 8.0,
    "llm_clause": 71.0,
    "tts": 33.0,
    "transport": 21.0,
}


def turn(
    number: int,
    *,
    session: str = "sess_one",
    exposed: Mapping[str, float] | None = None,
    profile: str = "embedded",
    budget_ms: int = 500,
    **fields: Any,
) -> Json:
    """Its wait is the sum of the exposed times. `fields` replace what it would have."""
    times = dict(USUAL if exposed is None else exposed)
    wait = sum(times.values())
    path, at = [], 0.0
    for stage, ms in times.items():
        path.append({"stage": stage, "start_ms": at, "end_ms": at + ms})
        at += ms
    early = {"stage": "asr", "start_ms": -180.0, "end_ms": times.get("capture", 0.0) + 90.0}
    return {
        "turn": number,
        "row": number,
        "session": session,
        "at": datetime.fromtimestamp(BEGAN_S + 20 * number, UTC).isoformat(timespec="milliseconds"),
        "agent": "default",
        "replica": "gpu-1:8080",
        "caller_text": "",
        "agent_text": "",
        "e2e_ear_ms": wait,
        "e2e_server_ms": wait - times.get("transport", 0.0),
        "e2e_raw_ms": wait,
        "paced_ms": 0.0,
        "opener": False,
        "cut_in": False,
        "interrupted": False,
        "reopened": False,
        "outcome": None,
        "actions": [],
        "stages": {
            stage: {
                "spent_ms": times.get(stage, 0.0) * (2 if stage == "asr" else 1),
                "exposed_ms": times.get(stage, 0.0),
            }
            for stage in STAGES
        },
        "reply_s": 2.4,
        "budget": {"profile": profile, "total_ms": budget_ms, "widened_ms": 0},
        "waterfall": {
            "origin": "caller_last_voiced",
            "spans": [*path, early],
            "path": path,
            "wasted_ms": 0.0,
            "wasted_prompt_tokens": 0,
            "wasted_output_tokens": 0,
            "incomplete": [],
        },
        "marks": _marks(wait, wait - times.get("transport", 0.0)),
        "recording": None,
        **fields,
    }


def _marks(heard_ms: float, released_ms: float) -> list[Json]:
    found = {
        "speech_paused": 85.0,
        "caller_last_voiced": 0.0,
        "asr_start": -180.0,
        "endpoint": 243.0,
        "released": released_ms,
        "heard": heard_ms,
    }
    return [{"name": name, "ms": ms} for name, ms in found.items()]


def many(count: int, seed: int = 8, first: int = 1) -> list[Json]:
    """Turns of several calls, most of them in time."""
    rng = random.Random(seed)
    made = []
    for number in range(first, first + count):
        slow = rng.random() < 0.06
        exposed = {
            stage: ms * rng.uniform(0.8, 1.12) * (1.9 if slow and stage == "llm_clause" else 1)
            for stage, ms in USUAL.items()
        }
        if slow:
            exposed["endpoint"] += rng.uniform(60, 420)
        made.append(
            turn(
                number,
                session=f"sess_{number // 9:05d}",
                exposed=exposed,
                cut_in=rng.random() < 0.01,
                interrupted=rng.random() < 0.07,
                opener=slow and rng.random() < 0.3,
            )
        )
    return made


def percentiles(values: Sequence[float]) -> Json:
    """Percentile by nearest rank, as the service computes it."""
    if not values:
        return {f"p{each}": None for each in (50, 90, 95, 99)}
    ordered = sorted(values)
    return {f"p{each}": ordered[-(-each * len(ordered) // 100) - 1] for each in (50, 90, 95, 99)}


def summary_of(turns: Iterable[Json]) -> Json:
    found = list(turns)
    timed = [each for each in found if each["e2e_ear_ms"] is not None]
    late = sum(each["e2e_raw_ms"] > each["budget"]["total_ms"] for each in timed)
    return {
        "turns": len(found),
        "answered": len(timed),
        "measure": "e2e_ear_ms",
        **percentiles([each["e2e_ear_ms"] for each in timed]),
        "openers": sum(each["opener"] for each in timed),
        "cut_in_rate": sum(each["cut_in"] for each in timed) / len(timed) if timed else None,
        "cut_in_interval": list(wilson_interval(sum(each["cut_in"] for each in timed), len(timed)))
        if timed
        else None,
        "outcomes": {
            "cut_in": sum(each["cut_in"] for each in found),
            "interrupted": sum(each["interrupted"] for each in found),
            "reopened": sum(each["outcome"] == "reopened" for each in found),
        },
        "within": 1 - late / len(timed) if timed else None,
        "stages": {
            stage: {
                kind: percentiles([each["stages"][stage][kind] for each in timed])
                for kind in ("spent_ms", "exposed_ms")
            }
            for stage in STAGES
        },
    }


def histograms_of(turns: Sequence[Json]) -> Json:
    """Buckets a twentieth apart, one bound at 500 ms, as the service has them."""

    def buckets(values: Iterable[float]) -> list[list[float]]:
        bounds = Counter(
            0.0 if ms <= 0 else round(500 * 1.05 ** math.ceil(math.log(max(ms, 1) / 500, 1.05)), 3)
            for ms in values
        )
        return [[bound, bounds[bound]] for bound in sorted(bounds)]

    return {
        "e2e": buckets(each["e2e_ear_ms"] for each in turns),
        "stages": {
            stage: buckets(each["stages"][stage]["exposed_ms"] for each in turns)
            for stage in STAGES
        },
    }


def windows_of(turns: Sequence[Json], length_s: int) -> list[Json]:
    by_window: dict[int, list[Json]] = {}
    for each in turns:
        at_s = int(datetime.fromisoformat(each["at"]).timestamp())
        by_window.setdefault(at_s // length_s, []).append(each)

    def iso(seconds: int) -> str:
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")

    return [
        {
            "since": iso(place * length_s),
            "until": iso((place + 1) * length_s),
            "summary": summary_of(found),
        }
        for place, found in sorted(by_window.items())
    ]
