"""Lossy line: how many packets are lost, in which order the others arrive, the same each time."""

import pytest

from benchmarks.callers.lossy_line import NS_PER_MS, DatagramPath, LineQuality

FRAME_NS = 20 * NS_PER_MS


def arrivals(path: DatagramPath, num_packets: int) -> list[int | None]:
    return [path.arrival_ns(number * FRAME_NS) for number in range(num_packets)]


def test_a_clean_line_delivers_each_packet_at_once() -> None:
    path = DatagramPath(LineQuality("clean"), 1)
    assert arrivals(path, 100) == [number * FRAME_NS for number in range(100)]
    assert (path.num_packets, path.num_lost, path.num_overtaken) == (100, 0, 0)


@pytest.mark.parametrize(("loss", "least", "most"), [(0.01, 70, 130), (0.05, 430, 570)])
def test_so_many_packets_are_lost(loss: float, least: int, most: int) -> None:
    path = DatagramPath(LineQuality("bad", loss), 7)
    found = arrivals(path, 10_000)
    assert found.count(None) == path.num_lost
    assert least <= path.num_lost <= most, "within four standard deviations"
    assert path.num_overtaken == 0, "without delays nothing is overtaken"


def test_delays_are_bounded_and_let_packets_overtake() -> None:
    path = DatagramPath(LineQuality("bad", jitter_ms=60.0), 3)
    found = arrivals(path, 1000)
    due = [ns for ns in found if ns is not None]
    delays = [ns - number * FRAME_NS for number, ns in enumerate(due)]
    assert len(due) == 1000
    assert 0 <= min(delays) < 3 * NS_PER_MS
    assert 57 * NS_PER_MS < max(delays) <= 60 * NS_PER_MS
    overtaken = sum(min(due[number + 1 :], default=ns) < ns for number, ns in enumerate(due))
    assert path.num_overtaken == overtaken > 100


def test_delays_below_the_distance_of_packets_keep_their_order() -> None:
    path = DatagramPath(LineQuality("good", jitter_ms=19.9), 3)
    due = [ns for ns in arrivals(path, 1000) if ns is not None]
    assert due == sorted(due)
    assert path.num_overtaken == 0


def test_a_seed_loses_the_same_packets_and_more_loss_loses_them_too() -> None:
    def lost(line: LineQuality, seed: int | str) -> set[int]:
        found = arrivals(DatagramPath(line, seed), 2000)
        return {number for number, ns in enumerate(found) if ns is None}

    little, much = LineQuality("1 %", 0.01), LineQuality("5 %", 0.05)
    with_jitter = LineQuality("1 %", 0.01, 60.0)
    assert lost(little, "4 up") == lost(little, "4 up") == lost(with_jitter, "4 up")
    assert lost(little, "4 up") != lost(little, "4 down")
    assert lost(little, "4 up") < lost(much, "4 up")
    one, other = (arrivals(DatagramPath(with_jitter, "4 up"), 100) for _ in range(2))
    assert one == other
