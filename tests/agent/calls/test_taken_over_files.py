"""Recordings, traces and spans of a call that comes back to a server, or to the disk of one, that
had it before."""

import re
from pathlib import Path
from typing import Any

import numpy as np

from agent.calls.call_state import CallHead, CallState
from agent.calls.recording import Recorder
from agent.calls.registry import save_trace
from agent.calls.service import AdmittedCall
from agent.calls.session_start import SessionStart, session_start
from agent.calls.state_store.memory import MemoryStateStore
from agent.calls.state_writer import FleetCalls, TakenOverCall
from agent.http.auth.principal import ANYONE
from agent.observability.spans import Finished, SpanData, spans_of
from agent.session.api.session_state import SessionState
from agent.session.api.settings import SessionSettings
from latency_budget.account.clock import ManualClock
from tests.agent.calls.test_recorder import feed
from tests.agent.calls.test_recording import read
from tests.agent.observability.test_spans import SPOKEN, entry_at_ms
from tests.support.telephony.telephony_harness import TelephonyHarness

SCOPE: dict[str, Any] = {"client": ("127.0.0.1", 5000), "headers": []}


def begun(made: TelephonyHarness) -> AdmittedCall:
    """A call that begins here."""
    start = session_start(made.config, ANYONE, None)
    assert isinstance(start, SessionStart)
    return made.call_service.admit(ANYONE, SCOPE, start, made.call_service.socket_rules)


def come_back(made: TelephonyHarness, left: AdmittedCall) -> AdmittedCall:
    """The call as another server has left it."""
    session = left.call.session_id
    writer = FleetCalls(MemoryStateStore(made.clock), 60).begin(session, left.start, "key:1", 3600)
    state = CallState(
        CallHead(session, "default", "m", (), "", 2_000_000_000, 0, ()),
        SessionState(SessionSettings(), (), 0, 0, 0, 0, (), 0, False, False, None),
    )
    return made.call_service.admit_taken_over(ANYONE, SCOPE, TakenOverCall(state, "", writer))


async def test_a_call_that_comes_back_has_files_of_its_own(tmp_path: Path) -> None:
    clock = ManualClock(5_000_000_000)
    recorder = Recorder(tmp_path / "calls", clock)
    made = TelephonyHarness(clock, tmp_path, calls={"recorder": recorder})
    left = begun(made)
    session = left.call.session_id

    assert left.call.recording is not None
    said = [feed(left.call.recording, clock, 2)]
    left.reservation.leave()
    back = come_back(made, left)
    assert re.fullmatch(rf"{session}\.\d{{8}}T\d{{6}}Z", back.call.file_stem)
    assert back.call.recording is not None
    paths = [left.call.recording.path, back.call.recording.path]
    assert [path.name for path in paths] == [f"{session}.wav", f"{back.call.file_stem}.wav"]
    assert [recorder.is_open(path) for path in paths] == [True, True]
    recorder.step()
    assert [recorder.is_open(path) for path in paths] == [False, True]
    found = recorder.find(session)
    assert found is not None
    assert found[0] == paths[0], "nothing was said since"

    said.append(feed(back.call.recording, clock, 3))
    back.reservation.leave()
    recorder.step()
    found = recorder.find(session)
    assert found is not None
    assert found[0] == paths[1]
    began_ns = [each.call.began.unix_ns for each in (left, back)]
    for at_ns, path in zip((began_ns[0] - 10**9, began_ns[1]), paths, strict=True):
        assert (of_then := recorder.find(session, at_ns)) is not None
        assert of_then[0] == path
    for path, words in zip(paths, said, strict=True):
        assert np.array_equal(read(path)[:, 0], words)

    for call in (left.call, back.call):
        await save_trace(call, str(tmp_path / "traces"))
    traces = {path.name for path in (tmp_path / "traces").iterdir()}
    assert traces == {f"{session}.jsonl", f"{back.call.file_stem}.jsonl"}


class Kept:
    """An exporter that keeps the spans."""

    def __init__(self) -> None:
        self.spans: list[tuple[SpanData, ...]] = []

    def add(self, finished: Finished) -> None:
        self.spans.append(spans_of(finished))


async def test_a_call_that_comes_back_has_spans_of_its_own(tmp_path: Path) -> None:
    """Its turns are counted anew: a backend took the first of them for the same one, sent twice."""
    exporter = Kept()
    made = TelephonyHarness(ManualClock(5_000_000_000), tmp_path, calls={"exporter": exporter})
    left = begun(made)
    session = left.call.session_id
    turn = entry_at_ms(SPOKEN, session=session)
    made.calls.turn_over(left.call, turn)
    left.reservation.leave()
    back = come_back(made, left)
    made.calls.turn_over(back.call, turn)
    back.reservation.leave()
    turns, calls = exporter.spans[::2], [call for (call,) in exporter.spans[1::2]]
    assert len({span.id for spans in turns for span in spans}) == sum(map(len, turns))
    assert len({call.id for call in calls}) == 2
    assert [spans[0].links for spans in turns] == [(call.id,) for call in calls]
    assert {span.attributes["session.id"] for span in (*calls, *turns[1])} == {session}
