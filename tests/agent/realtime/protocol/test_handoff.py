"""Updates of a client that are on their way while another agent takes its call over."""

import json

from agent.realtime.protocol.protocol import RealtimeProtocol
from agent.session.api.client_events import UpdateSession
from agent.session.api.server_events import SessionCreated, SessionUpdated
from agent.session.api.settings import SessionSettings

DESK = SessionSettings(agent="desk", instructions="You are the desk.")
BILLING = DESK.changed(agent="billing", instructions="You know bills.", voice="marin")


def update(protocol: RealtimeProtocol, **session: object) -> UpdateSession:
    frame = {"type": "session.update", "session": {"type": "realtime", **session}}
    (request,) = protocol.receive(json.dumps(frame))
    assert isinstance(request, UpdateSession)
    return request


def test_an_update_on_its_way_changes_the_agent_that_took_over() -> None:
    protocol = RealtimeProtocol(DESK, model="desk")
    protocol.send(SessionCreated("sess_1", DESK))
    first = update(protocol, max_output_tokens=9)
    (frame,) = protocol.send(SessionUpdated(BILLING, is_handoff=True))
    session = json.loads(frame)["session"]
    assert (session["model"], session["instructions"]) == ("billing", "You know bills.")
    second = update(protocol, output_modalities=["text"])
    now = BILLING
    for request in (first, second):
        assert request.base is not None
        now = request.settings.rebased(request.base, now)
        protocol.send(SessionUpdated(now))
    assert now == BILLING.changed(max_output_tokens=9, output_modality="text")
    third = update(protocol, instructions="Be brief.")
    assert third.settings == now.changed(instructions="Be brief.")
