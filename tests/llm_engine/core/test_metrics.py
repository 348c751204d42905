"""Engine statistics as the cache fills."""

import logging

import pytest

from llm_engine.core.metrics import Counters
from tests.support.fakes.llm_core import Bench

PAGE_SIZE = Bench().backend.layout.page_size


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]


def test_a_cache_that_is_nearly_full_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(num_pages=10, max_sequences=2)
    bench.add("a" * (8 * PAGE_SIZE), max_tokens=1)
    bench.run()
    assert not warnings_of(caplog)
    bench.add("b" * (PAGE_SIZE + 1), max_tokens=1)
    bench.run()
    bench.core.cache.check()
    stats = bench.core.stats()
    assert stats.pages_high_water == 10
    assert warnings_of(caplog) == ["10 of 10 pages of the cache are in use"]


def test_it_is_warned_of_once_until_there_was_room_again(caplog: pytest.LogCaptureFixture) -> None:
    counters = Counters()
    for used in (85, 86, 99, 71, 90, 69, 86):
        counters.note_pages(used, 100)
    assert warnings_of(caplog) == [
        "86 of 100 pages of the cache are in use",
        "86 of 100 pages of the cache are in use",
    ]
