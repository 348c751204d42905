"""A core for a thread that must not wait for one."""

import logging
import os

_log = logging.getLogger(__name__)

FEWEST_CORES = 4
"""With fewer, whoever is kept off one of them waits for longer than is won."""


def keep_to_one_core() -> None:
    """Let the calling thread run on the last core that this process may use, and on no other: it
    stays in that core's caches, and is not moved while a token is due. Does nothing where there
    are few cores, or the system can't."""
    if not hasattr(os, "sched_setaffinity"):
        return
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < FEWEST_CORES:
        return
    try:
        os.sched_setaffinity(0, {cores[-1]})  # 0: the calling thread, not its process
    except OSError as error:
        _log.warning("the engine's thread can't be kept to one core: %s", error)
