"""`halfsec bench phone`: effects of a bad line on a call, the report, runs with a server."""

import asyncio
import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent.client import events as ev
from agent.client.simulated_caller.spoken_turn import SpokenTurn
from agent.codec.g711 import mulaw_encode
from agent.errors import BenchError
from benchmarks.callers.lossy_line import LineQuality
from benchmarks.callers.simulated_carrier import TwilioCall
from benchmarks.voice import phone, phone_churn
from benchmarks.voice.harness import HeldCall
from tests.support.models import model_path
from tests.support.service.live import LiveServer

pytestmark = pytest.mark.slow

pytest_plugins = ["tests.support.service.live_fixtures"]

RECORDINGS = Path(__file__).parents[2] / "recordings"
A_FRAME = np.full(160, 8000, np.int16)
"""20 ms, audible from its first sample on."""


class Pipe:
    """A socket: what comes is put in, what is sent is kept."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.close_code: int | None = None
        self.close_reason = ""
        self._came: asyncio.Queue[str | None] = asyncio.Queue()
        self._news = asyncio.Event()

    def put(self, event: str, **fields: Any) -> None:
        self._came.put_nowait(json.dumps({"event": event, **fields}))

    def end(self, code: int, reason: str) -> None:
        self.close_code, self.close_reason = code, reason
        self._came.put_nowait(None)

    async def send(self, text: str) -> None:
        self.sent.append(json.loads(text))
        self._news.set()

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Asked again with everything that is sent."""
        async with asyncio.timeout(60):
            while not is_so():
                self._news.clear()
                await self._news.wait()

    def __aiter__(self) -> "Pipe":
        return self

    async def __anext__(self) -> str:
        text = await self._came.get()
        if text is None:
            raise StopAsyncIteration
        return text

    def of(self, event: str) -> list[dict[str, Any]]:
        return [each for each in self.sent if each["event"] == event]


def audio(pcm: Any) -> dict[str, str]:
    return {"payload": base64.b64encode(mulaw_encode(pcm)).decode()}


async def sent_over(line: LineQuality, num_frames: int) -> Pipe:
    pipe = Pipe()
    call = TwilioCall(pipe, line, seed=7)  # type: ignore[arg-type]
    async with asyncio.TaskGroup() as group:
        group.create_task(call.run())
        for number in range(num_frames):
            assert await call.send_audio(np.full(160, number, np.int16), 8_000)
        await pipe.until(lambda: len(pipe.of("media")) + call.uplink.num_lost == num_frames)
        pipe.end(1000, "")
    return pipe


async def test_what_is_lost_leaves_a_gap_and_nothing_overtakes() -> None:
    pipe = await sent_over(LineQuality("bad", loss=0.3, jitter_ms=5.0), 200)
    media = [each["media"] for each in pipe.of("media")]
    stamps = [int(each["timestamp"]) for each in media]
    assert 100 < len(media) < 180
    assert stamps == sorted(set(stamps))
    assert all(stamp % 20 == 0 for stamp in stamps)
    assert [int(each["chunk"]) for each in media] == list(range(1, len(media) + 1))


async def test_a_good_line_loses_nothing() -> None:
    pipe = await sent_over(LineQuality("good"), 50)
    assert [int(each["media"]["timestamp"]) for each in pipe.of("media")] == list(
        range(0, 1000, 20)
    )


async def test_a_mark_comes_back_when_the_audio_before_it_was_played_or_cleared() -> None:
    pipe = Pipe()
    call = TwilioCall(pipe, LineQuality("good"), seed=1)  # type: ignore[arg-type]
    heard: list[ev.ClientEvent] = []
    async with asyncio.TaskGroup() as group:
        group.create_task(call.run())
        pipe.put("media", media=audio(A_FRAME))
        pipe.put("mark", mark={"name": "1"})
        async for event in call.events():
            heard.append(event)
            if isinstance(event, ev.ReplyDone):
                break
        assert [each["mark"]["name"] for each in pipe.of("mark")] == ["1"]
        pipe.put("media", media=audio(np.tile(A_FRAME, 1000)))  # 20 s
        pipe.put("mark", mark={"name": "2"})
        pipe.put("clear")
        pipe.put("media", media=audio(A_FRAME))
        async for event in call.events():
            heard.append(event)
            if isinstance(event, ev.ReplyAudio) and event.response_id == "reply 3":
                break
        await pipe.until(lambda: len(pipe.of("mark")) == 2)
        pipe.end(1000, "")
        heard += [event async for event in call.events()]
    assert [type(event).__name__ for event in heard] == [
        *("ReplyStarted", "ReplyAudio", "ReplyDone"),
        *("ReplyStarted", "ReplyAudio", "SpeechStarted", "ReplyDone"),
        *("ReplyStarted", "ReplyAudio", "Closed"),
    ]
    done = [event for event in heard if isinstance(event, ev.ReplyDone)]
    assert [(each.status, each.reason) for each in done] == [
        ("completed", None),
        ("cancelled", "turn_detected"),
    ]
    first = heard[1]
    assert isinstance(first, ev.ReplyAudio)
    assert call.queue.first_sound_ns == first.at_ns


def exchange(e2e_ms: float | None, silenced_ms: float | None = None) -> SpokenTurn:
    found = SpokenTurn(1, np.zeros(0, np.int16), 0)
    found.e2e_ear_ms, found.silenced_ms = e2e_ms, silenced_ms
    return found


