"""The Python client and servers that refuse, make it wait, or are not halfsec."""

import asyncio
import socket
import ssl
from http import HTTPStatus
from typing import Any

import httpx
import pytest
from websockets.asyncio.server import Server, serve
from websockets.datastructures import Headers
from websockets.exceptions import InvalidStatus
from websockets.http11 import Response

from agent.client.call import MAX_ANSWER_BYTES, connect, wait_ready
from agent.client.errors import ConnectError, handshake_error
from agent.session.api.conversation import ItemId
from agent.session.api.server_events import Problem, SpeechStarted
from latency_budget.account.clock import ManualClock
from tests.support.fakes.realtime_peer import Peer, answer, serving


async def failure(url: str, **options: Any) -> ConnectError:
    with pytest.raises(ConnectError) as caught:
        async with connect(url, **options):
            pass
    return caught.value


async def test_no_server_at_the_address() -> None:
    async with serving() as peer:
        url = peer.url
    assert "halfsec serve" in str(await failure(url))


@pytest.mark.parametrize("url", ["", "localhost:8080", "ftp://a/b", "ws://", "ws://h:x/", "ws://["])
async def test_addresses_that_are_none(url: str) -> None:
    assert "is no address" in str(await failure(url))


async def test_tls_to_a_server_without_it() -> None:
    async with serving() as peer:
        error = await failure(peer.url.replace("ws:", "wss:"))
    assert "secure" in str(error)


async def test_a_server_that_is_none_of_the_web() -> None:
    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail\r\n")
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        assert "does not speak HTTP" in str(await failure(f"ws://127.0.0.1:{port}"))


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ssl.SSLCertVerificationError(1, "self-signed"), "not to be trusted"),
        (TimeoutError(), "does not answer"),
        (OSError(-2, "Name or service not known"), "No connection"),
    ],
)
def test_other_failures_are_distinguished(error: Exception, words: str) -> None:
    assert words in str(handshake_error("wss://host", error))


async def test_refused_for_want_of_a_key() -> None:
    async with serving(lambda _: answer(HTTPStatus.UNAUTHORIZED, "Send a key.")) as peer:
        error = await failure(peer.url)
    assert error.status == 401
    assert "Send a key." in str(error)


