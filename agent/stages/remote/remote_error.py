"""Failure of a request to a model on another server, or of a plug-in."""

from typing import Literal

ErrorKind = Literal["broken", "passing", "full", "late", "rejected"]


class RemoteError(Exception):
    """A request that failed. The message is the predicate of a sentence about its source."""

    def __init__(
        self,
        reason: str,
        kind: ErrorKind = "broken",
        retry_after_s: float = 0.0,
        *,
        status: int = 0,
        said: str = "",
    ) -> None:
        """`kind`: "passing" may work at once if it is tried again, "full" after `retry_after_s`;
        "late" missed a deadline that it does not know of; "rejected" blames the request. `status`:
        the HTTP status; 0: none. `said`: the server's own words, to be searched, never to be shown
        or logged: they may quote the request, and hold secrets."""
        super().__init__(reason)
        self.reason = reason
        self.kind = kind
        self.retry_after_s = retry_after_s
        self.status = status
        self.said = said
