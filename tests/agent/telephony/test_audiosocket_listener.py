"""Calls that come by AudioSocket, over real connections to the real service, with real models."""

import asyncio
import contextlib
import logging
import socket
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, cast

import pytest

from agent.config.schema import Config
from agent.config.telephony import TelephonySettings
from agent.errors import ConfigError
from agent.http.peer_address import networks_of
from agent.realtime.socket import BROKEN
from agent.server.server import audio_listener
from agent.telephony import audiosocket_listener, endpoint
from agent.telephony.audiosocket_listener import (
    MAX_PROBES,
    MAX_QUEUED_MS,
    AudioSockets,
    AudioStream,
    _probe,
)
from agent.telephony.carriers.audiosocket import (
    CLEAR,
    END,
    HANG_UP,
    MARK,
    UUID,
    message,
)
from agent.telephony.media.paced_sender import FRAME_NS
from latency_budget.account.clock import ManualClock
from tests.agent.telephony.test_live import turns_of
from tests.support.service.live import LiveServer
from tests.support.service.live_call import overlap, transcript
from tests.support.service.otlp_collector import free_port
from tests.support.service.service_process import service
from tests.support.telephony.audio_socket_peer import (
    FRAME,
    SLIN,
    AudioSocketPeer,
    audio_socket,
    audio_socket_agent,
)

pytestmark = pytest.mark.slow

pytest_plugins = ["tests.support.service.live_fixtures"]

CALL = message(UUID, uuid.UUID("40325ec2-5efd-4bd3-805f-53576e581d13").bytes)
AUDIO = message(SLIN, bytes(2 * FRAME))


@pytest.fixture
def reader(live: LiveServer) -> Iterator[LiveServer]:
    """A server where calls by AudioSocket are answered with a long greeting."""
    with audio_socket_agent(live.audio_sockets, "reader"):
        yield live


@pytest.mark.models
async def test_a_caller_interrupts_asks_presses_keys_and_hangs_up(reader: LiveServer) -> None:
    async with audio_socket(reader.audio_port) as peer:
        await peer.until(lambda: peer.num_heard > 8000)
        began, heard = peer.num_ticks, peer.num_heard
        peer.say("vm-nobodyavail")
        await until_quiet(peer)
        cut = peer.num_heard
        assert cut < 9 * 8000, "the greeting lasts longer"
        assert cut - heard <= (peer.num_ticks - began) * FRAME, "at the pace of the caller's audio"
        await peer.until(lambda: peer.num_heard > cut + 8000)  # the answer
        peer.press("4")
        peer.press("#")
        while len(turns := await asyncio.to_thread(turns_of, reader)) < 3:
            await until_quiet(peer)
        assert {len(each) for each in peer.heard} == {FRAME}
        greeting, answer, keys, *_ = turns
        peer.hang_up()
    assert greeting.agent_text
    assert reader.config.agents["reader"].greeting.startswith(greeting.agent_text)
    assert "basket of apples" not in greeting.agent_text, "nobody heard the end"
    assert overlap(transcript("vm-nobodyavail"), answer.caller_text) > 0.6
    assert answer.agent_text
    assert keys.agent_text
    await asyncio.to_thread(reader.settle)


async def until_quiet(peer: AudioSocketPeer) -> None:
    """The agent has stopped: nothing comes while the caller sends a quarter of a second."""
    heard, since = peer.num_heard, peer.num_ticks

    def is_quiet() -> bool:
        nonlocal heard, since
        if peer.num_heard > heard:
            heard, since = peer.num_heard, peer.num_ticks
        return peer.num_ticks >= since + 12

    await peer.until(is_quiet)


