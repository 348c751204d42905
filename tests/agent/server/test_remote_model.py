"""Calls to a service whose language model is on another server."""

import asyncio
import os
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from agent.session.ports.stage_ports import APOLOGY
from tests.support.fakes.remote_models import MODEL, Answer, Asked, ModelPort, echo
from tests.support.models import model_path
from tests.support.service.live_call import audio_of, call_to, overlap, transcript, words_of
from tests.support.service.service_process import ServiceProcess, service

pytestmark = [pytest.mark.slow, pytest.mark.models]

LOCAL = "smollm2-135m-instruct"
PATIENCE_S = 60.0


@pytest.fixture(autouse=True)
def models() -> None:
    for name in ("whisper-tiny.en", LOCAL, "silero-vad"):
        model_path(name)


def remote(base_url: str, model: str = MODEL) -> tuple[str, ...]:
    settings = {
        "llm_engine.model": f"openai:{base_url}#{model}",
        "latency_budget.enforce": "false",
        "latency_budget.admission": "false",
    }
    return tuple(part for key, value in settings.items() for part in ("--set", f"{key}={value}"))


async def asked(running: ServiceProcess, path: str) -> httpx.Response:
    async with httpx.AsyncClient(timeout=PATIENCE_S, trust_env=False) as http:
        return await http.get(f"{running.http}{path}")


async def readiness(running: ServiceProcess) -> dict[str, Any]:
    found: dict[str, Any] = (await asked(running, "/readyz")).json()
    return found


async def num_output_tokens(running: ServiceProcess) -> float:
    lines = (await asked(running, "/metrics")).text.splitlines()
    (line,) = [each for each in lines if each.startswith("halfsec_llm_output_tokens_total ")]
    return float(line.split(" ")[1])


async def test_a_whole_call_with_the_model_of_another_halfsec(tmp_path: Path) -> None:
    empty = tmp_path / "home"  # nothing of the language model is on this "machine"
    models = empty / "models"
    models.mkdir(parents=True)
    home = Path(os.environ.get("HALFSEC_HOME", Path.home() / ".halfsec")) / "models"
    for each in home.iterdir():
        if each.name != LOCAL:
            (models / each.name).symlink_to(each)
    async with service("--preset", "embedded") as owner:
        await owner.listening()
        await owner.line("Ready after")
        arguments = (*remote(f"{owner.http}/v1", LOCAL), "--set", "access.require_key=never")
        async with service(*arguments, home=empty) as running:
            await running.listening()
            await running.line("Ready after")
            ready = await readiness(running)
            assert ready["status"] == "ready"
            assert ready["stages"]["llm"] == "ready"
            assert ready["model"]["name"] == LOCAL
            before = await num_output_tokens(owner)
            async with call_to(running.url) as call:
                said = "vm-nobodyavail"
                await call.say_in_real_time(said)
                completed = "conversation.item.input_audio_transcription.completed"
                heard = await call.until(completed)
                assert overlap(transcript(said), heard["transcript"]) >= 0.8
                response = await call.response()
                assert response["status"] in ("completed", "incomplete"), response
                assert words_of(response)
                assert response["usage"]["output_tokens"] > 0
                assert np.abs(audio_of(call.events, response["id"]).astype(int)).max() > 1000
                await call.type("Tell me a long story about a dragon.")
                await call.send("response.create", response={"max_output_tokens": 60})
                await call.until("response.output_audio.delta")
                await call.send("response.cancel")
                assert (await call.response())["status"] == "cancelled"
                await call.prove_alive()
            assert await num_output_tokens(owner) > before
            chat = {"messages": [{"role": "user", "content": "Hello"}]}
            async with httpx.AsyncClient(timeout=PATIENCE_S, trust_env=False) as http:
                refused = await http.post(f"{running.http}/v1/chat/completions", json=chat)
            assert refused.status_code == 501
            running.stop()
            assert (await running.ended())[0] == 0


async def test_a_model_server_that_goes_and_comes() -> None:
    is_broken = False

    async def script(question: Asked, answer: Answer) -> None:
        if is_broken and question.method == "POST":
            await answer.whole(b"{}", status=500, kind="application/json")
        else:
            await echo(question, answer)

    port = ModelPort(script)
    async with port.serving():
        pass  # its number is known from now on, and nothing listens there
    async with service(*remote(port.base_url)) as running:
        await running.listening()
        await running.line("Ready after")
        found = await readiness(running)
        assert (found["status"], found["language_model"]) == ("degraded", "can't be reached")
        async with call_to(running.url) as call:
            response = await call.ask("Hello")
            assert response["status"] == "failed"
            assert words_of(response).endswith(APOLOGY)
            async with port.serving():
                async with asyncio.timeout(PATIENCE_S):
                    while (await readiness(running))["status"] != "ready":  # noqa: ASYNC110
                        await asyncio.sleep(0.2)
                await call.prove_alive()
                is_broken = True
                response = await call.ask("And now?")
                assert response["status"] == "failed"
                assert words_of(response).endswith(APOLOGY)
                assert "500" in (await readiness(running))["language_model"]
                is_broken = False
                await call.prove_alive()
                assert (await readiness(running))["status"] == "ready"
        running.stop()
        status, log = await running.ended()
        assert status == 0
        assert "Traceback" not in log
