"""Feeding a `RealtimeProtocol`, and having a foreign parser look at what it says."""

import json
from collections.abc import Iterable
from typing import Any

from agents.realtime.openai_realtime import get_server_event_type_adapter

from agent.realtime.protocol.ids import CountingIds
from agent.realtime.protocol.protocol import RealtimeProtocol
from agent.session.api.client_events import Request, UpdateSession
from agent.session.api.server_events import Notice, Problem
from agent.session.api.settings import SessionSettings


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


def say(protocol: RealtimeProtocol, notices: Iterable[Notice]) -> list[dict[str, Any]]:
    """The events of all notices, each one checked by the foreign parser."""
    events: list[dict[str, Any]] = []
    for notice in notices:
        for frame in protocol.send(notice):
            event = json.loads(frame)
            check_strictly(event)
            events.append(event)
    return events


def check_strictly(event: dict[str, Any]) -> None:
    if event["type"].startswith("halfsec."):
        return
    if event.get("previous_item_id", "") is None:
        event = event | {"previous_item_id": ""}  # as the client itself does before validating
    get_server_event_type_adapter().validate_python(event, strict=False)
