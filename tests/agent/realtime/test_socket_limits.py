"""Limits of one client's messages and audio."""

import asyncio
import base64
import json
from typing import Any

import numpy as np
import pytest
from starlette.websockets import WebSocket, WebSocketDisconnect

from agent.codec.json_frame import MAX_FRAME_BYTES
from agent.config.access import AccessSettings
from agent.errors import IdleClientError
from agent.realtime.protocol.protocol import RealtimeProtocol
from agent.realtime.socket import (
    CHARS_PER_MESSAGE,
    MAX_REASON_BYTES,
    MESSAGES_AT_ONCE,
    MESSAGES_PER_S,
    WORK,
    CallSocket,
    ReceiveLimiter,
    _cost,
)
from agent.session.api.client_events import (
    AppendAudio,
    CancelResponse,
    CommitAudio,
    CreateResponse,
    Request,
    UpdateSession,
)
from agent.session.api.settings import AudioEncoding, ResponseOptions, SessionSettings
from agent.telephony.carriers.twilio import Twilio
from agent.telephony.media_session import PhoneLine
from latency_budget.account.clock import ManualClock
from tests.agent.telephony.carriers.test_twilio import media, start


class Peer:
    """Sends what it is given, and then nothing."""

    def __init__(self, *messages: dict[str, Any]) -> None:
        self._messages = [{"type": "websocket.connect"}, *messages]
        scope = {"type": "websocket", "headers": [], "path": "/"}
        self.websocket = WebSocket(scope, self._receive, self._send)
        self.got: list[dict[str, Any]] = []

    async def _receive(self) -> dict[str, Any]:
        if not self._messages:
            await asyncio.Event().wait()
        return self._messages.pop(0)

    async def _send(self, message: Any) -> None:
        self.got.append(message)


async def intake(*messages: dict[str, Any], **settings: Any) -> tuple[ReceiveLimiter, list[float]]:
    peer = Peer(*messages)
    await peer.websocket.accept()
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    limiter = ReceiveLimiter(peer.websocket, AccessSettings(**settings), ManualClock(), pause)
    return limiter, pauses


async def test_frames_are_texts_or_bytes_and_then_the_end() -> None:
    taken, _ = await intake(
        {"type": "websocket.receive", "text": "a"},
        {"type": "websocket.receive", "bytes": b"b"},
        {"type": "websocket.receive", "text": ""},
        {"type": "websocket.disconnect", "code": 1001},
    )
    assert [await taken.frame() for _ in range(3)] == ["a", b"b", ""]
    with pytest.raises(WebSocketDisconnect) as gone:
        await taken.frame()
    assert gone.value.code == 1001


async def test_a_reason_is_cut_at_a_character() -> None:
    for text in ("x" * 200, "\u00e9" * 100, "x" + "\U0001f600" * 50):
        peer = Peer()
        socket = CallSocket(peer.websocket, ManualClock(), AccessSettings())
        await socket.accept()
        socket.release(1008, text)
        socket.release(1000, "too late")
        await socket.attend()
        *_, close = peer.got
        assert (close["type"], close["code"]) == ("websocket.close", 1008)
        assert MAX_REASON_BYTES - 4 < len(close["reason"].encode()) <= MAX_REASON_BYTES
        assert text.startswith(close["reason"])


