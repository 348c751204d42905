"""Attacks on a real server's connections, with a call in progress that must not notice."""

import asyncio
import contextlib
import gc
import json
import logging
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Final

import httpx
import numpy as np
import pytest
import websockets.asyncio.client as websockets_client
from starlette.websockets import WebSocket
from websockets.exceptions import InvalidStatus
from websockets.typing import Origin

from agent.calls import service
from agent.config.access import AccessSettings
from agent.errors import CLOSE_NORMAL, CLOSE_NOT_UTF8
from agent.http.hardening.http_protocol import HttpConnection
from agent.http.hardening.leaky_bucket import LeakyBucket
from agent.http.hardening.websocket_protocol import WebSocketProtocol
from agent.realtime import socket
from agent.realtime.socket import ReceiveLimiter
from benchmarks.callers.abusive_clients import (
    SPEED,
    AttackTarget,
    ask_long,
    chat,
    flood,
    ping,
    read_nothing,
    send_fragments,
    send_one_byte,
    sit,
    speak,
    speak_too_fast,
    talk_too_fast,
    upload,
)
from latency_budget.account.clock import Clock
from tests.agent.server.test_leaks import alive, num_tasks, resident_mb
from tests.support.service.live import LOOK_S, LiveServer
from tests.support.service.live_call import LiveCall, call_to, overlap, transcript

pytest_plugins = ["tests.support.service.live_fixtures"]
pytestmark = [pytest.mark.slow, pytest.mark.models]

PATIENCE_S: Final = 120.0
MAX_GROWTH_MB: Final = 20
"""Of two thousand connections. One that stayed would hold 100 kB; allocators keep some."""


@asynccontextmanager
async def witness(live: LiveServer) -> AsyncIterator[LiveCall]:
    """A call in progress, which is answered before, during and after; to all others the server is
    closed meanwhile."""
    async with call_to(live.url) as call:
        await call.update(output_modalities=["text"], max_output_tokens=4)
        await call.prove_alive()
        live.access.closed = True
        try:
            yield call
        finally:
            live.access.closed = False
        await call.prove_alive()
    assert call.of("error") == []


def target(live: LiveServer) -> AttackTarget:
    return AttackTarget(live.url)


async def num_connections(live: LiveServer) -> int:
    """That the server knows."""

    async def count() -> int:
        return len(live._server.server_state.connections)

    return await asyncio.to_thread(live.ask, count)


async def until_gone(live: LiveServer, number: int) -> None:
    """Wait until no more than these are left. The server sees their ends behind what they sent, and
    has its processor to itself until the next look."""
    async with asyncio.timeout(PATIENCE_S):
        while await num_connections(live) > number:
            await asyncio.to_thread(live.ask, lambda: asyncio.sleep(LOOK_S))


async def test_thousand_concurrent_calls_are_refused_before_any_work(live: LiveServer) -> None:
    async with witness(live) as call:
        admitted = live.calls.admitted
        flooding = asyncio.gather(flood(target(live), 1000), call.prove_alive())
        came, _ = await flooding
        assert set(came) <= {"401", "closed"}
        assert came["closed"] > 500  # of these not a byte was read
        assert came["401"] >= 64
        assert live.calls.admitted == admitted
        await until_gone(live, 1)


async def test_hundred_connections_per_second_are_refused(live: LiveServer) -> None:
    async with witness(live) as call:
        admitted = live.calls.admitted
        came, _ = await asyncio.gather(flood(target(live), 200, per_s=100), call.prove_alive())
        assert set(came) <= {"401", "closed"}
        assert live.calls.admitted == admitted
        await until_gone(live, 1)


