"""WebRTC transport on a session of fake stages and a peer without a network, in virtual time."""

import asyncio
import json
from dataclasses import replace
from typing import Any, cast

import pytest

from agent.config.access import AccessSettings
from agent.realtime.protocol.protocol import RealtimeProtocol
from agent.realtime.socket import ClientPace
from agent.session.api.server_events import Notice
from agent.session.api.settings import SessionSettings
from agent.webrtc.jitter_buffer import MAX_AHEAD, RTP_HZ
from agent.webrtc.transport import WebRtcTransport
from latency_budget.account.clock import ManualClock
from tests.support.session import virtual_time
from tests.support.session.session_call import Call, call_with

LONG = "This is a story that takes ten seconds. " * 5


class FakePeer:
    """A connected client that reads all messages."""

    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []
        self.closed = asyncio.Event()

    def send(self, text: str) -> None:
        self.told.append(json.loads(text))

    def send_audio(self, packet: bytes, number: int) -> None: ...

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
