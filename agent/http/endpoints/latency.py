"""`/v1/latency/*` and `/v1/calls`: turns from memory and the store, ended telephone calls, and the
document of any call.

Without a time, a profile, a window or a page the answer comes from memory, which has the newest
turns of this server, those of this moment included. With one, or a replica, it comes from the
store: the database is read on a thread, and has the turns of all servers that share it. Responses
are built on a thread either way: a page of 1000 turns is 3 MB of JSON. Requests take turns, and one
whose client has gone leaves the queue: a summary may take seconds of a processor, and a page that
gives up and asks again would have each of its requests computed, before those of others.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from agent.calls.call_report import document_json
from agent.calls.registry import CallRegistry
from agent.http.auth.authenticator import Authenticator
from agent.http.auth.principal import principal_of
from agent.http.json_body import unless_gone
from agent.http.responses import CLIENT_GONE
from agent.stages.stall_timeout import finished_on_thread
from latency_budget.account.clock import NS_PER_S, iso_of, unix_ns
from latency_budget.account.turn import SessionId
from latency_budget.reporting.replay import states_json
from latency_budget.storage.call_documents import read_document
from latency_budget.storage.call_records import call_json, read_calls
from latency_budget.storage.database import Place, StoreError
from latency_budget.storage.history import profiles_json, turns_json
from latency_budget.storage.store_query import TurnFilter, read_turns, unix_ns_of
from latency_budget.storage.store_schema import StoredTurn
from latency_budget.storage.store_summary import MAX_WINDOW_S, summarize_store

MAX_PAGE: Final = 1000
"""Turns, at about 3 kB."""

DEFAULT_PAGE: Final = 100

Found = TypeVar("Found")

FLUSH_S: Final = 1.0
"""Time limit in s for the newest turns to reach the file."""


class LatencyEndpoints:
    """One instance for all requests."""

    def __init__(self, calls: CallRegistry, access: Authenticator) -> None:
        self._calls = calls
        self._access = access
        self._reading = asyncio.Lock()
        """One query of the store at a time: a client that asks for many waits, and no call does."""
        self._building = asyncio.Lock()
        """One response from memory at a time, likewise."""

    async def summary(self, request: Request) -> Response:
        """Percentiles, by stage, profile and, with `window` (in seconds), stretch of time."""
        params = request.query_params
        try:
            wanted = _filter(params, None)
            window = params.get("window")
            window_s = None if window is None else _whole(window, "window")
            histograms = _flag(params, "histogram")
            if window_s is None and not _needs_store(wanted):
                session = None if wanted.session is None else SessionId(wanted.session)
                entries, policy = self._calls.history.entries(session), self._policy()
                return await self._build(
                    request,
                    lambda: JSONResponse(
                        {
                            **profiles_json(session, entries, histograms=histograms),
                            "policy": policy,
                        }
                    ),
                )
            if window_s is not None:
                wanted = _until_now(wanted, window_s)
            return await self._read(
                request,
                lambda place: JSONResponse(
                    summarize_store(place, wanted, window_s, histograms=histograms)
                ),
            )
        except (ValueError, StoreError, ClientDisconnect) as error:
            return _refused(error)

    def _policy(self) -> dict[str, Any]:
        """Current prediction, and the actions in effect."""
        policy = self._calls.policy
        return {
            "predicted_ms": policy.predicted_ms(),
            "actions": states_json(policy.states()),
        }

    async def turns(self, request: Request) -> Response:
        """The newest turns, oldest first. Where there are older ones, `before` asks for them."""
        params = request.query_params
        try:
            wanted = _filter(params, _count(params.get("limit"), DEFAULT_PAGE, MAX_PAGE))
            if not _needs_store(wanted):
                session = None if wanted.session is None else SessionId(wanted.session)
                limit = wanted.max_turns or DEFAULT_PAGE
                newest = self._calls.history.newest(session, max_turns=limit)
                return await self._build(request, lambda: JSONResponse(turns_json(session, newest)))
            return await self._read(request, lambda place: _page(place, wanted))
        except (ValueError, StoreError, ClientDisconnect) as error:
            return _refused(error)

    async def events(self, request: Request) -> Response:
        """Live events as server-sent events. A stream ends after some minutes."""
        events = self._calls.events
        if events.full:
            return error_response(503, "Too many listen already; try again when one has gone.")
        seen = request.headers.get("last-event-id", "")
        after_id = int(seen) if seen.isascii() and seen.isdigit() and len(seen) < 16 else None
        stream = events.listen(
            session=request.query_params.get("session"),
            after_id=after_id,
            may=partial(self._access.holds, principal_of(request.scope)),
        )
        return StreamingResponse(stream, media_type="text/event-stream")

    async def calls(self, request: Request) -> Response:
        """The newest telephone calls that are over, oldest first."""
        params = request.query_params
        try:
            most = _count(params.get("limit"), DEFAULT_PAGE, MAX_PAGE)
            before = params.get("before")
            before_row = None if before is None else _whole(before, "before")
            if self._calls.store is None:
                raise ValueError(
                    "Calls are not kept here: latency_budget.store is off in the settings."
                )
            look = partial(
                read_calls,
                max_calls=most,
                before_row=before_row,
                replica=params.get("replica"),
            )
            found = await self._read(request, look)
        except (ValueError, StoreError, ClientDisconnect) as error:
            return _refused(error)
        listed = [call_json(row, record) for row, record in found]
        return JSONResponse(
            {"calls": listed, "before": found[0][0] if len(found) == most else None}
        )

    async def call(self, request: Request) -> Response:
        """Document of one call: from memory in progress and just after its end, else from the
        store."""
        session = request.path_params["session_id"]
        if (document := self._calls.document(session)) is not None:
            return Response(document_json(document), media_type="application/json")
        found = None
        if self._calls.store is not None:
            try:
                found = await self._read(request, lambda place: read_document(place, session))
            except (StoreError, ClientDisconnect) as error:
                return _refused(error)
        if found is None:
            return error_response(404, "There is no such call; old ones are forgotten.")
        return Response(found, media_type="application/json")

    async def refusals(self, request: Request) -> Response:
        """Calls that were refused."""
        return JSONResponse(self._calls.refusals.listing())

    async def _build(self, request: Request, build: Callable[[], Response]) -> Response:
        """Build a response from memory on a thread. `build` reads nothing that changes. Raises
        ClientDisconnect."""
        return await unless_gone(request, _in_turn(self._building, build))

    async def _read(self, request: Request, look: Callable[[Place], Found]) -> Found:
        """Run a query of the store on a thread. Raises ClientDisconnect, StoreError; ValueError
        where there is none."""
        store = self._calls.store
        if store is None:
            raise ValueError(
                "Older turns are not kept here: latency_budget.store is off in the settings. Leave "
                "out since, until, profile, agent, replica, window and before to get the newest."
            )

        def flush_and_look() -> Found:
            store.flush(FLUSH_S)
            return look(store.place)

        return await unless_gone(request, _in_turn(self._reading, flush_and_look))


async def _in_turn(turn: asyncio.Lock, work: Callable[[], Found]) -> Found:
    """Run work on a thread, after that of others. Cancelled while it waits it never runs; later,
    the next one waits for its end."""
    async with turn:
        return await finished_on_thread(work)


def _refused(error: Exception) -> Response:
    """Response to a request that can't be answered."""
    if isinstance(error, ClientDisconnect):
        return Response(status_code=CLIENT_GONE)
    # A store that does not answer is no mistake of the client's, who may ask again.
    return error_response(503 if isinstance(error, StoreError) else 400, str(error))


