"""Error classes by the party at fault, with their HTTP statuses and WebSocket close codes.

Three classes: the client's fault, a stage's, the server's own. They are mapped to statuses and
close codes here and nowhere else. An error that the client can correct keeps its session alive;
nothing is logged and dropped.
"""

from typing import Final

CLOSE_NORMAL: Final = 1000
CLOSE_NOT_UTF8: Final = 1007
CLOSE_POLICY: Final = 1008
CLOSE_INTERNAL: Final = 1011
CLOSE_DRAINING: Final = 1012
"""Service restart: stock clients reconnect on it."""
CLOSE_OVERLOADED: Final = 1013
CLOSE_BETA: Final = 4000
"""OpenAI's code for clients of the beta, sent after an error event with the reason. No stock client
retries on it."""
CLOSE_NOT_RESUMED: Final = 4404
"""The call can't be resumed: the client has to open a new one."""
CLOSE_COMES_BACK: Final = 4408
"""Sent by a client that abandons a connection on which nothing arrives, and will reconnect."""
CLOSE_TAKEN_OVER: Final = 4409
"""The call continues on another connection of the same client."""


class HalfsecError(Exception):
    """Base class of the errors that a peer may see. `message` includes the remedy."""

    http_status = 500
    close_code = CLOSE_INTERNAL
    error_type = "server_error"

    def __init__(self, message: str, *, code: str = "internal_error", param: str | None = None):
        super().__init__(message)
        self.message = message
        self.code = code
        self.param = param


class ClientError(HalfsecError):
    """The peer sent an invalid request. The session continues."""

    http_status = 400
    close_code = CLOSE_POLICY
    error_type = "invalid_request_error"


class StageError(HalfsecError):
    """A stage (asr, llm, tts) raised or hung: the turn fails with an apology, the call goes on."""

    http_status = 503

    def __init__(self, stage: str, message: str, *, refused: bool = False):
        """`refused`: the stage works but rejects this input; do not retry with the same input."""
        super().__init__(message, code="invalid_value" if refused else f"{stage}_failed")
        self.stage = stage
        self.refused = refused
        if refused:
            self.error_type = "invalid_request_error"


class InternalError(HalfsecError):
    """A fault of the server itself."""


class SilentCallError(Exception):
    """The call ends after a long silence on both sides. Not a fault."""


class IdleClientError(Exception):
    """The client exceeded the idle timeout: it sent nothing for too long."""


class IssuerUnreachableError(Exception):
    """The web tokens' issuer can't be reached for its keys, so no token can be verified."""


class RevokedKeyError(Exception):
    """The key that authenticated the call has been revoked."""


class CallTakenOverError(Exception):
    """Another server goes on with the call. Not a fault."""


class StoppingError(Exception):
    """The server stops and ends the call. Not a fault of the peer's."""


class ConfigError(HalfsecError):
    """A setting that is unknown, of the wrong type, or contradicts another. Raised at start."""

    def __init__(self, message: str, *, key: str | None = None):
        super().__init__(message, code="config", param=key)
        self.key = key


class BenchError(HalfsecError):
    """A measurement can't be made. The message includes the remedy."""

    def __init__(self, message: str):
        super().__init__(message, code="bench")


class SlowReader(Exception):
    """The client does not read the frames that the server sends."""


CLOSE_TIMEOUT_S: Final = 5.0
"""Time in seconds for the peer to read the last frames and answer the close. On a slow link 64 kB
take two seconds."""
