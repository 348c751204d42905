"""The `audio` part of `session.update`: formats, voice, turn detection.

A `turn_detection` of the same type as before changes only the fields that it names; another type
begins from its own defaults. `null` there is push-to-talk.
"""

from dataclasses import replace
from typing import Any, Final, cast, get_args

import languages
from agent.errors import ClientError
from agent.session.api.settings import (
    WIRE_RATE_HZ,
    AudioEncoding,
    Eagerness,
    SemanticVad,
    ServerVad,
    SessionSettings,
    TurnDetection,
)

from .field_support import (
    DELAY,
    NO_REPLIES,
    NOISE,
    RECOGNIZER,
    TRANSCRIPTS,
)
from .fields import Fields, invalid, wrong_type
from .session_json import ENCODINGS

_BETA_FORMATS: Final = ("pcm16", "g711_ulaw", "g711_alaw")
_DELAYS: Final = ("minimal", "low", "medium", "high", "xhigh")
MAX_PROMPT_CHARS: Final = 10_000
"""Longest prompt of the recognizer, and all keywords together. It reads the last 223 tokens."""
MAX_KEYWORDS: Final = 100


def merge_audio(
    settings: SessionSettings, audio: Fields, ignored: dict[str, str], *, transcribes_only: bool
) -> dict[str, Any]:
    """The changed fields of `SessionSettings`; those without effect are added to `ignored`, with
    the reason. Raises ClientError."""
    changes: dict[str, Any] = {}
    if (heard := audio.inside("input")) is not None:
        if "format" in heard:
            changes["input_encoding"] = read_format(heard)
        if "transcription" in heard:
            changes["transcription"] = _read_transcription(heard, settings.transcription, ignored)
        if "turn_detection" in heard:
            changes["turn_detection"] = _read_turn_detection(heard, settings.turn_detection)
            if transcribes_only:
                _note_fields_of_replies(heard, ignored)
        if "noise_reduction" in heard:
            _read_noise_reduction(heard, ignored)
        heard.finish()
    if (spoken := audio.inside("output")) is not None:
        if "format" in spoken:
            changes["output_encoding"] = read_format(spoken)
        if "voice" in spoken:
            changes["voice"] = read_voice(spoken)
            changes["asked_voice"] = ""
        if "speed" in spoken:
            changes["speed"] = spoken.number("speed", 0.25, 1.5)
        spoken.finish()
    audio.finish()
    return changes


def read_format(audio: Fields) -> AudioEncoding:
    """The `format` of `audio.input` or `audio.output`."""
    if audio.raw("format") in _BETA_FORMATS:
        raise ClientError(
            f"{audio.at('format')!r} is a name of the beta; formats are objects now: "
            '{"type": "audio/pcm", "rate": 24000}, {"type": "audio/pcmu"}, {"type": "audio/pcma"}.',
            code="beta_api_shape_disabled",
            param=audio.at("format"),
        )
    form = Fields(audio.required("format"), audio.at("format"))
    encoding = ENCODINGS[form.choice("type", tuple(ENCODINGS))]
    wanted_hz = WIRE_RATE_HZ[encoding]
    if form.raw("rate") is not None and form.integer("rate", 1, 1 << 20) != wanted_hz:
        raise invalid(form.at("rate"), f"must be {wanted_hz} for this format")
    form.finish()
    return encoding


def read_voice(output: Fields) -> str:
    """A name, or the object `{"id": name}`. Whether there is such a voice, the session knows."""
    voice = output.required("voice")
    name = Fields(voice, output.at("voice")) if isinstance(voice, dict) else output
    text = name.text("id" if isinstance(voice, dict) else "voice", max_chars=200)
    if isinstance(voice, dict):
        name.finish()
    if not text:
        raise invalid(output.at("voice"), "is empty")
    return text


def _read_turn_detection(heard: Fields, before: TurnDetection | None) -> TurnDetection | None:
    if heard.is_null("turn_detection"):
        return None
    detection = Fields(heard.required("turn_detection"), heard.at("turn_detection"))
    if detection.choice("type", ("server_vad", "semantic_vad")) == "server_vad":
        return _read_server_vad(detection, before if isinstance(before, ServerVad) else ServerVad())
    vad = before if isinstance(before, SemanticVad) else SemanticVad()
    if detection.raw("eagerness") is not None:
        eagerness = detection.choice("eagerness", get_args(Eagerness))
        vad = replace(vad, eagerness=cast(Eagerness, eagerness))
    vad = replace(
        vad,
        create_response=detection.boolean("create_response", vad.create_response),
        interrupt_response=detection.boolean("interrupt_response", vad.interrupt_response),
    )
    detection.finish()
    return vad


