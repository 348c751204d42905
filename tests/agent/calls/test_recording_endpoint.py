"""Recordings over HTTP: whole, in parts, while they grow, and never a file that is none."""

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import cast

import httpx
import numpy as np
import numpy.typing as npt
import pytest
import soundfile
from starlette.requests import Request

from agent.calls.recording import Recorder
from agent.config.schema import Config
from agent.http.auth.authenticator import Authenticator
from agent.http.auth.keys import KeyFile
from agent.http.auth.principal import KeyLimits
from agent.http.endpoints.health_and_sessions import Endpoints
from agent.server.app import create_app
from agent.stages.model_store.catalogue import ModelStore
from agent.stages.registry import Stages
from latency_budget.account.clock import ManualClock, unix_ns
from latency_budget.account.turn import SessionId
from tests.agent.calls.test_recorder import feed
from tests.agent.calls.test_recording import RATE_HZ
from tests.agent.http.endpoints.test_latency import Ready
from tests.latency_budget.test_store import stored

Int16 = npt.NDArray[np.int16]
CALL = "sess_00112233445566778899"
PATH = f"/v1/sessions/{CALL}/recording"


class ServerUnderTest:
    """A server whose calls are recorded."""

    def __init__(self, directory: Path, *, records: bool = True) -> None:
        self.clock = ManualClock(5_000_000_000)
        self.keys = KeyFile(directory / "keys.json")
        self.access = Authenticator(Config(), self.keys, self.clock)
        self.recorder = Recorder(directory / "calls", self.clock)
        stages = Stages(Config(), ModelStore(directory, {}), self.clock)
        recorder = self.recorder if records else None
        app = create_app(Config(), stages, self.clock, access=self.access, recorder=recorder)
        self.calls = app.calls
        transport = httpx.ASGITransport(app.asgi)
        self.http = httpx.AsyncClient(transport=transport, base_url="http://localhost")

    def begin(self, seconds: float) -> Int16:
        """A call, which goes on."""
        self.call = self.calls.admit(SessionId(CALL), "default")
        assert self.call.recording is not None
        words = feed(self.call.recording, self.clock, seconds)
        self.recorder.step()
        return words

    def end(self) -> None:
        self.calls.leave(self.call)
        self.recorder.step()


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ServerUnderTest]:
    made = ServerUnderTest(tmp_path)
    async with made.http:
        yield made
    if len(made.calls):
        made.end()


def sound_of(answer: httpx.Response) -> Int16:
    assert answer.headers["content-type"] == "audio/wav"
    sound, rate_hz = soundfile.read(BytesIO(answer.content), dtype="int16")
    assert rate_hz == RATE_HZ
    return np.asarray(sound)


async def test_recording_of_a_finished_call(server: ServerUnderTest) -> None:
    words = server.begin(6)
    server.end()
    answer = await server.http.get(PATH)
    assert answer.status_code == 200
    assert answer.headers["accept-ranges"] == "bytes"
    assert answer.headers["content-disposition"] == f'inline; filename="{CALL}.wav"'
    assert np.array_equal(sound_of(answer)[:, 0], words)
    part = await server.http.get(PATH, headers={"range": "bytes=1000-1999"})
    assert part.status_code == 206
    assert part.content == answer.content[1000:2000]
    assert part.headers["content-range"] == f"bytes 1000-1999/{len(answer.content)}"
    head = await server.http.head(PATH)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == str(len(answer.content))


async def test_recording_of_a_call_in_progress(server: ServerUnderTest) -> None:
    words = server.begin(6)
    (listed,) = (await server.http.get("/v1/sessions")).json()["sessions"]
    assert listed["recorded"] is True
    first = sound_of(await server.http.get(PATH))
    assert np.array_equal(first[:, 0], words[: len(first)])
    assert server.call.recording is not None
    feed(server.call.recording, server.clock, 4)
    server.recorder.step()
    assert len(sound_of(await server.http.get(PATH))) == len(first) + 4 * RATE_HZ
    part = await server.http.get(PATH, headers={"range": "bytes=0-43"})
    assert (part.status_code, part.content[:4]) == (206, b"RIFF")


