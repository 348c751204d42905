"""`halfsec bench soak` without its server: state, pacing, samples, verdicts, page, thirty days."""

import asyncio
import os
import random
import re
import threading
import tracemalloc
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest

from agent.client.errors import ConnectError
from agent.errors import BenchError
from benchmarks.signals.recordings import find_recordings, wav_bytes
from benchmarks.soak import command, samples
from benchmarks.soak.allocator import allocated
from benchmarks.soak.callers import (
    KINDS,
    Visit,
    VisitContext,
    _note_failure,
    make_visit,
    with_pause,
)
from benchmarks.soak.horizon import rows_of
from benchmarks.soak.pacer import MAX_S, MIN_S, Pacer
from benchmarks.soak.page import svg_page
from benchmarks.soak.probed_server import Probe, subsystem
from benchmarks.soak.samples import Sample, SampledServer, read_metrics, take_sample
from benchmarks.soak.state import SoakState
from benchmarks.soak.trends import ALLOWANCES

RECORDINGS = Path(__file__).parents[2] / "recordings"


def soaked(folder: Path, *, leak_mb: float = 0.0, minutes: int = 30) -> SoakState:
    """A soak that was held; its memory grows by so much an hour."""
    state = SoakState(folder)
    state.begin({"recordings": [str(RECORDINGS)], "callers": 2, "seed": 1, "minutes": minutes})
    rng = np.random.default_rng(1)
    rest = dict.fromkeys(command.AT_REST, 0.0)
    state.add_rest(Sample(0.0, 1, rest))
    for number in range(120):
        at_s = number * minutes / 2
        values = dict.fromkeys((*ALLOWANCES, "restarts", "store_lost"), 0.0) | {
            "rss_mb": 900.0 + leak_mb * at_s / 3600 + float(rng.normal(0, 1)),
            "store_mb": 1.0 + at_s / 3600,
            "turns": at_s,
        }
        state.add_sample(Sample(at_s, 1, values, {"agent/session": 1 << 20}))
        state.add_visit(Visit("recordings", at_s, [500.0 + float(rng.normal(0, 20))]))
    state.add_rest(Sample(at_s, 1, rest))
    return state


def judged(state: SoakState) -> command.Json:
    result = {**command.judged(state), "machine": "m", "date": "d", "callers": 2}
    result["thirty_days"] = command.horizon(state, result)
    return result


def test_what_stays_level_passes(tmp_path: Path) -> None:
    assert judged(soaked(tmp_path))["verdicts"] == []


def test_a_leak_is_named(tmp_path: Path) -> None:
    (verdict,) = judged(soaked(tmp_path, leak_mb=300.0))["verdicts"]
    assert verdict.startswith("GROWS: rss_mb")


def test_missed_and_failed_and_left_behind_are_named(tmp_path: Path) -> None:
    state = soaked(tmp_path)
    for number in range(5):
        state.add_visit(Visit("typed", 1800.0 + number, [], missed=1, errors=["broken"]))
    for _ in range(2):
        state.add_visit(Visit("typed", 1800.0, refused=True))
    state.add_rest(Sample(1900.0, 1, state.rests[0].values | {"tasks": 5.0}))
    result = judged(state)
    assert result["verdicts"][-1].startswith("LEFT BEHIND: tasks: 0 ")
    assert [text.split(":")[0] for text in result["verdicts"]] == [
        "MISSED",
        "FAILED",
        "REFUSED",
        "LEFT BEHIND",
    ]
    assert result["errors"] == {"broken": 5}


def test_threads_that_stay_are_named(tmp_path: Path) -> None:
    state = soaked(tmp_path)
    before = {"MainThread": 1, "native": 4, "AnyIO worker thread": 2}
    after = {"MainThread": 1, "native": 6, "AnyIO worker thread": 1}
    state.rests[0] = replace(state.rests[0], threads=before)
    values = state.rests[0].values | {"threads": state.rests[0].values["threads"] + 2}
    state.add_rest(Sample(1900.0, 1, values, threads=after))
    (verdict,) = judged(state)["verdicts"]
    assert verdict.startswith("LEFT BEHIND: threads: ")
    assert verdict.endswith(" after the last (more: 2 native)")


