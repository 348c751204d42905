"""WebRTC transport on a session of fake stages and a peer without a network, in virtual time."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from agent.config.access import AccessSettings
from agent.realtime.protocol.protocol import RealtimeProtocol
from agent.realtime.socket import ClientPace
from agent.session.api.conversation import ItemId
from agent.session.api.server_events import Notice, ReplyAudio
from agent.session.api.settings import SessionSettings
from agent.webrtc.jitter_buffer import DTX_OVERDUE_MS, FRAME, MAX_AHEAD, RTP_HZ
from agent.webrtc.opus import OpusEncoder
from agent.webrtc.transport import WebRtcTransport
from latency_budget.account.clock import ManualClock
from tests.support.session import virtual_time
from tests.support.session.session_call import Call, call_with

TONE = (8000 * np.sin(np.arange(24_000) * 0.05)).astype(np.int16)
LONG = "This is a story that takes ten seconds. " * 5


class FakePeer:
    """A connected client that reads all messages."""

    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []
        self.closed = asyncio.Event()

    def send(self, text: str) -> None:
        self.told.append(json.loads(text))

    def send_audio(self, packet: bytes, timestamp: int) -> None: ...

    def check(self) -> None: ...

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [each for each in self.told if each["type"] == kind]


def test_a_client_that_is_far_ahead_has_nothing_decoded() -> None:
    """Each packet would fill a gap of five seconds."""
    clock = ManualClock()
    protocol = RealtimeProtocol(SessionSettings(), model="m", holds_audio=True)
    transport = WebRtcTransport(protocol, ClientPace(AccessSettings(), clock), clock)
    transport._is_live = True

    def send(first: int, num: int) -> int:
        """Returns how many were decoded."""
        before = transport._jitter.counts.received
        for number in range(first, first + num):
            transport.packet_arrived(number, number * 5 * RTP_HZ, b"\xf8\xff\xfe")
        return transport._jitter.counts.received - before

    assert send(0, 500) <= 3
    assert transport.num_ahead >= 497
    assert send(500, 100) == 0
    clock.advance_ms(1000)
    assert 1 <= send(600, 100) <= MAX_AHEAD + 1


class TimedPeer(FakePeer):
    """Keeps when each packet was sent, and its time stamp."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self.sent: list[tuple[float, int]] = []
        """ms since the beginning, and RTP time."""
        self._clock = clock
        self._began_ns = clock.now_ns()

    def send_audio(self, packet: bytes, timestamp: int) -> None:
        self.sent.append(((self._clock.now_ns() - self._began_ns) / 1e6, timestamp))


def timed_transport(clock: ManualClock) -> tuple[WebRtcTransport, TimedPeer]:
    protocol = RealtimeProtocol(SessionSettings(), model="m", holds_audio=True)
    transport = WebRtcTransport(protocol, ClientPace(AccessSettings(), clock), clock)
    peer = TimedPeer(clock)
    transport.peer = cast(Any, peer)
    transport._is_live = True
    return transport, peer


@asynccontextmanager
async def keeping_time(transport: WebRtcTransport) -> AsyncIterator[None]:
    """Send and fill frames, as `serve` does."""
    async with asyncio.TaskGroup() as group:
        timing = group.create_task(transport._keep_time())
        yield
        timing.cancel()


@pytest.mark.parametrize("after_ms", [1001, 1007, 1013, 1019])
def test_the_first_packet_of_a_reply_in_a_silence_does_not_wait_for_the_next_frame(
    after_ms: int,
) -> None:
    """The packets that follow are 20 ms apart, in RTP time too."""

    async def story(clock: ManualClock) -> None:
        transport, peer = timed_transport(clock)
        async with keeping_time(transport):
            await asyncio.sleep(after_ms / 1000)
            before = len(peer.sent)
            transport._output.begin("a", ItemId("item_a"))
            for _ in range(2):
                transport.notify(ReplyAudio("a", TONE[:2400], 24_000))
            await asyncio.sleep(0.175)
        sent = peer.sent[before:]
        due_ms = [after_ms + 20 * number for number in range(9)]
        assert [at_ms for at_ms, _ in sent] == pytest.approx(due_ms, abs=0.1)
        assert sent[0][1] == pytest.approx(48 * after_ms, abs=2)
        assert [timestamp - sent[0][1] for _, timestamp in sent] == [FRAME * n for n in range(9)]

    virtual_time.run(story)


