"""Parser of OpenAI's tools, tool choices, calls in the history and response formats. Pure.

A tool's schema of its arguments is enforced. A keyword that can't be (`uniqueItems`, `not`) is
refused where `strict` is set, and for answers always; without `strict` the API promises its best
only, and tools from everywhere come with such keywords, so it is left to the tool.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from llm_engine.chat.tool_calls import Tool, ToolCall, ToolUse
from llm_engine.errors import RequestError
from llm_engine.structured_output.grammar import ANY_OBJECT, Schema

MAX_TOOLS: Final = 128
"""OpenAI's limit."""

MAX_TOOLS_CHARS: Final = 1 << 18
"""Characters of all definitions together, as on the voice socket. No model here has a context for
more, and a grammar for 3.6 million characters takes a core for 46 s."""

_NAME: Final = re.compile("[a-zA-Z0-9_-]{1,64}")
_OPEN: Final = frozenset(
    ("additionalProperties", "patternProperties", "allOf", "anyOf", "oneOf", "if", "$ref")
)
"""Keywords that decide about further properties, or bring some."""
_MAX_FIELD_CHARS: Final = 200
"""Characters of a field's path in an error message."""
_NO_PARAMETERS: Final = {"type": "object", "properties": {}, "additionalProperties": False}


def parse_tools(body: Mapping[str, Any]) -> ToolUse | None:
    """Tools that a reply may or must call; None without tools. With the choice "none" they are
    shown all the same: the prompt stays what it was. Raises RequestError naming the field."""
    values = body.get("tools")
    tools = () if values is None else _tools(values)
    parallel = body.get("parallel_tool_calls")
    if parallel is not None and not isinstance(parallel, bool):
        raise RequestError("parallel_tool_calls", "must be true or false")
    choice = body.get("tool_choice")
    if choice in (None, "auto", "none") and not isinstance(choice, list | dict):
        if not tools:
            return None
        callable_tools = () if choice == "none" else tools
        return ToolUse(tools, callable_tools, must_call=False, in_parallel=parallel is not False)
    if not tools:
        raise RequestError("tool_choice", "there are no tools to choose from")
    if choice == "required":
        return ToolUse(tools, tools, must_call=True, in_parallel=parallel is not False)
    name = _chosen(choice)
    chosen = tuple(tool for tool in tools if tool.name == name)
    if not chosen:
        raise RequestError("tool_choice", f"{short(name)} is not among the tools")
    return ToolUse(tools, chosen, must_call=True, in_parallel=False)


def parse_answer(body: Mapping[str, Any]) -> Schema | None:
    """Schema that `response_format` asks for. Raises RequestError naming the field."""
    value = body.get("response_format")
    kind = value.get("type") if isinstance(value, dict) else None
    if value is None or kind == "text":
        return None
    if kind == "json_object":
        return Schema.of(ANY_OBJECT, "response_format")
    if kind != "json_schema" or not isinstance(value, dict):
        raise RequestError("response_format", "type must be text, json_object or json_schema")
    described = value.get("json_schema")
    if not isinstance(described, dict):
        raise RequestError("response_format.json_schema", "must be an object with a schema")
    return Schema.of(described.get("schema"), "response_format.json_schema.schema")


def parse_calls(message: Mapping[str, Any], name: str, call_ids: set[str]) -> tuple[ToolCall, ...]:
    """Calls of the message at field `name`; adds their ids to `call_ids`. Raises RequestError."""
    values = message.get("tool_calls")
    if values is None:
        return ()
    if not isinstance(values, list) or (values and message.get("role") != "assistant"):
        raise RequestError(f"{name}.tool_calls", "must be a list, in a message of the assistant")
    calls: list[ToolCall] = []
    for index, value in enumerate(values):
        field = f"{name}.tool_calls[{index}]"
        function = value.get("function") if isinstance(value, dict) else None
        if not isinstance(value, dict) or not isinstance(function, dict):
            raise RequestError(f"{field}.function", "must be an object: only functions are known")
        if not isinstance(value.get("id"), str):
            raise RequestError(f"{field}.id", "must be a string")
        called, arguments = function.get("name"), function.get("arguments")
        if not isinstance(called, str) or not _NAME.fullmatch(called):
            raise RequestError(f"{field}.function.name", _NAME_RULE)
        if not isinstance(arguments, str):
            raise RequestError(f"{field}.function.arguments", "must be a string of JSON")
        call_ids.add(value["id"])
        calls.append(ToolCall(called, arguments.strip() or "{}"))
    return tuple(calls)


