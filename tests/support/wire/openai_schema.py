"""The fields of OpenAI's published types, each with JSON that sets it.

Paths are those of `agent/realtime/protocol/field_support.py`: the type of an object in brackets
where it can have several.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import UnionType
from typing import Any, Final, Literal, NotRequired, Required, Union, get_args, get_origin

from openai.types.realtime.realtime_response_create_params_with_references_param import (
    RealtimeResponseCreateParamsWithReferencesParam,
)
from openai.types.realtime.realtime_session_create_request_param import (
    RealtimeSessionCreateRequestParam,
)
from openai.types.realtime.realtime_transcription_session_create_request_param import (
    RealtimeTranscriptionSessionCreateRequestParam,
)
from typing_extensions import get_type_hints, is_typeddict

_SAMPLES: Final[Mapping[str, tuple[Any, ...]]] = {
    "model": ("m",),
    "audio.output.voice": ("hibari",),
    "audio.output.voice.id": ("hibari",),
    "audio.output.speed": (0.25, 1.5),
    "audio.input.transcription.model": ("whisper-1",),
    "audio.input.transcription.language": ("de",),
    "audio.input.transcription.languages": (["de"],),
    "audio.input.turn_detection[server_vad].idle_timeout_ms": (6000,),
    "audio.input.turn_detection[server_vad].silence_duration_ms": (300,),
    "max_output_tokens": (7, "inf"),
    "output_modalities": (["audio"], ["text"]),
    "conversation": ("auto", "none"),
    "metadata": ({"key": "value"},),
    "tools[function].name": ("f",),
    "tool_choice[function].name": ("f",),
    "tools[function].parameters": ({"type": "object"},),
    "input[item_reference].id": ("item_known",),
    "input[function_call].arguments": ("{}",),
    "tracing.metadata": ({"key": "value"},),
    "truncation.token_limits.post_instructions": (100,),
}
"""Values of fields whose type does not say what is sensible."""

_PART: Final = "input[user message].content[]"
_REPLY_PART: Final = "input[assistant message].content[]"
_TOOL: Final = {"type": "function", "name": "f"}
_COMPANIONS: Final[Mapping[str, dict[str, Any]]] = {
    "tools[function]{}": _TOOL,
    "truncation{}": {"type": "retention_ratio", "retention_ratio": 0.5},
    f"{_PART}.type=input_audio": {"transcript": "t"},
    f"{_PART}.type=input_text": {"text": "t"},
    f"{_PART}.type=input_image": {"image_url": "data:"},
    f"{_PART}.text": {"type": "input_text"},
    f"{_PART}.transcript": {"type": "input_audio"},
    f"{_PART}.audio": {"type": "input_audio", "transcript": "t"},
    f"{_PART}.image_url": {"type": "input_image"},
    f"{_PART}.detail": {"type": "input_image"},
    f"{_REPLY_PART}.type=output_audio": {"transcript": "t"},
    f"{_REPLY_PART}.type=output_text": {"text": "t"},
    f"{_REPLY_PART}.text": {"type": "output_text"},
    f"{_REPLY_PART}.transcript": {"type": "output_audio"},
    f"{_REPLY_PART}.audio": {"type": "output_audio", "transcript": "t"},
    "input[system message].content[].type=input_text": {"text": "t"},
    "input[system message].content[].text": {"type": "input_text"},
}
"""Fields without which an object would be refused, by its path and "{}", or by that of the field in
it."""

_TEXTS: Final[Mapping[str, Any]] = {
    "input[user message].content": [{"type": "input_text", "text": "x"}],
    "input[assistant message].content": [{"type": "output_text", "text": "x"}],
}
"""The least of what is needed, where the first field of the type will not do."""


@dataclass(frozen=True, slots=True)
class SchemaField:
    """One field of a published type, and a value that it may have."""

    path: str
    object: dict[str, Any]
    """The session or response with this field."""
    value: Any

    def __str__(self) -> str:
        return f"{self.path}={self.value!r}"


def session_fields() -> list[SchemaField]:
    """Fields of a `realtime` session."""
    return _fields(RealtimeSessionCreateRequestParam)


def transcription_session_fields() -> list[SchemaField]:
    """Fields of a `transcription` session."""
    return _fields(RealtimeTranscriptionSessionCreateRequestParam)


def response_fields() -> list[SchemaField]:
    """Fields of `response.create`."""
    return _fields(RealtimeResponseCreateParamsWithReferencesParam)


def _fields(published: Any) -> list[SchemaField]:
    found = [SchemaField(path, whole, leaf) for path, whole, leaf in _values(published, "")]
    for field in found:
        if field.path.startswith("tool_choice[function]"):
            field.object["tools"] = [_TOOL]
    return found


def _values(kind: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    """Path of each field inside, the value here that sets it, and its own value."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Required, NotRequired):
        yield from _values(arguments[0], path)
    elif path in _SAMPLES:
        yield from ((path, value, value) for value in _SAMPLES[path])
        if origin in (Union, UnionType):  # a name, or an object with one
            for each in filter(is_typeddict, arguments):
                yield from _object(each, path)
    elif is_typeddict(kind):
        yield from _object(kind, path)
    elif origin is Literal:
        yield from ((path, value, value) for value in arguments)
    elif origin in (Union, UnionType):
        yield from _union([each for each in arguments if each is not type(None)], path)
    elif kind in (bool, int, float, str):
        values: dict[Any, tuple[Any, ...]] = {
            bool: (True, False), int: (1,), float: (0.5,), str: ("x",)
        }  # fmt: skip
        yield from ((path, value, value) for value in values[kind])
    elif kind is object or origin is dict:
        yield path, {"key": "value"}, {"key": "value"}
    else:  # a list of one kind or another
        (inner,) = arguments
        yield from _list(inner, path)


