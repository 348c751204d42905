"""A recognizer's server with OpenAI's HTTP API: recordings by upload, Realtime sessions, health.

A recording is one request (`POST /audio/transcriptions`, a WAV file). Realtime transcription
sessions are WebSockets (`/realtime?intent=transcription`), one for each call, which get the audio
while the caller speaks (`transcription_session.py`); with "auto" a session is opened and closed
at the start to find out whether the server has them. Tries and health of requests: `api_server.py`.
The probe while the server fails is a short recording; while it works, the list of models.
"""

import contextlib
import io
import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, Literal
from urllib.parse import urlsplit, urlunsplit

import numpy as np
import soundfile
import websockets.asyncio.client as websockets_client
from websockets.exceptions import (
    ConnectionClosed,
    ConnectionClosedOK,
    InvalidStatus,
    WebSocketException,
)
from websockets.typing import Subprotocol

import asr
from agent.config.local_urls import is_loopback
from agent.config.remote_models import RemoteModel
from agent.stages.stall_timeout import stall_timeout

from .api_server import ApiServer, ServerOptions, read_body
from .completion_chunks import read_object
from .event_stream import MAX_EVENT_BYTES, MalformedStreamError
from .remote_error import ErrorKind, RemoteError
from .transcription_session import MAX_TEXT_CHARS, FailedSessionError, TranscriptionSession

UPLOAD_PATH: Final = "/audio/transcriptions"
SESSION_PATH: Final = "/realtime"

REQUESTS_PER_CALL: Final = 3
"""The newest final pass, an early pass or a segment, and one whose connection is being closed."""

SUBPROTOCOLS: Final = (Subprotocol("halfsec.v1"), Subprotocol("realtime"))
"""The first is that of another instance of this service, which then sends words of the open
buffer."""

OPEN_TIMEOUT_S: Final = 5.0
"""Time for a handshake and the answer to the session's settings."""

CLOSE_TIMEOUT_S: Final = 1.0

MAX_MESSAGE_BYTES: Final = 1 << 20
"""Longest message of the server. The words of a pass have some hundred bytes."""

MAX_WAITING: Final = 64
"""Messages that were received and not read."""

Transport = Literal["auto", "realtime", "upload"]
_log = logging.getLogger(__name__)
_socket_log = logging.getLogger(f"{__name__}.socket")
_socket_log.setLevel(logging.WARNING)  # below, websockets logs the headers, and with them the key