@pytest.mark.parametrize("says", [b"", b"GET / HTTP/1.1\r\nHost: local", b"\x16\x03\x01\x02\x00"])
async def test_two_hundred_idle_connections_stay_within_their_limit(
    live: LiveServer, says: bytes
) -> None:
    async with witness(live) as call:
        sitting = asyncio.gather(sit(target(live), 200, 2.0, says=says), call.prove_alive())
        closed, _ = await sitting
        assert closed >= 200 - 128
        async with httpx.AsyncClient(timeout=60, trust_env=False) as http:
            assert (await http.get(f"{live.http}/healthz")).status_code == 200
        await until_gone(live, 1)


async def test_two_thousand_connections_leak_nothing(live: LiveServer) -> None:
    async with witness(live):
        await flood(target(live), 300)
        await until_gone(live, 1)
        await asyncio.to_thread(live.ask, collect)
        tasks, before = await num_tasks(live), len(alive(HttpConnection, WebSocketProtocol))
        grown: list[int] = []
        for _ in range(3):  # a leak grows each time; the allocator's pools grow once
            megabytes = resident_mb()
            await flood(target(live), 2000)
            await until_gone(live, 1)
            await asyncio.to_thread(live.ask, collect)
            assert await num_tasks(live) <= tasks
            assert len(alive(HttpConnection, WebSocketProtocol)) <= before
            grown.append(resident_mb() - megabytes)
            if grown[-1] <= MAX_GROWTH_MB:
                break
        else:
            pytest.fail(f"2000 connections leave {grown} MB behind, each time")


async def collect() -> None:
    gc.collect()


