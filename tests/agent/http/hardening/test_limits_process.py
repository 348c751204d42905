"""Limits that an operator sets, in a server of their own behind a proxy that it trusts."""

import asyncio
from typing import Any

import pytest
import websockets.asyncio.client as websockets_client
from websockets.exceptions import InvalidStatus

from agent.calls.service import EXPIRED, IDLE
from agent.errors import CLOSE_NORMAL
from tests.support.service.live_call import LiveCall, call_to, silence
from tests.support.service.service_process import ServiceProcess, service

pytestmark = [pytest.mark.slow, pytest.mark.models]

SETTINGS = (
    *("--set", "access.calls_per_address=1", "--set", 'access.trusted_proxies=["127.0.0.1"]'),
    *("--set", "access.idle_s=3", "--set", "latency_budget.admission=false"),
    *("--set", "agent.session_limit_s=10"),
)


async def refusal(server: ServiceProcess, forwarded: str) -> tuple[int, bytes]:
    with pytest.raises(InvalidStatus) as refused:
        await websockets_client.connect(server.url, additional_headers=by(forwarded), proxy=None)
    return refused.value.response.status_code, refused.value.response.body or b""


def by(forwarded: str) -> dict[str, Any]:
    return {"X-Forwarded-For": forwarded}


async def test_calls_per_address_are_limited() -> None:
    async with service(*SETTINGS) as server:
        await server.line("Ready")
        server.port = int(server.lines[0].split("://")[1].split("/")[0].rpartition(":")[2])
        async with (
            call_to(server.url, additional_headers=by("203.0.113.5")) as first,
            asyncio.TaskGroup() as group,
        ):
            speaking = group.create_task(speak_until_the_end(first))
            # What a client writes stands in front of what the proxy saw.
            for forwarded in ("203.0.113.5", "203.0.113.77, 203.0.113.5"):
                status, body = await refusal(server, forwarded)
                assert status == 429
                assert b"rate_limit_exceeded" in body
            async with call_to(server.url, additional_headers=by("203.0.113.6")) as second:
                pass
            assert second.of("error") == []
            code, reason = await speaking
        assert [each["error"]["code"] for each in first.of("error")] == ["session_expired"]
        assert code == CLOSE_NORMAL
        assert EXPIRED in reason
        async with call_to(server.url, additional_headers=by("203.0.113.5")) as again:
            assert await again.closed() == (CLOSE_NORMAL, IDLE)


async def speak_until_the_end(call: LiveCall) -> tuple[int, str]:
    """As a microphone does that nobody speaks into. How the server ends it."""

    async def speak() -> None:
        while True:
            await call.append(silence(0.5))
            await asyncio.sleep(0.5)

    async with asyncio.TaskGroup() as group:
        speaking = group.create_task(speak())
        await call.until("error")
        speaking.cancel()
    return await call.closed()