def _list(inner: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    is_plain = get_origin(inner) is Literal or inner is str
    place = f"{path}[]" if is_typeddict(inner) else path
    for below, value, leaf in _values(inner, place):
        yield below, [value], [leaf] if is_plain else leaf


def _union(kinds: list[Any], path: str) -> Iterator[tuple[str, Any, Any]]:
    flat = [each for kind in kinds for each in (get_args(kind) if _is_union(kind) else (kind,))]
    objects = [each for each in flat if is_typeddict(each)]
    for each in flat:
        if not is_typeddict(each):
            if each is not str or len(flat) == 1 or len(objects) == len(flat) - 1:
                yield from _values(each, path)
        elif len(objects) == 1:
            yield from _object(each, path)
        else:
            yield from _object(each, f"{path}[{_label(each)}]")


def _is_union(kind: Any) -> bool:
    return get_origin(kind) in (Union, UnionType)


def _object(kind: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    hints = get_type_hints(kind, include_extras=True)
    for name, inner in hints.items():
        place = f"{path}.{name}" if path else name
        for below, value, leaf in _values(inner, place):
            companions = _COMPANIONS.get(f"{path}{{}}", {}) | _COMPANIONS.get(place, {})
            companions |= _COMPANIONS.get(f"{place}={value}", {})
            yield below, {**_needed(hints, path), **companions, name: value}, leaf


def _needed(hints: Mapping[str, Any], path: str) -> dict[str, Any]:
    """The least of what an object must have."""
    needed = {}
    for name, kind in hints.items():
        is_type = get_origin(kind) is Literal and name == "type"
        if get_origin(kind) is Required or is_type:
            place = f"{path}.{name}" if path else name
            needed[name] = _TEXTS.get(place) or next(_values(kind, place))[1]
    return needed


def _label(kind: Any) -> str:
    hints = get_type_hints(kind)
    (label,) = get_args(hints["type"])
    return f"{get_args(hints['role'])[0]} {label}" if "role" in hints else str(label)