def test_a_soak_without_answers_fails(tmp_path: Path) -> None:
    state = SoakState(tmp_path)
    state.begin({})
    assert judged(state)["verdicts"][0] == "EMPTY: nothing was answered"


def test_counters_are_added_over_the_parts(tmp_path: Path) -> None:
    """Each part's process begins at 0, and the newest sample may lack them."""
    state = soaked(tmp_path)
    values = state.samples[-1].values
    state.add_sample(Sample(1795.0, 1, values | {"restarts": 2.0, "store_lost": 3.0}))
    state.add_sample(Sample(1796.0, 2, values | {"restarts": 1.0}))
    state.add_sample(Sample(1797.0, 2, {"rss_mb": 900.0}))
    for at_s in (1795.0, 1798.0):
        state.add_rest(Sample(at_s, 2, state.rests[0].values))
    assert judged(state)["verdicts"] == [
        "RESTARTED: stages were rebuilt 3 times",
        "LOST: 3 turns are not in the store",
    ]


def test_every_part_that_ended_is_judged_by_what_it_leaves(tmp_path: Path) -> None:
    state = soaked(tmp_path)
    rest = state.rests[0].values
    state.add_rest(Sample(1800.0, 1, rest | {"calls": 1.0}))
    state.add_sample(Sample(1801.0, 2, state.samples[-1].values))
    state.add_rest(Sample(1801.0, 2, rest))
    left, broke_off = judged(state)["verdicts"]
    assert left.startswith("LEFT BEHIND: calls: 0 ")
    assert "broke off" in broke_off
    state.add_rest(Sample(1802.0, 2, rest))
    assert judged(state)["verdicts"] == [left]


def test_what_could_not_be_judged_is_no_pass(tmp_path: Path) -> None:
    state = soaked(tmp_path)
    for sample in state.samples:
        for name in ("traces", "restarts"):
            del sample.values[name]
    for sample in state.samples[:61]:
        del sample.values["tasks"]
    for sample in state.rests:
        sample.values.pop("tasks", None)  # one and the same dict
    state.visits[79:] = []
    assert judged(state)["verdicts"] == [
        "NOT JUDGED: tasks: only 59 of 120 samples have it",
        "NOT JUDGED: traces: 0 samples are too few",
        "NOT JUDGED: drift of the latency: 6 answers in a tenth",
        "NOT JUDGED: restarts: never sampled",
        "NOT JUDGED: what is left behind: tasks was not sampled",
    ]
    (verdict,) = command.judged(state, {"tasks", "traces", "restarts"})["verdicts"]
    assert "drift" in verdict


def test_a_soak_is_resumed_from_its_lines(tmp_path: Path) -> None:
    before = soaked(tmp_path)
    with (tmp_path / "visits.jsonl").open("ab") as file:
        file.write(b'{"kind": "typ')  # broke off within a line
    after = SoakState(tmp_path)
    assert after.resume()["callers"] == 2
    assert after.samples == before.samples
    assert after.visits == before.visits
    after.add_visit(Visit("typed", 1.0))
    again = SoakState(tmp_path)
    again.resume()
    assert again.visits == after.visits


def test_a_mistyped_call_leaves_its_folder_as_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "night"
    with pytest.raises(BenchError, match="no recording"):
        command.main([str(tmp_path / "none"), "--dir", str(folder)])
    assert not folder.exists()
    state = SoakState(folder)
    state.begin({"callers": 1})
    state.add_rest(Sample(0.0, 1))  # its server ended before the first sample
    state = SoakState(folder)
    state.begin({"callers": 2})
    state = SoakState(folder)
    assert state.resume() == {"callers": 2}
    assert state.rests == []
    for minutes in ("0", "-1", "inf", "nan"):
        with pytest.raises(SystemExit):
            command.main(["--minutes", minutes])


def test_a_folder_has_one_soak(tmp_path: Path) -> None:
    soaked(tmp_path)
    with pytest.raises(BenchError, match="--resume"):
        SoakState(tmp_path).begin({})
    with pytest.raises(BenchError, match="resumed"):
        SoakState(tmp_path / "none").resume()


