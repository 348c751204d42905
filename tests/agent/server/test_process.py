"""The service as a process: how it starts, drains and ends, and why it may not start."""

import asyncio
import os
import pty
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import websockets.asyncio.client as websockets_client
from websockets.exceptions import InvalidStatus
from websockets.typing import Origin

from latency_budget.storage.store_query import read_turns
from tests.support.models import model_path
from tests.support.service.live_call import call_to
from tests.support.service.otlp_collector import Collector, attributes, serving
from tests.support.service.service_process import PATIENCE_S, ServiceProcess, service
from tests.support.service.webhook_receiver import SECRET, answers, receiving

pytestmark = [pytest.mark.slow, pytest.mark.models]

WHISPER, LLM, VAD = "whisper-tiny.en", "smollm2-135m-instruct", "silero-vad"
STORY = "Tell me a long story about a dragon."


@pytest.fixture(autouse=True)
def models() -> None:
    for name in (WHISPER, LLM, VAD):
        model_path(name)


async def readiness(running: ServiceProcess) -> httpx.Response:
    async with httpx.AsyncClient(timeout=PATIENCE_S, trust_env=False) as http:
        return await http.get(f"{running.http}/readyz")


async def test_it_listens_before_it_is_ready_and_drains_at_the_end() -> None:
    async with service() as running:
        await running.listening()
        early = await readiness(running)
        assert early.status_code == 503
        assert early.headers["retry-after"]
        assert early.json()["status"] == "warming"
        assert "loading" in early.json()["stages"].values()
        with pytest.raises(InvalidStatus) as caught:
            async with websockets_client.connect(running.url, proxy=None):
                pass
        assert caught.value.response.status_code == 503
        assert int(caught.value.response.headers["Retry-After"]) > 0
        await running.line("Ready after")
        assert (await readiness(running)).json()["status"] == "ready"
        async with (
            httpx.AsyncClient(timeout=PATIENCE_S, trust_env=False) as http,
            http.stream("GET", f"{running.http}/v1/latency/events") as answer,
        ):
            lines = answer.aiter_lines()
            assert await anext(lines) == ": halfsec"
            async with call_to(running.url) as call:
                await call.type(STORY)
                await call.send("response.create", response={"max_output_tokens": 24})
                await call.until("response.output_audio.delta")
                running.stop()
                await running.line("Stopping: 1 call")
                late = await readiness(running)
                assert (late.status_code, late.json()["status"]) == (503, "draining")
                async with websockets_client.connect(running.url, proxy=None) as refused:
                    await refused.wait_closed()
                    assert refused.close_code == 1012
                response = await call.response()
                assert response["status"] in ("completed", "incomplete")
                await call.prove_alive()
            async for _ in lines:  # up to its proper end: a listener does not hold it up
                pass
        assert await running.ended() == (0, "")


async def num_turns(running: ServiceProcess) -> int:
    """Turns that it knows, of which it has kept no words."""
    async with httpx.AsyncClient(timeout=PATIENCE_S, trust_env=False) as http:
        found = (await http.get(f"{running.http}/v1/latency/turns?since=0")).json()
    assert {turn["caller_text"] for turn in found["turns"]} == {""}
    return len(found["turns"])


