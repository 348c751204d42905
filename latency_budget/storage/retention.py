"""Age limit of what is stored, which a clock that steps ahead can't abuse.

Theory of operation
-------------------
"Older than 90 days" needs a clock, and a machine whose clock steps 40 days ahead (a flat battery, a
wrong time server) would delete a month too much, for good. So age is counted along what was stored,
from now back, and a time without anything counts for `MAX_GAP_NS` at most: a step costs no more
than a week. That holds for `CONFIRM_NS`, counted in the same way: a gap that what was stored since
has left days behind was a holiday, because a wrong clock would have been put right by then, and
counts in full.

Time in which this process has run, by its monotonic clock, counts in full whatever was stored: so a
service to which nobody speaks forgets as well. The rule needs no memory of its own, and holds
across restarts. Its price: a service that stored nothing for longer than a week, and was stopped in
that time, keeps what it has until it has run, or stored something, for some days more.

Times ahead of the clock are ignored: they were stored before the clock was put right.
"""

from collections.abc import Iterable
from typing import Final

from latency_budget.account.clock import NS_PER_S

NS_PER_DAY: Final = 86_400 * NS_PER_S

MAX_GAP_NS: Final = 7 * NS_PER_DAY
"""Shorter, and the holidays of an office stretch the limit; longer, and a wrong clock deletes
more."""

CONFIRM_NS: Final = 3 * NS_PER_DAY
"""A weekend, and a day to notice."""


def oldest_kept_ns(
    times_ns: Iterable[int], now_ns: int, max_age_ns: int, *, running_ns: int = 0
) -> int:
    """Entries before this time are too old; 0 where none is.

    `times_ns`: times of entries, in ns since 1970 like `now_ns`, in any order. Leaving out some is
    safe as long as their neighbours are closer than `MAX_GAP_NS`. `running_ns`: how long this
    process has run, by a monotonic clock.
    """
    age_ns, later_ns = 0, now_ns
    for at_ns in sorted((each for each in times_ns if each <= now_ns), reverse=True):
        gap_ns = later_ns - at_ns
        unsure_ns = MAX_GAP_NS + (running_ns if later_ns == now_ns else 0)
        age_ns += gap_ns if age_ns >= CONFIRM_NS else min(gap_ns, unsure_ns)
        if age_ns > max_age_ns:
            return at_ns + 1
        later_ns = at_ns
    return 0
