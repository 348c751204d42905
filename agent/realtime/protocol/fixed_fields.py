"""Fixed fields: session settings that a client secret sets and its holder can't change.

A field that the maker named keeps its value. Where the holder sends it all the same, in a
`session.update` or for one response, it is passed over, and `session.updated` shows what holds: an
error would end the calls of stock clients, which send their whole configuration at the start. What
the maker left out is the holder's. The type has to be in every `session.update`: there it becomes
the maker's, for a secret to have speech written down is none to talk with an agent.
"""

from collections.abc import Mapping
from typing import Any, Final

_NOT_SETTINGS: Final = ("model", "id", "object", "expires_at")
_PARTS: Final = ("audio", "audio.input", "audio.output")
"""Objects of which each field counts by itself."""

_OBJECT_OF: Final = {"session.update": "session", "response.create": "response"}
"""Name of the field with settings, by event."""


def fixed_fields(session: Mapping[str, Any]) -> frozenset[str]:
    """The paths that a session's JSON sets, like "instructions" and "audio.output.voice"."""
    return frozenset(_paths(session, "")) - set(_NOT_SETTINGS)


def without_fixed(event: dict[str, Any], fixed: frozenset[str], kind: str) -> dict[str, Any]:
    """The client's event without what it can't change, of a session of this type; other events,
    and whatever is no object where one belongs, as they are."""
    name = _OBJECT_OF.get(str(event.get("type")))
    if not fixed or name is None or not isinstance(event.get(name), dict):
        return event
    kept = _without(event[name], "", fixed)
    if "type" in event[name].keys() & fixed:
        kept["type"] = kind
    return {**event, name: kept}


def _paths(fields: Mapping[str, Any], above: str) -> list[str]:
    found: list[str] = []
    for name, value in fields.items():
        path = above + name
        if path in _PARTS and isinstance(value, dict):
            found += _paths(value, f"{path}.")
        else:
            found.append(path)
    return found


def _without(fields: dict[str, Any], above: str, fixed: frozenset[str]) -> dict[str, Any]:
    kept = {}
    for name, value in fields.items():
        path = above + name
        if path in fixed:
            continue
        inner = path in _PARTS and isinstance(value, dict)
        kept[name] = _without(value, f"{path}.", fixed) if inner else value
    return kept
