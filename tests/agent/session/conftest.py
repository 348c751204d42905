"""Event loops of the tests of sessions."""

import asyncio
from collections.abc import Callable, Mapping

import pytest

from tests.support.session.virtual_time import VirtualLoop


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run a test that is marked `virtual_time` on a manual clock."""
    is_virtual = item.get_closest_marker("virtual_time") is not None
    return {"loop": VirtualLoop if is_virtual else asyncio.new_event_loop}
