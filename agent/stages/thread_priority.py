"""Priority of the language model's threads on a processor: behind the recognizer's and the voice's.

Two of these compute at once whenever words are prefilled while others are recognized, and when the
second piece of a reply is generated while the first is synthesized. Each product waits for all of
its threads, so that two stages on two cores take more than twice as long each. The recognizer and
the voice are what the caller waits for then, and the model's work can come later.
"""

import contextlib
import os
import sys
import threading
from typing import Final

NICENESS: Final = 5
"""Steps of niceness: a third of the share of a thread that competes. Measured on two cores, 40
commands in turns with none: 460 and 545 ms instead of 534 and 558 (p50 at the ear, two runs each),
a recognizer's pass 65 and 116 instead of 109 and 129. Higher: a busy process beside the service
stops the model."""


def yield_to_other_stages() -> None:
    """Put the calling thread, and all that it will start, behind the process's main thread. Does
    nothing on that one, where threads have no priority of their own, and where a sandbox forbids
    it. There is no way back without privileges."""
    if sys.platform != "linux" or threading.current_thread() is threading.main_thread():
        return
    niceness = os.getpriority(os.PRIO_PROCESS, os.getpid()) + NICENESS
    with contextlib.suppress(OSError):  # it only gives way, so that it may do without
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness)
