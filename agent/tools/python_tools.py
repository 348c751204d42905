"""Python functions as tools: schema from the signature, validation, and execution.

pydantic validates the arguments against the same schema that the model gets; an invalid argument
becomes an error text for the model. A function that is not `async` runs on one of a few threads of
the tool: a call that hangs keeps its thread, until the tool can't be called any more; other tools
are not affected.
"""

import asyncio
import concurrent.futures
import contextlib
import inspect
import typing
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

from agent.stages.model_thread import THREAD_PREFIX

from .api import ToolError, ToolMark
from .event_loop import ToolLoop
from .server_tool import NAME, NAME_RULE, definition_of, one_line

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

MAX_THREADS: Final = 8
"""Threads of one tool: as many as the calls that a model may make in parallel."""

MAX_DESCRIPTION_CHARS: Final = 4000
"""Longest docstring. It is part of every prompt."""

_NOT_FOR_LOOPS: Final = (
    *(SystemExit, KeyboardInterrupt, StopIteration),
    *(asyncio.CancelledError, concurrent.futures.CancelledError),
)
"""Exceptions that an event loop takes for a request to end, or for a cancellation."""

_MAX_SHOWN: Final = 3
"""Most validation errors of one call that are sent to the model."""


class BadToolError(Exception):
    """The function can't be a tool. The message is the predicate of a sentence: "has no ..."."""


class PythonTool:
    """A Python function as a `ServerTool`. Raises BadToolError."""

    def __init__(
        self, function: Callable[..., Any], mark: ToolMark, loop: ToolLoop, timeout_s: float
    ) -> None:
        """`timeout_s`: limit where the mark has none. `loop`: runs an `async` function."""
        self.name = mark.name or str(getattr(function, "__name__", ""))
        self.timeout_s = mark.timeout_s or timeout_s
        self.is_background = mark.is_background
        self.function = function
        if not NAME.fullmatch(self.name):
            raise BadToolError(f"can't be called {self.name!r}: {NAME_RULE}")
        description = inspect.getdoc(function)
        if not description:
            raise BadToolError("has no docstring; it tells the model what the tool is for")
        if len(description) > MAX_DESCRIPTION_CHARS:
            raise BadToolError(f"has a docstring of more than {MAX_DESCRIPTION_CHARS} characters")
        self._arguments, self._names = _arguments_of(function)
        self.definition = definition_of(self.name, description, _schema_of(self._arguments))
        self._loop = loop
        self._pool: ThreadPoolExecutor | None = None
        if not inspect.iscoroutinefunction(function):
            self._pool = ThreadPoolExecutor(MAX_THREADS, f"{THREAD_PREFIX}tool {self.name}")
        self._num_busy = 0
        """Threads that are busy, those of abandoned calls included."""

    async def call(self, arguments: str) -> str:
        """Call the function. Raises ToolError, or the function's own error."""
        if self._pool is None:
            return await self._loop.run(partial(self._call_async, arguments))
        if self._num_busy >= MAX_THREADS:
            raise ToolError(f"{self.name} is still busy with earlier calls; try again later")
        self._num_busy += 1
        loop = asyncio.get_running_loop()
        begun = self._pool.submit(self._call_on_thread, arguments)
        begun.add_done_callback(lambda _: _tell(loop, self._thread_is_free))
        return await asyncio.wrap_future(begun)

    def close(self) -> None:
        """Start no further calls."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _thread_is_free(self) -> None:
        self._num_busy -= 1

    def _call_on_thread(self, arguments: str) -> str:
        try:
            return text_of(self.function(**self._checked(arguments)))
        except _NOT_FOR_LOOPS as error:
            raise RuntimeError(f"raised {type(error).__name__}") from error

    async def _call_async(self, arguments: str) -> str:
        try:
            return text_of(await self.function(**self._checked(arguments)))
        except (SystemExit, KeyboardInterrupt) as error:
            raise RuntimeError(f"raised {type(error).__name__}") from error

    def _checked(self, arguments: str) -> dict[str, Any]:
        """The function's arguments. Raises ToolError."""
        from pydantic import ValidationError

        try:
            checked = self._arguments.model_validate_json(arguments)
        except ValidationError as error:
            raise ToolError(f"wrong arguments: {_mistakes(error)}") from None
        return {name: getattr(checked, field) for field, name in self._names.items()}