class _Connect(websockets_client.connect):
    """A connection that follows no redirect: it would take the key to another server."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


class TranscriptionServer:
    """One recognizer of a server. Belongs to one event loop; shared by all calls."""

    def __init__(
        self, model: RemoteModel, options: ServerOptions, language: str, transport: Transport
    ) -> None:
        self.timeout_s = options.timeout_s
        self._api = ApiServer("recognition server", model, options, REQUESTS_PER_CALL)
        self._model = model
        self.language = language
        """Language of calls that ask for no other."""
        self._transport = transport
        self._is_tried = transport != "auto"
        """It is known whether the server has Realtime sessions."""
        self.has_sessions = transport == "realtime"
        """The server has Realtime transcription sessions, as far as known."""
        self._session_problem: str | None = None

    @property
    def problem(self) -> str | None:
        """Why the server can't be used at present, or not as fast as it could; None: it can."""
        if self._api.problem is not None or self._session_problem is None:
            return self._api.problem
        return f"the recognition server opens no Realtime session: it {self._session_problem}"

    @property
    def is_down(self) -> bool:
        """The last request failed."""
        return self._api.problem is not None

    async def start(self) -> None:
        """Make the first requests, which find out whether the server has Realtime sessions. One
        that does not answer is no failure of this service: `problem` says so."""
        await self._api.probed(self._first_probe)

    async def watch(self) -> None:
        """Check the server until cancelled."""
        await self._api.watch(self._probe)

    async def close(self) -> None:
        await self._api.close()

    async def transcribe(
        self, pcm: asr.Pcm, timeout_s: float, *, is_last_resort: bool, language: str = ""
    ) -> str:
        """Words of float32 [n] at 16 kHz, by an upload. Raises RemoteError. `is_last_resort` False:
        another recognizer can answer instead, so there is no waiting for a server that is full.
        `language`: a code; empty: the server's own."""
        recording = wav_of(pcm)
        try:
            text = await self._api.opened(
                lambda: self._uploaded(recording, language),
                timeout_s,
                "words",
                is_last_resort=is_last_resort,
            )
        except RemoteError as error:
            self._api.failed(error)
            raise
        self._api.works()
        return text

    @asynccontextmanager
    async def session(
        self, language: str = ""
    ) -> AsyncIterator[tuple[websockets_client.ClientConnection, TranscriptionSession]]:
        """Open a Realtime session that has taken its settings. Raises RemoteError, also for what
        goes wrong in the body of the context."""
        try:
            async with self._session(language) as opened:
                self.session_works()
                yield opened
        except RemoteError as error:
            self.session_failed(error)
            raise

    def session_failed(self, error: RemoteError) -> None:
        """Note that a Realtime session could not be opened, or broke. One that the server has
        closed, as many do when nobody speaks, is no failure."""
        if error.kind == "late":
            return
        if self._session_problem != error.reason:
            _log.warning("a Realtime session of %s failed: it %s", self._model, error.reason)
        self._session_problem = error.reason

    def session_works(self) -> None:
        self._session_problem = None

    def passed(self) -> None:
        """Note that a Realtime session brought words."""
        self._session_problem = None
        self._api.works()

    # --- requests ---

    async def _uploaded(self, recording: bytes, language: str = "") -> str:
        """One try. Raises RemoteError."""
        fields = {
            "model": self._model.name,
            "language": language or self.language,
            "response_format": "json",
            "temperature": "0",
        }
        files = {"file": ("speech.wav", recording, "audio/wav")}
        async with self._api.answer(
            UPLOAD_PATH, ("application/json",), data=fields, files=files
        ) as response:
            answer = read_object(await read_body(response, MAX_EVENT_BYTES))
        text = answer.get("text")
        if not isinstance(text, str) or len(text) > MAX_TEXT_CHARS:
            raise RemoteError("sent an answer without a text that could be one")
        return text.strip()

    @asynccontextmanager
    async def _session(
        self, language: str = ""
    ) -> AsyncIterator[tuple[websockets_client.ClientConnection, TranscriptionSession]]:
        parts = urlsplit(self._model.url)
        scheme = "wss" if parts.scheme == "https" else "ws"
        path = parts.path + SESSION_PATH
        address = urlunsplit((scheme, parts.netloc, path, "intent=transcription", ""))
        session = TranscriptionSession(self._model.name, language or self.language)
        try:
            async with _Connect(
                address,
                logger=_socket_log,
                subprotocols=SUBPROTOCOLS,
                additional_headers=dict(self._api.headers),
                compression=None,
                max_size=MAX_MESSAGE_BYTES,
                max_queue=MAX_WAITING,
                open_timeout=OPEN_TIMEOUT_S,
                close_timeout=CLOSE_TIMEOUT_S,
                proxy=None if is_loopback(parts.hostname or "") else True,
            ) as socket:
                async with stall_timeout(OPEN_TIMEOUT_S):
                    await socket.send(session.configuration())
                    while not session.is_ready:
                        session.receive(await socket.recv())
                yield socket, session
        except TimeoutError:
            raise RemoteError(f"opened no session within {OPEN_TIMEOUT_S:g} s") from None
        except MalformedStreamError as error:
            raise RemoteError(str(error)) from None
        except FailedSessionError as error:
            raise RemoteError(f"reports: {self._api.shown(str(error))}") from None
        except InvalidStatus as error:
            raise self._api.refusal(error.response.status_code) from None
        except ConnectionClosed as closed:
            is_polite = isinstance(closed, ConnectionClosedOK)
            kind: ErrorKind = "late" if is_polite else "passing"
            raise RemoteError(f"hung up{self._why(closed)}", kind) from None
        except (WebSocketException, ssl.SSLError):
            raise RemoteError("speaks no WebSocket at this address") from None
        except OSError:
            raise RemoteError("can't be reached", "passing") from None

    def _why(self, closed: ConnectionClosed) -> str:
        close = closed.sent if closed.rcvd is None else closed.rcvd
        if close is None:
            return ""
        said = self._api.shown(close.reason)
        return f" ({close.code}{f': {said}' if said else ''})"

    # --- health ---

    async def _first_probe(self) -> bool:
        if not self._is_tried:
            try:
                async with self._session():
                    self._is_tried = self.has_sessions = True
            except RemoteError as error:
                # One that is full, or gone, is asked again.
                self._is_tried = error.kind not in ("full", "passing")
                _log.info("no Realtime session at %s: it %s", self._model, error.reason)
        await self._recognize_nothing()
        return True

    async def _probe(self) -> bool:
        if not self._is_tried:
            return await self._first_probe()
        if self._session_problem is not None:  # there may be no call that opens one
            with contextlib.suppress(RemoteError):
                async with self._session():
                    self.session_works()
        if self._api.problem is None:
            await self._api.list_models()
            return False
        await self._recognize_nothing()
        return True

    async def _recognize_nothing(self) -> None:
        """A request such as calls make, of half a second of silence. Raises RemoteError."""
        await self._uploaded(wav_of(np.zeros(asr.RATE_HZ // 2, np.float32)))


def wav_of(pcm: asr.Pcm) -> bytes:
    """float32 [n] at 16 kHz as a WAV file of 16-bit samples."""
    file = io.BytesIO()
    samples = np.frombuffer(asr.float32_to_pcm16(pcm), "<i2")
    soundfile.write(file, samples, asr.RATE_HZ, format="WAV", subtype="PCM_16")
    return file.getvalue()
