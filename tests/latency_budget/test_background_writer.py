"""The bounded queue, and the thread that empties it: overflow, errors, flush and the end."""

import threading
from collections.abc import Iterator

import pytest

from latency_budget.storage import background_writer
from latency_budget.storage.background_writer import BackgroundWriter, BoundedQueue

PATIENCE_S = 30.0


def test_a_full_queue_drops_the_newest_and_counts_it() -> None:
    queue = BoundedQueue[str](2)
    assert [queue.put(each) for each in "abc"] == [True, True, False]
    assert queue.is_full
    assert queue.oldest(9) == ["a", "b"]
    assert (queue.dropped, queue.depth, queue.peak) == (1, 2, 2)
    queue.drop_oldest(1)
    assert queue.put("d")
    assert queue.oldest(1) == ["b"]
    queue.drop_oldest(2)
    assert (len(queue), queue.depth, queue.peak) == (0, 0, 2)


def test_a_queue_in_seconds_is_exactly_empty_again() -> None:
    queue = BoundedQueue[int](1.0)
    for number in range(9):
        assert queue.put(number, 0.1)
    assert not queue.put(9, 0.2)
    assert queue.dropped_cost == 0.2
    queue.drop_oldest(9)
    assert queue.depth == 0.0
    assert queue.peak == pytest.approx(0.9)


class Shelf:
    """A place to write to that can fail."""

    def __init__(self) -> None:
        self.queue = BoundedQueue[int](100)
        self.written: list[int] = []
        self.error: Exception | None = None
        self.ended = threading.Event()
        self.writer = BackgroundWriter(
            "shelf", self.write, recovered="the shelf is back", on_end=self.ended.set
        )

    def write(self, is_closing: bool) -> float | None:
        if self.error is not None:
            raise self.error
        batch = self.queue.oldest(10)
        self.written += batch
        self.queue.drop_oldest(len(batch))
        self.writer.report(None)
        if is_closing:
            return 0.0 if self.queue else None
        return PATIENCE_S


@pytest.fixture
def shelf() -> Iterator[Shelf]:
    made = Shelf()
    made.writer.start()
    yield made
    made.writer.close(PATIENCE_S)


def test_flush_waits_for_what_was_put_before(shelf: Shelf) -> None:
    shelf.queue.put(1)
    shelf.writer.flush(PATIENCE_S)
    assert shelf.written == [1]


def test_the_thread_survives_an_error_that_the_pass_does_not_expect(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(background_writer, "RETRY_S", 0.001)
    shelf.error = RuntimeError("out of ink")
    shelf.queue.put(1)
    shelf.writer.flush(PATIENCE_S)
    assert shelf.writer.failures >= 2
    assert "out of ink" in (shelf.writer.problem or "")
    shelf.error = None
    shelf.writer.flush(PATIENCE_S)
    assert shelf.written == [1]
    assert shelf.writer.problem is None
    assert [each.levelname for each in caplog.records] == ["ERROR", "WARNING"]
    assert caplog.records[1].message == "the shelf is back"


def test_the_end_writes_what_is_left(shelf: Shelf) -> None:
    for number in range(25):
        shelf.queue.put(number)
    shelf.writer.close(PATIENCE_S)
    assert shelf.written == list(range(25))
    assert shelf.ended.is_set()


def test_a_pass_that_hangs_is_left_behind() -> None:
    may_go_on, hangs = threading.Event(), threading.Event()

    def hang(is_closing: bool) -> float | None:
        hangs.set()
        assert may_go_on.wait(PATIENCE_S)
        return 0.0

    ended = threading.Event()
    writer = BackgroundWriter("hanging", hang, recovered="", on_end=ended.set)
    writer.start()
    assert hangs.wait(PATIENCE_S)
    writer.close(0.01)
    assert writer.is_abandoned
    may_go_on.set()
    assert ended.wait(PATIENCE_S)
