"""Scripted words of the next response: a greeting, an announcement, a prompt after silence."""


class Script:
    """The words that a session has ready for its next response, if any. Where a noise cuts the
    response off before it was heard, they are ready again. Announcements come before all else, and
    wait until they begin."""

    def __init__(self) -> None:
        self.next: str | None = None
        """Words of the next response that is no announcement; None: the model's."""
        self._announcement = ""
        """Words of announcements that have not begun."""
        self._unheard: str | None = None
        """Words of the current response, while nothing of it was heard."""

    @property
    def announces(self) -> bool:
        """True while an announcement waits to begin."""
        return bool(self._announcement)

    def announce(self, text: str) -> None:
        """Make these words those of the next response, behind an announcement that waits."""
        self._announcement = f"{self._announcement} {text}".strip()

    def drop_announcement(self) -> None:
        """Discard an announcement that waits."""
        self._announcement = ""

    def take(self) -> str | None:
        """Use the words for the response that begins; None: the model's words."""
        if self._announcement:
            self._unheard, self._announcement = self._announcement, ""
        else:
            self._unheard, self.next = self.next, None
        return self._unheard

    def restore(self) -> None:
        """The current response was cut by speech: its words are ready again if unheard."""
        self.next, self._unheard = self._unheard, None

    def heard(self) -> None:
        """The current response is heard, or over: its words are not used again."""
        self._unheard = None
