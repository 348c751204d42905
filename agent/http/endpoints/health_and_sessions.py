"""Health, readiness and session endpoints, and the stored data of a session."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import Request
from starlette.responses import (
    FileResponse,
    JSONResponse,
    PlainTextResponse,
    Response,
    StreamingResponse,
)

from agent.calls.registry import CallRegistry
from agent.calls.state_store.store import StateStore
from agent.http.auth.authenticator import Authenticator
from agent.stages.registry import Stages
from agent.stages.stall_timeout import finished_on_thread
from agent.tools.server_tools import ServerTools
from agent.turn_taking.end_of_turn_model import shipped_score
from latency_budget.storage.store_query import unix_ns_of

from .latency import error_response

if TYPE_CHECKING:
    from agent.calls.call_webhooks import CallWebhooks

RECORDING_TYPE: Final = "audio/wav"

CHUNK_BYTES: Final = 1 << 16
"""Size of a chunk of a recording, and least size of one of a trace."""

_FOLDERS: Final = re.compile(r"(?<![\w/:.~])(?:~|\.\.?)?/(?:[^\s/:'\"]+/)*(?=[^\s/:'\"])")
"""The folders of a path within a sentence; addresses (`http://...`) are none."""


_REMOTE: Final = {"llm": "language_model", "asr": "recognizer"}
"""Fields of `/readyz` with the problems of models on other servers, by stage."""


class Endpoints:
    """One instance for all requests."""

    def __init__(
        self,
        stages: Stages,
        calls: CallRegistry,
        access: Authenticator,
        tools: ServerTools | None = None,
        model: Mapping[str, str] | None = None,
        state_store: StateStore | None = None,
        webhooks: "CallWebhooks | None" = None,
    ) -> None:
        """`model`: what answers, and why, for those who ask without a key where none is needed."""
        self._stages = stages
        self._calls = calls
        self._access = access
        self._state_store = state_store
        self._webhooks = webhooks
        self._tools = tools
        self._model = dict(model or {})

    async def healthz(self, request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(self, request: Request) -> Response:
        status = "draining" if self._calls.draining else self._stages.status
        body: dict[str, Any] = {
            "status": status,
            "stages": {n: self._shown(text) for n, text in self._stages.progress().items()},
            "calls": len(self._calls),
            "needs_key": self._access.closed,
        }
        if self._model and not self._access.closed:
            body["model"] = self._model
        calls = self._calls
        beside = {
            "store": calls.store,
            "exporter": calls.exporter,
            "recorder": calls.recorder,
            "tools": self._tools,
            "webhooks": self._webhooks,
            "end_of_turn": shipped_score(),
        }
        problems: dict[str, Any] = {}
        for name, part in beside.items():
            if part and (problem := part.problem):
                problems[name] = (
                    self._shown(problem)
                    if isinstance(problem, str)
                    else {each: self._shown(why) for each, why in problem.items()}
                )
        if self._state_store is not None and (problem := self._state_store.problem) is not None:
            problems["state_store"] = self._shown(problem)
        for name, why in self._stages.remote_problems().items():
            kind, _, voice = name.partition(" ")
            if voice:
                problems.setdefault("voices", {})[voice] = self._shown(why)
            else:
                problems[_REMOTE[kind]] = self._shown(why)
        if calls.store and (notice := calls.store.notice):
            problems.setdefault("store", self._shown(notice))
        body |= problems
        if status == "ready":
            return JSONResponse({**body, "status": "degraded"} if problems else body)
        return JSONResponse(body, status_code=503, headers={"Retry-After": "2"})

    def _shown(self, text: str) -> str:
        """Text without the directories of this machine and the address of the database: it is read
        without a key."""
        store, recorder = self._calls.store, self._calls.recorder
        folders = []
        if store is not None and isinstance(store.place, Path):
            folders.append(store.place.parent)
        elif store is not None:
            text = text.replace(str(store.place), "the database of turns")
        if recorder is not None:
            folders.append(recorder.directory)
        return without_folders(text, folders)

    async def sessions(self, request: Request) -> Response:
        return JSONResponse({"sessions": self._calls.listing()})

    async def trace(self, request: Request) -> Response:
        trace = self._calls.traces.of(request.path_params["session_id"])
        if trace is None:
            return error_response(404, "There is no trace of this session; old ones are forgotten.")
        return StreamingResponse(_encoded(trace.lines()), media_type="application/jsonl")

    async def recording(self, request: Request) -> Response:
        """A call as a stereo file, or a part of it (`Range`). One in progress as far as it is."""
        recorder = self._calls.recorder
        if recorder is None:
            return error_response(
                404, "Calls are not recorded here: agent.record_dir is not set in the settings."
            )
        session, at = request.path_params["session_id"], request.query_params.get("at")
        try:
            at_unix_ns = None if at is None else unix_ns_of(at)
        except ValueError as error:
            return error_response(400, f"at: {error}")
        found = await asyncio.to_thread(recorder.find, session, at_unix_ns)
        if found is None:
            return error_response(
                404,
                "There is no recording of this session: it has no sound yet, could not be "
                "recorded, or is older than agent.record_days.",
            )
        path, status = found
        headers = {"content-disposition": f'inline; filename="{path.name}"'}
        if recorder.is_open(path) and "range" not in request.headers:
            length = {**headers, "content-length": str(status.st_size)}
            part = _beginning(path, status.st_size)
            return StreamingResponse(part, media_type=RECORDING_TYPE, headers=length)
        return FileResponse(path, headers=headers, media_type=RECORDING_TYPE, stat_result=status)


def without_folders(text: str, folders: Sequence[Path] = ()) -> str:
    """The text with the last part of each absolute path only. `folders`: known ones, which may
    have spaces in their names."""
    for folder in sorted(folders, key=lambda each: -len(str(each))):
        text = text.replace(f"{folder}/", "").replace(str(folder), folder.name)
    return _FOLDERS.sub("", text)


async def _encoded(lines: Iterator[str]) -> AsyncIterator[str]:
    """Lines that a thread encodes, in chunks: a trace has up to 20,000."""
    while chunk := await finished_on_thread(partial(_chunk, lines)):
        yield chunk


def _chunk(lines: Iterator[str]) -> str:
    taken: list[str] = []
    num_chars = 0
    while num_chars < CHUNK_BYTES and (line := next(lines, "")):
        taken.append(line)
        num_chars += len(line)
    return "".join(taken)


async def _beginning(path: Path, num_bytes: int) -> AsyncIterator[bytes]:
    """First bytes of a file, which may grow meanwhile, in chunks."""
    with await asyncio.to_thread(path.open, "rb") as file:
        while num_bytes > 0:
            chunk = await finished_on_thread(partial(file.read, min(num_bytes, CHUNK_BYTES)))
            if not chunk:
                return
            num_bytes -= len(chunk)
            yield chunk
