"""Trends and drift on made-up samples: what grows is found, what does not is let be."""

import numpy as np
import pytest

from benchmarks.soak.trends import Point, fit_drift, fit_trend


def samples(
    per_hour: float, *, noise: float = 1.0, parts: int = 1, count: int = 200
) -> list[Point]:
    """Samples of half an hour in all; each part begins at another level."""
    rng = np.random.default_rng(7)
    points: list[Point] = []
    for number in range(count):
        at_s = number * 1800 / count
        part = 1 + number * parts // count
        begun_s = (part - 1) * 1800 / parts
        value = 1000.0 - 300 * part + per_hour * (at_s - begun_s) / 3600
        points.append((at_s, part, value + float(rng.normal(0, noise))))
    return points


@pytest.mark.parametrize("parts", [1, 2])
def test_growth_is_found_with_its_slope(parts: int) -> None:
    trend = fit_trend("rss_mb", samples(200.0, parts=parts), allowance=24.0)
    assert trend.low is not None
    assert trend.high is not None
    assert trend.low < 200.0 < trend.high
    assert trend.grows


def test_the_smallest_slope_that_is_found_is_named() -> None:
    sure = fit_trend("rss_mb", samples(0.0, noise=0.01), allowance=24.0)
    assert sure.smallest == pytest.approx(24.0 / (0.7 * 0.5), rel=0.02)  # of half an hour 70 %
    unsure = fit_trend("rss_mb", samples(0.0, noise=500.0), allowance=24.0)
    assert unsure.low is not None
    assert unsure.high is not None
    assert unsure.smallest == pytest.approx((unsure.high - unsure.low) / 2)


def test_noise_does_not_grow() -> None:
    trend = fit_trend("rss_mb", samples(0.0, noise=20.0), allowance=1.0)
    assert trend.is_judged
    assert not trend.grows


def test_a_sure_slope_below_the_allowance_is_no_growth() -> None:
    trend = fit_trend("rss_mb", samples(10.0, noise=0.01), allowance=24.0)
    assert trend.low is not None
    assert trend.low > 0
    assert not trend.grows


def test_a_warm_up_is_not_judged() -> None:
    points: list[Point] = [(s, 1, min(s, 500.0)) for s in map(float, range(0, 2000, 10))]
    assert not fit_trend("rss_mb", points, allowance=1.0).grows
    assert fit_trend("rss_mb", points[:50], allowance=1.0).grows


def test_few_samples_are_not_judged() -> None:
    trend = fit_trend("rss_mb", samples(1e6, count=7), allowance=1.0)
    assert not trend.is_judged
    assert not trend.grows


def latencies(last: float) -> list[tuple[float, str, float]]:
    """Two kinds at different levels; those of the last fifth are `last` times as long."""
    rng = np.random.default_rng(3)
    found = []
    for number in range(200):
        kind, level = (("voice", 500.0), ("chat", 3000.0))[number % 2]
        slower = last if number >= 160 else 1.0
        found.append((float(number), kind, level * slower * float(rng.uniform(0.9, 1.1))))
    return found


def test_a_slower_end_drifts_and_the_same_does_not() -> None:
    assert fit_drift(latencies(1.5)).drifts
    assert not fit_drift(latencies(1.0)).drifts


def test_a_mix_of_kinds_is_no_drift() -> None:
    """More of the slow kind at the end."""
    found = [(float(n), "voice" if n < 100 else "chat", 500.0 if n < 100 else 3000.0)
             for n in range(200)]  # fmt: skip
    drift = fit_drift(found)
    assert drift.ratio == 1.0
    assert not drift.drifts


def test_few_latencies_are_not_judged() -> None:
    drift = fit_drift(latencies(9.0)[:40])
    assert not drift.is_judged
    assert not drift.drifts