def _tools(values: object) -> tuple[Tool, ...]:
    if not isinstance(values, list):
        raise RequestError("tools", "must be a list")
    if len(values) > MAX_TOOLS:
        raise RequestError("tools", f"has {len(values)} tools; {MAX_TOOLS} is the limit")
    tools: dict[str, Tool] = {}
    num_chars = 0
    for index, value in enumerate(values):
        field = f"tools[{index}]"
        function = value.get("function") if isinstance(value, dict) else None
        if not isinstance(function, dict) or value.get("type", "function") != "function":
            raise RequestError(field, "must be of type function and have a function")
        name = function.get("name")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise RequestError(f"{field}.function.name", _NAME_RULE)
        if name in tools:
            raise RequestError(f"{field}.function.name", f"{name!r} is the name of two tools")
        description = function.get("description")
        if description is not None and not isinstance(description, str):
            raise RequestError(f"{field}.function.description", "must be a string")
        definition = _definition(function)
        num_chars += len(definition)
        if num_chars > MAX_TOOLS_CHARS:
            problem = f"have more than {MAX_TOOLS_CHARS} characters together, counted to {field}"
            raise RequestError("tools", problem)
        tools[name] = Tool(name, definition, _parameters(function, field))
    return tuple(tools.values())


def _parameters(function: Mapping[str, Any], field: str) -> Schema:
    strict = function.get("strict")
    if strict is not None and not isinstance(strict, bool):
        raise RequestError(f"{field}.function.strict", "must be true or false")
    parameters = function.get("parameters")
    field = f"{field}.function.parameters"
    if parameters is None:
        parameters = _NO_PARAMETERS
    if not isinstance(parameters, dict):
        raise RequestError(field, "must be a JSON schema, an object")
    if parameters.get("type", "object") != "object":
        raise RequestError(field, "must describe an object: its type must be object")
    _check_required(parameters, field)
    return Schema.of(_closed({"type": "object", **parameters}), field, is_lenient=not strict)


def _check_required(schema: Mapping[str, Any], field: str) -> None:
    """Raise RequestError where `required` is no list of names, or has one that no value could
    satisfy; in the schema and in those of its properties and items."""
    required, properties = schema.get("required"), schema.get("properties")
    if required is not None:
        if not isinstance(required, list) or not all(isinstance(each, str) for each in required):
            raise RequestError(f"{field}.required", "must be a list of names of properties")
        known = properties if isinstance(properties, dict) else {}
        unknown = [name for name in required if name not in known]
        if unknown and not _OPEN & schema.keys():
            problem = f"{short(unknown[0])} is not among the properties"
            raise RequestError(f"{field}.required", problem)
    for name, inner in properties.items() if isinstance(properties, dict) else ():
        if isinstance(inner, dict):
            _check_required(inner, f"{field}.properties.{name}"[:_MAX_FIELD_CHARS])
    items = schema.get("items")
    if isinstance(items, dict):
        _check_required(items, f"{field}.items"[:_MAX_FIELD_CHARS])


def _closed(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with `additionalProperties` false in each object that lists its properties and
    leaves that open: models invent arguments that the tool does not have. Parts of an `allOf` stay
    open, as each would refuse the properties of the others."""
    closed = {name: _closed_inside(name, value) for name, value in schema.items()}
    if "properties" in schema and not _OPEN & schema.keys():
        closed["additionalProperties"] = False
    return closed


def _closed_inside(name: str, value: Any) -> Any:
    if name in ("properties", "$defs", "definitions") and isinstance(value, dict):
        return {
            key: _closed(inner) if isinstance(inner, dict) else inner
            for key, inner in value.items()
        }
    if name == "items" and isinstance(value, dict):
        return _closed(value)
    if name in ("anyOf", "oneOf") and isinstance(value, list):
        return [_closed(each) if isinstance(each, dict) else each for each in value]
    return value


def _definition(function: Mapping[str, Any]) -> str:
    known = {
        name: function[name]
        for name in ("name", "description", "parameters")
        if function.get(name) is not None
    }
    return json.dumps({"type": "function", "function": known}, ensure_ascii=False)


def _chosen(choice: object) -> str:
    function = choice.get("function") if isinstance(choice, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        problem = "must be none, auto, required, or an object that names a function"
        raise RequestError("tool_choice", problem)
    return name


def short(value: object) -> str:
    """A value in at most 40 characters, for an error message."""
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


_NAME_RULE: Final = "must be 1 to 64 letters, digits, _ or -"
