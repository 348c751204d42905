"""When a reply was heard: the client's word for it, within what the server knows itself.

Nobody has heard a sample before it was released, so a time before that is none. A time long after
it may be true, but no call is held that way; more likely the client was stopped for a while. And a
client that contradicts itself or the server in one report is not believed in the others. Such a
turn is taken for one of a client that reports nothing: it ends where it was released, has no
`e2e_ear_ns`, feeds no percentile at the ear, and says why in `incomplete`.
"""

from collections.abc import Mapping
from typing import Final

from .marks import MarkName

MAX_TRANSPORT_NS: Final = 5_000_000_000
"""From the release until it is heard. A satellite and a Bluetooth headset together take one second.
A page whose sound was not allowed yet, or that a debugger has stopped, tells of more."""


def heard_ns(at: Mapping[MarkName, int]) -> int | None:
    """Of a turn's marks: when its reply was first heard; None where nobody says, or nobody can be
    believed."""
    released, heard = at.get(MarkName.RELEASED), at.get(MarkName.HEARD)
    if released is None or heard is None or MarkName.HEARD_DOUBTED in at:
        return None
    return heard if 0 <= heard - released <= MAX_TRANSPORT_NS else None


def doubts(at: Mapping[MarkName, int]) -> list[str]:
    """Why it is not believed, in words. A time before the release is told as an order of marks."""
    released, heard = at.get(MarkName.RELEASED), at.get(MarkName.HEARD)
    found = ["reports of playback that can't be true"] if MarkName.HEARD_DOUBTED in at else []
    if released is not None and heard is not None and heard - released > MAX_TRANSPORT_NS:
        found.append(f"heard more than {MAX_TRANSPORT_NS / 1e9:g} s after it was released")
    return found
