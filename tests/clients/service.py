"""The service that the clients call: a process with the default models, behind a cable."""

import asyncio
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

import numpy as np
import soxr

from asr.audio.files import read_file
from tests.clients.cable import Cable, cable_to
from tests.clients.peers import HERE, ROOT
from tests.clients.scene import RATE_HZ, READER, SPOKEN_TURN, TOOL_CALL, WEATHER

START_S: Final = 120.0

RECORDINGS: Final = HERE.parent / "recordings"

SETTINGS: Final = f"""
[agent]
port = 0

# What is done about late answers, and who is refused for them, has tests of its own: here both
# would depend on what else this machine does.
[latency_budget]
enforce = false
admission = false
store = false

[llm_engine]
max_tokens = 96

[agents.default]
instructions = "You are a friendly voice assistant on a phone call. Answer in one short sentence."

[agents.{READER}]
greeting = "One morning a small brown fox left the wood, and walked along the river to the old \
stone bridge. There he met a hare, who was on her way to the market with a basket of apples."
"""


class Service:
    """A running service. Clients are told of it by the file `scene`."""

    def __init__(self, scene: Path, cable: Cable) -> None:
        self.scene = scene
        self.frames = cable.frames
        """Text frames that the clients were sent; none of them where it speaks TLS."""


@contextmanager
def service(folder: Path, *, certificate: Path | None = None) -> Iterator[Service]:
    """`halfsec serve` on a free port, with TLS where there is a certificate (with `key.pem` beside
    it). Files that the clients need are put into the folder."""
    settings = folder / "halfsec.toml"
    settings.write_text(SETTINGS)
    command = [sys.executable, "-m", "agent", "serve", "--config", str(settings)]
    if certificate is not None:
        key = certificate.with_name("key.pem")
        command += ["--set", f"access.tls_cert={certificate}", "--set", f"access.tls_key={key}"]
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    environment.pop("HALFSEC_CLIENTS", None)  # ours: it would be taken for a setting
    with (folder / "service.log").open("w") as log:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    assert process.stdout is not None
    lines: queue.Queue[str] = queue.Queue()
    reader = threading.Thread(target=_read, args=(process.stdout, lines), name="service-output")
    reader.start()
    try:
        port = _port_when_ready(lines)
        with _cable(port) as (cable, cut_port):
            scheme = "http" if certificate is None else "https"
            scene = folder / "scene.json"
            address = f"{scheme}://localhost:{cable.port}"
            scene.write_text(json.dumps(_scene(folder, address, cut_port)))
            yield Service(scene, cable)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(START_S)
        reader.join()
    said = (folder / "service.log").read_text()
    assert "Traceback" not in said, said
    assert " ERROR " not in said, said


def _read(stdout: IO[str], lines: queue.Queue[str]) -> None:
    with stdout:
        for line in stdout:
            lines.put(line)
    lines.put("")


def _port_when_ready(lines: queue.Queue[str]) -> int:
    while line := lines.get(timeout=START_S):
        if line.startswith("Ready after"):
            return int(line.rstrip().rstrip("/").rpartition(":")[2])
    raise AssertionError("the service did not start; see service.log")


def _scene(folder: Path, address: str, cut_port: int) -> dict[str, object]:
    """What `scene.py` and `scene.mjs` read."""
    recordings = {}
    for path in RECORDINGS.glob("*.wav"):
        sound = soxr.resample(read_file(path), 16_000, RATE_HZ)
        pcm = np.clip(np.rint(sound * 32768), -32768, 32767).astype("<i2")
        there = folder / f"{path.stem}.pcm"
        there.write_bytes(pcm.tobytes())
        recordings[path.stem] = str(there)
    texts = json.loads((RECORDINGS / "transcripts.json").read_text())
    return {
        "http": address,
        "cut_port": cut_port,
        "recordings": recordings,
        "transcripts": {name.removesuffix(".wav"): text for name, text in texts.items()},
        "weather": WEATHER,
        "spoken_turn": SPOKEN_TURN,
        "tool_call": TOOL_CALL,
    }


@contextmanager
def _cable(port: int) -> Iterator[tuple[Cable, int]]:
    """A cable to a service, on a loop of its own, and a port at which to have it cut."""
    ready: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event, Cable, int]] = Future()

    async def carry() -> None:
        over = asyncio.Event()
        async with cable_to(port) as cable:

            async def cut(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                cable.cut()
                writer.write(b"cut\n")
                writer.close()

            async with await asyncio.start_server(cut, "127.0.0.1", 0) as knife:
                cut_port = knife.sockets[0].getsockname()[1]
                ready.set_result((asyncio.get_running_loop(), over, cable, cut_port))
                await over.wait()

    thread = threading.Thread(target=lambda: asyncio.run(carry()), name="cable")
    thread.start()
    loop, over, cable, cut_port = ready.result(START_S)
    try:
        yield cable, cut_port
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(START_S)
