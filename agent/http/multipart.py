"""Multipart forms with an uploaded file: size, field and time limits.

A body is read as it comes and never held whole: what is more than a megabyte of a file lies on
disk. It must fit, come within minutes, and at a rate that no working network falls below. The
calling endpoint limits how many run at once.
"""

import asyncio
import logging
import shutil
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO, Final

from python_multipart.multipart import parse_options_header
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from agent.stages.stall_timeout import finished_on_thread, stall_timeout
from llm_engine.errors import RequestError

from .json_body import RefusedError

MAX_FORM_BYTES: Final = 26 << 20
"""OpenAI takes files of 25 MB. That is two hours of MP3 at 28 kbit/s, or 13 minutes of WAV."""

MAX_FIELD_BYTES: Final = 64 << 10
"""Largest field other than the file, in bytes."""

MAX_FIELDS: Final = 64

CHARSETS: Final = ("utf-8", "utf8", "us-ascii", "iso-8859-1", "latin-1", "latin1")
"""Accepted charsets of a form's text fields. Python knows a hundred more: some take seconds
for a field, on the event loop, some give what is no text (halves of surrogate
pairs), some raise unexpected errors."""

UPLOAD_TIMEOUT_S: Final = 180.0
"""Seconds until the form must be complete: 26 MiB at 1.2 Mbit/s."""

MIN_UPLOAD_RATE: Final = 4 << 10
"""Bytes a second that must come, counted from the beginning and after `GRACE_S`. A throttled mobile
network (64 kbit/s) has twice as much; a client that announces a file and sends nothing, or a byte
at a time, would hold a place for `UPLOAD_TIMEOUT_S`."""

GRACE_S: Final = 10.0
"""Seconds without a minimum: a proxy may hold the first megabyte back."""

RATE_CHECKS: Final = 20
"""Checks of the rate within `GRACE_S`."""

# It warns of every malformed form: any client could fill the log. The client gets the error.
logging.getLogger("python_multipart").setLevel(logging.CRITICAL)


@asynccontextmanager
async def read_form(
    request: Request, max_bytes: int = MAX_FORM_BYTES, timeout_s: float | None = None
) -> AsyncIterator[FormData]:
    """Read the fields of a multipart body, with one file at most. Files are open inside.
    `max_bytes`: of the whole body. `timeout_s`: until it must be complete; None:
    `UPLOAD_TIMEOUT_S`.

    Raises RequestError, and ClientDisconnect when the client disconnects while sending.
    """
    kind = request.headers.get("content-type", "")
    if kind.partition(";")[0].strip().lower() != "multipart/form-data":
        raise RefusedError(415, "body", "must have Content-Type: multipart/form-data")
    _check_charset(kind)
    timeout_s = UPLOAD_TIMEOUT_S if timeout_s is None else timeout_s
    arrived = _Arrived()
    parser = _FormParser(
        request.headers,
        _bounded(request, arrived, max_bytes),
        max_files=1,
        max_fields=MAX_FIELDS,
        max_part_size=MAX_FIELD_BYTES,
    )
    try:
        async with stall_timeout(timeout_s), _minimum_rate(arrived):
            form = await parser.parse()
    except TimeoutError:
        if arrived.is_too_slow:
            rate = f"{MIN_UPLOAD_RATE >> 10} KiB a second"
            raise RefusedError(408, "body", f"came too slowly: {rate} are needed") from None
        raise RefusedError(408, "body", f"did not come within {timeout_s:g} s") from None
    except MultiPartException as error:
        raise RequestError("body", f"is no form that can be read: {error.message}") from None
    except OSError as error:
        raise _no_room(error) from None
    try:
        yield form
    finally:
        await form.close()


class _FormParser(MultiPartParser):
    """Refuses a body that ends before its last boundary: starlette drops the part in which it ends,
    and leaves that part's file open."""

    _is_whole = False

    def on_end(self) -> None:
        self._is_whole = True

    async def parse(self) -> FormData:
        form = await super().parse()
        if not self._is_whole:
            for file in self._files_to_close_on_error:
                file.close()
            raise MultiPartException("it ends before its last boundary")
        return form


def _check_charset(content_type: str) -> None:
    # The parser that starlette uses, so that both see the same charset.
    charset = parse_options_header(content_type)[1].get(b"charset", b"utf-8").decode("latin-1")
    if charset.lower() not in CHARSETS:
        problem = f"has the charset {charset[:40]!r}, which is not read here; send it as UTF-8"
        raise RefusedError(415, "body", problem)


@asynccontextmanager
async def on_disk(upload: UploadFile) -> AsyncIterator[Path]:
    """Copy an upload to a named file, which exists as long as the context lasts. Raises
    RequestError."""
    with TemporaryDirectory(prefix="halfsec-", ignore_cleanup_errors=True) as folder:
        path = Path(folder, "upload")
        try:
            await finished_on_thread(partial(_copy, upload.file, path))
        except OSError as error:
            raise _no_room(error) from None
        yield path


def _copy(file: BinaryIO, path: Path) -> None:
    with path.open("wb") as target:
        shutil.copyfileobj(file, target)


def _no_room(error: OSError) -> RefusedError:
    reason = error.strerror or type(error).__name__
    return RefusedError(503, "file", f"can't be kept here at the moment: {reason}")


@dataclass(slots=True)
class _Arrived:
    """What has come of an upload."""

    num_bytes: int = 0
    is_too_slow: bool = False


@asynccontextmanager
async def _minimum_rate(arrived: _Arrived) -> AsyncIterator[None]:
    """Cancel the body and raise TimeoutError once too little has arrived. Time counts while the
    event loop turns, as for `stall_timeout`."""
    loop = asyncio.get_running_loop()
    step_s = GRACE_S / RATE_CHECKS
    timer: asyncio.TimerHandle | None = None

    def check(count: int) -> None:
        nonlocal timer
        if arrived.num_bytes < MIN_UPLOAD_RATE * (count - RATE_CHECKS) * step_s:
            arrived.is_too_slow = True
            limit.reschedule(loop.time())
        else:
            timer = loop.call_later(step_s, check, count + 1)

    async with asyncio.timeout(None) as limit:
        check(0)
        try:
            yield
        finally:
            if timer is not None:
                timer.cancel()


async def _bounded(
    request: Request, arrived: _Arrived, max_bytes: int
) -> AsyncGenerator[bytes, None]:
    too_large = RefusedError(413, "body", f"is larger than {max_bytes >> 20} MiB")
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > max_bytes:
        raise too_large
    async for piece in request.stream():
        arrived.num_bytes += len(piece)
        if arrived.num_bytes > max_bytes:
            raise too_large
        yield piece
