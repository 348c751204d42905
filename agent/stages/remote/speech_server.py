"""A server of voices with OpenAI's HTTP API: speech as it comes.

A piece of text is one request (`POST /audio/speech`, PCM). Closing the stream closes the
connection, and the server stops. No more is read ahead than the system's buffers hold, so a server
that is faster than the caller listens waits. Tries and health: `api_server.py`. The probe while it
fails is a short text; while it works, the list of models.
"""

import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

import numpy as np
import numpy.typing as npt

from agent.config.remote_models import RemoteModel
from agent.stages.stall_timeout import stall_timeout

from .api_server import ApiServer, ServerOptions, pieces_of
from .pcm_reader import PcmReader
from .remote_error import RemoteError

SPEECH_PATH: Final = "/audio/speech"

REQUESTS_PER_CALL: Final = 2
"""A reply's piece, and one of the reply that is prepared behind it."""

KINDS: Final = (
    *("audio/pcm", "audio/wav", "audio/x-wav", "audio/wave", "audio/vnd.wave", "audio/raw"),
    "application/octet-stream",
)
"""Media types of what is read; what it is the first bytes say."""

GATHERED_MS: Final = 10
"""Audio that is gathered from pieces that are shorter; servers send 20 ms and more at a time. Each
costs work that does not depend on its length, and a server may send one sample at a time. Longer:
the first sound of one that sends short pieces comes later."""

BYTES_PER_SAMPLE: Final = 2

PROBE_TEXT: Final = "Hello."

_RATE: Final = re.compile(r";\s*(?:sample_?)?rate\s*=\s*\"?([0-9]{1,7})", re.IGNORECASE)

Samples = tuple[npt.NDArray[np.int16], int]
"""int16 [n], and their rate in Hz."""


class SpeechServer:
    """One voice of a server. Belongs to one event loop; shared by all calls."""

    def __init__(
        self, voice: RemoteModel, options: ServerOptions, model: str, rate_hz: int
    ) -> None:
        """`model`: what the server calls the model; `rate_hz`: of its PCM, where it says none."""
        self.voice = voice
        self._api = ApiServer("speech server", voice, options, REQUESTS_PER_CALL)
        self._rate_hz = rate_hz
        self._timeout_s = options.timeout_s
        self._fields = {"model": model, "voice": voice.name, "response_format": "pcm"}
        self._fields |= options.extra_body

    @property
    def problem(self) -> str | None:
        """Why the server can't be used at present; None: it can."""
        return self._api.problem

    async def watch(self) -> None:
        """Check the server until cancelled."""
        await self._api.watch(self._probe)

    async def close(self) -> None:
        await self._api.close()

    async def speak(
        self, text: str, speed: float = 1.0, *, is_last_resort: bool
    ) -> AsyncGenerator[Samples, None]:
        """Stream the speech of a text; each item has samples. `speed` is OpenAI's, and sent only
        where it is not 1.

        Raises RemoteError. `is_last_resort` False: another voice can speak instead, so there is no
        waiting for a server that is full.
        """

        async def attempt() -> tuple[AsyncGenerator[Samples, None], Samples]:
            stream = self._stream(text, speed)
            first = await anext(stream, None)
            if first is None:
                raise RemoteError("sent no audio", "passing")
            return stream, first

        try:
            stream, first = await self._api.opened(
                attempt, self._timeout_s, "sound", is_last_resort=is_last_resort
            )
        except RemoteError as error:
            self._api.failed(error)
            raise
        self._api.works()
        try:
            async with aclosing(stream):
                following: Samples | None = first
                while following is not None:
                    yield following
                    async with stall_timeout(self._timeout_s):
                        following = await anext(stream, None)
        except TimeoutError:
            silent = RemoteError(f"sent nothing for {self._timeout_s:g} s in the middle of speech")
            self._api.failed(silent)
            raise silent from None
        except RemoteError as error:
            self._api.failed(error)
            raise

    def failed(self, reason: str) -> RemoteError:
        """Note that what came was no speech; returns the error for it."""
        error = RemoteError(reason)
        self._api.failed(error)
        return error

    async def _stream(self, text: str, speed: float = 1.0) -> AsyncGenerator[Samples, None]:
        """One try. Raises RemoteError."""
        fields: dict[str, object] = {**self._fields, "input": text}
        if speed != 1.0:
            fields["speed"] = speed
        async with self._api.answer(SPEECH_PATH, KINDS, json=fields) as response:
            said = _RATE.search(response.headers.get("content-type", ""))
            reader = PcmReader(int(said[1]) if said else self._rate_hz)
            held = bytearray()
            async with aclosing(pieces_of(response)) as pieces:
                async for piece in pieces:
                    held += piece
                    if len(held) < reader.rate_hz * BYTES_PER_SAMPLE * GATHERED_MS // 1000:
                        continue
                    samples = reader.push(bytes(held))
                    held.clear()
                    if len(samples):
                        yield samples, reader.rate_hz
            samples = reader.push(bytes(held))
            if len(samples):
                yield samples, reader.rate_hz

    async def _probe(self) -> bool:
        if self._api.problem is None:
            await self._api.list_models()
            return False
        async with aclosing(self._stream(PROBE_TEXT)) as stream:
            if await anext(stream, None) is None:
                raise RemoteError("sent no audio")
            async for _ in stream:  # to its end, so that the connection can be kept
                pass
        return True
