"""Pins the engine's thread to a core, so that it does not wait for one."""

import logging
import os

_log = logging.getLogger(__name__)

FEWEST_CORES = 4
"""Cores below which nothing is pinned: other threads would lose more than this one wins."""


def pin_to_last_core() -> None:
    """Pin the calling thread to the last core that this process may use: it stays in that core's
    caches and is not migrated while a token is due. Does nothing with few cores, or where the
    system has no affinity."""
    if not hasattr(os, "sched_setaffinity"):
        return
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < FEWEST_CORES:
        return
    try:
        os.sched_setaffinity(0, {cores[-1]})  # 0: the calling thread, not its process
    except OSError as error:
        _log.warning("the engine's thread can't be pinned to one core: %s", error)
