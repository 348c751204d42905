"""Plausibility of the client's playback reports: when was a reply first heard?

A sample can't be heard before it was released, so an earlier time is rejected. A time long after it
may be true, but no conversation works that way; more likely the client was stopped for a while. And
one report that contradicts another, or the server, makes all reports of that turn doubtful. Such a
turn is treated like that of a client that reports nothing: it ends where it was released, has no
`e2e_ear_ns`, counts in no percentile at the ear, and has the reason in `incomplete`.
"""

from collections.abc import Mapping
from typing import Final

from .marks import MarkName

MAX_TRANSPORT_NS: Final = 5_000_000_000
"""Longest plausible time from release to playback. A satellite link and a Bluetooth headset
together take one second. A page that has no permission to play yet, or that a debugger has stopped,
reports more."""


def heard_ns(at: Mapping[MarkName, int]) -> int | None:
    """The time at which a turn's reply was first heard, of its marks; None where no report is
    there, or none is plausible."""
    released, heard = at.get(MarkName.RELEASED), at.get(MarkName.HEARD)
    if released is None or heard is None or MarkName.HEARD_DOUBTED in at:
        return None
    return heard if 0 <= heard - released <= MAX_TRANSPORT_NS else None


def doubts(at: Mapping[MarkName, int]) -> list[str]:
    """The reasons to doubt the reports, as phrases. A time before the release is not among them:
    the ledger lists it as a wrong order of marks."""
    released, heard = at.get(MarkName.RELEASED), at.get(MarkName.HEARD)
    found = ["reports of playback that can't be true"] if MarkName.HEARD_DOUBTED in at else []
    if released is not None and heard is not None and heard - released > MAX_TRANSPORT_NS:
        found.append(f"heard more than {MAX_TRANSPORT_NS / 1e9:g} s after it was released")
    return found