def error_response(status: int, message: str) -> JSONResponse:
    """Error response in OpenAI's shape."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return JSONResponse({"error": {"message": message, "type": kind, "code": None}}, status)


def _needs_store(wanted: TurnFilter) -> bool:
    in_memory = TurnFilter(session=wanted.session, max_turns=wanted.max_turns)
    return wanted != in_memory


def _until_now(wanted: TurnFilter, window_s: int) -> TurnFilter:
    """Without an end, the end of the window of now: turns of a clock that was ahead must not take
    the windows of the others."""
    if wanted.until_unix_ns is not None or not 1 <= window_s <= MAX_WINDOW_S:
        return wanted
    length = window_s * NS_PER_S
    return replace(wanted, until_unix_ns=(unix_ns() // length + 1) * length)


def _filter(params: Mapping[str, str], max_turns: int | None) -> TurnFilter:
    """Raises ValueError with what is wrong, for the client."""
    before = params.get("before")
    return TurnFilter(
        session=params.get("session"),
        profile=params.get("profile"),
        agent=params.get("agent"),
        replica=params.get("replica"),
        since_unix_ns=_time(params, "since"),
        until_unix_ns=_time(params, "until"),
        before_row=None if before is None else _whole(before, "before"),
        max_turns=max_turns,
    )


def _time(params: Mapping[str, str], name: str) -> int | None:
    text = params.get(name)
    try:
        return None if text is None else unix_ns_of(text)
    except ValueError as error:
        raise ValueError(f"{name}: {error}.") from None


def _count(text: str | None, default: int, most: int) -> int:
    if text is None:
        return default
    count = _whole(text, "limit")
    if not 1 <= count <= most:
        raise ValueError(f"limit is between 1 and {most}, not {count}.")
    return count


def _flag(params: Mapping[str, str], name: str) -> bool:
    text = params.get(name, "0")
    if text not in ("0", "1"):
        raise ValueError(f"{name} is 0 or 1, not {text[:40]!r}.")
    return text == "1"


def _whole(text: str, name: str) -> int:
    try:
        number = int(text)
    except ValueError:
        raise ValueError(f"{name} is a whole number, not {text!r}.") from None
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"{name} is out of range: {text[:40]!r}.")
    return number


def _page(place: Place, wanted: TurnFilter) -> Response:
    """Turns of the store. Where there are older ones, `before` is the first one's row."""
    found = read_turns(place, wanted)
    body = turns_json(wanted.session, [(stored.entry, _kept(stored)) for stored in found])
    body["before"] = found[0].row if len(found) == wanted.max_turns else None
    return JSONResponse(body)


def _kept(stored: StoredTurn) -> dict[str, Any]:
    """JSON of a stored turn beside its account."""
    return {
        "row": stored.row,
        "at": iso_of(stored.at_unix_ns),
        "config_fingerprint": stored.fingerprint,
        "replica": stored.replica,
    }
