"""`POST /v1/audio/transcriptions`: OpenAI's transcription endpoint, on the calls' recognizer.

Calls go first (`offline_transcription.py`). The file is never held whole in memory, and what it
decodes to is bounded while it is decoded.
"""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, aclosing
from typing import Any, Final

from starlette.datastructures import FormData, UploadFile
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

import asr
from agent.config.schema import Config
from agent.errors import StageError
from agent.http.auth.principal import client_of
from agent.http.json_body import RefusedError, unless_gone
from agent.http.multipart import on_disk, read_form
from agent.http.refusal import error_body
from agent.http.responses import WorkStream, event, guarded
from agent.stages.model_thread import OFFLINE
from agent.stages.registry import Stages
from asr.audio.files import FileLimits
from llm_engine.errors import RequestError

from . import transcription_response as answers
from .concurrency_limit import ConcurrencyLimit
from .offline_transcription import OFFLINE_TIMEOUT_S, FileTranscription
from .segments import Passage
from .transcription_request import TranscriptionRequest, parse_transcription

_MEDIA_TYPES: Final = {"text": "text/plain", "srt": "application/x-subrip", "vtt": "text/vtt"}


class Transcriptions:
    """One instance for all requests."""

    def __init__(self, config: Config, stages: Stages) -> None:
        self._language = config.asr.language
        self._limits = FileLimits(max_s=config.asr.max_file_s)
        self._stages = stages
        self._places = ConcurrencyLimit()

    async def serve(self, request: Request) -> Response:
        return await guarded(self._serve(request))

    async def _serve(self, request: Request) -> Response:
        if self._stages.remote_asr is not None:
            raise RefusedError(501, "model", "is on another server, which has this API")
        if self._stages.status != "ready":
            raise RefusedError(503, "model", "is still loading; try again shortly")
        async with AsyncExitStack() as stack:
            stack.enter_context(self._places.take(client_of(request.scope)))
            form = await stack.enter_async_context(read_form(request))
            file = _file(form)
            asked = parse_transcription(
                (name, value) for name, value in form.multi_items() if isinstance(value, str)
            )
            work = FileTranscription(
                self._stages.detector,
                self._stages.recognizer,
                asr.TranscriptionOptions(await self._checked(asked.language), asked.prompt),
                with_words=asked.timed,
            )
            path = await stack.enter_async_context(on_disk(file))
            passages = await stack.enter_async_context(aclosing(work.passages(path, self._limits)))
            # Refusals come before the first words.
            first = await unless_gone(request, _next(passages))
            if asked.stream:
                return WorkStream(_events(first, passages, work), stack.pop_all())
            return await unless_gone(request, self._whole(asked, first, passages, work))

    async def _checked(self, language: str | None) -> str | None:
        """Raises RequestError for a language that the recognizer does not know."""
        if language is None or language == self._language:
            return language
        known = await self._stages.recognizer.call(
            lambda recognizer: recognizer.languages, timeout_s=OFFLINE_TIMEOUT_S, priority=OFFLINE
        )
        if language in known:
            return language
        shown = ", ".join(known[:8]) + (", ..." if len(known) > 8 else "")
        raise RequestError(
            "language", f"is not one that the recognizer of this server knows; it knows {shown}"
        )

    async def _whole(
        self,
        asked: TranscriptionRequest,
        first: Passage | None,
        passages: AsyncGenerator[Passage, None],
        work: FileTranscription,
    ) -> Response:
        found = [] if first is None else [first]
        while (passage := await _next(passages)) is not None:
            found.append(passage)
        num_samples = work.num_samples
        if asked.answer == "json":
            num_prompt_tokens = await work.num_prompt_tokens()
            return JSONResponse(answers.plain_json(found, num_samples, num_prompt_tokens))
        if asked.answer == "verbose_json":
            language = asked.language or self._language
            return JSONResponse(answers.verbose_json(found, num_samples, language, asked))
        media_type = _MEDIA_TYPES[asked.answer]
        if asked.answer == "text":
            return PlainTextResponse(answers.joined(found) + "\n", media_type=media_type)
        text = answers.subtitles(found, as_vtt=asked.answer == "vtt")
        return PlainTextResponse(text, media_type=media_type)


def _file(form: FormData) -> UploadFile:
    """Raises RequestError where there is none."""
    file = form.get("file")
    if isinstance(file, UploadFile):
        return file
    problem = "must be a file, not a text field" if file is not None else "is missing"
    raise RequestError("file", f"{problem}; send the recording as a part with a filename")


async def _next(passages: AsyncGenerator[Passage, None]) -> Passage | None:
    """Raises RequestError for a file that can't be read on, and StageError."""
    try:
        return await anext(passages, None)
    except asr.AudioError as error:
        raise RequestError("file", str(error).removeprefix("file: ")) from None


async def _events(
    first: Passage | None, passages: AsyncGenerator[Passage, None], work: FileTranscription
) -> AsyncIterator[str]:
    found: list[Passage] = []
    passage = first
    try:
        while passage is not None:
            yield event(answers.delta(passage, is_first=not found))
            found.append(passage)
            passage = await _next(passages)
        num_prompt_tokens = await work.num_prompt_tokens()
    except (RequestError, StageError) as error:
        broken: dict[str, Any] = error_body(error, is_clients=isinstance(error, RequestError))
        yield event({"type": "error", **broken})
        return
    yield event(answers.done(found, work.num_samples, num_prompt_tokens))
