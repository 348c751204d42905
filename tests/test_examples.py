"""The programs in `examples/`, run as users run them against `halfsec serve` in that folder."""

import asyncio
import os
import re
import signal
import sys
import wave
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import numpy as np
import pytest
import pytest_asyncio
import soundfile
import soxr

from tests.support.models import model_path

ROOT: Final = Path(__file__).resolve().parents[1]
EXAMPLES: Final = ROOT / "examples"
RECORDINGS: Final = ROOT / "tests" / "recordings"
START_S: Final = 180.0
RUN_S: Final = 180.0
"""Timeouts in s. Only a hang takes so long, on any machine."""
ENVIRONMENT: Final = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}

OVERRIDES: Final = (
    *("agent.port=0", "latency_budget.store=false", "access.require_key=never"),
    # What is done about late answers depends on what else this machine does.
    *("latency_budget.enforce=false", "latency_budget.admission=false", "llm_engine.max_tokens=64"),
)

pytestmark = [pytest.mark.models, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def host() -> AsyncIterator[str]:
    """HOST:PORT of a server with the examples' own settings."""
    for name in ("whisper-tiny.en", "smollm2-135m-instruct", "silero-vad"):
        model_path(name)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "agent", "serve"),
        *(part for each in OVERRIDES for part in ("--set", each)),
        cwd=EXAMPLES,
        env=ENVIRONMENT,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(START_S):
            async for line in process.stdout:
                if line.startswith(b"Ready after"):
                    port = line.decode().rstrip().rstrip("/").rpartition(":")[2]
                    break
        yield f"localhost:{port}"
        process.send_signal(signal.SIGTERM)
        await process.communicate()
        assert process.returncode == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


async def run(program: str, *arguments: str | Path) -> tuple[int, str]:
    """Exit status and output."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, EXAMPLES / program, *arguments),
        env=ENVIRONMENT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(RUN_S):
            output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode()


def level(path: Path) -> float:
    """Loudest sample of a WAV file, of full scale."""
    samples, _ = soundfile.read(path)
    return float(np.abs(samples).max())


async def test_text_client(host: str) -> None:
    pytest.importorskip("openai")
    status, output = await run("text_client.py", "Say hello.", "--url", f"ws://{host}/v1")
    assert status == 0, output
    assert len(output.strip()) > 1


async def test_spoken_client(host: str, tmp_path: Path) -> None:
    pytest.importorskip("openai")
    samples, rate_hz = soundfile.read(RECORDINGS / "vm-nobodyavail.wav")
    soundfile.write(tmp_path / "question.wav", soxr.resample(samples, rate_hz, 24_000), 24_000)
    files = (tmp_path / "question.wav", tmp_path / "answer.wav")
    status, output = await run("spoken_client.py", *files, "--url", f"ws://{host}/v1")
    assert status == 0, output
    assert "take your call" in output
    with wave.open(str(tmp_path / "answer.wav")) as answer:
        assert (answer.getframerate(), answer.getnchannels()) == (24_000, 1)
        assert answer.getnframes() > 24_000 // 4
    assert level(tmp_path / "answer.wav") > 0.05


async def test_spoken_client_names_the_conversion_of_other_formats(tmp_path: Path) -> None:
    recording = RECORDINGS / "vm-nobodyavail.wav"
    status, output = await run("spoken_client.py", recording, tmp_path / "answer.wav")
    assert status == 1
    assert "ffmpeg" in output


async def test_tool_agent(host: str) -> None:
    question = "Where is my order 1001?"
    url = f"ws://{host}/v1"
    status, output = await run(
        "tool_agent/ask.py", question, "--url", url, "--tool-choice", "required"
    )
    assert status == 0, output
    # Which tool it takes is up to the model, which is very small.
    assert re.search(r"\[tool (order_status|opening_hours): (done|failed)\]", output), output
    status, output = await run("tool_agent/ask.py", question, "--url", url, "--tool-choice", "none")
    assert status == 0, output
    assert "[tool" not in output


async def test_phone_bot(host: str, tmp_path: Path) -> None:
    pytest.importorskip("streamdouble")
    heard = tmp_path / "heard.wav"
    url = f"ws://{host}/telephony/twilio/stream"
    status, output = await run(
        "phone_bot/call.py", RECORDINGS / "vm-nobodyavail.wav", heard, "--url", url
    )
    assert status == 0, output
    assert "violation" not in output
    assert level(heard) > 0.05
    assert soundfile.info(heard).duration > 2.0, "the greeting and an answer"


@pytest.mark.parametrize(("budget_ms", "expected"), [("60000", 0), ("1", 1)])
async def test_latency_gate(host: str, budget_ms: str, expected: int) -> None:
    recording = RECORDINGS / "vm-changeto.wav"
    options = ("--url", f"ws://{host}", "--rounds", "1", "--p95-ms", budget_ms)
    status, output = await run("latency_gate.py", recording, *options)
    assert status == expected, output
    assert ("FAILED: p95" in output) == bool(expected)
