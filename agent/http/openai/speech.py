"""`POST /v1/audio/speech`: OpenAI's speech endpoint, by the calls' voices.

The answer is sent while it is made: its first bytes leave with the first piece. Calls go first, and
the work for a client that has gone stops within a sentence (`offline_synthesis.py`).
"""

import base64
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, aclosing, closing
from functools import partial
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from agent.config.remote_models import shown_model
from agent.config.schema import Config
from agent.errors import ClientError, StageError
from agent.http.auth.principal import client_of
from agent.http.json_body import JsonBodies, RefusedError, unless_gone
from agent.http.refusal import error_body
from agent.http.responses import WorkStream, event, guarded
from agent.stages.registry import Stages
from agent.stages.speech_output import VoiceStage
from agent.stages.stall_timeout import finished_on_thread
from llm_engine.errors import RequestError

from .audio_encoding import MEDIA_TYPES, RATE_HZ, encoder_for
from .concurrency_limit import ConcurrencyLimit
from .offline_synthesis import read_aloud
from .speech_request import SpeechRequest, parse_speech

TOKENS_PER_S: Final = 50
"""Tokens of audio a second in the usage, as for transcriptions."""

MAX_EVENT_BYTES: Final = 48_000
"""Bytes of audio in one event: a second of PCM."""


class SpeechEndpoint:
    """One instance for all requests."""

    def __init__(self, config: Config, stages: Stages, bodies: JsonBodies) -> None:
        self._voice = shown_model(config.tts.voice)
        self._stages = stages
        self._bodies = bodies
        self._places = ConcurrencyLimit()

    async def serve(self, request: Request) -> Response:
        return await guarded(self._serve(request))

    async def _serve(self, request: Request) -> Response:
        if self._stages.status != "ready":
            raise RefusedError(503, "model", "is still loading; try again shortly")
        async with AsyncExitStack() as stack:
            async with self._bodies.read(request) as body:
                asked = parse_speech(body)
            stack.enter_context(self._places.take(client_of(request.scope)))
            spoken = Spoken(asked)
            sounds = spoken.sounds(self._stage(asked))
            await stack.enter_async_context(aclosing(sounds))
            # Refusals come before the first sound.
            first = await unless_gone(request, anext(sounds))
            work = stack.pop_all()
            if asked.as_events:
                return WorkStream(_events(first, sounds, spoken), work)
            return WorkStream(_bytes(first, sounds), work, MEDIA_TYPES[asked.form])

    def _stage(self, asked: SpeechRequest) -> VoiceStage:
        """Raises RequestError, and RefusedError for a voice on another server."""
        try:
            voice = self._stages.voice_stage(asked.voice or self._voice)
        except ClientError as error:
            raise RequestError("voice", error.message) from None
        if not isinstance(voice, VoiceStage):
            raise RefusedError(501, "voice", "is on another server, which has this API")
        return voice


class Spoken:
    """The audio of one request."""

    def __init__(self, asked: SpeechRequest) -> None:
        self._asked = asked
        self._num_samples = 0

    async def sounds(self, voice: VoiceStage) -> AsyncGenerator[bytes, None]:
        """Encoded, as soon as some is complete. Raises StageError, and RequestError for a text
        without words."""
        with closing(encoder_for(self._asked.form)) as encoder:
            try:
                async with aclosing(read_aloud(voice, self._asked.text, self._asked.speed)) as pcm:
                    async for samples in pcm:
                        if not len(samples):
                            continue  # not even a header: the text may hold no words at all
                        self._num_samples += len(samples)
                        if data := await finished_on_thread(partial(encoder.push, samples)):
                            yield data
            except ClientError as error:
                raise RequestError("input", error.message) from None
            if not self._num_samples:
                raise RequestError("input", "holds nothing that can be spoken; give it words")
            rest = encoder.finish()
            while data := await finished_on_thread(partial(next, rest, b"")):
                yield data

    @property
    def usage(self) -> dict[str, int]:
        """Characters of the text, and fiftieths of a second."""
        given = len(self._asked.text)
        made = -(-self._num_samples * TOKENS_PER_S // RATE_HZ)
        return {"input_tokens": given, "output_tokens": made, "total_tokens": given + made}


async def _bytes(first: bytes, sounds: AsyncGenerator[bytes, None]) -> AsyncIterator[bytes]:
    """A stream that breaks off is cut short: there is no other way to tell of an error."""
    yield first
    async for data in sounds:
        yield data


async def _events(
    first: bytes, sounds: AsyncGenerator[bytes, None], spoken: Spoken
) -> AsyncIterator[str]:
    data: bytes | None = first
    try:
        while data is not None:
            for start in range(0, len(data), MAX_EVENT_BYTES):
                audio = base64.b64encode(data[start : start + MAX_EVENT_BYTES]).decode()
                yield event({"type": "speech.audio.delta", "audio": audio})
            data = await anext(sounds, None)
    except (RequestError, StageError) as error:
        broken: dict[str, Any] = error_body(error, is_clients=isinstance(error, RequestError))
        yield event({"type": "error", **broken})
        return
    yield event({"type": "speech.audio.done", "usage": spoken.usage})
