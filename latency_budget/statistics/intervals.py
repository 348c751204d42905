"""Interval of a rate, from counts."""

import math


def wilson_interval(hits: int, trials: int) -> tuple[float, float]:
    """95 % interval of a rate (Wilson 1927): valid for rates near 0, unlike the normal interval.
    Without trials it is 0 to 1: nothing is known.

    By hand, because scipy (`binomtest(...).proportion_ci`) would be 140 MB that every installation
    had to have for these lines.
    """
    if not trials:
        return (0.0, 1.0)
    z = 1.959964
    rate = hits / trials
    centre = rate + z * z / (2 * trials)
    spread = z * math.sqrt(rate * (1 - rate) / trials + z * z / (4 * trials * trials))
    scale = 1 + z * z / trials
    return (max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale))
