"""Python functions as tools: what they take, how they run, and what becomes of those that fail."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import date
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from agent.tools.api import ToolError, mark_of, tool
from agent.tools.event_loop import MAX_RUNNING, ToolLoop
from agent.tools.python_tools import MAX_THREADS, BadToolError, PythonTool, text_of


class Unit(Enum):
    CELSIUS = "celsius"
    FAHRENHEIT = "fahrenheit"


class Place(BaseModel):
    city: str


def made(function: Callable[..., Any], loop: ToolLoop | None = None) -> PythonTool:
    mark = mark_of(tool(function))
    assert mark is not None
    return PythonTool(function, mark, loop or ToolLoop("unused"), timeout_s=10)


@asynccontextmanager
async def running() -> AsyncIterator[ToolLoop]:
    loop = ToolLoop("test")
    await loop.start()
    try:
        yield loop
    finally:
        await loop.close()


def weather(
    city: Annotated[str, Field(description="Name of a city", max_length=20)],
    unit: Unit = Unit.CELSIUS,
    day: Literal["today", "tomorrow"] | None = None,
    days: Annotated[int, Field(ge=1, le=7)] = 1,
    schema: bool = Field(False, description="Called as one of pydantic's own methods"),
) -> str:
    """Tell the weather.

    Of a city.
    """
    return f"{city} {unit} {day} {days} {schema}"


def test_tool_description_for_the_model() -> None:
    definition = json.loads(made(weather).definition)
    assert definition["name"] == "weather"
    assert definition["description"] == "Tell the weather.\n\nOf a city."
    parameters = definition["parameters"]
    assert parameters["required"] == ["city"]
    assert parameters["additionalProperties"] is False
    assert parameters["properties"] == {
        "city": {"type": "string", "maxLength": 20, "description": "Name of a city"},
        "unit": {"$ref": "#/$defs/Unit", "default": "celsius"},
        "day": {
            "anyOf": [{"enum": ["today", "tomorrow"], "type": "string"}, {"type": "null"}],
            "default": None,
        },
        "days": {"type": "integer", "minimum": 1, "maximum": 7, "default": 1},
        "schema": {
            "type": "boolean",
            "default": False,
            "description": "Called as one of pydantic's own methods",
        },
    }
    assert parameters["$defs"]["Unit"]["enum"] == ["celsius", "fahrenheit"]
    assert "title" not in json.dumps(definition)


async def test_arguments_arrive_as_what_they_are() -> None:
    given = '{"city": "Rome", "unit": "fahrenheit", "days": 2, "schema": true}'
    assert await made(weather).call(given) == "Rome Unit.FAHRENHEIT None 2 True"
    assert await made(weather).call('{"city": "Rome"}') == "Rome Unit.CELSIUS None 1 False"

    def where(place: Place, _how: list[int]) -> str:
        """Tell where."""
        return f"{place.city} {sum(_how)}"

    assert await made(where).call('{"place": {"city": "Rome"}, "_how": [1, 2]}') == "Rome 3"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ("{}", "city: Field required"),
        ('{"city": "Rome", "days": 9}', "days: Input should be less than or equal to 7"),
        ('{"city": "Rome", "colour": 1}', "colour: Extra inputs are not permitted"),
        ('{"city": "x', "Invalid JSON: EOF while parsing a string at line 1 column 11"),
        ("[]", "Input should be an object"),
        (
            '{"unit": 1, "day": 1, "days": "x", "schema": "secret"}',
            "city: Field required; unit: Input should be 'celsius' or 'fahrenheit'; "
            "day: Input should be 'today' or 'tomorrow'; ...",
        ),
    ],
)
async def test_errors_are_reported_on_one_line(arguments: str, problem: str) -> None:
    with pytest.raises(ToolError) as caught:
        await made(weather).call(arguments)
    assert str(caught.value) == f"wrong arguments: {problem}"


@dataclass
class Reading:
    at: date
    degrees: float


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ("as it is", "as it is"),
        (None, "null"),
        ({"a": [1, "ü"]}, '{"a":[1,"ü"]}'),
        (Reading(date(2026, 11, 22), float("nan")), '{"at":"2026-11-22","degrees":null}'),
        (Place(city="Rome"), '{"city":"Rome"}'),
    ],
)
def test_results_are_text(result: object, text: str) -> None:
    assert text_of(result) == text


def test_a_result_without_a_text() -> None:
    endless: list[object] = []
    endless.append(endless)
    for result in (object(), endless, b"\xff"):
        with pytest.raises(ToolError, match="which is no text"):
            text_of(result)


def no_words(city: str) -> str:
    return city


def no_type(city) -> str:  # type: ignore[no-untyped-def]
    """Tell."""
    return str(city)


def many(*cities: str) -> str:
    """Tell."""
    return str(cities)


def only_by_place(city: str, /) -> str:
    """Tell."""
    return city


def no_json(thread: threading.Thread) -> str:
    """Tell."""
    return str(thread)


def no_schema(ask: Callable[[], str]) -> str:
    """Tell."""
    return ask()


def unknown(city: "Nowhere") -> str:  # type: ignore[name-defined]  # noqa: F821
    """Tell."""
    return str(city)


def one_by_one() -> Iterator[str]:
    """Tell."""
    yield ""


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (no_words, "has no docstring"),
        (no_type, "does not say of what type 'city' is"),
        (many, r"takes \*cities: str, but every argument must have a name"),
        (only_by_place, "takes city: str, but"),
        (no_json, "has a type that JSON does not have"),
        (no_schema, "has a type that JSON does not have"),
        (unknown, "has a type that can't be read: name 'Nowhere' is not defined"),
        (one_by_one, "must be a function that returns its result"),
        (lambda: "", "can't be called '<lambda>'"),
    ],
)
def test_what_can_be_no_tool(function: Callable[..., Any], problem: str) -> None:
    with pytest.raises(BadToolError, match=problem) as caught:
        made(function)
    assert "\n" not in str(caught.value)


def test_a_mark_says_what_the_function_does_not() -> None:
    @tool(name="city-weather", timeout_s=2.5)
    def forecast() -> str:
        """Tell."""
        return "clear"

    assert forecast() == "clear"
    mark = mark_of(forecast)
    assert mark is not None
    found = PythonTool(forecast, mark, ToolLoop("unused"), timeout_s=10)
    assert (found.name, found.timeout_s) == ("city-weather", 2.5)
    assert mark_of(text_of) is None
    for timeout_s in (0, 15.5):
        with pytest.raises(ValueError, match="at most 15"):
            tool(timeout_s=timeout_s)


def test_a_tool_in_the_background_may_take_an_hour() -> None:
    @tool(background=True, timeout_s=3600)
    async def search() -> str:
        """Search."""
        return "found"

    mark = mark_of(search)
    assert mark is not None
    found = PythonTool(search, mark, ToolLoop("unused"), timeout_s=10)
    assert (found.is_background, found.timeout_s) == (True, 3600)
    with pytest.raises(ValueError, match="at most 3600: 3601"):
        tool(background=True, timeout_s=3601)
    with pytest.raises(ValueError, match="at most 15: 60; with background=True it may be longer"):
        tool(timeout_s=60)


async def test_one_that_hangs_keeps_only_its_own_callers() -> None:
    gate = threading.Event()

    def hang() -> str:
        """Hang."""
        gate.wait()
        return "done"

    def quick() -> str:
        """Answer."""
        return threading.current_thread().name

    hanging, other = made(hang), made(quick)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(hanging.call("{}")) for _ in range(MAX_THREADS)]
        await asyncio.sleep(0)
        with pytest.raises(ToolError, match="hang is still busy with earlier calls"):
            await hanging.call("{}")
        assert (await other.call("{}")).startswith("stage-tool quick")
        tasks[0].cancel()  # its thread hangs on
        await asyncio.sleep(0)
        with pytest.raises(ToolError, match="still busy"):
            await hanging.call("{}")
        gate.set()
        assert [await task for task in tasks[1:]] == ["done"] * (MAX_THREADS - 1)
    hanging.close()
    other.close()


async def test_a_coroutine_runs_elsewhere_and_is_cancelled() -> None:
    begun, ended = threading.Event(), threading.Event()

    async def hang() -> str:
        """Hang."""
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return ""

    async with running() as loop, asyncio.TaskGroup() as group:
        task = group.create_task(made(hang, loop).call("{}"))
        assert await asyncio.to_thread(begun.wait, 30)
        task.cancel()
        assert await asyncio.to_thread(ended.wait, 30)


async def test_a_coroutine_that_blocks_does_not_block_us() -> None:
    gate = threading.Event()

    async def block() -> str:
        """Block."""
        gate.wait()
        return "done"

    async with running() as loop, asyncio.TaskGroup() as group:
        task = group.create_task(made(block, loop).call("{}"))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not task.done()
        gate.set()
        assert await task == "done"


async def test_what_was_given_up_before_it_began_is_not_done() -> None:
    gate, begun, done = threading.Event(), threading.Event(), threading.Event()

    async def block() -> str:
        """Block."""
        begun.set()
        gate.wait()
        return ""

    async def act() -> str:
        """Act."""
        done.set()
        return ""

    async with running() as loop, asyncio.TaskGroup() as group:
        blocking = group.create_task(made(block, loop).call("{}"))
        assert await asyncio.to_thread(begun.wait, 30)
        acting = group.create_task(made(act, loop).call("{}"))
        await asyncio.sleep(0)
        acting.cancel()
        await asyncio.wait([acting])
        gate.set()
        await blocking
        await made(block, loop).call("{}")  # behind it
        assert not done.is_set()


async def test_those_count_that_have_not_begun() -> None:
    gate, begun = threading.Event(), threading.Event()

    async def block() -> str:
        """Block."""
        begun.set()
        gate.wait()
        return ""

    async def quick() -> str:
        """Answer."""
        return "done"

    async with running() as loop, asyncio.TaskGroup() as group:
        blocking = group.create_task(made(block, loop).call("{}"))
        assert await asyncio.to_thread(begun.wait, 30)
        tasks = [group.create_task(made(quick, loop).call("{}")) for _ in range(MAX_RUNNING - 1)]
        await asyncio.sleep(0)
        with pytest.raises(ToolError, match="too many tools are running"):
            await made(quick, loop).call("{}")
        for task in tasks[:2]:
            task.cancel()
        await asyncio.wait(tasks[:2])
        with pytest.raises(ToolError, match="too many"):  # the loop has not dropped them yet
            await made(quick, loop).call("{}")
        gate.set()
        await blocking
        assert [await task for task in tasks[2:]] == ["done"] * (MAX_RUNNING - 3)
        assert await made(quick, loop).call("{}") == "done"
        assert loop.num_running == 0, "cancelled ones count no more"


async def test_one_that_ignores_its_cancellation_counts_until_it_ends() -> None:
    begun, cancelled, end = threading.Event(), threading.Event(), asyncio.Event()

    async def stay() -> str:
        """Stay."""
        begun.set()
        try:
            await end.wait()
        except asyncio.CancelledError:
            cancelled.set()
            await end.wait()
        return ""

    async def finish() -> str:
        """End the other one."""
        end.set()
        return ""

    async with running() as loop, asyncio.TaskGroup() as group:
        staying = group.create_task(made(stay, loop).call("{}"))
        assert await asyncio.to_thread(begun.wait, 30)
        staying.cancel()
        assert await asyncio.to_thread(cancelled.wait, 30)
        assert loop.num_running == 1
        await made(finish, loop).call("{}")
        await made(finish, loop).call("{}")  # behind its end
        assert loop.num_running == 0


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, StopIteration])
async def test_what_would_end_more_than_the_tool(error: type[BaseException]) -> None:
    def end() -> str:
        """End."""
        raise error

    async def end_too() -> str:
        """End."""
        raise error

    def give_up() -> str:
        """End."""
        raise asyncio.CancelledError

    async with running() as loop:
        for function in (end, end_too, give_up):
            with pytest.raises(RuntimeError, match="raised"):
                await made(function, loop).call("{}")


async def test_nothing_is_called_where_nothing_runs() -> None:
    async def answer() -> str:
        """Answer."""
        return ""

    with pytest.raises(ToolError, match="tools do not run now"):
        await made(answer).call("{}")
