"""The turn-taking machine against hand-written timelines."""

import pytest

from tests.scenarios.calls import TIMELINES
from tests.scenarios.timeline import Timeline, play


@pytest.mark.parametrize("story", TIMELINES, ids=lambda story: story.name)
def test_timeline(story: Timeline) -> None:
    machine = play(story)
    assert (machine.caller, machine.agent) == story.ends
    assert machine.stale_events == story.stale
