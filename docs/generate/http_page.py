"""Reference of the HTTP endpoints, from the OpenAPI document that the server serves."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from agent.http.endpoints.openapi import description

_HEAD: Final = """\
# HTTP endpoints

Generated from the OpenAPI document, which a server serves at `/openapi.json`. Calls themselves are
WebSockets: see [Events](events.md). All paths but those marked *open* need a key where the server
asks for one: see [Keys and TLS](../how-to/secure.md).
"""


def page() -> str:
    """Markdown of the page."""
    document = description()
    parts = [_HEAD, *_sockets()]
    about = {tag["name"]: tag.get("description", "") for tag in document["tags"]}
    for tag, text in about.items():
        parts.append(f"## {tag}\n\n{text}\n")
        for path, operations in document["paths"].items():
            for method, operation in operations.items():
                if operation["tags"][0] == tag:
                    parts.append("\n".join(_operation(path, method, operation, document)))
    parts.append("## Schemas\n")
    for name, schema in document["components"]["schemas"].items():
        parts.append("\n".join(_schema(name, schema)))
    return "\n".join(parts)


def _sockets() -> Iterator[str]:
    """WebSocket paths, for which OpenAPI has no words."""
    from starlette.routing import WebSocketRoute

    from agent.config.schema import Config
    from agent.server.app import create_app
    from agent.stages.model_store.catalogue import ModelStore
    from agent.stages.registry import Stages
    from latency_budget.account.clock import SystemClock

    clock = SystemClock()
    app = create_app(Config(), Stages(Config(), ModelStore(), clock), clock)
    paths = [route.path for route in app.asgi.routes if isinstance(route, WebSocketRoute)]
    yield "## WebSockets\n"
    for path in paths:
        if "{path" not in path:
            yield f"- `{path}`"
    yield ""


def _operation(
    path: str, method: str, operation: Mapping[str, Any], document: Mapping[str, Any]
) -> Iterator[str]:
    is_open = " · *open*" if operation.get("security") == [] else ""
    yield f"### {method.upper()} {path}\n"
    yield f"{operation.get('summary', '')}{is_open}\n"
    yield operation.get("description", "")
    if parameters := [_resolved(each, document) for each in operation.get("parameters", [])]:
        yield "\n| parameter | in | type | meaning |\n| --- | --- | --- | --- |"
        for each in parameters:
            cells = (f"`{each['name']}`", each["in"], _kind(each.get("schema", {})))
            yield f"| {' | '.join(cells)} | {_line(each.get('description', ''))} |"
    if "requestBody" in operation:
        body = _resolved(operation["requestBody"], document)
        for media, content in body["content"].items():
            yield f"\nBody, `{media}`: {_kind(content.get('schema', {}))}\n"
            yield from _properties(content.get("schema", {}))
    yield "\n| status | meaning | body |\n| --- | --- | --- |"
    for status, response in sorted(operation["responses"].items()):
        found = _resolved(response, document)
        bodies = ", ".join(
            f"`{media}` {_kind(content.get('schema', {}))}"
            for media, content in found.get("content", {}).items()
        )
        yield f"| {status} | {_line(found.get('description', ''))} | {bodies} |"
    yield ""


def _schema(name: str, schema: Mapping[str, Any]) -> Iterator[str]:
    yield f"### {name}\n"
    yield f"{_line(schema.get('description', ''))}\n"
    if "properties" in schema:
        yield from _properties(schema)
    else:
        yield f"{_kind(schema)}\n"


def _properties(schema: Mapping[str, Any]) -> Iterator[str]:
    if not schema.get("properties"):
        return
    required = set(schema.get("required", ()))
    yield "| field | type | meaning |\n| --- | --- | --- |"
    for name, field in schema["properties"].items():
        mark = " (required)" if name in required else ""
        text = _line(field.get("description", "")) if isinstance(field, dict) else ""
        yield f"| `{name}`{mark} | {_kind(field)} | {text} |"
    yield ""


def _kind(schema: Any) -> str:
    """A schema's type on one line, with links to named schemas."""
    if not isinstance(schema, dict) or not schema:
        return "any"
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[-1]
        return f"[{name}](#{name.lower()})"
    if "const" in schema:
        return f"`{_literal(schema['const'])}`"
    if "enum" in schema:
        return ", ".join(f"`{_literal(each)}`" for each in schema["enum"])
    for word in ("anyOf", "oneOf", "allOf"):
        if word in schema:
            return " or ".join(_kind(each) for each in schema[word])
    kind = schema.get("type", "any")
    if isinstance(kind, list):
        kind = " or ".join(kind)
    if kind == "array":
        return f"array of {_kind(schema.get('items'))}"
    bounds = [
        f"{words} {schema[key]}"
        for key, words in (
            ("minimum", "at least"),
            ("maximum", "at most"),
            ("minLength", "length at least"),
            ("maxLength", "length at most"),
            ("maxItems", "items at most"),
        )
        if key in schema
    ]
    if "default" in schema:
        bounds.append(f"default `{_literal(schema['default'])}`")
    return f"{kind} ({', '.join(bounds)})" if bounds else str(kind)


def _literal(value: Any) -> str:
    text = str(value).replace("\n", "\\n").replace("|", "\\|")
    return text or '""'


def _line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _resolved(value: Mapping[str, Any], document: Mapping[str, Any]) -> Mapping[str, Any]:
    if "$ref" not in value:
        return value
    found: Any = document
    for part in value["$ref"].removeprefix("#/").split("/"):
        found = found[part]
    assert isinstance(found, dict)
    return found