@pytest.mark.models
async def test_a_call_is_hung_up_from_here(
    reader: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = reader.audio_sockets._phones._service
    monkeypatch.setattr(desk, "phone_rules", replace(desk.phone_rules, limit_s=1))
    async with audio_socket(reader.audio_port) as peer:
        await peer.closed()
        assert peer.was_hung_up
        assert peer.num_heard > 0
    await freed(reader)


@pytest.mark.models
async def test_a_server_takes_calls_where_its_settings_say_until_it_is_stopped() -> None:
    port = free_port()
    settings = (
        *("--set", f"telephony.audiosocket_port={port}", "--set", "agent.drain_s=1"),
        *("--set", "agents.default.greeting=One, two, three, four, five, six, seven, eight."),
    )
    async with service(*settings) as server:
        await server.line(f"AudioSocket is taken at 127.0.0.1:{port}, from 127.0.0.0/8, ::1/128.")
        await server.line("Ready")
        async with audio_socket(port) as peer:
            await peer.until(lambda: peer.num_heard > 4000)
            server.stop()
            await peer.closed()
            assert peer.was_hung_up
        assert await server.ended() == (0, "")


async def told(live: LiveServer, *pieces: bytes, ends: bool = False) -> bytes:
    """All that the server says to somebody who says this and nothing more."""
    answer = b""
    reader, writer = await asyncio.open_connection("127.0.0.1", live.audio_port)
    with contextlib.suppress(ConnectionError):
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        if ends:
            writer.write_eof()
        async with asyncio.timeout(60):
            while data := await reader.read(4096):
                answer += data
    writer.close()
    await freed(live)
    return answer


async def freed(live: LiveServer) -> None:
    await asyncio.to_thread(live.settle)
    async with asyncio.timeout(60):
        while live.audio_sockets._num_open:
            await asyncio.to_thread(live.settle)


@pytest.mark.models
@pytest.mark.parametrize(
    ("pieces", "reason"),
    [
        ([b"GET / HTTP/1.1\r\n\r\n"], "kind 0x47"),
        ([AUDIO], "the first message of a connection is the UUID"),
        ([CALL, CALL], "the UUID came twice"),
        ([CALL + bytes([SLIN, 0xFF, 0xFF])], "a message of 65535 bytes"),
        ([CALL + AUDIO, message(SLIN + 2, bytes(4))], "the rate of a call does not change"),
        ([CALL + AUDIO, CALL], "the UUID came twice"),
        ([CALL + 2 * AUDIO, message(0xFF, b"\1")], "Asterisk reports an error (01)"),
        ([message(HANG_UP)], "a stream ended before its call began"),
    ],
)
async def test_what_is_no_audiosocket_is_closed_with_a_line_in_the_log(
    live: LiveServer, caplog: pytest.LogCaptureFixture, pieces: list[bytes], reason: str
) -> None:
    with caplog.at_level(logging.INFO):
        await told(live, *pieces)
    assert reason in caplog.text


@pytest.mark.models
async def test_half_a_message_and_no_more(
    live: LiveServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with caplog.at_level(logging.INFO):
        assert await told(live, CALL + AUDIO[:100], ends=True) == b""
        assert "a stream ended before its call began" in caplog.text
        monkeypatch.setattr(endpoint, "OPEN_S", 0.2)
        assert await told(live, CALL + AUDIO[:100]) == b""
        assert "the stream does not say what call it is" in caplog.text


@pytest.mark.models
async def test_a_call_has_one_connection(
    reader: LiveServer, caplog: pytest.LogCaptureFixture
) -> None:
    first, writer = await asyncio.open_connection("127.0.0.1", reader.audio_port)
    writer.write(CALL + AUDIO)
    assert await first.read(1)  # the greeting
    second, again = await asyncio.open_connection("127.0.0.1", reader.audio_port)
    again.write(CALL + AUDIO)
    assert await second.read() == b""
    assert "has a stream already" in caplog.text
    assert await first.read(1), "which does not disturb it"
    writer.close()
    again.close()
    await freed(reader)


@pytest.mark.models
async def test_who_gets_no_line_is_closed(
    live: LiveServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with caplog.at_level(logging.INFO):
        monkeypatch.setattr(live.calls, "draining", True)
        assert await told(live, CALL + AUDIO) == b""
        assert "503" in caplog.text
        monkeypatch.undo()
        monkeypatch.setattr(live.calls, "num_lacking", lambda num_kept: 1)
        caplog.clear()
        caplog.set_level(logging.INFO)
        assert await told(live, CALL + AUDIO) == b""
        assert "busy" in caplog.text


@pytest.mark.models
@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("_allowed", networks_of(["192.0.2.0/24"]), "it is not in telephony.audiosocket_allow"),
        ("_most", 0, "too many connections"),
    ],
)
async def test_who_may_not_connect_is_closed_before_he_is_read(
    live: LiveServer,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    value: object,
    reason: str,
) -> None:
    monkeypatch.setattr(live.audio_sockets, name, value)
    monkeypatch.setattr(live.audio_sockets, "_num_refused", 0)
    assert await told(live) == b""
    assert f"closed a connection from 127.0.0.1: {reason} (1 so far)" in caplog.text


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"audiosocket_allow": ("10.0.0.1/8",)}, "telephony.audiosocket_allow"),
        ({"audiosocket_allow": ("pbx",)}, "telephony.audiosocket_allow"),
        ({"audiosocket_agent": "nobody"}, "telephony.audiosocket_agent"),
    ],
)
def test_settings_that_can_not_be_meant(settings: dict[str, Any], key: str) -> None:
    config = Config(telephony=TelephonySettings(**settings))
    unused: Any = None
    with pytest.raises(ConfigError) as error:
        AudioSockets(config, unused, ManualClock(), unused)
    assert error.value.key == key


