"""Error types, one for each cause: the model file, the request, the engine, the device."""


class ModelError(ValueError):
    """The model cannot be used. The message names the file, what was found and what would work."""


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


class StepInterruptedError(EngineError):
    """A step was broken off for more urgent work. Nothing of it counts; it can be run again."""


class DeviceLostError(EngineError):
    """The compute device is lost. This process can't get it back; only a new one can."""
