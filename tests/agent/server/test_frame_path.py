"""Modules that one frame of audio passes, from the socket to the voice detector."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Final

from agent.config.sources import read_config
from agent.http.auth.keys import KeyFile
from tests.support.models import model_path
from tests.support.service.live import LiveServer
from tests.support.service.live_call import call_to, silence
from tests.support.service.live_fixtures import ENVIRONMENT, MODELS, SETTINGS

ROOT: Final = Path(__file__).parents[3]
PACKAGES: Final = tuple(f"{ROOT}/{name}/" for name in ("agent", "asr", "latency_budget", "tts"))
PATH: Final = {
    "agent/http/hardening/websocket_protocol.py",
    "agent/realtime/socket.py",
    "agent/realtime/transport.py",
    "agent/realtime/protocol/protocol.py",
    "agent/codec/json_frame.py",
    "agent/codec/pcm.py",
    "agent/session/session.py",
    "agent/session/ports/stage_ports.py",
    "agent/stages/speech_input.py",
    "agent/stages/call_audio.py",
    "agent/stages/model_thread.py",
    "asr/audio/conversion.py",
    "asr/stream/asr_stream.py",
    "asr/stream/audio_buffer.py",
    "asr/speech_detection/agc.py",
    "asr/speech_detection/vad.py",
}
"""`stage_ports` has the recording of a call that is not recorded."""

BESIDE: Final = {
    "agent/stages/audio_pace.py",
    "agent/http/hardening/leaky_bucket.py",
    "agent/realtime/send_queue.py",
    "latency_budget/account/clock.py",
}
"""Modules that see times and counts, not the audio."""

BEHIND: Final = {
    "asr/speech_detection/echo_gate.py",
    "asr/speech_detection/endpointing.py",
    "asr/speech_detection/energy_endpoint.py",
}
"""Modules that use the detector's result."""
DETECTOR: Final = "asr/speech_detection/vad.py"


class Profile:
    """Modules of the product whose functions are called, in all threads that start meanwhile."""

    def __init__(self) -> None:
        self._modules: set[str] = set()
        self._num_frames = 0
        self._detected = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(PACKAGES):
            module = name.removeprefix(f"{ROOT}/")
            self._modules.add(module)
            if module == DETECTOR and frame.f_code.co_name == "probability":
                self._num_frames += 1
                self._loop.call_soon_threadsafe(self._detected.set)

    async def until_detected(self, num_frames: int) -> set[str]:
        """Modules since the last call, once the detector has seen so many frames in all."""
        while self._num_frames < num_frames:
            self._detected.clear()
            await self._detected.wait()
        modules, self._modules = self._modules, set()
        return modules


def profiled(profile: Profile, start: Callable[[], None]) -> None:
    """Start threads with a profile."""
    threading.setprofile(profile)
    try:
        start()
    finally:
        threading.setprofile(None)


async def test_modules_of_an_audio_frame(tmp_path: Path) -> None:
    for name in MODELS:
        model_path(name)
    settings = tmp_path / "halfsec.toml"
    settings.write_text(SETTINGS)
    config = read_config(path=str(settings), env=ENVIRONMENT)
    server, profile = LiveServer(config, KeyFile(tmp_path / "keys.json")), Profile()
    await asyncio.to_thread(profiled, profile, server.start)
    try:
        async with call_to(server.url) as call:
            seen = []
            for number in range(12):
                await call.append(silence(1.024), piece_ms=16)
                seen.append(await profile.until_detected(32 * (number + 1) - 2))
    finally:
        await asyncio.to_thread(server.stop)
    always = set.intersection(*seen[2:])  # what else goes on in a call is not of every frame
    assert always - BESIDE - BEHIND == PATH
    assert len(PATH) <= 16