@pytest.mark.parametrize("key", ["sk-1\n", "sk-1\r\nX-Admin: yes", "sk 1", "schlüssel", "\u2603"])
async def test_a_key_that_would_spoil_the_request(key: str) -> None:
    asked = 0

    async def count(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        writer.close()

    async with await asyncio.start_server(count, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        assert "API key" in str(await failure(f"ws://127.0.0.1:{port}", api_key=key))
        assert "API key" in str(await failure(f"ws://127.0.0.1:{port}", api_key=lambda: key))
    assert not asked


@pytest.mark.parametrize("status", [HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND])
async def test_a_wrong_path_is_no_wrong_key(status: HTTPStatus) -> None:
    async with serving(lambda _: answer(status)) as peer:
        wrong_path = await failure(peer.url.removesuffix("/realtime"))
        right_path = await failure(peer.url)
    for error in (wrong_path, right_path):
        assert f"HTTP {status.value}" in str(error)
        assert "key" not in str(error)
    assert "Is the path /v1 right? The voice socket is /v1/realtime." in str(wrong_path)
    assert "the path" not in str(right_path)


async def test_a_refusal_in_the_servers_own_words() -> None:
    async with serving(lambda _: answer(HTTPStatus.FORBIDDEN, "Not from this page.")) as peer:
        assert "Not from this page." in str(await failure(peer.url + "x"))


def test_a_refusal_that_is_nested_too_deeply() -> None:
    body = b"[" * 100_000
    refusal = Response(503, "Service Unavailable", Headers(), body)
    error = handshake_error("ws://host", InvalidStatus(refusal))
    assert (error.status, error.passes) == (503, True)
    assert "not ready" in str(error)


async def test_something_else_answers() -> None:
    async with serving(lambda _: answer(HTTPStatus.GONE)) as peer:
        error = await failure(peer.url)
    assert "HTTP 410" in str(error)


async def test_a_server_that_warms_up_says_when_to_come_back() -> None:
    busy = answer(HTTPStatus.SERVICE_UNAVAILABLE, "Still warming.", Retry_After="7")
    async with serving(lambda _: busy) as peer:
        error = await failure(peer.url)
    assert (error.status, error.retry_after_s) == (503, 7.0)
    assert "Still warming. Try again in 7 s." in str(error)


async def test_waiting_until_it_is_warm() -> None:
    answers = [
        answer(HTTPStatus.SERVICE_UNAVAILABLE, "Warming.", Retry_After="0"),
        answer(HTTPStatus.SERVICE_UNAVAILABLE, "Warming.", Retry_After="0"),
        None,
    ]
    async with serving(lambda _: answers.pop(0)) as peer, connect(peer.url, wait_s=5.0) as call:
        assert call.session_id == "sess_1"
    assert not answers


async def test_waiting_until_it_listens() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    told: list[str] = []
    listening: list[Server] = []
    peer = Peer()

    async def begin() -> None:
        listening.append(await serve(peer.handle, "127.0.0.1", port))

    async with asyncio.TaskGroup() as group:

        def on_wait(error: ConnectError) -> None:
            told.append(str(error))
            if len(told) == 1:
                group.create_task(begin())

        url = f"ws://127.0.0.1:{port}"
        async with connect(url, wait_s=60.0, on_wait=on_wait) as call:
            assert call.session_id == "sess_1"
    (server,) = listening
    server.close()
    await server.wait_closed()
    assert len(told) == 1
    assert "Nothing listens" in told[0]


async def test_what_does_not_pass_is_not_waited_for() -> None:
    async with serving(lambda _: answer(HTTPStatus.UNAUTHORIZED)) as peer:
        error = await failure(peer.url, wait_s=60.0)
    assert len(peer.requests) == 1
    assert "key" in str(error)


async def test_waiting_no_longer_than_was_said() -> None:
    busy = answer(HTTPStatus.SERVICE_UNAVAILABLE, "Warming.", Retry_After="30")
    async with serving(lambda _: busy) as peer:
        error = await failure(peer.url, wait_s=5.0)
    assert len(peer.requests) == 1
    assert error.status == 503


async def test_a_server_that_hangs_up_or_complains_at_once() -> None:
    async with serving() as peer:
        peer.greeting = Problem("No such agent.", "model_not_found")
        assert "No such agent." in str(await failure(peer.url))
    async with serving() as peer:
        peer.greeting = SpeechStarted(ItemId("i"), 0)
        assert "Realtime protocol" in str(await failure(peer.url))


def ready_after(refusals: int) -> httpx.MockTransport:
    def respond(request: httpx.Request) -> httpx.Response:
        nonlocal refusals
        assert str(request.url) == "http://host:1/readyz"
        refusals -= 1
        if refusals == 0:
            raise httpx.ConnectError("refused")
        if refusals > 0:
            return httpx.Response(503, json={"status": "warming"})
        return httpx.Response(200, json={"status": "ready"})

    return httpx.MockTransport(respond)


async def test_readiness_is_polled() -> None:
    answer_ = await wait_ready("ws://host:1/v1/realtime", poll_s=0.0, transport=ready_after(3))
    assert answer_ == {"status": "ready"}


@pytest.mark.parametrize(
    ("answer_", "words"),
    [
        (httpx.Response(200, content=b"[" * 100_000), "RecursionError"),
        (httpx.Response(200, content=b"5"), "TypeError"),
        (httpx.Response(200, content=b" " * (MAX_ANSWER_BYTES + 1)), "more than 1048576 bytes"),
        (httpx.Response(200, headers={"content-encoding": "br, br"}), "compressed"),
    ],
)
async def test_readiness_of_a_hostile_server(answer_: httpx.Response, words: str) -> None:
    transport = httpx.MockTransport(lambda _: answer_)
    with pytest.raises(ConnectError, match=words):
        await wait_ready("http://host:1", 0.0, transport=transport, clock=ManualClock())


async def test_readiness_that_never_comes() -> None:
    transport = ready_after(10)
    with pytest.raises(ConnectError, match="warming"):
        await wait_ready("http://host:1", 0.0, transport=transport, clock=ManualClock())
