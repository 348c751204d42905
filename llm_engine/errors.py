"""Whose fault it is: the model file's, the request's, or the engine's own."""


class ModelError(ValueError):
    """The model cannot be used. The message names the file, what was found and what would work."""


class RequestError(ValueError):
    """The caller asked for something that cannot be done.

    `field` names the argument at fault, so that a server can point at it.
    """

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class EngineError(RuntimeError):
    """The engine failed at a request that was in order. The engine itself goes on."""


class DeviceLostError(EngineError):
    """What calculates is gone, and this process can't get it back: only a new one can."""