def test_a_finished_soak_is_only_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = soaked(tmp_path, leak_mb=300.0)
    assert not state.has_ended(30)
    state.end(30)  # a second after the last sample: nothing is left to be done
    assert state.has_ended(30)
    assert not state.has_ended(31)
    assert command.main(["--resume", str(tmp_path)]) == 1
    assert "GROWS: rss_mb" in capsys.readouterr().out
    assert (tmp_path / "soak.json").exists()
    ElementTree.fromstring((tmp_path / "soak.svg").read_text("utf-8"))


def test_the_page_has_a_chart_of_each_metric(tmp_path: Path) -> None:
    state = soaked(tmp_path, leak_mb=300.0)
    result = judged(state)
    result["samples"] = [sample.as_json() for sample in state.samples]
    result["visits"] = [{"at_s": v.at_s, "latencies_ms": v.latencies_ms} for v in state.visits]
    page = svg_page(result)
    root = ElementTree.fromstring(page)
    assert len(root.findall("{http://www.w3.org/2000/svg}g")) == len(ALLOWANCES) + 1
    assert "GROWS" in page


def test_the_pacer_approaches_the_share() -> None:
    pacer = Pacer(0.5, 2.0)
    cpu_s, at_s = 0.0, 0.0
    for _ in range(60):
        pacer.note(at_s, cpu_s)
        at_s += 10.0
        cpu_s += 10.0 * 2.0 * 3.0 / (3.0 + pacer.pause_s)  # a visit of 3 s takes all cores
    assert pacer.pause_s == pytest.approx(3.0, rel=0.2)


@pytest.mark.parametrize(("spends", "pause_s"), [(0.0, MIN_S), (1e6, MAX_S)])
def test_pauses_are_bounded(spends: float, pause_s: float) -> None:
    pacer = Pacer(0.5, 2.0)
    for number in range(50):
        pacer.note(float(number), spends * number)
    assert pacer.pause_s == pause_s


def test_metrics_are_read_and_added_over_labels() -> None:
    text = (
        "# HELP halfsec_calls Calls.\nhalfsec_calls 2.0\n"
        'halfsec_stage_restarts_total{stage="asr"} 1.0\n'
        'halfsec_stage_restarts_total{stage="llm"} 2.0\nhalfsec_unknown 7\n'
        "halfsec_traces_kept 4.0\n"
    )
    assert read_metrics(text) == {"calls": 2.0, "restarts": 3.0, "traces": 4.0}


def test_subsystems() -> None:
    assert subsystem(command.__file__) == "benchmarks/soak"
    assert subsystem("/lib/python3.11/site-packages/numpy/core/x.py") == "numpy"
    assert subsystem("/usr/lib/python3.11/json/decoder.py") == "python"


def test_what_is_kept_is_in_use_until_it_is_freed() -> None:
    before = allocated()
    if before is None:
        pytest.skip("the C library does not say what it has allocated")
    kept = [bytes(4096) for _ in range(2048)]  # too large for Python's own arenas, not for a heap
    during = allocated()
    assert during is not None
    assert during.heap_bytes - before.heap_bytes >= len(kept) << 12
    kept.clear()
    after = allocated()
    assert after is not None
    assert after.heap_bytes - before.heap_bytes < 1 << 20
    assert after.free_bytes >= 0


async def test_a_sample_is_without_what_the_tracing_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = {
        **{"tasks": 3, "pool_threads": 1, "threads": {"asyncio_": 1}, "heap": {}, "large": {}},
        **{"tracing": 16 << 20, "malloc": 5 << 20, "free": None},
    }

    async def nothing(url: str) -> dict[str, float]:
        return {}

    monkeypatch.setattr(samples, "read_server", nothing)
    monkeypatch.setattr(samples, "resident_mb", lambda pid: 900.0)
    monkeypatch.setattr(samples, "anonymous_mb", lambda pid: 500.0)
    monkeypatch.setattr(samples, "request", lambda path, heap: answer)
    server = SampledServer("ws://localhost:1/v1/realtime", os.getpid(), tmp_path, {})
    sample = await take_sample(server, 0.0, 1, heap=False)
    values = sample.values
    assert sample.threads == {"asyncio_": 1, "native": values["threads"]}
    assert (values["rss_mb"], values["anonymous_mb"], values["malloc_mb"]) == (884.0, 484.0, 5.0)
    assert "free_mb" not in values
    monkeypatch.setattr(samples, "request", refused)
    assert "rss_mb" not in (await take_sample(server, 0.0, 1, heap=False)).values


