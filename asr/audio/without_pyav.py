"""Import of faster-whisper without PyAV.

faster-whisper imports PyAV with its first module, to decode files, which halfsec does with
libsndfile and miniaudio. PyAV's wheel holds FFmpeg built with x264 and x265, under the GPL: a
process that does not need them does not load them.
"""

import importlib
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Final

_NAME: Final = "av"
_LOCK: Final = threading.RLock()


@contextmanager
def without_pyav() -> Iterator[None]:
    """Modules that are imported within, for the first time, get a stand-in for PyAV, which imports
    it where it is used. Other threads may wait."""
    with _LOCK:
        if _NAME in sys.modules:
            yield
            return
        stand_in = ModuleType(_NAME, "Imports PyAV when it is used.")
        stand_in.__dict__["__getattr__"] = _attribute
        sys.modules[_NAME] = stand_in
        try:
            yield
        finally:
            if sys.modules.get(_NAME) is stand_in:
                del sys.modules[_NAME]


def _attribute(name: str) -> Any:
    return getattr(importlib.import_module(_NAME), name)