async def test_the_next_process_has_the_turns_and_tells_the_end_of_a_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The endpoint is out of order until the service was stopped."""
    monkeypatch.setenv("WEBHOOK_SECRET", SECRET)
    (tmp_path / "models").symlink_to(model_path(LLM).parent)
    with receiving() as receiver:
        receiver.answers = [answers(503)]
        settings = tmp_path / "halfsec.toml"
        settings.write_text(
            f'[webhooks.crm]\nurl = "{receiver.url}"\nallow_private = true\n'
            '[access]\nrequire_key = "never"\n'
        )
        arguments = ("--config", str(settings))
        async with service(*arguments, home=tmp_path, log_level="error") as running:
            await running.listening()
            await running.line("Ready after")
            async with call_to(running.url) as call:
                await call.type("Say hello.")
                await call.send("response.create", response={"max_output_tokens": 8})
                said = await call.response()
            await asyncio.to_thread(receiver.wait, 1)
            assert await num_turns(running) == 1
            running.stop()
            status, errors = await running.ended()
            assert (status, errors.count("the endpoint answered 503")) == (0, 1)
        receiver.answers = [answers(200)]
        num_before = len(receiver.events)
        async with service(*arguments, home=tmp_path) as running:
            await running.listening()
            events = await asyncio.to_thread(receiver.wait, num_before + 1)
            data = events[-1]["data"]
            assert len(set(receiver.ids)) == 1
            async with httpx.AsyncClient(
                timeout=60, trust_env=False, base_url=running.http
            ) as http:
                kept = (await http.get(f"/v1/calls/{data['id']}")).json()
                assert (await http.get("/v1/calls/sess_unknown")).status_code == 404
            await running.line("Ready after")
            async with call_to(running.url) as call:
                await call.ask("Say a word.", max_output_tokens=4)
            assert await num_turns(running) == 2
            running.stop()
            assert (await running.ended())[0] == 0
    assert data["end"] == {"cause": "caller_hung_up", "reason": "the client hung up"}
    (question, answer) = data["transcript"]
    assert question["text"] == "Say hello."
    assert answer["text"]
    assert said["output"][0]["content"][0]["transcript"].startswith(answer["text"])
    assert kept == {**data, "transcript": None}
    assert len(read_turns(tmp_path / "turns.sqlite")) == 2


async def test_a_second_signal_ends_it_at_once() -> None:
    async with service("--set", "agent.drain_s=3600") as running:
        await running.listening()
        await running.line("Ready after")
        async with call_to(running.url) as call:
            await call.type(STORY)
            await call.send("response.create")
            await call.until("response.output_audio.delta")
            running.stop()
            await running.line("Stopping: 1 call")
            running.stop()
            code, _ = await call.closed()
            assert code == 1012
        assert await running.ended() == (0, "")


async def test_calls_that_outlast_the_drain_are_ended(tmp_path: Path) -> None:
    async with service("--set", "agent.drain_s=0") as running:
        await running.listening()
        running.stop()  # while it warms: nothing is lost by ending soon
        status, errors = await running.ended()
        assert (status, errors) == (0, "")
        assert not any(line.startswith("Ready") for line in running.lines)
    file = tmp_path / "halfsec.toml"
    file.write_text("")
    limits = ("--set", "agent.drain_s=1", "--config", str(file))
    async with service(*limits, log_level="info") as running:
        await running.listening()
        await running.line("Ready after")
        async with call_to(running.url) as call:
            for number in (signal.SIGUSR1, signal.SIGUSR2):  # which have no meaning
                running.send(number)
            await call.prove_alive()
            file.write_text('[agents.default]\ninstructions = "Say arr."\n')
            running.send(signal.SIGHUP)
            await call.prove_alive()
            assert await halfsec_reload(running) == (0, "Changed for new calls: nothing.\n", "")
            async with call_to(running.url) as later:
                assert "Say arr." in (await later.update())["instructions"]
            assert "Say arr." not in (await call.update())["instructions"]
            file.write_text("[agents.default]\ninstruction = 1\n")
            status, output, errors = await halfsec_reload(running)
            assert (status, output) == (2, "")
            assert "Unknown setting agents.default.instruction" in errors
            running.stop()
            await running.line("Stopping: 1 call")
            code, reason = await call.closed()
            assert (code, reason) == (1012, "the server is being stopped")
        status, log = await running.ended()
    assert status == 0
    lines = [line.split(" ", 2)[2] for line in log.splitlines()]
    assert sorted(lines[:2]) == [
        "WARNING SIGUSR1 has no meaning here",
        "WARNING SIGUSR2 has no meaning here",
    ]
    assert lines[2:4] == [
        "INFO settings reloaded; changed: agents.default.instructions",
        "INFO settings reloaded; changed: nothing",
    ]
    assert lines[4].endswith("close=1000 (the client hung up)")
    assert lines[5].startswith("ERROR the settings stay as they were: Unknown setting")
    assert lines[6].endswith("close=1012 (the server is being stopped)")
    assert len(lines) == 7


async def halfsec_reload(running: ServiceProcess) -> tuple[int, str, str]:
    """Run `halfsec reload`. Returns its exit status and what it wrote to stdout and stderr."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "agent", "reload", "--port", str(running.port)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = await process.communicate()
    return process.returncode or 0, output.decode(), errors.decode()


