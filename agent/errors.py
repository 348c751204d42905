"""Whose fault it was, and what the peer is told.

Three classes, mapped to HTTP statuses and WebSocket close codes here and nowhere else. An error
that a client can mend keeps its session alive; nothing is logged and dropped.
"""

from typing import Final

CLOSE_NORMAL: Final = 1000
CLOSE_NOT_UTF8: Final = 1007
CLOSE_POLICY: Final = 1008
CLOSE_TOO_BIG: Final = 1009
CLOSE_INTERNAL: Final = 1011
CLOSE_DRAINING: Final = 1012
"""Service restart: stock clients reconnect on it."""
CLOSE_OVERLOADED: Final = 1013
CLOSE_BETA: Final = 4000
"""OpenAI's own, behind the error event that says why. No stock client tries again on it."""
CLOSE_NOT_RESUMED: Final = 4404
"""There is no call to come back to: a new one has to be opened."""
CLOSE_COMES_BACK: Final = 4408
"""Of a client that gives up a connection, because nothing gets through, and will have another."""
CLOSE_TAKEN_OVER: Final = 4409
"""The call goes on at another connection of its client's."""


class HalfsecError(Exception):
    """Root of the errors that a peer may see. `message` says what to do about it."""

    http_status = 500
    close_code = CLOSE_INTERNAL
    error_type = "server_error"

    def __init__(self, message: str, *, code: str = "internal_error", param: str | None = None):
        super().__init__(message)
        self.message = message
        self.code = code
        self.param = param


class ClientError(HalfsecError):
    """The peer sent something that can't be honoured. The session goes on."""

    http_status = 400
    close_code = CLOSE_POLICY
    error_type = "invalid_request_error"


class StageError(HalfsecError):
    """A stage (asr, llm, tts) raised or hung. The turn fails with an apology, the call lives."""

    http_status = 503

    def __init__(self, stage: str, message: str, *, refused: bool = False):
        """`refused`: the stage works, and can't take what it was given; don't try that again."""
        super().__init__(message, code="invalid_value" if refused else f"{stage}_failed")
        self.stage = stage
        self.refused = refused
        if refused:
            self.error_type = "invalid_request_error"


class InternalError(HalfsecError):
    """Our own fault."""


class SilentCallError(Exception):
    """Nobody has spoken for so long that the call is ended. No fault of anybody's."""


class IdleClientError(Exception):
    """The client has sent nothing for too long."""


class IssuerUnreachableError(Exception):
    """The keys of the web tokens' issuer are not known, so none can be judged."""


class RevokedKeyError(Exception):
    """The key that a call was opened with has been revoked."""


class ConfigError(HalfsecError):
    """A setting that is unknown, of the wrong type, or contradicts another. Raised at start."""

    def __init__(self, message: str, *, key: str | None = None):
        super().__init__(message, code="config", param=key)
        self.key = key


class BenchError(HalfsecError):
    """A measurement that can't be made. The message says what to do."""

    def __init__(self, message: str):
        super().__init__(message, code="bench")


class SlowReader(Exception):
    """The client does not read what it is sent."""


CLOSE_TIMEOUT_S: Final = 5.0
"""For the peer to take the end of what it was sent, and to answer the close. On a slow link 64 kB
take two seconds."""
