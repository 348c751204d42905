"""Turn-taking without its watchdogs, for tests with real models: a busy machine may take longer."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from unittest.mock import patch

from agent.turn_taking import agent_handlers, transitions

NEVER_NS: Final = 1 << 60
"""Longer than any test."""


@contextmanager
def unhurried() -> Iterator[None]:
    """Give the first audio of a response, and each step of one in progress, all the time they need.
    Tests wait for events, and have a timeout of their own."""
    going_on = dict.fromkeys(agent_handlers._GOING_ON, NEVER_NS)
    with (
        patch.object(transitions, "PREPARING_DEADLINE_NS", NEVER_NS),
        patch.dict(agent_handlers._GOING_ON, going_on),
    ):
        yield
