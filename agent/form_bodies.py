"""Forms with a file in them, from clients that may be slow, greedy or gone.

A body is read as it comes and never held whole: what is more than a megabyte of a file lies on
disk. It must fit, and come within minutes. How many there may be at once is for who calls this.
"""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from starlette.datastructures import FormData
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from llm_engine.errors import RequestError

from .http_requests import RefusedError
from .patience import patience

MAX_FORM_BYTES: Final = 26 << 20
"""OpenAI takes files of 25 MB. That is two hours of MP3 at 28 kbit/s, or 13 minutes of WAV."""

MAX_FIELD_BYTES: Final = 64 << 10
"""Of anything but the file."""

MAX_FIELDS: Final = 64

UPLOAD_TIMEOUT_S: Final = 180.0
"""Until all of it is there: 26 MiB at 1.2 Mbit/s."""


@asynccontextmanager
async def read_form(request: Request) -> AsyncIterator[FormData]:
    """The fields of a multipart body, one file at most among them. Files are open inside.

    Raises RequestError, and ClientDisconnect where the client goes while it sends.
    """
    kind = request.headers.get("content-type", "")
    if kind.partition(";")[0].strip().lower() != "multipart/form-data":
        raise RefusedError(415, "body", "must have Content-Type: multipart/form-data")
    parser = MultiPartParser(
        request.headers,
        _bounded(request),
        max_files=1,
        max_fields=MAX_FIELDS,
        max_part_size=MAX_FIELD_BYTES,
    )
    try:
        async with patience(UPLOAD_TIMEOUT_S):
            form = await parser.parse()
    except TimeoutError:
        raise RefusedError(408, "body", f"did not come within {UPLOAD_TIMEOUT_S:g} s") from None
    except MultiPartException as error:
        raise RequestError("body", f"is no form that can be read: {error.message}") from None
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise RefusedError(503, "file", f"can't be kept here at the moment: {reason}") from None
    try:
        yield form
    finally:
        await form.close()


async def _bounded(request: Request) -> AsyncGenerator[bytes, None]:
    too_large = RefusedError(413, "body", f"is larger than {MAX_FORM_BYTES >> 20} MiB")
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > MAX_FORM_BYTES:
        raise too_large
    received = 0
    async for piece in request.stream():
        received += len(piece)
        if received > MAX_FORM_BYTES:
            raise too_large
        yield piece
