"""Calls by WebRTC to the real service, with aiortc as the client."""

import asyncio
import json
import logging
import re
import socket
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import aiortc
import httpx
import numpy as np
import pytest
from aiortc.rtp import RtpPacket

from agent.calls.fleet_lines import FleetLine
from agent.calls.service import LINES_OF_KEY
from agent.http.auth.principal import KeyLimits
from agent.http.openai.concurrency_limit import MAX_OF_ONE
from agent.realtime.socket import MESSAGES_AT_ONCE, WORK
from agent.server.ray_options import NO_WEBRTC
from agent.webrtc import transport
from latency_budget.account.clock import unix_ns
from tests.support.service.live import LiveServer
from tests.support.service.live_call import PATIENCE_S, overlap, transcript
from tests.support.webrtc.webrtc_peer import WebRtcPeer, webrtc_call

pytest_plugins = ["tests.support.service.live_fixtures"]
pytestmark = pytest.mark.models

CALLS = "/v1/realtime/calls"
SDP = {"content-type": "application/sdp"}
FORM = {"content-type": "multipart/form-data; boundary=B"}
QUIET = 300
"""Peak of a frame that has no voice in it: what Opus makes of silence."""


@pytest.fixture
async def http(live: LiveServer) -> Any:
    async with httpx.AsyncClient(base_url=live.http, timeout=PATIENCE_S) as client:
        yield client


def num_voiced(peer: WebRtcPeer) -> int:
    """Frames of 20 ms with voice that the client has heard."""
    return sum(bool(np.abs(frame).max() > QUIET) for frame in peer.heard)


async def until_over(live: LiveServer) -> None:
    """Wait until the service holds no WebRTC call any more."""
    async with asyncio.timeout(PATIENCE_S):
        while len(live.webrtc):  # noqa: ASYNC110  # in another thread's loop
            await asyncio.sleep(0.05)


