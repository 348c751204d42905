"""No event goes out that the strictest stock client has not read, whatever its kind."""

import json

import pytest

from tests.support.wire.every_event import KINDS, frames_of_every_kind
from tests.support.wire.wire_frames import check_strictly


def kinds_sent() -> set[str]:
    return {json.loads(frame)["type"] for frame in frames_of_every_kind()}


def test_every_kind_of_event_is_read_by_the_strict_client() -> None:
    for frame in frames_of_every_kind():
        check_strictly(json.loads(frame))
    assert kinds_sent() == KINDS


def test_the_strict_client_is_strict() -> None:
    """Or all this says nothing: it refuses a name of the beta, and a field that is missing."""
    for wrong in ({"type": "response.audio.delta"}, {"type": "rate_limits.updated"}):
        with pytest.raises(ValueError, match="validation error"):
            check_strictly({"event_id": "event_1", **wrong})
