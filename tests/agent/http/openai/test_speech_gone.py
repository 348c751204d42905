"""Clients of `/v1/audio/speech` that hang up while the encoder works: nothing it uses is freed."""

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import pytest

from agent.http.openai import speech
from agent.http.openai.audio_encoding import Encoder, encoder_for
from agent.http.openai.speech_request import SpeechFormat
from tests.support.service.live import LiveServer

pytest_plugins = ["tests.support.service.live_fixtures"]
pytestmark = pytest.mark.models

TEXT: Final = "The meeting begins on Monday morning. Please bring your umbrella and your books. "
HANG_UPS: Final = 8
NUM_PASSES: Final = 20
"""Passes of the event loop after the client has gone: anyio cancels in each of them."""


def open_request(live: LiveServer, form: SpeechFormat) -> socket.socket:
    body = json.dumps({"input": TEXT * 8, "response_format": form}).encode()
    head = (
        f"POST /v1/audio/speech HTTP/1.1\r\nHost: 127.0.0.1:{live.port}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    client = socket.create_connection(("127.0.0.1", live.port), timeout=60)
    client.sendall(head.encode() + body)
    return client


async def turn() -> None:
    """On the service's loop."""
    for _ in range(NUM_PASSES):
        await asyncio.sleep(0)


class WatchedEncoder:
    """An encoder whose second push lasts until the client has gone and the loop has turned."""

    def __init__(self, form: SpeechFormat, live: LiveServer) -> None:
        self._encoder = encoder_for(form)
        self._live = live
        self._num_pushed = 0
        self._is_working = False
        self.is_reached = threading.Event()
        self.is_gone = threading.Event()
        self.is_closed = threading.Event()
        self.was_freed_at_work = False

    def push(self, pcm: npt.NDArray[np.int16]) -> bytes:
        self._num_pushed += 1
        if self._num_pushed != 2:
            return self._encoder.push(pcm)
        self._is_working = True
        self.is_reached.set()
        assert self.is_gone.wait(60)
        while self._live.num_connections():
            self._live.ask(turn)
        self._live.ask(turn)
        data = b"" if self.is_closed.is_set() else self._encoder.push(pcm)
        self._is_working = False
        return data

    def finish(self) -> Iterator[bytes]:
        return self._encoder.finish()

    def close(self) -> None:
        self.was_freed_at_work = self._is_working
        self.is_closed.set()
        self._encoder.close()


@pytest.mark.parametrize("form", ["mp3", "opus", "flac", "pcm"])
def test_encoder_is_closed_only_after_its_work(
    live: LiveServer, form: SpeechFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[WatchedEncoder] = []

    def watched(form: SpeechFormat) -> Encoder:
        made.append(WatchedEncoder(form, live))
        return made[-1]

    monkeypatch.setattr(speech, "encoder_for", watched)
    client = open_request(live, form)
    while not made:
        threading.Event().wait(0.01)
    assert made[0].is_reached.wait(60)
    client.close()
    made[0].is_gone.set()
    assert made[0].is_closed.wait(60)
    assert not made[0].was_freed_at_work


@pytest.mark.parametrize("form", ["mp3", "opus"])
def test_disconnects_leave_the_service_running(live: LiveServer, form: SpeechFormat) -> None:
    for number in range(HANG_UPS):
        with open_request(live, form) as client:
            for _ in range(1 + number % 3):
                assert client.recv(4096)
    with open_request(live, form) as client:
        assert client.recv(15) == b"HTTP/1.1 200 OK"