def text_of(result: object) -> str:
    """A function's result for the model: text as it is, everything else as JSON. Raises ToolError
    for a result without JSON."""
    if isinstance(result, str):
        return result
    from pydantic_core import PydanticSerializationError, to_json

    try:
        return to_json(result, inf_nan_mode="null").decode()
    except (PydanticSerializationError, ValueError):
        raise ToolError(f"the result is a {type(result).__name__}, which is no text") from None


def _tell(loop: asyncio.AbstractEventLoop, what: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop has ended, and with it the caller
        loop.call_soon_threadsafe(what)


def _arguments_of(function: Callable[..., Any]) -> "tuple[type[BaseModel], dict[str, str]]":
    """A pydantic model of the function's arguments, and the parameter of each of its fields. Raises
    BadToolError."""
    if not inspect.isfunction(function) or inspect.isgeneratorfunction(function):
        raise BadToolError("must be a function that returns its result")
    if inspect.isasyncgenfunction(function):
        raise BadToolError("must return its result, not yield it")
    from pydantic import ConfigDict, Field, PydanticUserError, create_model
    from pydantic.errors import PydanticUndefinedAnnotation
    from pydantic.fields import FieldInfo

    try:
        kinds = typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError, SyntaxError) as error:
        raise BadToolError(f"has a type that can't be read: {one_line(error)}") from None
    fields: dict[str, Any] = {}
    names: dict[str, str] = {}
    for index, (name, parameter) in enumerate(inspect.signature(function).parameters.items()):
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise BadToolError(f"takes {parameter}, but every argument must have a name of its own")
        if name not in kinds:
            raise BadToolError(f"does not say of what type {name!r} is")
        kind, default = kinds[name], parameter.default
        if isinstance(default, FieldInfo):
            kind, default = Annotated[kind, default], parameter.empty
        # Field names can't be the parameters' own: one may be called "schema" or "_x".
        own = Field(alias=name) if default is parameter.empty else Field(default, alias=name)
        fields[f"p{index}"] = (kind, own)
        names[f"p{index}"] = name
    try:
        model = create_model("Arguments", __config__=ConfigDict(extra="forbid"), **fields)
    except (PydanticUserError, PydanticUndefinedAnnotation, TypeError, ValueError) as error:
        raise BadToolError(f"has a type that JSON does not have: {one_line(error)}") from None
    return model, names


def _schema_of(model: "type[BaseModel]") -> Mapping[str, Any]:
    """The JSON schema for the model. Raises BadToolError."""
    from pydantic import PydanticUserError
    from pydantic.json_schema import GenerateJsonSchema

    class Untitled(GenerateJsonSchema):
        """Schema without titles: they repeat the names, and every token is part of the prompt."""

        def field_title_should_be_set(self, schema: Any) -> bool:
            return False

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a default that JSON does not have: it is left out
            schema = model.model_json_schema(schema_generator=Untitled)
    except (PydanticUserError, ValueError) as error:
        raise BadToolError(f"has a type that JSON does not have: {one_line(error)}") from None
    for each in (schema, *schema.get("$defs", {}).values()):
        each.pop("title", None)
    return schema


def _mistakes(error: "ValidationError") -> str:
    """Validation errors on one line, without the input."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    shown = [
        ": ".join(filter(None, (".".join(map(str, each["loc"])), one_line(each["msg"], 120))))
        for each in found[:_MAX_SHOWN]
    ]
    return "; ".join([*shown, "..."] if len(found) > _MAX_SHOWN else shown)
