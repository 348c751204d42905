"""Feeding client events to a `RealtimeProtocol`, one at a time."""

import json
from typing import Any

from agent.notices import Problem
from agent.requests import Request, UpdateSession
from agent.settings import SessionSettings
from agent.wire.realtime.ids import CountingIds
from agent.wire.realtime.protocol import RealtimeProtocol


def make(extensions: bool = False, **changes: Any) -> RealtimeProtocol:
    return RealtimeProtocol(
        SessionSettings(**changes), model="m", new_id=CountingIds("t"), extensions=extensions
    )


def one(protocol: RealtimeProtocol, **event: Any) -> Request | Problem:
    (answer,) = protocol.receive(json.dumps(event))
    return answer


def refused(protocol: RealtimeProtocol, frame: str | bytes) -> Problem:
    (answer,) = protocol.receive(frame)
    assert isinstance(answer, Problem), answer
    assert answer.message
    return answer


def update(protocol: RealtimeProtocol, **session: Any) -> SessionSettings:
    answer = one(protocol, type="session.update", session={"type": "realtime", **session})
    assert isinstance(answer, UpdateSession), answer
    return answer.settings


def update_refused(protocol: RealtimeProtocol, **session: Any) -> Problem:
    event = {"type": "session.update", "session": {"type": "realtime", **session}}
    return refused(protocol, json.dumps(event))
