"""`POST /v1/realtime/client_secrets`: what is made, for how long, and what is refused."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai.types.realtime import ClientSecretCreateResponse
from openai.types.realtime.realtime_session_create_response import RealtimeSessionCreateResponse

from agent.calls.session_check import check_session
from agent.config.layers import load_config
from agent.errors import ClientError
from agent.http.auth.authenticator import Authenticator
from agent.http.auth.keys import KeyFile
from agent.http.auth.principal import KeyLimits
from agent.server.app import create_app
from agent.session.api.settings import SessionSettings
from agent.stages.model_store.catalogue import ModelStore
from agent.stages.model_thread import ModelThread
from agent.stages.registry import Stages
from latency_budget.account.clock import ManualClock, SystemClock, unix_ns
from tests.support.fakes.recognizer import ScriptedRecognizer

PATH = "/v1/realtime/client_secrets"
PIRATE = '[agents.pirate]\ninstructions = "Say arr."\n'


class Made:
    def __init__(self, http: httpx.AsyncClient, access: Authenticator, clock: ManualClock) -> None:
        self.http = http
        self.access = access
        self.clock = clock
        self.headers: dict[str, str] = {}

    async def post(self, **body: Any) -> httpx.Response:
        return await self.http.post(PATH, json=body, headers=self.headers)

    async def error(self, **body: Any) -> dict[str, Any]:
        answer = await self.post(**body)
        assert answer.status_code == 400, answer.text
        error: dict[str, Any] = answer.json()["error"]
        assert error["type"] == "invalid_request_error"
        assert error["message"]
        return error


async def made_with(tmp_path: Path, keys: KeyFile) -> AsyncIterator[Made]:
    config = load_config(file_text=PIRATE)
    stages = Stages(config, ModelStore(tmp_path, {}), SystemClock())
    clock = ManualClock()
    access = Authenticator(config, keys, clock)
    app = create_app(config, stages, clock, access=access)
    transport = httpx.ASGITransport(app.asgi)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        yield Made(http, access, clock)
    await stages.close()


@pytest.fixture
async def made(tmp_path: Path) -> AsyncIterator[Made]:
    async for each in made_with(tmp_path, KeyFile(tmp_path / "keys.json")):
        yield each


async def test_the_whole_session_comes_back(made: Made) -> None:
    session = {
        "type": "realtime",
        "model": "pirate",
        "output_modalities": ["text"],
        "tools": [{"type": "function", "name": "dig", "parameters": {"type": "object"}}],
        "audio": {"input": {"turn_detection": None}},
    }
    before = unix_ns() // 10**9
    answer = await made.post(session=session, expires_after={"anchor": "created_at", "seconds": 60})
    assert answer.status_code == 200, answer.text
    assert "no-store" in answer.headers["cache-control"]
    parsed = ClientSecretCreateResponse.model_validate(answer.json())
    assert parsed.value.startswith("ek_")
    assert before + 60 <= parsed.expires_at <= unix_ns() // 10**9 + 60
    assert isinstance(parsed.session, RealtimeSessionCreateResponse)
    assert parsed.session.instructions is not None
    assert parsed.session.instructions.startswith("Say arr.")
    shown = answer.json()["session"]
    assert (shown["model"], shown["output_modalities"]) == ("pirate", ["text"])
    assert shown["audio"]["input"]["turn_detection"] is None
    assert shown["audio"]["output"]["voice"] == "hibari"
    holder = await made.access.identify(parsed.value)
    assert holder is not None
    assert holder.session == session


@pytest.mark.parametrize(
    ("body", "seconds"),
    [
        ({}, 600),
        ({"session": None, "expires_after": None}, 600),
        ({"expires_after": {}}, 600),
        ({"expires_after": {"seconds": 10}}, 10),
        ({"expires_after": {"anchor": "created_at", "seconds": 7200}}, 7200),
    ],
)
async def test_client_secret_lifetime(made: Made, body: dict[str, Any], seconds: int) -> None:
    value = (await made.post(**body)).json()["value"]
    made.clock.advance_ms(seconds * 1000 - 1)
    assert await made.access.identify(value) is not None
    made.clock.advance_ms(1)
    assert await made.access.identify(value) is None


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"expires_after": {"seconds": 9}}, "expires_after.seconds"),
        ({"expires_after": {"seconds": 7201}}, "expires_after.seconds"),
        ({"expires_after": {"seconds": "60"}}, "expires_after.seconds"),
        ({"expires_after": {"anchor": "now"}}, "expires_after.anchor"),
        ({"expires_after": {"second": 60}}, "expires_after.second"),
        ({"expires_after": 60}, "expires_after"),
        ({"sesion": {}}, "sesion"),
        ({"session": []}, "session"),
        ({"session": {}}, "session.type"),
        ({"session": {"type": "realtime", "voice": "x"}}, "session.voice"),
        ({"session": {"type": "realtime", "model": 5}}, "session.model"),
        ({"session": {"type": "realtime", "model": "m" * 201}}, "session.model"),
        ({"session": {"type": "realtime", "instructions": "x" * 70_000}}, "session.instructions"),
        (
            {"session": {"type": "realtime", "audio": {"output": {"voice": "nobody"}}}},
            "session.audio.output.voice",
        ),
        ({"session": {"type": "realtime", "prompt": {"id": "p"}}}, "session.prompt"),
        ({"session": {"type": "realtime", "truncation": "none"}}, "session.truncation"),
        (
            {"session": {"type": "transcription", "tools": []}},
            "session.tools",
        ),
    ],
)
async def test_refused_fields_are_named(made: Made, body: dict[str, Any], param: str) -> None:
    assert (await made.error(**body))["param"] == param
    assert len(made.access.secrets) == 0


async def test_a_language_that_the_recognizer_does_not_know_is_refused(tmp_path: Path) -> None:
    stages = Stages(load_config(), ModelStore(tmp_path, {}), SystemClock())
    stages.recognizer = ModelThread("asr", ScriptedRecognizer)
    try:
        asked = SessionSettings(transcription={"language": "tlh"})
        await check_session(stages, asked)  # nothing is known yet: the session itself will say so
        await stages.recognizer.start()
        await check_session(stages, asked.changed(transcription={"language": "de-AT"}))
        with pytest.raises(ClientError, match="knows en, de") as refused:
            await check_session(stages, asked)
        assert refused.value.param == "session.audio.input.transcription.language"
    finally:
        await stages.recognizer.close()
        await stages.close()


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        (b"{}", "text/plain", 415),
        (b"", "application/json", 400),
        (b"[]", "application/json", 400),
        (b"null", "application/json", 400),
        (b"{", "application/json", 400),
        (b"[" * 200_000, "application/json", 400),
        (b'{"session":' * 100 + b"1" + b"}" * 100, "application/json", 400),
        (
            b'{"session": {"type": "realtime", "prompt": {"x": NaN}}}',
            "application/json",
            400,
        ),
        (
            b'{"session": {"type": "realtime", "instructions": "\\ud800"}}',
            "application/json",
            400,
        ),
        (b" " * (5 << 20), "application/json", 413),
    ],
)
async def test_bad_bodies(made: Made, content: bytes, kind: str, status: int) -> None:
    answer = await made.http.post(PATH, content=content, headers={"content-type": kind})
    assert answer.status_code == status
    assert answer.json()["error"]["message"]


async def test_keys_that_may_create_client_secrets(tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / "keys.json")
    free = keys.add("ana", KeyLimits(max_calls=2), 0)
    limited = keys.add("front", KeyLimits(agents=("pirate",)), 0)
    astray = keys.add("astray", KeyLimits(agents=("nobody",)), 0)
    async for made in made_with(tmp_path, keys):
        assert (await made.post()).status_code == 401
        made.headers = {"authorization": f"Bearer {free}"}
        answer = await made.post(session={"type": "realtime", "model": "default"})
        holder = await made.access.identify(answer.json()["value"])
        assert holder is not None
        assert (holder.name, holder.limits.max_calls, holder.kind) == ("ana", 2, "ephemeral")
        made.headers = {"authorization": f"Bearer {answer.json()['value']}"}
        assert (await made.post()).status_code == 403
        made.headers = {"authorization": f"Bearer {limited}"}
        answer = await made.post(session={"type": "realtime", "model": "default"})
        assert answer.json()["session"]["instructions"].startswith("Say arr.")
        made.headers = {"authorization": f"Bearer {astray}"}
        assert (await made.post()).status_code == 403


async def test_readiness_says_whether_a_key_is_needed(tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / "keys.json")
    async for made in made_with(tmp_path, keys):
        open_to_all = (await made.http.get("/readyz")).json()
        assert open_to_all["needs_key"] is False
        assert open_to_all["model"]["preset"] == "embedded"
        keys.add("ana", KeyLimits(), 0)
        await made.access.refresh()
        with_keys = (await made.http.get("/readyz")).json()
        assert with_keys["needs_key"] is True
        assert "model" not in with_keys
        page = await made.http.get("/")
        assert page.status_code == 200
        assert "<html" in page.text
        assert (await made.http.get("/v1/models")).status_code == 401
