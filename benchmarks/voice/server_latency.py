"""Server's own account of a bench's calls: the stages' share of each turn's time.

Stock clients and carriers do not receive it, so it is fetched over HTTP once their calls are over.
"""

import asyncio
from typing import Any, Final

import httpx

from agent.http.auth.cli_credentials import entry_at
from latency_budget.account.clock import SystemClock

OVER_S: Final = 3.0
"""Timeout in s of the calls' end after hanging up. Calls of other clients on the same server are
not waited for any longer."""

POLL_S: Final = 0.05

MAX_TURNS: Final = 1000
"""Most turns that one request returns."""

Json = dict[str, Any]


class Accounts:
    """Reader of one server's accounts of turns, from its creation on."""

    def __init__(self, url: str) -> None:
        """`url`: ws://HOST:PORT/..."""
        self._address = url.replace("ws", "http", 1).partition("/v1/")[0]
        self._headers = entry_at(url).headers()
        self._told: set[str] = set()
        """Ids of sessions whose turns were already returned."""

    async def take(self) -> list[Json]:
        """Turns of the calls since the last request, in the format of `/v1/latency/turns`. Raises
        httpx.HTTPError."""
        gives_up_ns = SystemClock().now_ns() + round(OVER_S * 1e9)
        async with httpx.AsyncClient(
            trust_env=False, headers=self._headers, base_url=self._address
        ) as http:
            while (await http.get("/v1/sessions")).raise_for_status().json()["sessions"]:
                if SystemClock().now_ns() > gives_up_ns:
                    break
                await asyncio.sleep(POLL_S)
            answer = await http.get("/v1/latency/turns", params={"limit": MAX_TURNS})
        listed: list[Json] = answer.raise_for_status().json()["turns"]
        turns = [turn for turn in listed if turn["session"] not in self._told]
        self._told.update(turn["session"] for turn in turns)
        return turns
