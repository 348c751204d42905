"""Errors of a remote language model, before they become the stage's."""


class RemoteError(Exception):
    """A request failed. The message is the predicate of a sentence about the server."""


class MalformedStreamError(RemoteError):
    """The server's answer is not a stream of chat completion chunks."""


class TransientError(RemoteError):
    """The server is full, or the connection broke: the same request may work if sent again."""

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        """`retry_after_s`: what the server asked for."""
        super().__init__(message)
        self.retry_after_s = retry_after_s