def test_only_a_process_with_a_terminal_takes_sighup_for_its_end() -> None:
    code = "from agent.server.server import has_terminal; print(has_terminal())"
    command = [sys.executable, "-c", code]
    without = subprocess.run(command, start_new_session=True, capture_output=True, check=True)
    assert without.stdout == b"False\n"
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, command)
    with open(terminal, "rb", buffering=0) as output:
        assert output.readline() == b"True\r\n"
        os.waitpid(pid, 0)


def test_a_line_for_a_terminal_that_is_gone_ends_nothing() -> None:
    """As after SIGHUP. A line that stays in the buffer would make the exit status 120."""
    code = "from agent.server.server import say; say('a'); say('b')"
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-c", code], stdout=writer, stderr=subprocess.PIPE, check=False
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


async def test_the_log_has_a_line_for_each_call_and_each_refusal() -> None:
    said = "Tell me about the secret garden."
    async with service(log_level="info") as running:
        await running.listening()
        await running.line("Ready after")
        with pytest.raises(InvalidStatus):
            async with websockets_client.connect(
                running.url, origin=Origin("http://evil.example"), proxy=None
            ):
                pass
        async with call_to(running.url, model="gpt-realtime") as call:
            session_id = call.events[0]["session"]["id"]
            await call.ask(said, max_output_tokens=4)
        async with httpx.AsyncClient(timeout=PATIENCE_S, trust_env=False) as http:
            for _ in range(3000):
                if not (await http.get(f"{running.http}/readyz")).json()["calls"]:
                    break
                await asyncio.sleep(0.01)
        running.stop()
        status, log = await running.ended()
    assert status == 0
    lines = [line.split(" ", 2)[2] for line in log.splitlines()]
    assert lines[0] == "INFO refused 127.0.0.1 '/v1/realtime': 403 origin_not_allowed"
    assert lines[1].startswith(f"INFO call {session_id} asks for 'gpt-realtime': default answers")
    assert lines[2].startswith(f"INFO call {session_id} ended: agent=default turns=1 p50_ms=")
    assert lines[2].endswith("close=1000 (the client hung up)")
    assert len(lines) == 3
    assert "garden" not in log


# --- what keeps it from starting ---


async def fails_to_start(*arguments: str, home: Path | None = None) -> tuple[int, list[str]]:
    """The exit status, and the lines on stderr."""
    async with service("--no-fetch", *arguments, home=home) as running:
        status, errors = await running.ended()
    assert "Traceback" not in errors, errors
    return status, errors.splitlines()


async def test_a_port_in_use() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        status, (line,) = await fails_to_start("--port", str(port))
    assert status == 2
    assert f"127.0.0.1:{port}: something else does." in line
    assert f"halfsec serve --port {port + 1 if port < 65_535 else 8080}" in line


async def test_an_unknown_setting() -> None:
    status, (line,) = await fails_to_start("--set", "agent.prot=1")
    assert status == 2
    assert "agent.prot" in line


async def test_models_that_were_never_fetched(tmp_path: Path) -> None:
    async with service("--no-fetch", home=tmp_path) as running:
        status, errors = await running.ended()
    assert status == 2
    (line,) = errors.splitlines()
    assert f"halfsec models fetch {VAD} {WHISPER} smart-turn {LLM}" in line
    assert running.lines == [], "it must not listen"


