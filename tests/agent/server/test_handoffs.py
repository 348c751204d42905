"""The real service, whose real model hands a call to another agent."""

import httpx
import pytest

from tests.support.service.live import LiveServer
from tests.support.service.live_call import call_to, words_of

pytest_plugins = ["tests.support.service.live_fixtures"]
pytestmark = pytest.mark.models


async def test_the_model_hands_the_call_over_and_the_other_agent_speaks(live: LiveServer) -> None:
    async with call_to(live.url, model="desk", protocols=("halfsec.v1",)) as call:
        before = await call.update(output_modalities=["text"])
        assert before["model"] == "desk"
        choice = {"type": "function", "name": "transfer_to_pirate"}
        handing = await call.ask("Give me the pirate, please.", tool_choice=choice)
        assert handing["status"] == "completed", handing
        (handed,) = call.of("halfsec.handoff")
        assert (handed["from"], handed["to"]) == ("desk", "pirate")
        assert [(each["name"], each["state"]) for each in call.of("halfsec.tool")] == [
            ("transfer_to_pirate", "started"),
            ("transfer_to_pirate", "done"),
        ]
        session = call.of("session.updated")[-1]["session"]
        assert session["model"] == "pirate"
        assert session["instructions"].startswith("You are a pirate.")
        speaking = await call.response()
        assert speaking["status"] in ("completed", "incomplete")
        assert words_of(speaking)
        later = await call.update(output_modalities=["text"], max_output_tokens=8)
        assert later["instructions"] == session["instructions"], "a change keeps the agent"
        await call.prove_alive()
    async with httpx.AsyncClient(timeout=60) as client:
        metrics = (await client.get(f"http://127.0.0.1:{live.port}/metrics")).text
    assert "halfsec_handoffs_total 1.0" in metrics