async def test_response_length_is_fixed_while_the_file_grows(
    server: ServerUnderTest,
) -> None:
    """As long as was announced, though more is there when it is read."""
    server.begin(6)
    path, status = server.recorder.find(CALL) or pytest.fail("there is no file")

    def grown(session: str, at_unix_ns: int | None) -> object:
        with path.open("ab") as file:
            file.write(bytes(100_000))
        return path, status

    server.recorder.find = grown  # type: ignore[method-assign, assignment]
    answer = await server.http.get(PATH)
    assert len(answer.content) == int(answer.headers["content-length"]) == status.st_size


@pytest.mark.parametrize(
    ("value", "status"),
    [
        ("bytes=99999999999-", 416),
        ("bytes=x-y", 400),
        ("lines=1-2", 400),
        ("bytes", 400),
        ("bytes=9-3", 400),
        ("bytes=" + "9" * 5000 + "-", 400),
        ("bytes=0-0," * 200, 200),
        ("bytes=-1", 206),
    ],
)
async def test_invalid_ranges_are_refused(server: ServerUnderTest, value: str, status: int) -> None:
    server.begin(6)
    server.end()
    answer = await server.http.get(PATH, headers={"range": value})
    assert answer.status_code == status


@pytest.mark.parametrize(
    "name",
    ["sess_none", "..%2Fkeys", "%2e%2e", "..%2F..%2Fetc%2Fpasswd", "a.wav", "%00", "x" * 500],
)
async def test_other_files_are_not_served(
    server: ServerUnderTest, tmp_path: Path, name: str
) -> None:
    (tmp_path / "keys.wav").write_bytes(b"secret")
    answer = await server.http.get(f"/v1/sessions/{name}/recording")
    assert answer.status_code == 404
    assert answer.json()["error"]["message"]
    assert b"secret" not in answer.content


async def test_recording_is_off_without_a_record_dir(tmp_path: Path) -> None:
    server = ServerUnderTest(tmp_path, records=False)
    async with server.http:
        call = server.calls.admit(SessionId(CALL), "default")
        assert call.recording is None
        answer = await server.http.get(PATH)
        assert answer.status_code == 404
        assert "agent.record_dir is not set" in answer.json()["error"]["message"]
        assert not (tmp_path / "calls").exists()


async def test_recording_needs_a_key(server: ServerUnderTest) -> None:
    server.begin(6)
    now = unix_ns() // 10**9
    text = server.keys.add("one", KeyLimits(), now)
    narrow = server.keys.add("narrow", KeyLimits(agents=("default",)), now)
    await server.access.refresh()
    assert (await server.http.get(PATH)).status_code == 401
    for key, status in ((text, 200), (narrow, 403), ("hs_nonsense", 401)):
        answer = await server.http.get(PATH, headers={"authorization": f"Bearer {key}"})
        assert answer.status_code == status


async def test_turn_names_its_position_in_the_recording(server: ServerUnderTest) -> None:
    server.begin(6)
    began_ns = 5_000_000_000
    entry = stored().entry
    record = replace(entry.record, started_ns=began_ns + 2_000_000_000)
    kept = server.calls.turn_over(server.call, replace(entry, record=record))
    assert kept.recording == (1.5, 3.95)
    (turn,) = (await server.http.get("/v1/latency/turns")).json()["turns"]
    assert turn["recording"] == {"from_s": 1.5, "to_s": 3.95}


async def test_disk_errors_are_reported(server: ServerUnderTest, tmp_path: Path) -> None:
    (tmp_path / "calls").write_text("no directory")
    server.recorder.step()
    endpoints = Endpoints(cast(Stages, Ready()), server.calls, server.access)
    body = json.loads(bytes((await endpoints.readyz(Request({"type": "http"}))).body))
    assert body["status"] == "degraded"
    assert body["recorder"].startswith("calls can't be written")
    assert str(tmp_path) not in str(body)
    assert "halfsec_recorder_ok 0.0" in (await server.http.get("/metrics")).text