async def test_the_caller_hears_a_greeting_interrupts_asks_and_is_hung_up_on(
    live: LiveServer, http: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with webrtc_call(live.http, model="reader") as peer:
        session_id = (await peer.until("session.created"))["session"]["id"]
        started = await peer.until("output_audio_buffer.started")
        async with asyncio.timeout(PATIENCE_S):
            while num_voiced(peer) < 100:  # noqa: ASYNC110  # two seconds; there is no event for it
                await asyncio.sleep(0.05)
        peer.microphone.say("vm-nobodyavail")
        await peer.until("input_audio_buffer.speech_started")
        cleared = await peer.until("output_audio_buffer.cleared")
        assert cleared["response_id"] == started["response_id"]
        truncated = await peer.until("conversation.item.truncated")
        peer.send("conversation.item.retrieve", item_id=truncated["item_id"])
        item = (await peer.until("conversation.item.retrieved"))["item"]
        num_heard = num_voiced(peer)
        said = await peer.until("conversation.item.input_audio_transcription.completed")
        answer = await peer.until("output_audio_buffer.started")
        done = await peer.until("response.done")
        await peer.until("output_audio_buffer.stopped")
        hung_up = await http.post(f"{peer.location}/hangup")
        async with asyncio.timeout(PATIENCE_S):
            await peer.closed.wait()
        await until_over(live)
        again = await http.post(f"{peer.location}/hangup")
        trace = (await http.get(f"/v1/sessions/{session_id}/trace")).text
        document = (await http.get(f"/v1/calls/{session_id}")).json()

    assert overlap(transcript("vm-nobodyavail"), said["transcript"]) > 0.6
    assert done["response"]["id"] == answer["response_id"]
    assert done["response"]["status"] == "completed"
    assert "response.output_audio.delta" not in peer.types
    assert hung_up.status_code == 200
    assert again.status_code == 404
    assert peer.of("error") == [], "who hangs up knows why the call ends"
    assert '"heard"' in trace, "playback was reported"
    assert '"heard_doubted"' not in trace
    (counts,) = re.findall(rf"call {session_id}: packets=(\d+) late=\d+ foreign=0 ", caplog.text)
    assert int(counts) > 100

    (part,) = item["content"]
    greeting = live.config.agents["reader"].greeting
    assert greeting.startswith(part["transcript"])
    assert len(part["transcript"]) < len(greeting)
    assert not greeting[len(part["transcript"])].isalnum(), "the history ends with a word"
    assert (document["status"], document["end"]["cause"]) == ("ended", "hung_up")
    first, question = document["transcript"][:2]
    assert first["text"] == part["transcript"], "the transcript has what was heard"
    assert question["text"] == said["transcript"]
    assert document["telephone"] is None
    assert 20 * num_heard <= truncated["audio_end_ms"], "all that came was counted as heard"


async def test_the_form_configures_the_session_and_events_act_on_it(live: LiveServer) -> None:
    session = {"type": "realtime", "model": "pirate", "instructions": "Say arr."}
    async with webrtc_call(live.http, session) as peer:
        created = (await peer.until("session.created"))["session"]
        assert (created["instructions"], created["model"]) == ("Say arr.", "pirate")
        started = await peer.until("output_audio_buffer.started")
        peer.send("output_audio_buffer.clear", event_id="mine")
        done = await peer.until("response.done")
        assert done["response"]["id"] == started["response_id"]
        assert (done["response"]["status"], peer.of("error")) == ("cancelled", [])
        assert [each["response_id"] for each in peer.of("output_audio_buffer.cleared")] == [
            started["response_id"]
        ]
        peer.channel.send("{")
        assert (await peer.until("error"))["error"]["code"] == "invalid_event"
        assert peer.connection.sctp is not None
        peer.connection.sctp._remote_max_message_size = 0  # which the answer said
        peer.channel.send(json.dumps({"type": "x" * transport.MAX_MESSAGE_BYTES}))
        too_long = (await peer.until("error"))["error"]["message"]
        assert too_long.startswith("A message holds at most 262144 bytes")
        peer.send("session.update", session={"type": "realtime", "instructions": "Be brief."})
        updated = (await peer.until("session.updated"))["session"]
        assert updated["instructions"] == "Be brief."
    await until_over(live)


async def test_a_client_that_floods_the_channel_is_disconnected(
    live: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "MAX_MESSAGES", 20)
    async with webrtc_call(live.http) as peer:
        await peer.until("session.created")
        for _ in range(2 * MESSAGES_AT_ONCE // WORK):  # the others wait for the rate
            peer.send("response.create")
        await peer.until("error", lambda event: transport.FLOODED in event["error"]["message"])
        async with asyncio.timeout(PATIENCE_S):
            await peer.closed.wait()
    await until_over(live)


@pytest.fixture
async def key(live: LiveServer) -> AsyncIterator[str]:
    """A key of the server, as long as the test lasts."""
    text = live.keys.add("ana", KeyLimits(), unix_ns() // 10**9)
    live.ask(live.access.refresh)
    yield text
    for each in live.keys.read():  # none where the test has revoked it
        live.keys.revoke(each.name)
    live.ask(live.access.refresh)


@pytest.mark.parametrize(
    ("cause", "code", "words"),
    [
        ("time limit", "session_expired", "time limit"),
        ("idle", "session_ended", "the client sent nothing for too long"),
        ("lines of the fleet", "overloaded", "All calls that this key may hold at once"),
        ("revoked", "policy_violation", "the key of this call was revoked"),
        ("drain", "draining", "the server is being stopped"),
    ],
)
async def test_the_client_learns_why_its_call_ends(
    live: LiveServer,
    http: httpx.AsyncClient,
    key: str,
    monkeypatch: pytest.MonkeyPatch,
    cause: str,
    code: str,
    words: str,
) -> None:
    service = live.webrtc._service
    if cause == "time limit":
        monkeypatch.setattr(service, "socket_rules", replace(service.socket_rules, limit_s=1))
    if cause == "idle":
        access = replace(live.config.access, idle_s=1)
        monkeypatch.setattr(live.webrtc._service, "config", replace(live.config, access=access))
    if cause == "lines of the fleet":

        async def none_left(*_: object) -> bool:
            return False

        monkeypatch.setattr(FleetLine, "take", none_left)
        assert words in LINES_OF_KEY.message
    async with webrtc_call(live.http, key=key) as peer:
        if cause != "lines of the fleet":
            await peer.until("session.created")
        if cause == "idle":
            peer.connection.getSenders()[0].replaceTrack(None)
        if cause == "revoked":
            other = await http.post(f"{peer.location}/hangup")
            assert other.status_code == 404, "it is the call of a key, and this one has none"
            live.keys.revoke("ana")
            live.ask(live.access.refresh)
        if cause == "drain":
            live.calls.draining = True
            refused = await http.post(CALLS, content="no offer", headers=SDP)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
            live._loop.call_soon_threadsafe(live.calls.stopping.set)
        try:
            told = (await peer.until("error"))["error"]
            async with asyncio.timeout(PATIENCE_S):
                await peer.closed.wait()
            await until_over(live)
        finally:
            live.calls.draining = False
            live._loop.call_soon_threadsafe(live.calls.stopping.clear)
    assert told["code"] == code
    assert words in told["message"]
    assert len(live.calls) == 0


async def test_an_error_of_one_call_ends_no_other(live: LiveServer) -> None:
    live.expected = ["call sess_"]

    async def fails() -> None:
        await closes()
        raise RuntimeError("the test's")

    async with webrtc_call(live.http, model="pirate") as one, webrtc_call(live.http) as other:
        await one.until("session.created")
        await other.until("session.created")
        (call, _) = live.webrtc._open.values()
        closes = call.transport.peer.close
        call.transport.peer.close = fails  # type: ignore[method-assign]
        await one.close()
        async with asyncio.timeout(PATIENCE_S):
            while len(live.webrtc) > 1:  # noqa: ASYNC110  # in another thread's loop
                await asyncio.sleep(0.05)
        other.send("session.update", session={"type": "realtime", "instructions": "Be brief."})
        await other.until("session.updated")
    await until_over(live)
    assert len(live.problems.records) == 1


async def test_audio_and_datagrams_of_others_are_dropped_and_leave_no_trace(
    live: LiveServer,
) -> None:
    async with webrtc_call(live.http) as peer:
        await peer.until("session.created")
        peer.microphone.say("conf-locked")
        (call,) = live.webrtc._open.values()
        server = call.transport.peer
        receiver = server._connection.getReceivers()[0]
        async with asyncio.timeout(PATIENCE_S):
            # The first source counts: it has to be the caller's.
            while not receiver._RTCRtpReceiver__remote_streams:  # noqa: ASYNC110
                await asyncio.sleep(0.05)  # in another thread's loop
        sender = peer.connection.getSenders()[0]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            ice = receiver.transport.transport
            for candidate in ice.iceGatherer.getLocalCandidates():
                for data in (b"", b"\x16\xfe\xfd", bytes(20)) if ":" not in candidate.ip else ():
                    stranger.sendto(data, (candidate.ip, candidate.port))
        for number in range(50):
            packet = RtpPacket(payload_type=96, sequence_number=number, timestamp=number)
            packet.ssrc, packet.payload = 1000 + number, b"\xf8\xff\xfe"
            await sender.transport._send_rtp(packet.serialize())
        said = await peer.until("conversation.item.input_audio_transcription.completed")
        assert len(receiver._RTCRtpReceiver__remote_streams) == 1
        assert len(receiver.transport._rtp_router.ssrc_table) == 1
        assert 0 < server.num_foreign <= 50
    assert overlap(transcript("conf-locked"), said["transcript"]) > 0.6
    await until_over(live)


@pytest.mark.parametrize("stage", ["nothing comes", "DTLS never finishes"])
async def test_a_client_that_does_not_connect_gives_its_line_back(
    live: LiveServer,
    http: httpx.AsyncClient,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    stage: str,
) -> None:
    caplog.set_level(logging.INFO, "agent.webrtc.endpoint")
    settings = replace(live.config.webrtc, connect_s=1)
    monkeypatch.setattr(live.webrtc._service, "config", replace(live.config, webrtc=settings))
    peer, is_over = WebRtcPeer(), asyncio.Event()

    async def never(_: object) -> None:
        await is_over.wait()

    try:
        answer = await http.post(CALLS, content=await peer.offer(), headers=SDP)
        if stage == "DTLS never finishes":
            assert peer.connection.sctp is not None
            monkeypatch.setattr(peer.connection.sctp.transport, "start", never)
            monkeypatch.setattr(peer.connection.getSenders()[0].transport, "start", never)
            await peer.accept(answer)
        assert len(live.calls) == 1
        await until_over(live)
        assert len(live.calls) == 0
        state = "checking, DTLS new" if stage == "nothing comes" else r"\w+, DTLS \w+"
        told = rf"the client did not connect \(ICE {state}, no data channel\)"
        assert re.search(told, caplog.text)
    finally:
        is_over.set()
        await asyncio.sleep(0)
        await peer.close()


async def test_what_can_t_be_served_is_refused_and_holds_nothing(
    live: LiveServer, http: httpx.AsyncClient
) -> None:
    peer = WebRtcPeer()
    offer = await peer.offer()
    await peer.close()
    wrong: list[tuple[int, str, dict[str, Any]]] = [
        (413, "64 KiB", {"content": offer + "a" * 1_000_000, "headers": SDP}),
        (400, "no audio", {"content": offer.replace("m=audio", "m=video"), "headers": SDP}),
        (400, "can't be answered", {"content": offer.replace(":5000", ":x"), "headers": SDP}),
        (400, "SDP", {"content": b"\xff\x00", "headers": SDP}),
        (415, "Content-Type", {"json": {"sdp": offer}}),
        (400, "field 'sdp'", {"files": {"session": (None, "{}")}}),
        (413, "1 MiB", {"files": {"sdp": ("sdp", offer + "a" * 1_100_000)}}),
        (413, "1 MiB", {"content": _endless_form(), "headers": FORM}),
        (400, "JSON", {"files": {"sdp": (None, offer), "session": (None, "{")}}),
        (400, "voice", {"files": _form(offer, audio={"output": {"voice": "nobody"}})}),
        (400, "instructions", {"files": _form(offer, instructions=7)}),
    ]
    for status, words, request in wrong:
        answer = await http.post(CALLS, **request)
        assert answer.status_code == status, (words, answer.text)
        assert words in answer.json()["error"]["message"]
    assert (await http.post(f"{CALLS}/rtc_none/hangup")).status_code == 404
    assert len(live.webrtc) == len(live.calls) == 0


async def test_bodies_that_are_read_at_once_are_bounded(
    live: LiveServer, http: httpx.AsyncClient
) -> None:
    """A client has half of the places."""
    are_read, go_on = asyncio.Event(), asyncio.Event()
    num_begun = 0

    async def slowly() -> AsyncIterator[bytes]:
        nonlocal num_begun
        yield b"v=0"
        num_begun += 1
        if num_begun == MAX_OF_ONE:
            are_read.set()
        await go_on.wait()

    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(http.post(CALLS, content=slowly(), headers=SDP))
            for _ in range(MAX_OF_ONE)
        ]
        async with asyncio.timeout(PATIENCE_S):
            await are_read.wait()
            while sum(live.webrtc._bodies._held.values()) < MAX_OF_ONE:  # noqa: ASYNC110
                await asyncio.sleep(0.05)  # in another thread's loop
        answer = await http.post(CALLS, content=b"v=0", headers=SDP)
        go_on.set()
    assert (answer.status_code, "try again" in answer.text) == (503, True)
    assert [task.result().status_code for task in tasks] == [400] * MAX_OF_ONE


async def _endless_form() -> AsyncIterator[bytes]:
    """Without a length: in chunks."""
    yield b'--B\r\nContent-Disposition: form-data; name="sdp"; filename="sdp"\r\n\r\n'
    for _ in range(2000):
        yield b"a" * 1024


def _form(offer: str, **session: Any) -> dict[str, tuple[None, str]]:
    return {"sdp": (None, offer), "session": (None, json.dumps({"type": "realtime", **session}))}


async def test_without_the_extra_the_answer_says_what_to_install(
    live: LiveServer, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not live.webrtc._is_loaded:  # noqa: ASYNC110  # by itself, without a call
            await asyncio.sleep(0.05)
    monkeypatch.setattr(live.webrtc, "_is_loaded", False)
    monkeypatch.setitem(sys.modules, "aiortc", None)
    answer = await http.post(CALLS, content="v=0", headers=SDP)
    assert answer.status_code == 501
    assert 'pip install "halfsec[webrtc]"' in answer.json()["error"]["message"]


async def test_with_another_version_of_the_library_calls_are_refused(
    live: LiveServer, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not live.webrtc._is_loaded:  # noqa: ASYNC110  # by itself, without a call
            await asyncio.sleep(0.05)
    monkeypatch.setattr(live.webrtc, "_is_loaded", False)
    monkeypatch.delattr(aiortc.RTCRtpReceiver, "_send_rtcp")
    answer = await http.post(CALLS, content="v=0", headers=SDP)
    assert (answer.status_code, answer.json()["error"]["code"]) == (501, "webrtc_incompatible")
    assert ["aiortc.RTCRtpReceiver._send_rtcp" in each for each in live.problems.texts()] == [True]
    live.problems.records.clear()


async def test_behind_ray_serve_calls_are_refused(
    live: LiveServer, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live.webrtc, "_closed", None)  # again, once the test is over
    live.webrtc.close(NO_WEBRTC)
    answer = await http.post(CALLS, content="v=0", headers=SDP)
    assert (answer.status_code, answer.json()["error"]["code"]) == (501, "webrtc_not_available")


async def test_pages_of_allowed_origins_may_call(
    live: LiveServer, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live.webrtc._visitors, "_origins", {"https://app.example.com"})
    asked = {"access-control-request-headers": "authorization,content-type"}
    for origin, status in (("https://app.example.com", 204), ("https://evil.example.com", 403)):
        answer = await http.options(CALLS, headers={"origin": origin, **asked})
        assert answer.status_code == status
        allowed = answer.headers.get("access-control-allow-origin")
        assert allowed == (origin if status == 204 else None)
    refused = await http.post(
        CALLS, content="v=0", headers={**SDP, "origin": "https://app.example.com"}
    )
    assert refused.status_code == 400
    assert refused.headers["access-control-allow-origin"] == "https://app.example.com"