TURN: dict[str, Any] = {
    "e2e_server_ms": 470.0,
    "stages": {
        "endpoint": {"spent_ms": 420.0, "exposed_ms": 420.0},
        "tts": {"spent_ms": 90.0, "exposed_ms": 50.0},
    },
    "budget": {"total_ms": 700},
}
UNANSWERED: dict[str, Any] = {**TURN, "e2e_server_ms": None, "stages": {}}


def result_of(*exchanges: SpokenTurn, greetings_ms: tuple[float, ...] = (90.0,)) -> dict[str, Any]:
    held = HeldCall((), list(exchanges))
    calls = phone.PhoneCalls(
        [held], list(greetings_ms), 3, calls_s=10.0, cpu_s=2.5, turns=[TURN, UNANSWERED]
    )
    line = phone.figures(calls)
    names = [*(line.name for line in phone.LINES), phone.INTERRUPTING]
    return {
        "machine": "a machine",
        "date": "today",
        "lines": dict.fromkeys(names, line),
        "idle_cpu_s_per_call_min": 0.8,
        "budget_ms": phone.budget_ms([calls]),
    }


def test_what_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    result = result_of(exchange(500.0), exchange(600.0, 180.0))
    phone.show(result)
    told = capsys.readouterr().out
    good = next(line for line in told.splitlines() if line.startswith("good line"))
    assert good.split()[2:6] == ["2", "0", "500", "600"]
    assert good.split()[-2:] == ["15.0", "3"]
    assert "1 interruptions, until the queue is cleared: p50 180 ms" in told
    assert "processor for a minute of call: 15.0 s with talk, 0.8 s in silence" in told
    assert "account: p50 470 ms; exposed, medians: endpoint 420, tts 50" in told
    assert "a call's budget: 700 ms" in told


def test_gates() -> None:
    parser = phone._parser()
    strict = parser.parse_args(
        ["x", "--gate-p50", "400", "--gate-greeting", "80", "--gate-barge-in", "150"]
    )
    lenient = parser.parse_args(
        ["x", "--gate-p50", "630", "--gate-greeting", "200", "--gate-barge-in", "250"]
    )
    result = result_of(exchange(500.0, 180.0))
    missed = phone.missed(result, strict)
    assert [line.split(":")[1].split()[0] for line in missed] == ["p50", "barge-in", "greeting"]
    assert phone.missed(result, lenient) == []
    assert len(phone.missed(result_of(exchange(None), greetings_ms=()), lenient)) == 3


def test_what_calls_leave_behind_is_told() -> None:
    clean = {"memory_mb": 900.0, "threads": 16, "files": 18, "lines": 0}
    course = [930.0, 990.0, 1000.0]
    settled = {**clean, "memory_mb": 1000.0}
    assert phone_churn.left({"before": clean, "after": settled, "course_mb": course}) == []
    leaking = {"memory_mb": 1200.0, "threads": 17, "files": 60, "lines": 1}
    found = phone_churn.left({"before": clean, "after": leaking, "course_mb": course})
    assert [line.split(": ")[1] for line in found] == ["memory_mb", "threads", "files", "lines"]
    unknown = {"memory_mb": None, "threads": None, "files": None, "lines": 0}
    assert phone_churn.left({"before": unknown, "after": unknown, "course_mb": [None]}) == []


def test_churn_wants_a_server_of_its_own() -> None:
    with pytest.raises(BenchError, match="leave out --url"):
        phone.main(["x", "--churn", "5", "--url", "ws://127.0.0.1:1"])


@pytest.mark.models
async def test_calls_that_end_in_every_way_leave_nothing(live: LiveServer) -> None:
    async def tasks() -> int:
        return len(asyncio.all_tasks())

    assert await phone_churn.churn(live.url, 6, at_once=2, agent="pirate") == []
    await asyncio.to_thread(live.settle)
    before = await asyncio.to_thread(live.ask, tasks)
    # Half of the lines: on a busy machine a call that is over may hold its own a little longer.
    assert await phone_churn.churn(live.url, 18, at_once=2, agent="pirate") == []
    await asyncio.to_thread(live.settle)
    assert len(live.calls) == 0
    assert await asyncio.to_thread(live.ask, tasks) <= before


@pytest.mark.models
async def test_calls_that_are_not_taken_are_told(live: LiveServer) -> None:
    errors = await phone_churn.churn(live.url, 6, at_once=6, agent="pirate")
    assert len(errors) == 6 - live.config.agent.max_sessions
    assert all("All lines are busy" in error for error in errors)


@pytest.mark.models
def test_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = (phone.GOOD, LineQuality("bad", loss=0.02, jitter_ms=40.0))
    monkeypatch.setattr(phone, "LINES", lines)
    monkeypatch.setattr(phone, "GREETING", "Hello.")
    monkeypatch.setattr(phone, "IDLE_S", 2.0)
    for name in ("whisper-tiny.en", "smollm2-135m-instruct", "silero-vad"):
        model_path(name)
    saved = tmp_path / "phone.json"
    one = RECORDINGS / "vm-changeto.wav"
    assert phone.main([str(one), "--turns", "1", "--json", str(saved)]) == 0
    result = json.loads(saved.read_text())
    assert list(result["lines"]) == ["good line", "bad", "interrupting"]
    for line in result["lines"].values():
        assert line["summary"]["turns"] == 1
        assert line["greeting"]["p50"] is not None
        assert line["cpu_s_per_call_min"] > 0
        assert line["server"]["p50"] > 0
        exposed_ms = sum(times["exposed_ms"] for times in line["stages"].values())
        assert round(exposed_ms) >= round(line["server"]["p50"]), "and the way to the carrier"
    assert 0 < result["idle_cpu_s_per_call_min"] < 60
    assert "a call's budget: 630 ms" in capsys.readouterr().out
