"""The door: who gets in where, by what, and what is left of the key behind it."""

import asyncio
import json
import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Never

import pytest
from starlette.types import Message, Receive, Scope, Send

from agent.config.layers import load_config
from agent.config.schema import Config
from agent.http.auth.authenticator import Authenticator
from agent.http.auth.keys import KeyFile, KeyFileError
from agent.http.auth.middleware import MAX_HELD, AuthMiddleware, open_paths
from agent.http.auth.origin_check import OriginCheck
from agent.http.auth.principal import KeyLimits, Principal, principal_of
from agent.http.auth.throttle import FREE_TRIES
from agent.http.static_files import WEB_DEMO
from latency_budget.account.clock import ManualClock, unix_ns

SOCKET = "/v1/realtime"
CALLS = ["/v1/sessions", "/v1/models", "/metrics", "/v1/latency/turns", "/nothing-here", "/app.js/"]
HOST = (b"host", b"localhost:8080")


@dataclass
class Answer:
    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: dict[str, Any] = field(default_factory=dict)

    @property
    def code(self) -> str:
        return str(self.body["error"]["code"])

    @property
    def message(self) -> str:
        return str(self.body["error"]["message"])


class ServerUnderTest:
    """A door, and behind it an application that remembers who came in."""

    def __init__(self, path: Path, **flags: object) -> None:
        self.config: Config = load_config({f"access.{key}": v for key, v in flags.items()})
        self.file = KeyFile(path / "keys.json")
        self.clock = ManualClock()
        self.inside: list[Scope] = []
        self.pauses: list[float] = []
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.ana = ""
        """The key of that name, where there is one."""

    def build(self) -> "ServerUnderTest":
        """Once the keys that are to be there at the start are there."""
        self.access = Authenticator(
            self.config, self.file, self.clock, local_key="hl_000000000000_local"
        )
        visitors = OriginCheck(self.config.agent)
        paths = open_paths(WEB_DEMO)
        self.door = AuthMiddleware(self._app, self.access, visitors, self.clock, paths, self._pause)
        return self

    def key(self, name: str = "ana", limits: KeyLimits | None = None) -> str:
        return self.file.add(name, limits or KeyLimits(), unix_ns() // 10**9)

    async def knock(
        self,
        path: str,
        key: str | None = None,
        *,
        method: str = "GET",
        offered: tuple[str, ...] = (),
        headers: tuple[tuple[bytes, bytes], ...] = (),
        query: bytes = b"",
    ) -> Answer:
        is_socket = path == SOCKET
        bearer = () if key is None else ((b"authorization", f"Bearer {key}".encode()),)
        named = ((b"sec-websocket-protocol", ", ".join(offered).encode()),) if offered else ()
        scope: Scope = {
            "type": "websocket" if is_socket else "http",
            "path": path,
            "query_string": query,
            "headers": [HOST, *bearer, *named, *headers],
            "client": ("192.0.2.7", 4711),
            **({"subprotocols": list(offered)} if is_socket else {"method": method}),
            "extensions": {"websocket.http.response": {}},
        }
        sent: list[Message] = []

        async def send(message: Message) -> None:
            sent.append(message)

        async def receive() -> Message:
            return {"type": "websocket.connect"}

        await self.door(scope, receive, send)
        if not sent:
            return Answer(200)
        start = sent[0]
        told = {name.decode(): value.decode() for name, value in start["headers"]}
        return Answer(start["status"], told, json.loads(sent[1]["body"]))

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.inside.append(scope)

    async def _pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        await self.go_on.wait()

    @property
    def guest(self) -> Principal:
        return principal_of(self.inside[-1])


@pytest.fixture
def server(tmp_path: Path) -> ServerUnderTest:
    return ServerUnderTest(tmp_path)


# --- open servers ---


async def test_loopback_needs_no_key_when_none_exist(server: ServerUnderTest) -> None:
    server.build()
    for path in (*CALLS, SOCKET, "/"):
        assert (await server.knock(path)).status == 200
        assert server.guest.kind == "open"
    for key in ("sk-whatever", "x", "hs_000000000000_x", "a.b.c", "hl_x"):
        assert (await server.knock(SOCKET, key)).status == 200  # SDKs must send one
        assert server.guest.kind == "open"
    assert not server.access.closed


async def test_unknown_secret_is_refused_even_on_loopback(server: ServerUnderTest) -> None:
    server.build()
    answer = await server.knock(SOCKET, "ek_000000000000_gone")
    assert (answer.status, answer.code) == (401, "invalid_api_key")
    assert "client_secrets" in answer.message


async def test_require_key_never_accepts_everyone(tmp_path: Path) -> None:
    server = ServerUnderTest(tmp_path, require_key="never")
    key = server.key()
    server.build()
    assert (await server.knock(SOCKET)).status == 200
    assert (await server.knock(SOCKET, key)).status == 200
    assert server.guest.name == "ana"


# --- closed servers ---


@pytest.fixture
def closed(server: ServerUnderTest) -> ServerUnderTest:
    server.ana = server.key("ana")
    return server.build()


async def test_public_endpoints_need_no_key(closed: ServerUnderTest) -> None:
    for path in ("/", "/app.js", "/styles/page.css", "/healthz", "/readyz", "/health"):
        assert (await closed.knock(path)).status == 200
    assert (await closed.knock("/app.js", method="POST")).status == 401


async def test_other_endpoints_need_a_key(closed: ServerUnderTest) -> None:
    for path in (*CALLS, SOCKET, "/../v1/sessions", "/.git/config", "//", ""):
        answer = await closed.knock(path)
        assert (answer.status, answer.code) == (401, "invalid_api_key")
        assert answer.body["error"]["type"] == "invalid_request_error"
        assert answer.headers["www-authenticate"] == 'Bearer realm="halfsec"'
        assert "Authorization: Bearer" in answer.message
    assert closed.inside == []


async def test_valid_key_is_accepted_and_not_passed_on(closed: ServerUnderTest) -> None:
    for path in (*CALLS, SOCKET):
        assert (await closed.knock(path, closed.ana)).status == 200
        assert (closed.guest.kind, closed.guest.name) == ("key", "ana")
    offered = ("realtime", f"openai-insecure-api-key.{closed.ana}", "halfsec.v1")
    assert (await closed.knock(SOCKET, offered=offered)).status == 200
    assert closed.inside[-1]["subprotocols"] == ["realtime", "halfsec.v1"]
    assert all(closed.ana not in repr(scope) for scope in closed.inside)


@pytest.mark.parametrize(
    "header",
    [
        b"Basic YTpi",
        b"Bearer",
        b"Bearer ",
        b"bearer  ",
        b"",
        b"Token x",
        b"\xff\xfe",
        b"Bearer x y",
    ],
)
async def test_malformed_authorization_headers_are_refused(
    closed: ServerUnderTest, header: bytes
) -> None:
    answer = await closed.knock(SOCKET, headers=((b"authorization", header),))
    assert answer.status == 401


async def test_authorization_scheme_is_case_insensitive(closed: ServerUnderTest) -> None:
    for header in (f"bearer {closed.ana}", f"BEARER   {closed.ana} "):
        assert (
            await closed.knock(SOCKET, headers=((b"authorization", header.encode()),))
        ).status == 200


async def test_refused_jwt_is_named_as_a_jwt(closed: ServerUnderTest) -> None:
    answer = await closed.knock("/v1/models", "eyJhbGciOiJSUzUxMiJ9.eyJzdWIiOiJhIn0.c2ln")
    assert answer.message.startswith("This web token is not taken here")
    assert "halfsec keys add" in (await closed.knock("/v1/models", "hs_x.y.z")).message


async def test_key_in_the_query_string_is_ignored(closed: ServerUnderTest) -> None:
    for name in ("api_key", "key", "token", "access_token"):
        query = f"model=x&{name}={closed.ana}".encode()
        answer = await closed.knock(SOCKET, query=query)
        assert answer.status == 401
        assert "A key in the address is not read" in answer.message
        assert closed.ana not in answer.message
    assert "address is not read" not in (await closed.knock(SOCKET, query=b"model=key")).message


async def test_keys_are_never_logged(
    closed: ServerUnderTest, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = closed.ana[:-1]
    with caplog.at_level(logging.DEBUG):
        await closed.knock(SOCKET, wrong, query=b"key=" + wrong.encode())
        await closed.knock(SOCKET, offered=(f"openai-insecure-api-key.{wrong}",))
    assert "401 invalid_api_key" in caplog.text
    assert wrong not in caplog.text


async def test_local_key_is_accepted(closed: ServerUnderTest) -> None:
    assert (await closed.knock("/v1/sessions", "hl_000000000000_local")).status == 200
    assert closed.guest.kind == "local"
    assert (await closed.knock("/v1/sessions", "hl_000000000000_locaL")).status == 401


async def test_key_limited_to_agents_opens_only_calls(server: ServerUnderTest) -> None:
    key = server.key("front", KeyLimits(agents=("pirate",)))
    server.build()
    assert (await server.knock(SOCKET, key)).status == 200
    assert server.guest.limits.agents == ("pirate",)
    assert (await server.knock("/v1/models", key)).status == 200
    mint = await server.knock("/v1/realtime/client_secrets", key, method="POST")
    assert mint.status == 200
    for path in ("/v1/sessions", "/v1/sessions/x/trace", "/v1/latency/events", "/metrics"):
        answer = await server.knock(path, key)
        assert (answer.status, answer.code) == (403, "insufficient_permissions")


class Login:
    """Believes every web token: an end user's."""

    async def read(self, text: str) -> Principal:
        return Principal("caller-4711", "jwt", KeyLimits(), key_id="jwt:caller-4711")


async def test_web_tokens_tell_of_no_other_callers(
    closed: ServerUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(closed.access, "_jwt", Login())
    token = "head.body.signature"
    assert (await closed.knock(SOCKET, token)).status == 200
    assert closed.guest.kind == "jwt"
    for path in (
        "/v1/realtime/calls", "/v1/realtime/calls/rtc_1/hangup", "/v1/realtime/client_secrets",
        "/v1/models", "/v1/models/default", "/v1/chat/completions", "/v1/audio/speech",
        "/v1/audio/transcriptions", "/telephony/calls",
    ):  # fmt: skip
        assert (await closed.knock(path, token, method="POST")).status == 200, path
    for path in (
        "/v1/sessions", "/v1/sessions/x/trace", "/v1/sessions/x/recording", "/v1/calls",
        "/v1/calls/x", "/v1/latency/turns", "/v1/latency/events", "/metrics",
        "/v1/settings/reload", "/nothing-here",
    ):  # fmt: skip
        for method in ("GET", "POST"):
            answer = await closed.knock(path, token, method=method)
            assert (answer.status, answer.code) == (403, "insufficient_permissions"), path
            assert "a key" in answer.message


async def test_client_secret_opens_only_websockets(closed: ServerUnderTest) -> None:
    session = {"type": "realtime", "instructions": "Arr."}
    maker = Principal("ana", "ephemeral", KeyLimits(2), session, "")
    secret = closed.access.secrets.mint(maker, 10, closed.clock.now_ns())
    offered = ("realtime", f"openai-insecure-api-key.{secret}")
    for _ in range(3):
        assert (await closed.knock(SOCKET, offered=offered)).status == 200
        assert closed.guest == maker
    for path in ("/v1/sessions", "/v1/realtime/client_secrets", "/v1/chat/completions"):
        answer = await closed.knock(path, secret, method="POST")
        assert (answer.status, answer.code) == (403, "insufficient_permissions")
    closed.clock.advance_ms(10_000)
    answer = await closed.knock(SOCKET, offered=offered)
    assert (answer.status, answer.code) == (401, "invalid_api_key")
    assert "expired" in answer.message


async def test_a_page_that_is_let_in_may_read_why_its_webrtc_call_is_refused(
    closed: ServerUnderTest,
) -> None:
    own, other = (b"origin", b"http://localhost:8080"), (b"origin", b"https://evil.example.com")
    calls = "/v1/realtime/calls"
    for path, origin, key, status, shown in (
        (calls, own, None, 401, "http://localhost:8080"),
        (calls, own, "hs_000000000000_x", 401, "http://localhost:8080"),
        (calls, other, None, 403, None),
        ("/v1/sessions", own, None, 401, None),
    ):
        answer = await closed.knock(path, key, method="POST", headers=(origin,))
        assert answer.status == status
        assert answer.headers.get("access-control-allow-origin") == shown


# --- guessing ---


async def test_wrong_keys_are_throttled_and_valid_keys_are_not(closed: ServerUnderTest) -> None:
    for _ in range(FREE_TRIES):
        assert (await closed.knock(SOCKET, "hs_000000000000_x")).status == 401
    assert closed.pauses == []
    assert (await closed.knock(SOCKET, "hs_000000000000_x")).status == 401
    assert len(closed.pauses) == 1
    assert (await closed.knock(SOCKET, closed.ana)).status == 200
    assert (await closed.knock(SOCKET)).status == 401  # no key is no wrong key
    assert len(closed.pauses) == 1


async def test_number_of_throttled_requests_is_limited(closed: ServerUnderTest) -> None:
    closed.go_on.clear()
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(closed.knock(SOCKET, "wrong"))
            for _ in range(FREE_TRIES + MAX_HELD + 5)
        ]
        await asyncio.wait(tasks[:FREE_TRIES] + tasks[-5:])
        assert (await closed.knock(SOCKET, closed.ana)).status == 200
        closed.go_on.set()
    statuses = sorted(task.result().status for task in tasks)
    assert statuses == [401] * (FREE_TRIES + MAX_HELD) + [429] * 5
    assert len(closed.pauses) == MAX_HELD
    assert (await closed.knock(SOCKET, "wrong")).status == 401  # the places are free again


# --- pages of others ---


@pytest.mark.parametrize("origin", [b"http://evil.example", b"null", b"http://localhost:1"])
async def test_cross_origin_requests_are_refused(closed: ServerUnderTest, origin: bytes) -> None:
    headers = ((b"origin", origin),)
    for path, method in ((SOCKET, "GET"), ("/v1/chat/completions", "POST"), ("/x", "DELETE")):
        answer = await closed.knock(path, closed.ana, method=method, headers=headers)
        assert (answer.status, answer.code) == (403, "origin_not_allowed")
    own = ((b"origin", b"http://localhost:8080"),)
    assert (await closed.knock("/v1/x", closed.ana, method="POST", headers=own)).status == 200


async def test_other_scope_types_pass_through(server: ServerUnderTest) -> None:
    server.build()

    async def nothing(*_: Any) -> Any:
        return None

    await server.door({"type": "lifespan"}, nothing, nothing)
    assert server.inside == [{"type": "lifespan"}]


# --- keys that come and go ---


async def test_key_file_changes_apply_to_a_running_server(server: ServerUnderTest) -> None:
    server.build()
    assert (await server.knock(SOCKET)).status == 200
    key = server.key()
    await server.access.refresh()
    assert (await server.knock(SOCKET)).status == 401
    assert (await server.knock(SOCKET, key)).status == 200
    guest = server.guest
    other = server.key("ben")
    async with asyncio.TaskGroup() as group:
        ending = group.create_task(server.access.until_revoked(guest))
        await server.access.refresh()
        assert not ending.done()
        server.file.revoke("ana")
        await server.access.refresh()
    assert (await server.knock(SOCKET, key)).status == 401
    server.file.revoke("ben")
    await server.access.refresh()
    assert (await server.knock(SOCKET, other)).status == 401
    assert (await server.knock(SOCKET)).status == 401  # closed it stays
    server.file.path.unlink()
    await server.access.refresh()
    assert (await server.knock(SOCKET)).status == 401


async def test_client_secrets_are_revoked_with_their_key(closed: ServerUnderTest) -> None:
    await closed.knock(SOCKET, closed.ana)
    maker = closed.guest
    holder = Principal("ana", "ephemeral", maker.limits, {"type": "realtime"}, maker.key_id)
    secret = closed.access.secrets.mint(holder, 600, 0)
    assert (await closed.knock(SOCKET, secret)).status == 200
    closed.file.revoke("ana")
    await closed.access.refresh()
    assert (await closed.knock(SOCKET, secret)).status == 401
    await closed.access.until_revoked(holder)


async def test_damaged_key_file_keeps_the_loaded_keys(
    closed: ServerUnderTest, caplog: pytest.LogCaptureFixture
) -> None:
    closed.file.path.write_text("{")
    for _ in range(2):
        await closed.access.refresh()
    assert (await closed.knock(SOCKET, closed.ana)).status == 200
    assert caplog.text.count("is damaged") == 1


async def test_key_file_that_can_not_be_read_is_read_again(
    closed: ServerUnderTest, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_read = 0

    def read(file: KeyFile) -> Never:
        nonlocal num_read
        num_read += 1
        raise KeyFileError(f"The keys in {file.path} can't be read: Too many open files.")

    closed.file.revoke("ana")
    with monkeypatch.context() as patch:
        patch.setattr(KeyFile, "read", read)
        for _ in range(3):
            await closed.access.refresh()
    assert (await closed.knock(SOCKET, closed.ana)).status == 200
    assert num_read == 3
    assert caplog.text.count("Too many open files") == 1
    await closed.access.refresh()
    assert (await closed.knock(SOCKET, closed.ana)).status == 401
    assert not closed.access.holds(closed.guest)


async def test_key_file_is_watched(closed: ServerUnderTest) -> None:
    looks: list[float] = []

    async def pause(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 2:
            closed.file.revoke("ana")
        if len(looks) == 4:
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await closed.access.watch(pause)
    assert (await closed.knock(SOCKET, closed.ana)).status == 401


async def test_default_limits_apply_to_all_keys(tmp_path: Path) -> None:
    server = ServerUnderTest(tmp_path, calls_per_key=3)
    keys = [server.key(), server.key("ben", KeyLimits(max_calls=1))]
    server.build()
    most = []
    for key in keys:
        await server.knock(SOCKET, key)
        most.append(server.guest.limits.max_calls)
    assert most == [3, 1]
