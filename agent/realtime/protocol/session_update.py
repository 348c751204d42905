"""`session.update`: merges the fields that are present into the settings and checks them.

Whatever is absent stays as it was. Fields that have no effect here but that clients send by default
(tracing, ...) are checked, noted as ignored, and shown as what holds: `field_support.py`.
"""

import json
from typing import Any, Final

from agent.errors import ClientError
from agent.session.api.settings import AUTO_TRUNCATION, SessionSettings, Truncation

from .audio_update import merge_audio
from .field_support import (
    LOGPROBS,
    MCP,
    NO_REPLIES,
    PROMPT,
    REASONING,
    TRACING,
    with_ignored,
)
from .fields import Fields, invalid, wrong_type

MAX_INSTRUCTIONS_CHARS: Final = 65_536
"""About 16,000 tokens: more than a reply within half a second can have read."""
MAX_OUTPUT_TOKENS: Final = 4096
"""The dialect's own upper limit."""
MAX_TOOLS: Final = 128
MAX_TOOLS_BYTES: Final = 1 << 18
"""Largest size of all tools as JSON, in bytes. They are part of every prompt."""
MAX_TRACING_BYTES: Final = 1 << 14
"""Largest size of the tracing configuration, in bytes."""
MAX_POST_INSTRUCTIONS: Final = 1 << 20
"""Largest limit of tokens behind the instructions: no context is longer."""

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
_INCLUDED: Final = ("item.input_audio_transcription.logprobs",)
_EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh")
_OF_REPLIES: Final = (
    *("instructions", "output_modalities", "max_output_tokens", "tools", "tool_choice"),
    *("parallel_tool_calls", "truncation", "prompt", "tracing", "reasoning"),
)
"""Fields that a transcription session does not have."""
_SHOWN_ONLY: Final = ("id", "object", "model", "expires_at")
"""Clients send back what `session.created` showed. These stay as they are."""


def merge_session(settings: SessionSettings, session: Fields) -> SessionSettings:
    """The settings after a `session.update`. Raises ClientError; then nothing has changed."""
    refuse_beta_fields(session)
    kind = session.choice("type", ("realtime", "transcription"))
    for name in _SHOWN_ONLY:
        session.raw(name)
    if kind == "transcription":
        _refuse_fields_of_replies(session)
    ignored: dict[str, str] = {}
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
    if "parallel_tool_calls" in session:
        changes["parallel_tool_calls"] = read_parallel_tool_calls(session)
    if "truncation" in session:
        changes["truncation"] = _read_truncation(session)
    if (audio := session.inside("audio")) is not None:
        if kind == "transcription" and "output" in audio:
            raise _no_replies(audio.at("output"))
        changes |= merge_audio(settings, audio, ignored, transcribes_only=kind == "transcription")
    refuse_prompt(session)
    read_reasoning(session, ignored)
    _read_include(session, ignored)
    _read_tracing(session, ignored)
    session.finish()
    return settings.changed(**changes, ignored=with_ignored(settings.ignored, ignored))


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
        _refuse_mcp(tool)
        tool.choice("type", ("function",))
        if not tool.text("name", max_chars=64):
            raise invalid(tool.at("name"), "is empty")
        tool.optional_text("description")
        if tool.raw("parameters") is not None:
            tool.inside("parameters")
        tool.boolean("strict", default=False)
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
    _refuse_mcp(choice)
    choice.choice("type", ("function",))
    choice.text("name", max_chars=64)
    choice.finish()
    return value


def read_parallel_tool_calls(fields: Fields) -> bool | None:
    """None for null, which is the default."""
    if fields.raw("parallel_tool_calls") is None:
        return None
    return fields.boolean("parallel_tool_calls", True)


def refuse_prompt(fields: Fields) -> None:
    """Raise ClientError for a stored prompt: without it a response would have no instructions."""
    if fields.raw("prompt") is not None:
        raise _unserved(fields.at("prompt"), "can't be taken", PROMPT)


def read_reasoning(fields: Fields, ignored: dict[str, str]) -> None:
    """Check a field that has no effect, and note it."""
    if fields.raw("reasoning") is None:
        return
    asked = Fields(fields.raw("reasoning"), fields.at("reasoning"))
    if asked.raw("effort") is not None:
        asked.choice("effort", _EFFORTS)
        ignored[asked.at("effort")] = REASONING
    asked.finish()


def _read_include(session: Fields, ignored: dict[str, str]) -> None:
    if session.raw("include") is None:
        return
    allowed = ", ".join(map(repr, _INCLUDED))
    for path, value in session.array("include", max_items=len(_INCLUDED)):
        if value not in _INCLUDED:
            raise invalid(path, f"is {str(value)[:60]!r}; it can be {allowed}")
        ignored[session.at("include")] = LOGPROBS


def _read_tracing(session: Fields, ignored: dict[str, str]) -> None:
    value = session.raw("tracing")
    if value is None:
        return
    if isinstance(value, dict):
        asked = Fields(value, session.at("tracing"))
        for name in ("workflow_name", "group_id"):
            asked.optional_text(name)
        if asked.raw("metadata") is not None:
            asked.inside("metadata")
        asked.finish()
        _check_size(session.at("tracing"), value, MAX_TRACING_BYTES)
    elif value != "auto":
        raise wrong_type(session.at("tracing"), "'auto', an object or null", value)
    ignored[session.at("tracing")] = TRACING


def _read_truncation(session: Fields) -> Truncation:
    value = session.raw("truncation")
    if value is None:
        return AUTO_TRUNCATION
    if not isinstance(value, dict):
        is_auto = session.choice("truncation", ("auto", "disabled")) == "auto"
        return AUTO_TRUNCATION if is_auto else Truncation(is_disabled=True)
    asked = Fields(value, session.at("truncation"))
    asked.choice("type", ("retention_ratio",))
    ratio = asked.number("retention_ratio", 0.0, 1.0)
    most: int | None = None
    if asked.raw("token_limits") is not None:
        limits = Fields(asked.raw("token_limits"), asked.at("token_limits"))
        if limits.raw("post_instructions") is not None:
            most = limits.integer("post_instructions", 1, MAX_POST_INSTRUCTIONS)
        limits.finish()
    asked.finish()
    return Truncation(retention_ratio=ratio, post_instructions_tokens=most)


def _refuse_fields_of_replies(session: Fields) -> None:
    for name in _OF_REPLIES:
        if name in session:
            raise _no_replies(session.at(name))


def _no_replies(path: str) -> ClientError:
    return ClientError(
        f"{path!r} is no parameter of a transcription session. {NO_REPLIES}",
        code="unknown_parameter",
        param=path,
    )


def _refuse_mcp(tool: Fields) -> None:
    if tool.raw("type") == "mcp":
        raise _unserved(tool.at("type"), "is 'mcp'", MCP)


def _unserved(path: str, complaint: str, remedy: str) -> ClientError:
    return ClientError(f"{path!r} {complaint}. {remedy}", code="invalid_value", param=path)


def _check_size(path: str, value: object, max_bytes: int) -> None:
    if len(json.dumps(value)) > max_bytes:
        raise invalid(path, f"takes more than {max_bytes} bytes as JSON")