async def test_a_connection_that_is_gone_at_once_ends_no_other(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    unused: Any = None
    config = Config(telephony=TelephonySettings(audiosocket_allow=("127.0.0.1",)))
    sockets = AudioSockets(config, unused, ManualClock(), unused)
    num_probed, served = 0, asyncio.Event()

    def refuses_the_first(connection: socket.socket) -> None:
        nonlocal num_probed
        num_probed += 1
        if num_probed == 1:
            raise OSError(22, "Invalid argument")  # as macOS does

    class Phones:
        async def serve(self, *_: object) -> None:
            served.set()

    monkeypatch.setattr(audiosocket_listener, "_probe", refuses_the_first)
    monkeypatch.setattr(sockets, "_phones", Phones())
    with socket.create_server(("127.0.0.1", 0)) as listener:
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(sockets.serve(listener))
            for _ in range(2):
                _, writer = await asyncio.open_connection(*listener.getsockname())
                writer.close()
            async with asyncio.timeout(10):
                await served.wait()
            serving.cancel()
    assert serving.cancelled()
    assert sockets._num_open == 0
    assert "a connection from 127.0.0.1 failed" in caplog.text


def test_a_port_that_is_taken_is_named_with_its_setting() -> None:
    with audio_listener(TelephonySettings()) as none:
        assert none is None
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        settings = TelephonySettings(audiosocket_port=port)
        with (
            pytest.raises(ConfigError, match=r"the setting telephony\.audiosocket_port"),
            audio_listener(settings),
        ):
            pass
    with audio_listener(settings) as listener:
        assert listener is not None
        assert listener.getsockname() == ("127.0.0.1", port)


# --- in a time that the test makes ---


class Peer:
    """The other end of a connection, and the time in which it is written to."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.written: list[tuple[int, bytes]] = []
        """When, and what."""
        self._drained = asyncio.Event()
        self.stream = AudioStream(asyncio.StreamReader(), cast(Any, self), self.clock, self.pause)

    async def pause(self, seconds: float) -> None:
        self.clock.advance_ms(seconds * 1000)
        await asyncio.sleep(0)

    def write(self, data: bytes) -> None:
        self.written.append((self.clock.now_ns(), data))

    async def drain(self) -> None:
        self._drained.set()
        await asyncio.sleep(0)

    def is_closing(self) -> bool:
        return False

    async def say(self, *frames: str | bytes) -> None:
        for frame in frames:
            kind = "text" if isinstance(frame, str) else "bytes"
            await self.stream.send({"type": "websocket.send", kind: frame})

    async def until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            self._drained.clear()
            await self._drained.wait()


def sound(num_frames: int, value: int) -> bytes:
    return bytes([SLIN]) + bytes([value]) * (2 * FRAME * num_frames)


async def test_audio_is_paced_and_nothing_stale_follows_an_interruption() -> None:
    peer = Peer()
    async with asyncio.TaskGroup() as group:
        playing = group.create_task(peer.stream.play())
        await peer.say(sound(50, 1), f"{MARK}never")
        await peer.until(lambda: len(peer.written) >= 10)
        await peer.say(CLEAR, sound(3, 2), f"{MARK}heard")
        cut = len(peer.written)
        await peer.until(lambda: len(peer.written) >= cut + 3)
        playing.cancel()
    times = [at_ns for at_ns, _ in peer.written]
    assert times == [each * FRAME_NS for each in range(cut + 3)]
    assert {data[-1] for _, data in peer.written[:cut]} == {1}
    assert [data for _, data in peer.written[cut:]] == [message(SLIN, b"\2" * 2 * FRAME)] * 3


async def test_marks_come_back_behind_what_the_caller_says() -> None:
    peer = Peer()
    assert (await peer.stream.receive())["type"] == "websocket.connect"
    peer.stream._reader.feed_data(b"one")
    async with asyncio.TaskGroup() as group:
        playing = group.create_task(peer.stream.play())
        group.create_task(peer.stream.read())
        await peer.say(sound(1, 1), f"{MARK}1", sound(1, 1), f"{MARK}2")
        await peer.until(lambda: len(peer.stream._marks) == 2)
        playing.cancel()
        told = [await peer.stream.receive() for _ in range(3)]
        assert [each.get("text") or each.get("bytes") for each in told] == [
            f"{MARK}1",
            f"{MARK}2",
            b"one",
        ]
        peer.stream._reader.feed_eof()
        assert (await peer.stream.receive())["type"] == "websocket.disconnect"


async def test_marks_reach_a_call_whose_caller_sends_nothing() -> None:
    peer = Peer()
    await peer.stream.receive()
    async with asyncio.TaskGroup() as group:
        running = [group.create_task(each) for each in (peer.stream.play(), peer.stream.read())]
        receiving = group.create_task(peer.stream.receive())
        await asyncio.sleep(0)
        await peer.say(sound(1, 1), f"{MARK}heard")
        assert (await receiving)["text"] == f"{MARK}heard"
        receiving = group.create_task(peer.stream.receive())
        await asyncio.sleep(0)
        peer.stream._reader.feed_data(b"one")
        assert (await receiving)["bytes"] == b"one", "what is read meanwhile is not lost"
        for task in running:
            task.cancel()


async def test_hanging_up_waits_for_nothing_that_is_queued() -> None:
    peer = Peer()
    await peer.say(sound(50, 1), END)
    assert [data for _, data in peer.written] == [message(HANG_UP)]
    assert peer.stream._queue.next_due_ns() is None


async def test_who_reads_nothing_is_not_told_ever_more() -> None:
    peer = Peer()
    await peer.say(sound(MAX_QUEUED_MS // 20 + 1, 1))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await peer.say(sound(1, 1))
    await peer.say(CLEAR)  # which waits for nobody
    assert peer.stream._queue.next_due_ns() is None
    await peer.say(sound(1, 2))


async def test_a_connection_that_broke_is_no_end_of_a_call() -> None:
    peer = Peer()
    await peer.stream.receive()
    peer.stream._reader.set_exception(ConnectionResetError())
    await peer.stream.read()
    gone = await peer.stream.receive()
    assert gone["type"] == "websocket.disconnect"
    assert gone["code"] in BROKEN


def test_the_system_finds_out_who_has_gone() -> None:
    with socket.socket() as connection:
        _probe(connection)
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        after_s = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
        every_s = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL)
        assert 0 < after_s + MAX_PROBES * every_s < 60