def refused(path: Path, heap: bool) -> NoReturn:
    raise RuntimeError("the server has no event loop")


async def test_the_probe_names_who_keeps_much_and_counts_the_threads_of_pools() -> None:
    probe = Probe()
    probe.loop.loop = asyncio.get_running_loop()
    assert probe.handle({})["large"] == {}
    try:
        assert probe.handle({"heap": True})["heap"] == {}, "traced from now on"
        kept = np.full(300_000, 1.0)
        await asyncio.to_thread(int)
        found = await asyncio.to_thread(probe.handle, {"heap": True})
    finally:
        tracemalloc.stop()
    assert found["pool_threads"] >= 1
    assert found["threads"]["asyncio_"] >= 1
    assert sum(found["threads"].values()) == threading.active_count()
    assert found["tracing"] > 0
    held = allocated()
    if held is not None:
        mine = held.heap_bytes - found["tracing"]
        assert found["malloc"] == pytest.approx(mine, abs=32 << 20)
        assert found["free"] >= 0
    assert found["tasks"] == 1
    assert found["heap"]["numpy"] >= kept.nbytes
    (name,) = (name for name, size in found["large"].items() if size >= kept.nbytes)
    assert re.match(r"numeric\.py:\d+ < test_soak\.py:\d+", name)


def test_a_hesitation_lengthens_a_recording_by_its_pause() -> None:
    (recording,) = find_recordings([RECORDINGS], 1, 1)
    halting = with_pause(recording, random.Random(1))
    more_s = (len(halting.pcm) - len(recording.pcm)) / recording.rate_hz
    assert more_s == pytest.approx(0.7, abs=0.01)
    assert wav_bytes(halting.pcm, halting.rate_hz)[:4] == b"RIFF"


async def test_a_visit_to_nowhere_is_an_error(unused_tcp_port: int) -> None:
    (recording,) = find_recordings([RECORDINGS], 1, 1)
    url = f"ws://127.0.0.1:{unused_tcp_port}/v1/realtime"
    for kind in ("chat", "transcriptions"):
        visit = await make_visit(
            kind, VisitContext(url, [recording], random.Random(1)), lambda: 5.0
        )
        assert visit.errors
        assert visit.at_s == 5.0
    assert len(KINDS) == 9


@pytest.mark.parametrize(("status", "is_refusal"), [(503, True), (429, True), (401, False)])
def test_a_refusal_is_known_by_its_status(status: int, is_refusal: bool) -> None:
    visit = Visit("recordings", 0.0)
    text = "ws://127.0.0.1:45030/v1/realtime refuses the call"  # 503 is part of the port
    _note_failure(visit, ExceptionGroup("", [ConnectError(text, status=status)]))
    assert (visit.refused, bool(visit.errors)) == (is_refusal, not is_refusal)
    other = Visit("recordings", 0.0)
    _note_failure(other, ConnectError(text))
    assert (other.refused, len(other.errors)) == (False, 1)


def test_thirty_days() -> None:
    rates = {"turns": 1000.0, "visits": 400.0, "store_mb": 1.3, "log_mb": 1000.0}
    slopes = {"rss_mb": (-1.0, 1e-3), "threads": (1.0, 2.0), "descriptors": (0.0, 2.0)}
    settings = {"store_turns": 200_000.0, "store_days": 90.0, "free_mb": 1000.0, "memory_mb": 8e3}
    settings |= {"soft_threads": 700.0, "soft_files": 700.0}
    rows = {row.what: row for row in rows_of(rates, slopes, settings)}
    assert rows["turns in the store"].holds
    assert rows["volume of the log"].holds is False
    assert rows["rss_mb"].holds
    assert rows["threads"].holds is False  # the whole interval is above the limit
    assert rows["descriptors"].holds is None  # a part of it is
    rows = {row.what: row for row in rows_of(rates, {"rss_mb": (12.0, 20.0)}, settings)}
    assert rows["rss_mb"].holds is False
    assert rows["threads"].holds is None  # not judged
    limit = command.max_threads()
    assert limit is None or limit > 100
    assert rows["certificate that was given"].holds is None
