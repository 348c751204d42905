"""Python functions as tools: what they take, told by their signatures, and how they run.

Arguments are checked by pydantic, as they were told to the model; a mistake of the model's becomes
a text that tells it so. A function that is not `async` runs on a thread of the tool's own, of which
there are few: one that hangs keeps its thread, and in the end nobody can call it any more, but
every other tool can be called.
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
from .decorator import NAME, NAME_RULE, definition_of, one_line
from .event_loop import ToolLoop

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

MAX_THREADS: Final = 8
"""Of one tool. As many as a model may call in parallel."""

MAX_DESCRIPTION_CHARS: Final = 4000
"""Of a docstring. It stands in every prompt."""

_NOT_FOR_LOOPS: Final = (
    *(SystemExit, KeyboardInterrupt, StopIteration),
    *(asyncio.CancelledError, concurrent.futures.CancelledError),
)
"""What a loop takes for something else than a failure: an order to end, or a cancelled caller."""

_MAX_SHOWN: Final = 3
"""Mistakes in the arguments of one call that the model is told of."""


class BadToolError(Exception):
    """This function can't be a tool. The message is the predicate of a sentence: "has no ..."."""


class PythonTool:
    """A `ServerTool`. Raises BadToolError."""

    def __init__(
        self, function: Callable[..., Any], mark: ToolMark, loop: ToolLoop, timeout_s: float
    ) -> None:
        """`timeout_s`: where the mark has none. `loop`: where it runs if it is `async`."""
        self.name = mark.name or str(getattr(function, "__name__", ""))
        self.timeout_s = mark.timeout_s or timeout_s
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
        """Threads that are at work, for whomever."""

    async def call(self, arguments: str) -> str:
        """Raises ToolError, or what the function raises."""
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
        """Begin nothing more."""
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
    """What a function returned, for the model: text as it is, all else as JSON. Raises ToolError
    for what has no JSON."""
    if isinstance(result, str):
        return result
    from pydantic_core import PydanticSerializationError, to_json

    try:
        return to_json(result, inf_nan_mode="null").decode()
    except (PydanticSerializationError, ValueError):
        raise ToolError(f"the result is a {type(result).__name__}, which is no text") from None


def _tell(loop: asyncio.AbstractEventLoop, what: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is gone: nobody is waiting
        loop.call_soon_threadsafe(what)


def _arguments_of(function: Callable[..., Any]) -> "tuple[type[BaseModel], dict[str, str]]":
    """A model of what the function takes, and of its fields which parameter each is. Raises
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
        # Under a name that is none of pydantic's own: a parameter may be called "schema" or "_x".
        own = Field(alias=name) if default is parameter.empty else Field(default, alias=name)
        fields[f"p{index}"] = (kind, own)
        names[f"p{index}"] = name
    try:
        model = create_model("Arguments", __config__=ConfigDict(extra="forbid"), **fields)
    except (PydanticUserError, PydanticUndefinedAnnotation, TypeError, ValueError) as error:
        raise BadToolError(f"has a type that JSON does not have: {one_line(error)}") from None
    return model, names


def _schema_of(model: "type[BaseModel]") -> Mapping[str, Any]:
    """As the model is told it. Raises BadToolError."""
    from pydantic import PydanticUserError
    from pydantic.json_schema import GenerateJsonSchema

    class Untitled(GenerateJsonSchema):
        """Titles repeat the names, and every token of them stands in the prompt."""

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
    """On one line, without what was given."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    told = [
        ": ".join(filter(None, (".".join(map(str, each["loc"])), one_line(each["msg"], 120))))
        for each in found[:_MAX_SHOWN]
    ]
    return "; ".join([*told, "..."] if len(found) > _MAX_SHOWN else told)
