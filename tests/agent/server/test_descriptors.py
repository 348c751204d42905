"""The end of the file descriptors is logged, and not over and over."""

import contextlib
import os
import resource
from collections.abc import Iterator

import pytest

from agent.server.descriptors import QUIET_S, DescriptorWatch


@contextlib.contextmanager
def no_descriptors() -> Iterator[None]:
    """The kernel gives this process no further descriptor."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.open(os.devnull, os.O_RDONLY)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_process_without_descriptors_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    watch = DescriptorWatch()
    watch.look(0.0)
    assert (watch.is_short, caplog.messages) == (False, [])
    with no_descriptors():
        for second in range(1, 200):
            watch.look(float(second))
    (message,) = caplog.messages
    assert "file descriptors of this process are in use" in message
    assert watch.is_short
    watch.look(200.0)
    assert not watch.is_short
    with no_descriptors():
        watch.look(201.0)  # the same shortage: it came and went
        assert len(caplog.messages) == 1
    watch.look(202.0)
    with no_descriptors():
        watch.look(202.0 + QUIET_S)
    assert len(caplog.messages) == 2