async def test_a_socket_that_is_stopped_while_there_is_no_room_reads_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The client does not read, so that its next frame is not waited for either."""
    peer = Peer()
    may_send = asyncio.Event()

    async def send(message: Any) -> None:
        await may_send.wait()

    socket = CallSocket(peer.websocket, ManualClock(), AccessSettings())
    await socket.accept()
    monkeypatch.setattr(peer.websocket, "_send", send)
    for _ in range(7):
        socket.put("x" * 500_000)

    async def take(frame: str | bytes) -> list[Request]:
        return []

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        carrying = group.create_task(socket.carry(take))
        await asyncio.sleep(0.05)
        socket.stop()
        await carrying


async def test_client_that_sends_nothing_is_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    taken, _ = await intake({"type": "websocket.receive", "text": "a"}, idle_s=1)
    monkeypatch.setattr(taken, "_idle_s", 0.01)
    assert await taken.frame() == "a"
    with pytest.raises(IdleClientError):
        await taken.frame()


async def test_idle_timeout_can_be_disabled() -> None:
    taken, _ = await intake(idle_s=0)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await taken.frame()


async def test_the_next_connection_of_a_call_has_what_is_left_of_the_burst() -> None:
    before, pauses = await intake(burst_s=2)
    again, pauses_again = await intake(burst_s=2)
    second = AppendAudio(np.zeros(24_000, np.int16), 24_000)
    for _ in range(2):
        await before.keep_pace("", [second])
    again.continue_from(before)
    await again.resume()
    assert pauses_again == []
    await again.keep_pace("", [second])
    await again.resume()
    assert pauses == []
    assert pauses_again == [pytest.approx(1.0)] * 2


async def test_a_resumption_counts_as_a_change_of_the_session() -> None:
    taken, pauses = await intake()
    for _ in range(MESSAGES_AT_ONCE // WORK):
        await taken.resume()
    assert pauses == []
    await taken.resume()
    assert pauses == [pytest.approx(WORK / MESSAGES_PER_S)]


async def test_audio_is_read_no_faster_than_real_time_beyond_the_burst() -> None:
    taken, pauses = await intake(burst_s=2)
    second = AppendAudio(np.zeros(24_000, np.int16), 24_000)
    for _ in range(3):
        await taken.keep_pace("", [second])
    assert pauses == [pytest.approx(1.0)]
    await taken.keep_pace("", [CommitAudio()])
    assert len(pauses) == 1


async def test_telephone_audio_is_judged_by_its_length_too() -> None:
    taken, pauses = await intake(burst_s=1)
    await taken.keep_pace("", [AppendAudio(np.zeros(3 * 8_000, np.int16), 8_000)])
    assert pauses == [pytest.approx(2.0)]


async def test_small_delays_are_accumulated() -> None:
    taken, pauses = await intake(burst_s=1)
    piece = AppendAudio(np.zeros(480, np.int16), 24_000)  # 20 ms
    for _ in range(50 + 4):
        await taken.keep_pace("", [piece])
    assert pauses == [pytest.approx(0.06), pytest.approx(0.08)]


async def test_each_frame_yields_to_other_tasks() -> None:
    taken, _ = await intake()
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        counting = group.create_task(count())
        for _ in range(100):
            await taken.keep_pace("", [CancelResponse()])
        counting.cancel()
    assert turns >= 99


@pytest.mark.parametrize(
    "request_",
    [CreateResponse(ResponseOptions()), CancelResponse(), UpdateSession(SessionSettings())],
)
async def test_expensive_requests_count_as_many_messages(request_: Any) -> None:
    taken, pauses = await intake()
    for _ in range(MESSAGES_AT_ONCE // WORK):
        await taken.keep_pace("", [request_])
    assert pauses == []
    await taken.keep_pace("", [request_])
    assert pauses == [pytest.approx(WORK / MESSAGES_PER_S)]


async def test_long_messages_other_than_audio_count_by_length() -> None:
    taken, pauses = await intake()
    await taken.keep_pace(" " * MESSAGES_AT_ONCE * CHARS_PER_MESSAGE, [])  # refused unread, say
    pauses.clear()
    await taken.keep_pace(" " * CHARS_PER_MESSAGE * MESSAGES_PER_S, [])
    assert pauses[-1] == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize(
    ("encoding", "sample", "rate_hz"), [("pcm16", b"\1\2", 24_000), ("pcmu", b"\x7f", 8_000)]
)
async def test_audio_counts_as_one_message_however_long(
    encoding: AudioEncoding, sample: bytes, rate_hz: int
) -> None:
    protocol = RealtimeProtocol(SessionSettings(input_encoding=encoding), model="x")
    for num_samples in (rate_hz // 50, MAX_FRAME_BYTES * 3 // 4 // len(sample) - 64):
        audio = base64.b64encode(sample * num_samples).decode()
        frame = json.dumps({"type": "input_audio_buffer.append", "audio": audio})
        for each in (frame, frame.encode()):
            (appended,) = protocol.receive(each)
            assert isinstance(appended, AppendAudio)
            assert len(appended.pcm) == num_samples
            assert _cost(each, [appended]) == 1


async def test_escaped_slashes_of_audio_in_real_time_are_within_the_rate() -> None:
    """As PHP writes JSON. The loudest possible noise of one sign: nothing but slashes."""
    audio = base64.b64encode(b"\xff" * 960).decode().replace("/", "\\/")
    frame = f'{{"type":"input_audio_buffer.append","audio":"{audio}"}}'
    (appended,) = RealtimeProtocol(SessionSettings(), model="x").receive(frame)
    assert isinstance(appended, AppendAudio)
    assert 1 < _cost(frame, [appended]) < MESSAGES_PER_S / 50


@pytest.mark.parametrize("num_lists", [21_000, 65_000])
async def test_what_an_audio_message_holds_besides_audio_counts_by_length(num_lists: int) -> None:
    lists = "[" + "[]," * num_lists + "0]"
    for fields in (f'"audio":{lists},"audio":"AAAAAAAA"', f'"audio":"AAAAAAAA","x":{lists}'):
        frame = f'{{"type":"input_audio_buffer.append",{fields}}}'
        requests = RealtimeProtocol(SessionSettings(), model="x").receive(frame)
        appended = [each for each in requests if isinstance(each, AppendAudio)]
        assert _cost(frame, appended) > len(frame) / CHARS_PER_MESSAGE - 1 > 100


async def test_what_a_carriers_audio_message_holds_besides_audio_counts_by_length() -> None:
    line = PhoneLine(Twilio())
    line.open(start())
    plain = media(base64.b64encode(b"\xff" * 160).decode())  # 20 ms
    assert _cost(plain, line.receive(plain)) == 1
    padded = f'{plain[:-1]},"x":"{"x" * 60_000}"}}'
    assert _cost(padded, line.receive(padded)) > 100