def test_a_reply_right_behind_another_waits_until_its_last_packet_is_over() -> None:
    async def story(clock: ManualClock) -> None:
        transport, peer = timed_transport(clock)
        async with keeping_time(transport):
            await asyncio.sleep(1)
            for name in ("a", "b"):
                transport._output.begin(name, ItemId(f"item_{name}"))
                transport.notify(ReplyAudio(name, TONE[:480], 24_000))
                transport._output.end(name)
                await asyncio.sleep(0.013)
            await asyncio.sleep(0.01)
        first, second = peer.sent[-2:]
        assert second[0] - first[0] == pytest.approx(20, abs=0.1)
        assert second[1] - first[1] == FRAME

    virtual_time.run(story)


@pytest.mark.parametrize("phase_ms", [1, 7, 13, 19])
def test_a_silence_that_was_not_sent_is_passed_on_at_its_own_time(phase_ms: int) -> None:
    """Not at the times at which the agent's frames leave."""

    async def story(clock: ManualClock) -> None:
        transport, _ = timed_transport(clock)
        heard: list[float] = []
        hear = transport._hear

        def noted(pieces: list[Any]) -> None:
            heard.extend(clock.now_ns() / 1e6 for _ in pieces)
            hear(pieces)

        transport._hear = noted  # type: ignore[method-assign]
        encoder, seq, last = OpusEncoder(24_000), 0, 0
        async with keeping_time(transport):
            await asyncio.sleep(phase_ms / 1000)
            began_ms = clock.now_ns() / 1e6
            for number in range(60):
                pcm = TONE[480 * number :][:480] if number < 10 else np.zeros(480, np.int16)
                if (packet := encoder.encode(pcm)) is not None:
                    transport.packet_arrived(seq, number * FRAME, packet)
                    seq, last = seq + 1, number
                elif number > last + 5:
                    break
                await asyncio.sleep(0.02)
        filled = [at_ms for at_ms in heard if at_ms - began_ms > 20 * last + 1][:4]
        due = [began_ms + 20 * (last + number) + DTX_OVERDUE_MS for number in range(4)]
        assert filled == pytest.approx(due, abs=0.1)

    virtual_time.run(story)


def test_clearing_the_output_audio_keeps_responses_that_wait_for_a_language(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(clock: ManualClock) -> None:
        protocol = RealtimeProtocol(SessionSettings(), model="m", holds_audio=True)
        transport = WebRtcTransport(protocol, ClientPace(AccessSettings(), clock), clock)
        peer, gate = FakePeer(), asyncio.Event()
        transport.peer = cast(Any, peer)

        def notify(call: Call, notice: Notice) -> None:
            note(call, notice)
            transport.notify(notice)

        async def prepare(language: str, voice: str) -> str:
            await gate.wait()
            return voice

        def say(kind: str, **fields: Any) -> None:
            transport.message_arrived(json.dumps({"type": kind, **fields}))

        note = Call._notify
        monkeypatch.setattr(Call, "_notify", notify)
        async with call_with(LONG, "Hallo.", clock=clock) as call, asyncio.TaskGroup() as group:
            session = call.session
            session._stages = replace(
                session._stages,
                prepare_language=prepare,
                is_prepared=lambda language, _: language == "en",
            )
            serving = group.create_task(transport.serve(session))
            say("response.create")
            await asyncio.sleep(1)
            (first,) = peer.of("output_audio_buffer.started")
            audio = {"input": {"transcription": {"language": "de"}}}
            say("session.update", session={"type": "realtime", "audio": audio})
            say("response.create")
            say("output_audio_buffer.clear")
            await asyncio.sleep(1)
            (done,) = peer.of("response.done")
            assert (done["response"]["id"], done["response"]["status"]) == (
                first["response_id"],
                "cancelled",
            )
            assert [each["response_id"] for each in peer.of("output_audio_buffer.cleared")] == [
                first["response_id"]
            ]
            gate.set()
            await asyncio.sleep(2)
            assert len(peer.of("session.updated")) == 1
            second = peer.of("response.done")[-1]["response"]
            assert (second["status"], peer.of("error")) == ("completed", [])
            assert second["id"] != first["response_id"]
            serving.cancel()

    virtual_time.run(story)