def cut(source: Path, target: Path, keep: float = 0.6) -> Path:
    """A copy of a file that lacks its end."""
    with source.open("rb") as whole, target.open("wb") as part:
        part.write(whole.read(int(source.stat().st_size * keep)))
    return target


async def test_a_model_that_is_cut_short(tmp_path: Path) -> None:
    """In its usual place: the catalogue knows its size."""
    for name in (WHISPER, LLM, VAD):
        directory = tmp_path / "models" / name
        directory.mkdir(parents=True)
        for file in model_path(name).iterdir():
            if file.suffix in (".gguf", ".onnx", ".bin"):
                cut(file, directory / file.name)
            else:
                (directory / file.name).symlink_to(file)
    status, (line,) = await fails_to_start(home=tmp_path)
    assert status == 2
    assert line.count("damaged") == 3
    assert f"halfsec models fetch {VAD} {WHISPER} smart-turn {LLM}" in line


@pytest.mark.parametrize(
    ("voice", "words"),
    [
        ("piper-jo", "Did you mean piper-joe?"),
        ("nobody.onnx", "The voice nobody.onnx lacks its file nobody.onnx."),
    ],
)
async def test_a_voice_that_is_not_there(voice: str, words: str) -> None:
    async with service("--set", f"tts.voice={voice}") as running:
        status, errors = await running.ended()
    assert status == 2
    assert words in errors
    assert running.lines == [], "it must not listen"


async def test_models_of_the_users_own_that_are_cut_short(tmp_path: Path) -> None:
    """Nothing but the loaders can tell."""
    whisper = tmp_path / "whisper"
    whisper.mkdir()
    for file in model_path(WHISPER).iterdir():
        if file.name != "model.bin":
            (whisper / file.name).symlink_to(file)
    cut(model_path(WHISPER) / "model.bin", whisper / "model.bin")
    (gguf,) = model_path(LLM).glob("*.gguf")
    story = cut(gguf, tmp_path / "story.gguf")
    status, lines = await fails_to_start(
        *("--set", f"asr.model={whisper}", "--set", f"llm_engine.model={story}")
    )
    assert status == 1
    stages = sorted(line.partition(":")[0] for line in lines)
    assert stages == ["asr", "llm"]
    assert any(str(whisper) in line for line in lines)
    assert any(str(story) in line for line in lines)


async def test_collector_receives_calls_and_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("NO_PROXY", "*")
    said = "Tell me about the secret garden."
    collector = Collector()
    with serving(collector) as port:
        address = f"http://127.0.0.1:{port}"
        async with service("--set", f"latency_budget.otlp_endpoint={address}") as running:
            await running.listening()
            await running.line("Ready after")
            async with call_to(running.url) as call:
                session_id = call.events[0]["session"]["id"]
                await call.ask(said, max_output_tokens=4)
            running.stop()
            assert await running.ended() == (0, "")
    (root,) = [span for span in collector.spans() if span.name == "turn"]
    (over,) = [span for span in collector.spans() if span.name == "call"]
    stages = [span for span in collector.spans() if span.parent_span_id == root.span_id]
    assert {attributes(span.attributes)["session.id"] for span in collector.spans()} == {session_id}
    assert {"llm_prefill", "llm_clause", "tts"} <= {span.name for span in stages}
    told = attributes(root.attributes)
    assert told["halfsec.origin"] == "reply_requested"
    exposed_ms = sum(attributes(span.attributes)["halfsec.exposed_ms"] for span in stages)
    assert exposed_ms == pytest.approx(told["halfsec.e2e_server_ms"])
    assert (root.end_time_unix_nano - root.start_time_unix_nano) / 1e6 == pytest.approx(exposed_ms)
    assert over.start_time_unix_nano < root.start_time_unix_nano
    assert root.end_time_unix_nano < over.end_time_unix_nano
    assert not [taken for taken in collector.taken if b"garden" in taken.body]
