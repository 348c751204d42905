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

from .fields import Fields, invalid, wrong_type
from .session_json import ENCODINGS

_BETA_FORMATS: Final = ("pcm16", "g711_ulaw", "g711_alaw")


def merge_audio(settings: SessionSettings, audio: Fields) -> dict[str, Any]:
    """The changed fields of `SessionSettings`. Raises ClientError."""
    changes: dict[str, Any] = {}
    if (heard := audio.inside("input")) is not None:
        if "format" in heard:
            changes["input_encoding"] = read_format(heard)
        if "transcription" in heard:
            changes["transcription"] = _read_transcription(heard, settings.transcription)
        if "turn_detection" in heard:
            changes["turn_detection"] = _read_turn_detection(heard, settings.turn_detection)
        if "noise_reduction" in heard:
            changes["echo"] = {"noise_reduction": _read_noise_reduction(heard)}
        heard.finish()
    if (spoken := audio.inside("output")) is not None:
        if "format" in spoken:
            changes["output_encoding"] = read_format(spoken)
        if "voice" in spoken:
            changes["voice"] = read_voice(spoken)
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


def _read_transcription(heard: Fields, before: dict[str, Any] | None) -> dict[str, Any] | None:
    if heard.is_null("transcription"):
        return None
    asked = Fields(heard.required("transcription"), heard.at("transcription"))
    after = dict(before or {})
    for name in ("model", "language", "prompt", "delay"):
        if name in asked:
            after[name] = asked.optional_text(name, max_chars=10_000)
    asked_language = after.get("language")
    if asked_language and not languages.is_known(languages.code_of(asked_language)):
        raise invalid(
            asked.at("language"),
            f"is no language that is recognized here; complete are {languages.complete_names()}",
        )
    for name in ("languages", "keywords"):
        if name in asked:
            after[name] = [_string(path, value) for path, value in asked.array(name, max_items=100)]
    asked.finish()
    return after


def _read_noise_reduction(heard: Fields) -> dict[str, Any] | None:
    if heard.is_null("noise_reduction"):
        return None
    asked = Fields(heard.required("noise_reduction"), heard.at("noise_reduction"))
    kept: dict[str, Any] = {"type": asked.choice("type", ("near_field", "far_field"))}
    if asked.raw("strength") is not None:
        kept["strength"] = asked.number("strength", 0.0, 1.0)
    asked.finish()
    return kept


def _string(path: str, value: object) -> str:
    if not isinstance(value, str):
        raise wrong_type(path, "a string", value)
    return value
