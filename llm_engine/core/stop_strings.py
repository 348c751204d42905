"""Finding stop strings in text that arrives in pieces, without letting a part of one slip out."""

from collections.abc import Sequence


class StopMatcher:
    """Holds back the end of the text for as long as it may be the beginning of a stop string."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.hit = False
        """A stop string was found; what is pushed now is ignored."""

    def push(self, text: str) -> str:
        """What may be shown now."""
        if self.hit:
            return ""
        held = self._held + text
        starts = ((held.find(stop), stop) for stop in self._stops)
        # The one that is complete first ends the text, as it would if characters came one by one.
        found = [(start + len(stop), start) for start, stop in starts if start >= 0]
        if found:
            self.hit = True
            self._held = ""
            return held[: min(found)[1]]
        num_safe = self._first_possible_start(held)
        self._held = held[num_safe:]
        return held[:num_safe]

    def flush(self) -> str:
        """The rest, once nothing more will come: a mere beginning of a stop string is text."""
        held, self._held = self._held, ""
        return held

    def _first_possible_start(self, text: str) -> int:
        longest = max(map(len, self._stops), default=1) - 1
        for start in range(max(0, len(text) - longest), len(text)):
            if any(stop.startswith(text[start:]) for stop in self._stops):
                return start
        return len(text)
