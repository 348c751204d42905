"""A trace over HTTP: the records of one moment, in large chunks."""

from typing import cast

import pytest
from starlette.requests import Request
from starlette.responses import StreamingResponse

from agent.calls.registry import CallRegistry
from agent.config.schema import Config
from agent.http.auth.authenticator import Authenticator
from agent.http.endpoints.health_and_sessions import CHUNK_BYTES, Endpoints
from agent.stages.registry import Stages
from latency_budget.account.clock import ManualClock
from latency_budget.account.turn import SessionId


@pytest.mark.parametrize("num_records", [0, 3000])
async def test_a_trace_comes_in_chunks_and_as_it_was(num_records: int) -> None:
    calls = CallRegistry(Config(), ManualClock())
    trace = calls.admit(SessionId("sess_a"), "default").trace
    for at_ns in range(num_records):
        trace.append(at_ns, "mark", 1, "released")
    endpoints = Endpoints(cast(Stages, None), calls, cast(Authenticator, None))
    request = Request({"type": "http", "path_params": {"session_id": "sess_a"}})
    whole = "".join(trace.lines())
    response = await endpoints.trace(request)
    assert isinstance(response, StreamingResponse)
    trace.append(num_records, "mark", 2, "released")
    chunks = [str(chunk) async for chunk in response.body_iterator]
    assert "".join(chunks) == whole
    assert all(CHUNK_BYTES <= len(chunk) < CHUNK_BYTES + 200 for chunk in chunks[:-1])
    assert len(chunks) == len(whole) // CHUNK_BYTES + 1
