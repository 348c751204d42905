"""Local key: lets commands on this machine call the server that runs on it.

A server makes one at each start and leaves it in HALFSEC_HOME, readable by its owner alone: an
account that can read that file can read the models, the turns and the settings as well. So `halfsec
talk` works at a closed server without a key on the command line.
"""

import contextlib
import logging
from pathlib import Path
from typing import Final

from agent.config.home import halfsec_home
from latency_budget.storage.private_files import make_private_folder

from .keys import KeyFileError, write_private
from .token_format import new_token

LOCAL_PREFIX: Final = "hl_"

_log = logging.getLogger(__name__)


def make_local_key(port: int) -> str:
    """The key of a server that listens there, left for others to find; empty where it can't be."""
    text = new_token(LOCAL_PREFIX).text
    path = _path(port)
    try:
        make_private_folder(path.parent)
        write_private(path, text.encode())
    except (OSError, KeyFileError) as error:
        _log.warning("commands on this machine will need a key: %s", error)
        return ""
    return text


def forget_local_key(port: int) -> None:
    """The server on that port has ended."""
    with contextlib.suppress(OSError):
        _path(port).unlink()


def local_key(port: int) -> str | None:
    """The key of the server that listens there; None where it left none, or not for us."""
    try:
        return _path(port).read_text(encoding="ascii") or None
    except (OSError, ValueError):
        return None


def _path(port: int) -> Path:
    return halfsec_home() / "local" / f"{port}.key"
