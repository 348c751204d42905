"""Parser of speech requests. Pure; see `speech.py`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

from llm_engine.errors import RequestError

from .chat_request import MAX_MODEL_CHARS

SpeechFormat = Literal["mp3", "opus", "flac", "wav", "pcm"]

FORMATS: Final = get_args(SpeechFormat)
"""The first is the default."""

MAX_INPUT_CHARS: Final = 4096
"""Longest input in characters, OpenAI's own limit. Five minutes of speech."""

MIN_SPEED: Final = 0.25
MAX_SPEED: Final = 4.0


@dataclass(frozen=True, slots=True)
class SpeechRequest:
    """Parsed request for speech."""

    text: str
    voice: str | None
    """None: the service's own."""
    form: SpeechFormat
    speed: float
    as_events: bool
    """Server-sent events with the audio in them."""


def parse_speech(body: object) -> SpeechRequest:
    """Read a request's JSON. Raises RequestError naming the field.

    `instructions` have no effect: no voice here follows any. Unknown fields are ignored.
    """
    if not isinstance(body, dict):
        raise RequestError("body", "must be a JSON object")
    if "input" not in body:
        raise RequestError("input", "is missing; give the text to be spoken")
    text = _string(body, "input", MAX_INPUT_CHARS) or ""
    if not text.strip():
        raise RequestError("input", "is empty; give the text to be spoken")
    _string(body, "model", MAX_MODEL_CHARS)
    _string(body, "instructions", MAX_INPUT_CHARS)
    stream_format = _string(body, "stream_format", MAX_MODEL_CHARS)
    if stream_format not in (None, "audio", "sse"):
        raise RequestError("stream_format", "must be audio or sse")
    return SpeechRequest(
        text=text,
        voice=_voice(body.get("voice")),
        form=_form(_string(body, "response_format", MAX_MODEL_CHARS)),
        speed=_speed(body.get("speed")),
        as_events=stream_format == "sse",
    )


def _string(body: Mapping[str, Any], name: str, max_chars: int) -> str | None:
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, str):
        raise RequestError(name, "must be a string")
    if len(value) > max_chars:
        raise RequestError(name, f"has {len(value)} characters; {max_chars} are allowed")
    try:
        value.encode()
    except UnicodeEncodeError as error:  # JSON can spell half a surrogate pair
        problem = f"character {error.start} is half of a surrogate pair, not text"
        raise RequestError(name, problem) from None
    return value


def _voice(value: object) -> str | None:
    """A name, or an object with the id of a voice."""
    if isinstance(value, dict):
        return _string({"voice.id": value.get("id")}, "voice.id", MAX_MODEL_CHARS)
    return _string({"voice": value}, "voice", MAX_MODEL_CHARS) or None


def _form(name: str | None) -> SpeechFormat:
    for known in FORMATS:
        if name in (None, known):
            form: SpeechFormat = known
            return form
    raise RequestError(
        "response_format", f"must be one of {', '.join(FORMATS)}; nothing else is encoded here"
    )


def _speed(value: object) -> float:
    if value is None:
        return 1.0
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not MIN_SPEED <= value <= MAX_SPEED:  # type: ignore[operator]
        raise RequestError("speed", f"must be a number from {MIN_SPEED:g} to {MAX_SPEED:g}")
    return float(value)  # type: ignore[arg-type]
