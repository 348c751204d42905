"""A bench's contestant in this process: one of its own has five seconds of imports."""

from collections.abc import Callable
from typing import Any

from benchmarks.llm.contestant import _start
from benchmarks.llm.engine_under_test import OwnEngine


class LocalContestant:
    """In place of `Remote`, for our engine."""

    def __init__(self, name: str, make: Callable[..., OwnEngine], **options: Any) -> None:
        self.name = name
        self._contestant = make(**options)

    def call(self, method: str, *arguments: Any, **options: Any) -> Any:
        if method == "start":
            return _start(self._contestant)
        return getattr(self._contestant, method)(*arguments, **options)

    def close(self) -> None:
        if self._contestant._engine is not None:
            self._contestant._engine.close()
