"""`halfsec doctor --telephony`, against a server at a port of its own, with TLS, and against what
may stand at a public address in its place."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from agent.__main__ import main as halfsec
from agent.cli.doctor import Finding
from agent.cli.doctor_telephony import STREAM, VOICE, examine, main
from agent.config.layers import load_config
from agent.config.schema import Config
from agent.http.auth.tls import certificate_of, keep_own, server_context, trust
from agent.server.server import listen, make_server
from tests.support.telephony.telephony_server import (
    AUTH_TOKEN,
    SALES,
    ServerUnderTest,
    telephony_server,
)

SETTINGS = f"""
[agent]
max_sessions = 2
log_level = "warning"

[access]
tls_self_signed = true

[telephony]
public_url = "PUBLIC"
numbers = {{ "{SALES}" = "sales" }}

[agents.sales]
greeting = "Sales, good morning."
"""


@dataclass
class Public:
    """A server that can be called at `url`; `asked` are the addresses that it was called by."""

    url: str
    tls: ssl.SSLContext
    service: ServerUnderTest

    def config(self, **telephony: Any) -> Config:
        flags = {f"telephony.{name}": value for name, value in telephony.items()}
        return load_config(flags, file_text=SETTINGS.replace("PUBLIC", self.url))

    async def findings(self, config: Config | None = None) -> dict[str, Finding]:
        config = config or self.config()
        sections = await asyncio.to_thread(lambda: tuple(examine(config, self.tls)))
        return {each.name: each for section in sections for each in section.findings}


class Proxy:
    """What a proxy may do to a request on its way."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.prefix = ""
        """Of the public path, that the server does not see."""
        self.passes_sockets = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket" and not self.passes_sockets:
            await receive()
            await send({"type": "websocket.close"})
            return
        if self.prefix and scope["path"].startswith(self.prefix):
            raw = scope["raw_path"].removeprefix(self.prefix.encode())
            scope = {**scope, "path": scope["path"].removeprefix(self.prefix), "raw_path": raw}
        await self._app(scope, receive, send)


@contextlib.asynccontextmanager
async def public(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: str = SETTINGS, prefix: str = ""
) -> AsyncIterator[tuple[Public, Proxy]]:
    monkeypatch.setenv("HALFSEC_HOME", str(tmp_path))
    with contextlib.closing(listen("127.0.0.1", 0)) as listener:
        url = f"https://localhost:{listener.getsockname()[1]}{prefix}"
        async with telephony_server(
            tmp_path, monkeypatch, settings.replace("PUBLIC", url)
        ) as service:
            certificate = certificate_of(service.config)
            assert certificate is not None
            keep_own(service.config, certificate)
            proxy = Proxy(service.app.asgi)
            proxy.prefix = prefix
            server = make_server(proxy, service.config, server_context(certificate))
            async with asyncio.TaskGroup() as group:
                serving = group.create_task(server.serve(sockets=[listener]))
                try:
                    yield Public(url, trust(str(certificate.cert)), service), proxy
                finally:
                    server.should_exit = True
                    await serving


@pytest.fixture(autouse=True)
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWILIO_AUTH_TOKEN", AUTH_TOKEN)
    monkeypatch.setenv("TWILIO_ACCOUNT_SID", "AC0")
    for name in ("PLIVO_AUTH_TOKEN", "VONAGE_SIGNATURE_SECRET", "JAMBONZ_WEBHOOK_SECRET"):
        monkeypatch.delenv(name, raising=False)


async def test_all_is_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async with public(tmp_path, monkeypatch, prefix="/behind/a/proxy") as (server, _):
        status = await asyncio.to_thread(main, server.config(), server.tls)
        said = capsys.readouterr().out
    assert (status, "WRONG" in said) == (0, False), said
    assert f"{server.url}/telephony/twilio/voice  (TWILIO_AUTH_TOKEN is set)" in said
    stream = server.url.replace("https", "wss") + "/telephony/twilio/stream"
    assert f"signature taken; calls go to {stream}" in said
    assert "a WebSocket gets through, signature taken" in said
    assert "https://halfsec:KEY@localhost" in said
    assert "Calls come in, as far as that can be seen" in said
    assert AUTH_TOKEN not in said
    assert "any number from this machine, none with a key" in said


