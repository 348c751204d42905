"""Longest silence of a caller who waits. Pure.

A caller waits from the last voiced sample of what was said until the answer is audible, or the call
is closed. Within that time every audible sample and every event that the server sends is a sign of
life; the longest stretch without one is what the caller took for a dead line.
"""

from collections.abc import Sequence

Span = tuple[int, int]
"""Begin and end in ns."""


def longest_silence_ns(waits: Sequence[Span], signs: Sequence[int], sounds: Sequence[Span]) -> int:
    """Longest stretch in ns, within one of `waits`, without a sign (a time) or sound (a span)."""
    longest = 0
    spans = sorted([*sounds, *((at, at) for at in signs)])
    for begin, end in waits:
        since = begin
        for first, last in spans:
            if last <= begin or first >= end:
                continue
            longest = max(longest, first - since)
            since = max(since, last)
        longest = max(longest, end - since)
    return longest
