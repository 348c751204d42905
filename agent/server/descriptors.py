"""Watch of the file descriptors: a process that has none left accepts no connection.

libuv then accepts and closes what comes, without a word: clients see connections that end at once,
and the operator sees nothing. So the number is looked at, and its end is logged: once, and again
only after it was over for `QUIET_S`.
"""

import errno
import logging
import os
import resource
from typing import Final

LOOK_EVERY_S: Final = 1.0

QUIET_S: Final = 60.0
"""Time without a shortage before another one is logged."""

_log = logging.getLogger(__name__)


class DescriptorWatch:
    """Logs that no descriptors are left. Belongs to the event loop."""

    def __init__(self) -> None:
        self.is_short = False
        """No descriptor was left at the last look."""
        self._last_s: float | None = None
        """Time of the last look that found none."""

    def look(self, now_s: float) -> None:
        """`now_s`: of any clock that does not go back."""
        self.is_short = not _has_one()
        if not self.is_short:
            return
        if self._last_s is None or now_s - self._last_s > QUIET_S:
            most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            _log.error(
                "all %d file descriptors of this process are in use: new connections are closed at "
                "once. Raise the limit (ulimit -n, LimitNOFILE= of systemd), or lower "
                "agent.max_sessions",
                most,
            )
        self._last_s = now_s


def _has_one() -> bool:
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return error.errno not in (errno.EMFILE, errno.ENFILE)
    return True
