"""`halfsec doctor` about a language model on another server."""

import asyncio
import json

import pytest

from agent.cli.doctor import Finding, examine
from agent.config.layers import load_config
from tests.support.fakes.remote_models import MODEL, Answer, Asked, ModelPort

KEY = "sk-very-secret-0123456789"


async def findings(port: ModelPort, model: str = MODEL) -> list[Finding]:
    """Lines of the report's models, in a process whose loop the server has."""
    config = load_config(
        {
            "llm_engine.model": f"openai:{port.base_url}#{model}",
            "llm_engine.api_key_env": "MODEL_KEY",
            "agent.port": 0,
        }
    )
    sections = await asyncio.to_thread(lambda: list(examine(config)))
    shown = repr(sections)
    assert KEY not in shown
    (models,) = [section for section in sections if section.title == "Models"]
    return list(models.findings)


async def test_doctor_asks_the_model_s_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODEL_KEY", KEY)
    port = ModelPort()
    async with port.serving():
        found = await findings(port)
        assert (found[0].name, found[0].verdict) == (MODEL, "ok")
        assert found[0].value == f"at {port.base_url}"
        assert port.asked[0].headers["authorization"] == f"Bearer {KEY}"
        assert not any("fetch" in each.remedy and MODEL in each.remedy for each in found)
        wrong = (await findings(port, "Tiny"))[0]
        assert (wrong.verdict, wrong.remedy) == ("note", f"it lists {MODEL}")
    gone = (await findings(port))[0]
    assert (gone.verdict, gone.value) == ("note", "its server can't be reached")
    monkeypatch.delenv("MODEL_KEY")
    keyless = (await findings(port))[0]
    assert keyless.verdict == "WRONG"
    assert "MODEL_KEY, which is not set" in keyless.value


async def test_doctor_of_a_server_that_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODEL_KEY", KEY)

    async def refuses(asked: Asked, answer: Answer) -> None:
        body = json.dumps({"error": {"message": f"Incorrect API key {KEY}"}}).encode()
        await answer.whole(body, status=401, kind="application/json")

    port = ModelPort(refuses)
    async with port.serving():
        found = (await findings(port))[0]
        assert found.verdict == "note"
        assert found.value.startswith("its server refuses the API key (401)")
