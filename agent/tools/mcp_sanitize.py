"""Checks and limits of what MCP servers send: lists of tools, and results. Pure.

A server is foreign code. Its list of tools is part of every prompt, so it is bounded; and one
invalid tool does not make the others unusable.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from .server_tool import NAME, NAME_RULE, definition_of, one_line

MAX_TOOLS: Final = 64
"""Most tools of one server. A small model can't choose among far fewer."""

MAX_SCHEMA_CHARS: Final = 16_000
"""Largest schema of one tool, as JSON. OpenAI accepts more from clients; here no client could get
the error that the context is full."""

MAX_SCHEMA_DEPTH: Final = 32
"""Deepest schema. Parameters of real tools nest about 20 deep."""

MAX_DESCRIPTION_CHARS: Final = 1024
"""Longest description; a longer one is cut."""

MAX_PROBLEMS: Final = 8
"""Most problems of a listing that are told; a server may list any number of unusable tools."""

MAX_RESULT_CHARS: Final = 1_000_000
"""Longest text of one result, before the limit of the settings."""


@dataclass(frozen=True, slots=True)
class Listing:
    """The usable tools of a server."""

    definitions: dict[str, str]
    """Definitions by name, in the form of `ports.Tools`."""
    problems: tuple[str, ...]
    """Why other tools are unusable, a sentence each."""


def listing_of(
    tools: Iterable[Any], allowed: Sequence[str] = (), background: Sequence[str] = ()
) -> Listing:
    """Check a server's tools. `tools`: objects of the MCP library. `allowed`: names of the only
    tools to use; empty: all. `background`: names of tools that the settings speak of as well."""
    definitions: dict[str, str] = {}
    problems = []
    for tool in tools:
        name = tool.name
        if allowed and name not in allowed:
            continue
        if len(definitions) >= MAX_TOOLS:
            problems.append(f"it has more than {MAX_TOOLS} tools; the rest is left out")
            break
        if (problem := _problem(tool)) is not None:
            problems.append(f"the tool {one_line(repr(name), 80)} can't be used: {problem}")
        elif name in definitions:
            problems.append(f"it has two tools {name!r}; the second is left out")
        else:
            description = (tool.description or tool.title or "").strip()
            definitions[name] = definition_of(
                name, description[:MAX_DESCRIPTION_CHARS], tool.input_schema
            )
    known = {tool.name for tool in tools}
    named = dict.fromkeys((*allowed, *background))
    problems = [*(f"it has no tool {name!r}" for name in named if name not in known), *problems]
    if len(problems) > MAX_PROBLEMS:
        problems[MAX_PROBLEMS:] = [f"it has {len(problems) - MAX_PROBLEMS} problems more"]
    return Listing(definitions, tuple(problems))


def _problem(tool: Any) -> str | None:
    if not NAME.fullmatch(tool.name):
        return NAME_RULE
    schema = tool.input_schema
    if _is_deeper(schema, MAX_SCHEMA_DEPTH):
        return f"what it takes nests more than {MAX_SCHEMA_DEPTH} deep"
    if len(json.dumps(schema, ensure_ascii=False)) > MAX_SCHEMA_CHARS:
        return f"what it takes has more than {MAX_SCHEMA_CHARS} characters"
    return None


def _is_deeper(value: object, limit: int) -> bool:
    if limit < 0:
        return True
    inner: Iterable[object] = ()
    if isinstance(value, dict):
        inner = value.values()
    elif isinstance(value, list):
        inner = value
    return any(_is_deeper(each, limit - 1) for each in inner)


def result_text(result: Any) -> str:
    """The text of a result for the model. Content other than text is named, not included.

    `result`: an object of the MCP library. Structured results become JSON; where a server sends
    them as text as well, as the standard asks, that text is used.
    """
    parts = [_text_of(block) for block in result.content]
    if not any(block.type == "text" for block in result.content) and (
        result.structured_content is not None
    ):
        parts.insert(0, json.dumps(result.structured_content, ensure_ascii=False))
    return "\n".join(parts)[:MAX_RESULT_CHARS] or "(nothing)"


def _text_of(block: Any) -> str:
    if block.type == "text":
        return str(block.text)
    if block.type == "resource" and hasattr(block.resource, "text"):
        return str(block.resource.text)
    if block.type == "resource":
        return f"[a resource, not shown: {one_line(block.resource.uri)}]"
    if block.type == "resource_link":
        return f"[a resource, not shown: {one_line(block.uri)}]"
    return f"[{block.type}, not shown: {one_line(block.mime_type)}]"
