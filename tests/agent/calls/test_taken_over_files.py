"""Recordings and traces of a call that comes back to a server, or to the disk of one, that had it
before."""

import re
from pathlib import Path
from typing import Any

import numpy as np

from agent.calls.call_state import CallHead, CallState
from agent.calls.recording import Recorder
from agent.calls.registry import save_trace
from agent.calls.session_start import SessionStart, session_start
from agent.calls.state_store.memory import MemoryStateStore
from agent.calls.state_writer import FleetCalls, TakenOverCall
from agent.http.auth.principal import ANYONE
from agent.session.api.session_state import SessionState
from agent.session.api.settings import SessionSettings
from latency_budget.account.clock import ManualClock
from tests.agent.calls.test_recorder import feed
from tests.agent.calls.test_recording import read
from tests.support.telephony.telephony_harness import TelephonyHarness


async def test_a_call_that_comes_back_has_files_of_its_own(tmp_path: Path) -> None:
    clock = ManualClock(5_000_000_000)
    recorder = Recorder(tmp_path / "calls", clock)
    made = TelephonyHarness(clock, tmp_path, calls={"recorder": recorder})
    service = made.call_service
    scope: dict[str, Any] = {"client": ("127.0.0.1", 5000), "headers": []}
    start = session_start(made.config, ANYONE, None)
    assert isinstance(start, SessionStart)
    left = service.admit(ANYONE, scope, start, service.socket_rules)
    session = left.call.session_id
    writer = FleetCalls(MemoryStateStore(clock), 60).begin(session, start, "key:1", 3600)
    state = CallState(
        CallHead(session, "default", "m", (), "", 2_000_000_000, 0, ()),
        SessionState(SessionSettings(), (), 0, 0, 0, 0, (), 0, False, False, None),
    )

    assert left.call.recording is not None
    said = [feed(left.call.recording, clock, 2)]
    left.reservation.leave()
    back = service.admit_taken_over(ANYONE, scope, TakenOverCall(state, "", writer))
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
