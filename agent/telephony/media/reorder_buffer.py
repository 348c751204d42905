"""Reorder buffer: carrier frames by sequence number.

A frame with the expected number is passed on at once: frames in order are not delayed. A frame that
is early waits for those before it, but not for long: after `MAX_EARLY` frames the missing ones
count as lost, and the call continues without them. A late frame is dropped. After `MAX_LATE` late
frames in a row the carrier has restarted its numbering, and the buffer follows.
"""

from typing import Final, Generic, TypeVar

MAX_EARLY: Final = 5
"""Frames: 100 ms at 20 ms each. A longer wait would delay every answer audibly."""

MAX_LATE: Final = 10
"""Frames in a row: 200 ms. A burst after a network outage has fewer before the next frame on time;
after restarted numbering no frame is on time."""

Item = TypeVar("Item")


class ReorderBuffer(Generic[Item]):
    """Reorder buffer of one stream."""

    def __init__(self) -> None:
        self._due: int | None = None
        self._early: dict[int, Item] = {}
        self.lost = 0
        """Frames that did not arrive in time."""
        self.late = 0
        """Frames that arrived after that, or twice."""
        self._late_in_a_row = 0

    def push(self, sequence: int | None, frame: Item) -> list[Item]:
        """Add a frame; return the frames that are in order now. `sequence`: number, one more for
        each frame; None: the carrier sends frames in order."""
        if sequence is None:
            return [frame]
        if self._due is None:
            self._due = sequence
        if sequence < self._due and self._late_in_a_row == MAX_LATE:
            self.lost += len(self._early)
            self._early.clear()
            self._due = sequence
        if sequence < self._due or sequence in self._early:
            self.late += 1
            self._late_in_a_row += 1
            return []
        self._late_in_a_row = 0
        self._early[sequence] = frame
        if len(self._early) > MAX_EARLY:
            first = min(self._early)
            self.lost += first - self._due
            self._due = first
        ready: list[Item] = []
        while self._due in self._early:
            ready.append(self._early.pop(self._due))
            self._due += 1
        return ready
