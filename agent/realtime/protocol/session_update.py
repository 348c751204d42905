"""`session.update`: merges the fields that are present into the settings and checks them.

Whatever is absent stays as it was. Fields that have no effect here but that clients send by default
(tracing, truncation, ...) are checked for their outer type and shown again.
"""

import json
from typing import Any, Final

from agent.errors import ClientError
from agent.session.api.settings import SessionSettings

from .audio_update import merge_audio
from .fields import Fields, invalid, wrong_type

MAX_INSTRUCTIONS_CHARS: Final = 65_536
"""About 16,000 tokens: more than a reply within half a second can have read."""
MAX_OUTPUT_TOKENS: Final = 4096
"""The dialect's own upper limit."""
MAX_TOOLS: Final = 128
MAX_TOOLS_BYTES: Final = 1 << 18
"""Largest size of all tools as JSON, in bytes. They are part of every prompt."""
MAX_ECHO_BYTES: Final = 1 << 14
"""Largest size of a field that is only echoed, in bytes."""

_BETA_FIELDS: Final = {
    "modalities": "output_modalities",
    "voice": "audio.output.voice",
    "speed": "audio.output.speed",
    "input_audio_format": "audio.input.format",
    "output_audio_format": "audio.output.format",
    "input_audio_transcription": "audio.input.transcription",
    "input_audio_noise_reduction": "audio.input.noise_reduction",
    "turn_detection": "audio.input.turn_detection",
    "max_response_output_tokens": "max_output_tokens",
    "temperature": None,
}
_ECHO_TYPES: Final[dict[str, tuple[tuple[type, ...], tuple[str, ...]]]] = {
    "include": ((list,), ()),
    "prompt": ((dict,), ()),
    "tracing": ((dict,), ("auto",)),
    "truncation": ((dict,), ("auto", "disabled")),
    "reasoning": ((dict,), ()),
    "parallel_tool_calls": ((bool,), ()),
}
"""Per echoed field: the JSON types and the strings that it can have, besides null."""
_SHOWN_ONLY: Final = ("id", "object", "model", "expires_at")
"""Clients send back what `session.created` showed. These stay as they are."""


def merge_session(settings: SessionSettings, session: Fields) -> SessionSettings:
    """The settings after a `session.update`. Raises ClientError; then nothing has changed."""
    refuse_beta_fields(session)
    kind = session.choice("type", ("realtime", "transcription"))
    for name in _SHOWN_ONLY:
        session.raw(name)
    changes: dict[str, Any] = {"transcribes_only": kind == "transcription"}
    if "instructions" in session:
        changes["instructions"] = (
            session.optional_text("instructions", max_chars=MAX_INSTRUCTIONS_CHARS) or ""
        )
    if "output_modalities" in session:
        changes["output_modality"] = read_modality(session)
    if "max_output_tokens" in session:
        changes["max_output_tokens"] = read_max_tokens(session)
    if "tools" in session:
        changes["tools"] = read_tools(session)
    if "tool_choice" in session:
        changes["tool_choice"] = read_tool_choice(session)
    if (audio := session.inside("audio")) is not None:
        changes |= merge_audio(settings, audio)
    echo = settings.echo | changes.pop("echo", {})
    echo |= {name: _read_echo(session, name) for name in _ECHO_TYPES if name in session}
    session.finish()
    return settings.changed(**changes, echo=echo)


def refuse_beta_fields(session: Fields) -> None:
    """Raises ClientError that says where the field has gone."""
    for name, successor in _BETA_FIELDS.items():
        if name in session:
            now = f"is now {successor!r}" if successor else "is gone"
            raise ClientError(
                f"{session.at(name)!r} belongs to the beta of this API; it {now}.",
                code="beta_api_shape_disabled",
                param=session.at(name),
            )


def read_modality(fields: Fields) -> str:
    """Exactly one of audio and text."""
    elements = [value for _, value in fields.array("output_modalities", max_items=2)]
    if elements not in (["audio"], ["text"]):
        raise invalid(fields.at("output_modalities"), 'must be ["audio"] or ["text"]')
    return str(elements[0])


def read_max_tokens(fields: Fields) -> int | None:
    """None for "inf" and for null, which is the default."""
    if fields.raw("max_output_tokens") in ("inf", None):
        return None
    return fields.integer("max_output_tokens", 1, MAX_OUTPUT_TOKENS)


def read_tools(session: Fields) -> tuple[dict[str, Any], ...]:
    """Tools of a session or a response. The model's grammar checks what their schemas ask for."""
    if session.is_null("tools"):
        return ()
    tools: list[dict[str, Any]] = []
    for path, value in session.array("tools", max_items=MAX_TOOLS):
        tool = Fields(value, path)
        if tool.text("type") != "function":
            raise invalid(tool.at("type"), "must be 'function': no other tools are served here")
        if not tool.text("name", max_chars=64):
            raise invalid(tool.at("name"), "is empty")
        tool.optional_text("description")
        if tool.raw("parameters") is not None:
            tool.inside("parameters")
        tool.finish()
        tools.append(value)
    _check_size(session.at("tools"), tools, MAX_TOOLS_BYTES)
    return tuple(tools)


def read_tool_choice(session: Fields) -> str | dict[str, Any]:
    """Tool choice of a session or a response; "auto" for null."""
    value = session.raw("tool_choice")
    if value is None:
        return "auto"
    if not isinstance(value, dict):
        return session.choice("tool_choice", ("auto", "none", "required"))
    choice = Fields(value, session.at("tool_choice"))
    choice.choice("type", ("function",))
    choice.text("name", max_chars=64)
    choice.finish()
    return value


def _read_echo(session: Fields, name: str) -> Any:
    value = session.raw(name)
    types, words = _ECHO_TYPES[name]
    if value is not None and not isinstance(value, types) and value not in words:
        raise wrong_type(session.at(name), "what the reference says", value)
    _check_size(session.at(name), value, MAX_ECHO_BYTES)
    return value


def _check_size(path: str, value: object, max_bytes: int) -> None:
    if len(json.dumps(value)) > max_bytes:
        raise invalid(path, f"takes more than {max_bytes} bytes as JSON")