def _read_server_vad(detection: Fields, vad: ServerVad) -> ServerVad:
    changes: dict[str, Any] = {
        "create_response": detection.boolean("create_response", vad.create_response),
        "interrupt_response": detection.boolean("interrupt_response", vad.interrupt_response),
    }
    if detection.raw("threshold") is not None:
        changes["threshold"] = detection.number("threshold", 0.0, 1.0)
    if detection.raw("prefix_padding_ms") is not None:
        changes["prefix_padding_ms"] = detection.integer("prefix_padding_ms", 0, 5_000)
    if detection.raw("silence_duration_ms") is not None:
        # Below one frame of the speech detector every syllable would end a turn.
        changes["silence_duration_ms"] = detection.integer("silence_duration_ms", 32, 20_000)
    if detection.is_null("idle_timeout_ms"):
        changes["idle_timeout_ms"] = None
    elif "idle_timeout_ms" in detection:
        changes["idle_timeout_ms"] = detection.integer("idle_timeout_ms", 5_000, 30_000)
    detection.finish()
    return replace(vad, **changes)


def _note_fields_of_replies(heard: Fields, ignored: dict[str, str]) -> None:
    """Note the fields of turn detection that only replies have a use for."""
    detection = heard.raw("turn_detection") or {}
    for name in ("create_response", "interrupt_response", "idle_timeout_ms"):
        if detection.get(name) is not None:
            ignored[f"{heard.at('turn_detection')}.{name}"] = NO_REPLIES


def _read_transcription(
    heard: Fields, before: dict[str, Any] | None, ignored: dict[str, str]
) -> dict[str, Any] | None:
    if heard.is_null("transcription"):
        ignored[heard.at("transcription")] = TRANSCRIPTS
        return None
    asked = Fields(heard.required("transcription"), heard.at("transcription"))
    after = dict(before or {})
    for name in ("model", "language", "prompt"):
        if name in asked:
            after[name] = asked.optional_text(name, max_chars=MAX_PROMPT_CHARS)
    if "delay" in asked:
        after["delay"] = None if asked.raw("delay") is None else asked.choice("delay", _DELAYS)
    for name in ("languages", "keywords"):
        if name not in asked:
            continue
        if asked.is_null(name):
            after[name] = None
            continue
        values = asked.array(name, max_items=MAX_KEYWORDS)
        after[name] = [_string(path, value) for path, value in values]
    _drop_older_language(asked, after)
    if len({languages.code_of(tag) for tag in asked.raw("languages") or ()}) > 1:
        raise invalid(
            asked.at("languages"), "names several; a session is recognized in one, by 'language'"
        )
    if sum(map(len, asked.raw("keywords") or ())) > MAX_PROMPT_CHARS:
        raise invalid(asked.at("keywords"), f"has more than {MAX_PROMPT_CHARS} characters")
    asked.finish()
    for name, reason in (("model", RECOGNIZER), ("delay", DELAY)):
        if asked.raw(name) is not None:
            ignored[asked.at(name)] = reason
    return after


def _drop_older_language(asked: Fields, after: dict[str, Any]) -> None:
    """`language` and `languages` say the same: where an update has one of them, it counts."""
    for name, other in (("language", "languages"), ("languages", "language")):
        if after.get(name) and name in asked and other not in asked:
            after.pop(other, None)


def _read_noise_reduction(heard: Fields, ignored: dict[str, str]) -> None:
    if heard.is_null("noise_reduction"):
        return
    asked = Fields(heard.required("noise_reduction"), heard.at("noise_reduction"))
    if asked.raw("type") is not None:
        asked.choice("type", ("near_field", "far_field"))
    if asked.raw("strength") is not None:
        asked.number("strength", 0.0, 1.0)
    asked.finish()
    ignored[heard.at("noise_reduction")] = NOISE


def _string(path: str, value: object) -> str:
    if not isinstance(value, str):
        raise wrong_type(path, "a string", value)
    return value