async def test_it_keeps_no_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two, however often it is asked."""
    async with public(tmp_path, monkeypatch) as (server, _):
        for _ in range(3):
            found = await server.findings()
            assert (found[VOICE].verdict, found[STREAM].verdict) == ("ok", "ok")


async def test_what_was_not_tried_is_not_said_to_be_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async with public(tmp_path, monkeypatch) as (server, _):
        monkeypatch.delenv("TWILIO_AUTH_TOKEN")
        status = await asyncio.to_thread(main, server.config(), server.tls)
        said = capsys.readouterr().out
    assert status == 0
    assert "TWILIO_AUTH_TOKEN is not set in this shell" in said
    assert "no call was tried" in said
    assert "Calls come in" not in said


async def test_a_proxy_that_calls_by_another_address_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The doctor goes by the right address; the server was told another."""
    settings = SETTINGS.replace("PUBLIC", "https://voice.example.com")
    async with public(tmp_path, monkeypatch, settings) as (server, _):
        found = await server.findings()
    for name, address in (
        (VOICE, "https://voice.example.com/telephony/twilio/voice"),
        (STREAM, "wss://voice.example.com/telephony/twilio/stream"),
    ):
        assert found[name].verdict == "WRONG"
        assert f"It was checked over {address}" in found[name].value
    assert found["/healthz"].verdict == "ok"


async def test_a_server_with_other_secrets_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with public(tmp_path, monkeypatch) as (server, _):
        monkeypatch.setenv("TWILIO_AUTH_TOKEN", "another")
        found = await server.findings()
        assert found[VOICE].verdict == found[STREAM].verdict == "WRONG"
        assert "auth token" in found[VOICE].remedy
    monkeypatch.delenv("TWILIO_AUTH_TOKEN")
    async with public(tmp_path, monkeypatch) as (server, _):
        found = await server.findings()
        assert VOICE not in found
        assert "(TWILIO_AUTH_TOKEN is not set)" in found["twilio"].value
        monkeypatch.setenv("TWILIO_AUTH_TOKEN", AUTH_TOKEN)
        found = await server.findings()
        assert "has no auth token" in found[VOICE].remedy


async def test_a_proxy_without_websockets_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with public(tmp_path, monkeypatch) as (server, proxy):
        proxy.passes_sockets = False
        found = await server.findings()
    assert (found[VOICE].verdict, found[STREAM].verdict) == ("ok", "WRONG")
    assert "Upgrade" in found[STREAM].remedy


async def test_a_server_that_is_not_ready_is_no_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with public(tmp_path, monkeypatch) as (server, _):
        server.service.stages.current_status = "warming"
        found = await server.findings()
    assert {found[name].verdict for name in ("/readyz", VOICE, STREAM)} == {"note"}
    assert "We can't take your call" in found[VOICE].value


async def test_doctor_reports_an_open_server_at_a_public_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = SETTINGS.replace("[access]", '[access]\nrequire_key = "never"')
    async with public(tmp_path, monkeypatch, settings) as (server, _):
        found = await server.findings()
    assert found["/readyz"].verdict == "note"
    assert "can make calls" in found["/readyz"].remedy


async def test_doctor_finds_an_untrusted_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with public(tmp_path, monkeypatch) as (server, _):
        server.tls = ssl.create_default_context()
        found = await server.findings()
    assert found["/healthz"].verdict == "WRONG"
    assert "public authorities" in found["/healthz"].remedy
    assert VOICE not in found, "there is no point in asking on"


@pytest.mark.parametrize(
    ("answer", "words", "remedy"),
    [
        (httpx.Response(502, text="Bad gateway"), "something else answers: 502 Bad", "serve run"),
        (httpx.Response(200, text="<html>ngrok"), "something else answers: 200 <html>", "serve"),
        (
            httpx.Response(403, json={"error": {"code": "host_not_allowed", "message": "No."}}),
            "No.",
            "Host header",
        ),
        (httpx.ConnectError("[Errno 111] refused"), "refused", "serve run"),
        (httpx.ConnectTimeout(""), "ConnectTimeout", "serve run"),
    ],
)
def test_what_else_may_answer(
    answer: Any, words: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reply(request: httpx.Request) -> httpx.Response:
        if isinstance(answer, Exception):
            raise answer
        return httpx.Response(answer.status_code, content=answer.content)

    whole = httpx.Client(transport=httpx.MockTransport(reply))
    monkeypatch.setattr(httpx, "Client", lambda **_: whole)
    config = load_config({"telephony.public_url": "https://localhost:8443"})
    findings = [each for section in examine(config) for each in section.findings]
    (health,) = [each for each in findings if each.name == "/healthz"]
    assert health.verdict == "WRONG"
    assert words in health.value
    assert remedy in health.remedy


def test_settings_that_make_no_sense_are_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir("/")
    numbers = '{ "+15550100" = "nobody", "110" = "default" }'
    flags = ["--set", f"telephony.numbers={numbers}"]
    assert halfsec(["doctor", "--telephony", *flags]) == 1
    said = capsys.readouterr().out
    assert "carriers can't stream" in said
    assert "'nobody', and there is no such agent" in said
    assert "carriers write numbers like" in said
    assert "set telephony.calls_from" in said
    assert "Calls would not come in: telephony.public_url, telephony.numbers" in said
    url = "telephony.public_url=https://no-such-host.invalid"
    assert halfsec(["doctor", "--telephony", "--set", url]) == 1
    assert "does not resolve" in capsys.readouterr().out