async def test_endless_audio_is_read_in_real_time(
    live: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    is_held_up, is_over = asyncio.Event(), asyncio.Event()

    async def pause(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 4:
            loop.call_soon_threadsafe(is_held_up.set)
        if not is_over.is_set():
            await asyncio.sleep(seconds)

    def patched(
        websocket: WebSocket, settings: AccessSettings, clock: Clock, **_: object
    ) -> ReceiveLimiter:
        return ReceiveLimiter(websocket, replace(settings, burst_s=10), clock, pause)

    loop = asyncio.get_running_loop()
    async with call_to(live.url) as call:
        await call.update(output_modalities=["text"], max_output_tokens=4)
        monkeypatch.setattr(socket, "ReceiveLimiter", patched)
        began_s = loop.time()
        async with asyncio.TaskGroup() as group:
            talking = group.create_task(talk_too_fast(target(live), PATIENCE_S))
            await call.prove_alive()
            async with asyncio.timeout(PATIENCE_S):
                await is_held_up.wait()
            assert loop.time() - began_s > 2  # three are over, of a second of audio each
            talking.cancel()
        await call.prove_alive()
        is_over.set()  # what lies in the network is read on


async def test_admitted_clients_that_ask_for_much_end_no_other_call(live: LiveServer) -> None:
    """All at once, as `bench abuse` sends them one kind after the other."""
    loud = np.random.default_rng(0).integers(-8000, 8000, 48_000, np.int16).tobytes()
    attacker = AttackTarget(live.url, speech=loud)
    async with call_to(live.url) as call:
        await call.update(output_modalities=["text"], max_output_tokens=4)
        async with asyncio.TaskGroup() as group:
            kinds = (chat, speak, upload)
            requests = [group.create_task(kind(attacker, 10.0)) for kind in kinds]
            fast = group.create_task(speak_too_fast(attacker, 10.0))
            group.create_task(ask_long(attacker, 10.0))
            await call.prove_alive()
        for request in requests:
            assert set(request.result()) <= {"200", "429", "503"}
        assert fast.result() > SPEED
        await call.prove_alive()
    assert call.of("error") == []


@pytest.mark.parametrize("kind", [ping, send_fragments, send_one_byte])
async def test_floods_of_small_frames_leave_other_calls_alone(
    live: LiveServer,
    kind: Callable[[AttackTarget, float], Awaitable[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with call_to(live.url) as call:
        await call.update(output_modalities=["text"], max_output_tokens=4)
        sent, _ = await asyncio.gather(kind(target(live), 3.0), call.prove_alive())
        assert sent > 1000
        await call.prove_alive()
    assert call.of("error") == []
    # What lies in the network is parsed before its end is seen: of the smallest frames a minute's
    # worth, at the rate that they have.
    monkeypatch.setattr(LeakyBucket, "add", lambda *_: 0.0)
    await until_gone(live, 0)


async def test_long_recording_is_read_without_loss(
    live: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sent at once, and read in real time."""
    waits: list[float] = []

    async def pause(seconds: float) -> None:
        waits.append(seconds)

    def patched(
        websocket: WebSocket, settings: AccessSettings, clock: Clock, **_: object
    ) -> ReceiveLimiter:
        return ReceiveLimiter(websocket, replace(settings, burst_s=1), clock, pause)

    monkeypatch.setattr(socket, "ReceiveLimiter", patched)
    said = "all-circuits-busy-now"
    async with call_to(live.url) as call:
        await call.update(output_modalities=["text"], max_output_tokens=4)
        await call.say(said, piece_ms=500)
        heard = await call.until("conversation.item.input_audio_transcription.completed")
        await call.response()
    assert overlap(transcript(said), heard["transcript"]) >= 0.6
    assert len(waits) >= 3


async def test_client_that_stops_reading_does_not_delay_others(live: LiveServer) -> None:
    async with call_to(live.url) as call:
        await call.update(output_modalities=["text"], max_output_tokens=4)
        await asyncio.gather(read_nothing(target(live), 3.0), call.prove_alive())
        await call.prove_alive()


class RawCall:
    """A WebSocket whose frames are written by hand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def write(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def frame(self) -> tuple[int, bytes]:
        """Opcode and content of the server's next frame."""
        async with asyncio.timeout(PATIENCE_S):
            first, length = await self._reader.readexactly(2)
            if length == 126:
                (length,) = struct.unpack("!H", await self._reader.readexactly(2))
            elif length == 127:
                (length,) = struct.unpack("!Q", await self._reader.readexactly(8))
            return first & 15, await self._reader.readexactly(length)

    async def event(self, kind: str) -> Any:
        """The next event of this type."""
        while True:
            opcode, content = await self.frame()
            assert opcode == 1, (opcode, content)
            event = json.loads(content)
            if event["type"] == kind:
                return event

    async def close_code(self) -> int:
        """With which the server ends the call, whatever it says before."""
        while True:
            opcode, content = await self.frame()
            if opcode == 8:
                return int.from_bytes(content[:2], "big")


@asynccontextmanager
async def raw_call(live: LiveServer, extra: bytes = b"") -> AsyncIterator[tuple[RawCall, bytes]]:
    """And the head of the server's answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", live.port)
    try:
        writer.write(AttackTarget(live.url).handshake()[:-2] + extra + b"\r\n")
        async with asyncio.timeout(PATIENCE_S):
            head = await reader.readuntil(b"\r\n\r\n")
        assert b" 101 " in head
        raw = RawCall(reader, writer)
        await raw.event("session.created")
        yield raw, head
    finally:
        writer.transport.abort()


def frame(content: bytes, first: int = 0x81) -> bytes:
    """A client's frame, with a mask that changes nothing."""
    size = len(content)
    head = bytes([0x80 | size]) if size < 126 else bytes([0xFE]) + struct.pack("!H", size)
    return bytes([first]) + head + bytes(4) + content


async def test_one_byte_fragments_form_a_message(live: LiveServer) -> None:
    clear = b'{"type": "input_audio_buffer.clear"}'
    async with call_to(live.url) as call, raw_call(live) as (raw, _):
        for _ in range(3):
            pieces = [frame(bytes([byte]), 0x00) for byte in clear[1:]]
            await raw.write(frame(clear[:1], 0x01) + b"".join(pieces) + frame(b"", 0x80))
            await raw.event("input_audio_buffer.cleared")
        await raw.write(frame(b"[", 0x01) + frame(b"", 0x00) * 50_000 + frame(b"]", 0x80))
        await call.prove_alive()
        assert (await raw.event("error"))["error"]["code"] == "invalid_event"


BROKEN: Final = {
    "no UTF-8": (frame(b"\xff\xfe\xfd"), CLOSE_NOT_UTF8),
    "half a character": (frame("é".encode()[:1]), CLOSE_NOT_UTF8),
    "longer than memory": (b"\x81\xff" + struct.pack("!Q", 2**62), 1009),
    "longer than allowed, in fragments": (
        frame(b"x" * 60_000, 0x01) + frame(b"x" * 60_000, 0x00) * 80,
        1009,
    ),
    "compressed": (frame(b"\x00" * 8, 0xC1), 1002),
    "no mask": (b"\x81\x02{}", 1002),
    "a continuation of nothing": (frame(b"x", 0x80), 1002),
    "an unknown opcode": (frame(b"x", 0x83), 1002),
    "a ping in fragments": (frame(b"x", 0x09), 1002),
    "a long ping": (frame(b"x" * 200, 0x89), 1002),
}


@pytest.mark.parametrize("how", BROKEN)
async def test_broken_frame_ends_only_its_own_call(live: LiveServer, how: str) -> None:
    sent, code = BROKEN[how]
    async with raw_call(live) as (raw, _):
        with contextlib.suppress(ConnectionError):  # it may be closed before all of it is out
            await raw.write(sent)
        assert await raw.close_code() == code


async def test_compression_is_never_negotiated(live: LiveServer) -> None:
    offer = b"Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\r\n"
    async with raw_call(live, offer) as (_, head):
        assert b"extensions" not in head.lower()


async def test_cross_origin_websocket_is_refused(live: LiveServer) -> None:
    for origin in ("https://evil.example", "null", f"http://evil.example:{live.port}"):
        with pytest.raises(InvalidStatus) as refused:
            await websockets_client.connect(live.url, origin=Origin(origin), proxy=None)
        assert refused.value.response.status_code == 403


async def test_malformed_requests_are_refused(live: LiveServer) -> None:
    """TLS where there is none, other protocols, garbage."""
    context = ssl.create_default_context()
    with pytest.raises((ssl.SSLError, OSError)):
        await asyncio.open_connection("127.0.0.1", live.port, ssl=context)
    for sent in (b"\x00" * 100, b"SSH-2.0-x\r\n\r\n", b"GET\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM"):
        reader, writer = await asyncio.open_connection("127.0.0.1", live.port)
        writer.write(sent)
        async with asyncio.timeout(PATIENCE_S):
            answer = await reader.read(64)
        assert answer == b"" or answer.startswith(b"HTTP/1.1 4")
        writer.close()
    async with call_to(live.url) as call:
        await call.prove_alive()


async def test_idle_connection_is_closed_with_a_reason(
    live: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def impatient(
        websocket: WebSocket, settings: AccessSettings, clock: Clock, **_: object
    ) -> ReceiveLimiter:
        return ReceiveLimiter(websocket, replace(settings, idle_s=1), clock)

    monkeypatch.setattr(socket, "ReceiveLimiter", impatient)
    async with call_to(live.url) as call:
        assert await call.closed() == (CLOSE_NORMAL, service.IDLE)


async def test_forwarded_headers_of_untrusted_clients_are_ignored(
    live: LiveServer, caplog: pytest.LogCaptureFixture
) -> None:
    lies = {"X-Forwarded-For": "203.0.113.5", "X-Real-IP": "203.0.113.5", "Forwarded": "for=_x"}
    with caplog.at_level(logging.INFO, logger="agent"):
        async with httpx.AsyncClient(timeout=60, trust_env=False) as http:
            refused = await http.post(
                f"{live.http}/v1/chat/completions",
                headers={**lies, "Origin": "https://evil.example"},
            )
    assert refused.status_code == 403
    assert "refused 127.0.0.1 " in caplog.text
    assert "203.0.113.5" not in caplog.text
