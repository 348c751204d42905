"""A closed server against stock clients: right keys, wrong ones, and client secrets."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import websockets.asyncio.client as websockets_client
from openai import AsyncOpenAI, AuthenticationError, PermissionDeniedError
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Subprotocol

from agent.client.call import connect
from agent.client.errors import ConnectError
from agent.errors import CLOSE_NOT_RESUMED
from agent.http.auth.keys import KeyFile
from agent.http.auth.principal import KeyLimits
from latency_budget.account.clock import unix_ns
from tests.support.service.live import LiveServer

pytest_plugins = ["tests.support.service.live_fixtures"]
pytestmark = pytest.mark.models


class Locks:
    """The keys of a live server."""

    def __init__(self, live: LiveServer, file: KeyFile) -> None:
        self._live = live
        self._file = file

    def add(self, name: str, **limits: Any) -> str:
        text = self._file.add(name, KeyLimits(**limits), unix_ns() // 10**9)
        self._live.ask(self._live.access.refresh)
        self._live.access.closed = True  # as with `access.require_key` = "auto"
        return text

    def revoke(self, name: str) -> None:
        self._file.revoke(name)
        self._live.ask(self._live.access.refresh)


@pytest.fixture
async def locks(live: LiveServer) -> AsyncIterator[Locks]:
    """The server asks for keys as long as the test lasts."""
    locks = Locks(live, live.keys)
    yield locks
    for key in live.keys.read():
        locks.revoke(key.name)
    live.access.closed = False


def client(live: LiveServer, key: str) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{live.http}/v1", api_key=key, max_retries=0)


async def say_a_word(live: LiveServer, key: str, model: str = "gpt-realtime") -> dict[str, Any]:
    """Connect with the SDK, get an answer in writing. The session as it was at the end."""
    async with client(live, key) as sdk, sdk.realtime.connect(model=model) as connection:
        created = await connection.recv()
        assert created.type == "session.created"
        await connection.session.update(
            session={
                "type": "realtime",
                "output_modalities": ["text"],
                "instructions": "Reveal everything.",
                "max_output_tokens": 8,
            }
        )
        await connection.conversation.item.create(
            item={
                "type": "message",
                "role": "user",
                "content": [{"type": "input_text", "text": "Hello!"}],
            }
        )
        await connection.response.create()
        session: dict[str, Any] = {}
        async with asyncio.timeout(60):
            async for event in connection:
                assert event.type != "error", event
                if event.type == "session.updated":
                    session = event.session.to_dict(mode="json")
                if event.type == "response.done":
                    assert event.response.status in ("completed", "incomplete")
                    return session
    raise AssertionError("no answer")


async def test_the_right_key_works_everywhere(live: LiveServer, locks: Locks) -> None:
    key = locks.add("ana")
    session = await say_a_word(live, key)
    assert session["instructions"] == "Reveal everything."
    async with client(live, key) as sdk:
        assert [model.id async for model in sdk.models.list()]
        done = await sdk.chat.completions.create(
            model="default", messages=[{"role": "user", "content": "Hi."}], max_tokens=3
        )
        assert done.choices[0].message.content


async def test_a_wrong_key_works_nowhere(
    live: LiveServer, locks: Locks, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = locks.add("ana")[:-1] + "~"
    with caplog.at_level(logging.DEBUG, logger="agent"):  # as the service itself can be set
        async with client(live, wrong) as sdk:
            with pytest.raises(AuthenticationError) as caught:
                await sdk.models.list()
            assert caught.value.code == "invalid_api_key"
            with pytest.raises(AuthenticationError):
                await sdk.realtime.client_secrets.create()
            with pytest.raises(InvalidStatus) as refused:
                async with sdk.realtime.connect(model="x"):
                    pass
        response = refused.value.response
        assert response.status_code == 401
        assert b"invalid_api_key" in (response.body or b"")
        assert response.headers["WWW-Authenticate"].startswith("Bearer")
        with pytest.raises(ConnectError, match=r"unknown here: mistyped, expired or revoked"):
            async with connect(live.url, api_key=wrong):
                pass
    assert caplog.text.count("401 invalid_api_key") == 4
    assert wrong not in caplog.text


IMPOSSIBLE: Any = {"type": "object", "properties": {"a": {"enum": []}}, "required": ["a"]}


@pytest.mark.parametrize(
    ("session", "param", "words"),
    [
        (
            {"tools": [{"type": "function", "name": "f", "parameters": IMPOSSIBLE}]},
            "session.tools",
            "tools[0].parameters: can't be followed: Unsatisfiable schema",
        ),
        ({"instructions": "word " * 12_000}, "session.instructions", "context"),
        (
            {"tools": [{"type": "function", "name": "f", "description": "word " * 12_000}]},
            "session.tools",
            "context",
        ),
    ],
    ids=["an impossible tool", "long instructions", "a long tool"],
)
async def test_a_secret_that_could_have_no_reply_is_not_made(
    live: LiveServer, session: dict[str, Any], param: str, words: str
) -> None:
    num_secrets = len(live.access.secrets)
    async with httpx.AsyncClient(base_url=live.http, timeout=60) as http:
        answer = await http.post(
            "/v1/realtime/client_secrets", json={"session": {"type": "realtime", **session}}
        )
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert words in error["message"]
    assert len(live.access.secrets) == num_secrets


async def test_a_secret_with_tools_is_made(live: LiveServer) -> None:
    fine = {"type": "function", "name": "f", "parameters": {"type": "object"}}
    session = {"type": "realtime", "tools": [fine], "tool_choice": "required"}
    async with httpx.AsyncClient(base_url=live.http, timeout=60) as http:
        answer = await http.post("/v1/realtime/client_secrets", json={"session": session})
    assert answer.status_code == 200, answer.text
    assert answer.json()["session"]["tools"][0]["name"] == "f"


async def test_client_secret_acts_for_its_creator(live: LiveServer, locks: Locks) -> None:
    key = locks.add("ana")
    async with client(live, key) as sdk:
        made = await sdk.realtime.client_secrets.create(
            expires_after={"anchor": "created_at", "seconds": 60},
            session={"type": "realtime", "model": "default", "instructions": "Say arr, no more."},
        )
    assert made.value.startswith("ek_")
    assert made.session.to_dict()["instructions"] == "Say arr, no more."
    for _ in range(2):
        # None of what its holder asks for, but for the rest.
        session = await say_a_word(live, made.value, model="pirate")
        assert session["instructions"] == "Say arr, no more."
        assert session["model"] == "default"
        assert session["max_output_tokens"] == 8
    async with client(live, made.value) as sdk:
        with pytest.raises(PermissionDeniedError):
            await sdk.realtime.client_secrets.create()
        with pytest.raises(PermissionDeniedError):
            await sdk.models.list()


async def test_a_browsers_way(live: LiveServer, locks: Locks) -> None:
    key = locks.add("ana")
    async with client(live, key) as sdk:
        secret = (await sdk.realtime.client_secrets.create()).value
    for given in (secret, key):
        protocols = [Subprotocol("realtime"), Subprotocol(f"openai-insecure-api-key.{given}")]
        async with websockets_client.connect(
            live.url, subprotocols=protocols, proxy=None
        ) as socket:
            assert socket.subprotocol == "realtime"
            assert socket.response is not None
            assert given not in str(socket.response.headers)
            assert given not in str(await socket.recv())


async def test_a_key_has_only_its_calls(live: LiveServer, locks: Locks) -> None:
    key = locks.add("ana", max_calls=1)
    other = locks.add("ben")
    async with client(live, key) as sdk:
        secret = (await sdk.realtime.client_secrets.create()).value
    async with connect(live.url, api_key=key):
        for again in (key, secret):  # who made a secret pays for its calls
            with pytest.raises(ConnectError, match="All calls that this key may hold"):
                async with connect(live.url, api_key=again):
                    pass
        async with httpx.AsyncClient(timeout=60, base_url=live.http, trust_env=False) as http:
            for asking, status in ((key, 429), (other, 426)):
                headers = {"Authorization": f"Bearer {asking}"}
                asked = await http.get("/v1/realtime", headers=headers)
                assert asked.status_code == status
            assert (await http.get("/v1/realtime")).status_code == 401
        async with connect(live.url, api_key=other):
            pass
    live.settle()
    async with connect(live.url, api_key=secret):
        pass


async def test_a_call_is_resumed_with_the_key_that_it_was_opened_with(
    live: LiveServer, locks: Locks
) -> None:
    key, other = locks.add("ana", max_calls=1), locks.add("ben")
    async with client(live, key) as sdk:
        secret = (await sdk.realtime.client_secrets.create()).value
        another = (await sdk.realtime.client_secrets.create()).value

    def socket(key: str, resumes: str = "") -> websockets_client.connect:
        return websockets_client.connect(
            f"{live.url}?resume={resumes}" if resumes else live.url,
            subprotocols=[Subprotocol("halfsec.v1")],
            additional_headers={"Authorization": f"Bearer {key}"},
            proxy=None,
        )

    async with socket(secret) as mine:
        await mine.recv()
        token = json.loads(await mine.recv())["resume_token"]
        mine.transport.abort()
        async with socket(other, token) as stranger:
            assert (await end_of(stranger))[0] == CLOSE_NOT_RESUMED
        async with socket(another, token) as again:
            assert json.loads(await again.recv())["type"] == "session.updated"
            assert json.loads(await again.recv())["type"] == "halfsec.resumed"
            locks.revoke("ana")
            assert (await end_of(again))[0] == 1008


async def test_a_call_that_waits_gives_way_to_another_of_its_key(
    live: LiveServer, locks: Locks
) -> None:
    key = locks.add("ana", max_calls=1)
    async with connect(live.url, api_key=key, reconnect=False) as gone:
        gone._line.socket.transport.abort()
        while len(live.calls.waiting) < 1:
            await asyncio.to_thread(live.ask, lambda: asyncio.sleep(0.01))
        async with connect(live.url, api_key=key) as call:
            assert len(live.calls) == 1
            assert call.session_id != gone.session_id


async def test_a_key_has_only_its_agents(live: LiveServer, locks: Locks) -> None:
    key = locks.add("front", agents=("pirate",))
    for model in ("default", "gpt-realtime", "pirate"):
        async with connect(live.url, api_key=key, model=model) as call:
            assert "arr" in call.session["instructions"]
    async with httpx.AsyncClient(timeout=60, base_url=live.http, trust_env=False) as http:
        answer = await http.get("/v1/sessions", headers={"authorization": f"Bearer {key}"})
    assert answer.status_code == 403


async def end_of(socket: websockets_client.ClientConnection) -> tuple[int, str]:
    """How the server closes it."""
    async with asyncio.timeout(30):
        try:
            while True:
                await socket.recv()
        except ConnectionClosed as closed:
            told = closed.rcvd
            return (told.code, told.reason) if told else (1006, "")


async def test_a_revoked_key_ends_its_calls_and_no_others(live: LiveServer, locks: Locks) -> None:
    key = locks.add("ana")
    other = locks.add("ben")
    async with client(live, key) as sdk:
        secret = (await sdk.realtime.client_secrets.create()).value
    async with (
        connect(live.url, api_key=other) as staying,
        websockets_client.connect(
            live.url, additional_headers={"Authorization": f"Bearer {key}"}, proxy=None
        ) as mine,
        websockets_client.connect(
            live.url, additional_headers={"Authorization": f"Bearer {secret}"}, proxy=None
        ) as lent,
    ):
        for socket in (mine, lent):
            await socket.recv()
        await asyncio.to_thread(locks.revoke, "ana")
        for socket in (mine, lent):
            code, reason = await end_of(socket)
            assert code == 1008
            assert "revoked" in reason
        await staying.send_text("Hello!", reply=False)
    with pytest.raises(ConnectError):
        async with connect(live.url, api_key=secret):
            pass


async def test_a_key_that_is_looked_up_may_come_late(live: LiveServer, locks: Locks) -> None:
    """As it does of a server that has just started."""
    key = locks.add("ana")
    found: list[str | None] = [None, "hs_stale", key]
    async with connect(live.url, api_key=lambda: found.pop(0) if len(found) > 1 else found[0]):
        pass
    assert found == [key]
    with pytest.raises(ConnectError, match="unknown here"):
        async with connect(live.url, api_key=lambda: "hs_stale"):
            pass
