"""Error types, one for each cause: the model file, the request, the engine, the device."""

from typing import Final

MAX_MODEL_ERROR_CHARS: Final = 1000
"""Longest message about a model: it may quote a damaged file, whose texts have any length."""


class ModelError(ValueError):
    """The model cannot be used. The message names the file, what was found and what would work; it
    is cut to `MAX_MODEL_ERROR_CHARS`."""

    def __init__(self, message: str) -> None:
        is_long = len(message) > MAX_MODEL_ERROR_CHARS
        super().__init__(f"{message[: MAX_MODEL_ERROR_CHARS - 3]}..." if is_long else message)


class MemoryShortageError(ModelError):
    """The model does not fit into memory. Nothing of it was loaded."""


class RequestError(ValueError):
    """The request asks for something that cannot be done.

    `field` names the argument at fault, so that a server can return it.
    """

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class EngineError(RuntimeError):
    """A valid request failed in the engine. The engine itself goes on."""


class GrammarError(EngineError):
    """The state of one reply in its grammar is broken: that reply can't go on, others can."""


class StepInterruptedError(EngineError):
    """A step was broken off for more urgent work. Nothing of it counts; it can be run again."""


class DeviceLostError(EngineError):
    """The compute device is lost. This process can't get it back; only a new one can."""
