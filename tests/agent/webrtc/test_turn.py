"""A TURN server between client and service: settings, credentials, and a call that is relayed."""

import asyncio
import logging
import re
from typing import Any

import pytest

from agent.config.webrtc import WebRtcSettings
from agent.webrtc.offer import read_offer
from agent.webrtc.peer import Peer
from tests.support.service.live_call import PATIENCE_S
from tests.support.webrtc.turn_server import TurnServer, turn_server
from tests.support.webrtc.webrtc_peer import WebRtcPeer

PASSWORD = "s3cret-of-the-relay"
VARIABLE = "RELAY_PASSWORD"


def settings_of(server: TurnServer) -> WebRtcSettings:
    url = f"turn:127.0.0.1:{server.port}?transport=udp"
    return WebRtcSettings(turn_url=url, turn_username="halfsec", turn_password_env=VARIABLE)


def only_relayed(sdp: str) -> str:
    """The description without the addresses that need no relay."""
    return re.sub(r"a=candidate:.* typ (?!relay).*\r\n", "", sdp)


def forbid(protocol: Any) -> None:
    """Let no datagram pass in either direction, as a firewall does."""

    async def drop(*_: Any) -> None:
        """Send nothing."""

    protocol.send_stun = protocol.datagram_received = lambda *_: None
    protocol.send_data = drop


@pytest.fixture(autouse=True)
def password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, PASSWORD)


async def test_a_call_is_relayed_where_nothing_passes_directly(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    heard: list[str | bytes] = []
    packets: list[bytes] = []
    came = asyncio.Event()

    def hear(message: str | bytes) -> None:
        heard.append(message)
        came.set()

    client = WebRtcPeer()
    async with turn_server("halfsec", PASSWORD) as server:
        peer = Peer(
            settings_of(server),
            lambda seq, timestamp, payload: packets.append(payload),
            hear,
            on_loopback=True,
        )
        try:
            answer = await peer.answer(read_offer(await client.offer()))
            ice = peer._connection.getReceivers()[0].transport.transport.iceGatherer._connection
            for protocol in ice._protocols:
                if protocol.local_candidate.type == "host":
                    forbid(protocol)
            (relayed,) = server.allocations.values()
            host, port = relayed.address
            assert f"{host} {port} typ relay" in answer
            await client.connect(only_relayed(answer))
            async with asyncio.timeout(PATIENCE_S):
                assert await peer.wait_connected()
                while client.channel.readyState != "open":  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                client.send("session.update")
                await came.wait()
                while not packets:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert heard == ['{"type": "session.update"}']
            pair = ice._nominated[1]
            assert (pair.local_candidate.type, pair.local_candidate.port) == ("relay", port)
            assert server.num_sent > 0
            assert server.num_received > len(packets)
            assert server.num_refused == 1, "the first request, which gets realm and nonce"
        finally:
            await client.close()
            await peer.close()
    assert PASSWORD not in caplog.text


async def test_without_the_password_there_is_no_relay_and_the_call_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(VARIABLE)
    client = WebRtcPeer()
    async with turn_server("halfsec", PASSWORD) as server:
        peer = Peer(
            settings_of(server),
            lambda seq, timestamp, payload: None,
            lambda message: None,
            on_loopback=True,
        )
        try:
            answer = await peer.answer(read_offer(await client.offer()))
        finally:
            await client.close()
            await peer.close()
        assert server.allocations == {}
        assert server.num_refused >= 1
    assert "typ host" in answer
    assert "typ relay" not in answer


def test_the_settings_reach_ice() -> None:
    def servers(settings: WebRtcSettings) -> list[tuple[str, str | None, str | None]]:
        peer = Peer(
            settings,
            lambda seq, timestamp, payload: None,
            lambda message: None,
            on_loopback=True,
        )
        return [(each.urls, each.username, each.credential) for each in peer._servers()]

    turn = "turns:turn.example.com:5349?transport=tcp"
    assert servers(WebRtcSettings()) == []
    both = WebRtcSettings(
        stun_url="stun:stun.example.com:3478",
        turn_url=turn,
        turn_username="halfsec",
        turn_password_env=VARIABLE,
    )
    assert servers(both) == [
        ("stun:stun.example.com:3478", None, None),
        (turn, "halfsec", PASSWORD),
    ]
    assert PASSWORD not in repr(both)
