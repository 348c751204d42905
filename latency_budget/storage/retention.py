"""Age limit of what is stored, which a clock that steps ahead can't abuse.

Theory of operation
-------------------
"Older than 90 days" needs a clock, and a machine whose clock steps 40 days ahead (a flat battery, a
wrong time server) would delete a month too much, for good. So age is counted along what was stored:
the time between two neighbours counts for `MAX_GAP_NS` at most. A step costs at most that much, and
the rule needs no memory of its own: it holds across restarts. Its price: a service that stores
nothing for longer than a week keeps what it has by as much longer.

Times ahead of the clock are ignored: they were stored before the clock was put right.
"""

from collections.abc import Iterable
from typing import Final

NS_PER_DAY: Final = 86_400 * 10**9

MAX_GAP_NS: Final = 7 * NS_PER_DAY
"""Shorter, and the holidays of an office stretch the limit; longer, and a wrong clock deletes
more."""


def oldest_kept_ns(times_ns: Iterable[int], now_ns: int, max_age_ns: int) -> int:
    """Entries before this time are too old; 0 where none is.

    `times_ns`: times of entries, in ns since 1970 like `now_ns`, in any order. Leaving out some is
    safe as long as their neighbours are closer than `MAX_GAP_NS`.
    """
    age_ns, later_ns = 0, now_ns
    for at_ns in sorted((each for each in times_ns if each <= now_ns), reverse=True):
        age_ns += min(later_ns - at_ns, MAX_GAP_NS)
        if age_ns > max_age_ns:
            return at_ns + 1
        later_ns = at_ns
    return 0
