"""Reorder buffer: carrier frames by sequence number.

A frame that comes when it is due is passed on at once: order must not cost those time that keep it.
One that is early waits for what lies before it, but not for long: after `MAX_EARLY` frames what is
missing is lost, and the call goes on behind it. One that is late has been gone on without. Where
nothing but late ones comes, the carrier has begun to count anew, and so does this.
"""

from typing import Final, Generic, TypeVar

MAX_EARLY: Final = 5
"""100 ms of 20 ms frames. Waiting longer would be heard as a delay in every answer."""

MAX_LATE: Final = 10
"""In a row, 200 ms. A burst behind a hole in the network has fewer before the next one on time;
whoever counts anew has none."""

Item = TypeVar("Item")


class ReorderBuffer(Generic[Item]):
    """Of one stream."""

    def __init__(self) -> None:
        self._due: int | None = None
        self._early: dict[int, Item] = {}
        self.lost = 0
        """Frames that were not waited for any longer."""
        self.late = 0
        """Frames that came after that, or twice."""
        self._late_in_a_row = 0

    def push(self, place: int | None, frame: Item) -> list[Item]:
        """What is to be passed on now, in order. `place` grows by one with each frame; None: this
        carrier keeps the order."""
        if place is None:
            return [frame]
        if self._due is None:
            self._due = place
        if place < self._due and self._late_in_a_row == MAX_LATE:
            self.lost += len(self._early)
            self._early.clear()
            self._due = place
        if place < self._due or place in self._early:
            self.late += 1
            self._late_in_a_row += 1
            return []
        self._late_in_a_row = 0
        self._early[place] = frame
        if len(self._early) > MAX_EARLY:
            first = min(self._early)
            self.lost += first - self._due
            self._due = first
        ready: list[Item] = []
        while self._due in self._early:
            ready.append(self._early.pop(self._due))
            self._due += 1
        return ready
