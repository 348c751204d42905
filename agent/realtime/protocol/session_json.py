"""The session object of `session.created` and `session.updated`.

Strict clients validate every field of it, so it holds what the client set and the documented
defaults, and nothing else. `interrupt_response` is always there: a client that does not find
literally `true` cancels every response by itself.
"""

from typing import Any, Final

from agent.session.api.settings import (
    WIRE_RATE_HZ,
    AudioEncoding,
    ServerVad,
    SessionSettings,
    Truncation,
    TurnDetection,
)

FORMAT_NAMES: Final[dict[AudioEncoding, str]] = {
    "pcm16": "audio/pcm",
    "pcmu": "audio/pcmu",
    "pcma": "audio/pcma",
}
ENCODINGS: Final = {name: encoding for encoding, name in FORMAT_NAMES.items()}

_WITHOUT_EFFECT: Final[dict[str, Any]] = {"include": None, "prompt": None, "tracing": None}
"""Fields that hold nothing here, whatever the client sets (`field_support.py`)."""


def session_json(
    settings: SessionSettings,
    *,
    session_id: str,
    model: str,
    expires_at_unix_s: int | None,
    extensions: bool = False,
) -> dict[str, Any]:
    """The full effective session; with `extensions` also what only `halfsec.v1` knows."""
    heard = {
        "format": format_json(settings.input_encoding),
        "transcription": settings.transcription,
        "noise_reduction": None,
        "turn_detection": turn_detection_json(settings.turn_detection),
    }
    if settings.transcribes_only:
        return {
            "type": "transcription",
            "object": "realtime.transcription_session",
            "id": session_id,
            "expires_at": expires_at_unix_s,
            "audio": {"input": heard},
            "include": None,
        }
    parallel = settings.parallel_tool_calls
    return {
        "type": "realtime",
        "object": "realtime.session",
        "id": session_id,
        "model": model,
        "expires_at": expires_at_unix_s,
        "output_modalities": [settings.output_modality],
        "instructions": settings.instructions,
        "tools": list(settings.tools),
        "tool_choice": settings.tool_choice,
        "max_output_tokens": max_tokens_json(settings.max_output_tokens),
        "audio": {
            "input": heard,
            "output": {
                "format": format_json(settings.output_encoding),
                "voice": settings.voice,
                "speed": settings.speed,
            },
        },
        "truncation": truncation_json(settings.truncation),
        **({} if parallel is None else {"parallel_tool_calls": parallel}),
        **({"halfsec": own_json(settings)} if extensions else {}),
        **_WITHOUT_EFFECT,
    }


def own_json(settings: SessionSettings) -> dict[str, Any]:
    """Fields of the `halfsec` extension, for which OpenAI has none."""
    return {"pace_ms": settings.pace_ms, "budget_ms": settings.budget_ms}


def format_json(encoding: AudioEncoding) -> dict[str, Any]:
    name = FORMAT_NAMES[encoding]
    return {"type": name, "rate": WIRE_RATE_HZ[encoding]} if encoding == "pcm16" else {"type": name}


def max_tokens_json(max_output_tokens: int | None) -> int | str:
    return "inf" if max_output_tokens is None else max_output_tokens


def truncation_json(truncation: Truncation) -> dict[str, Any] | str:
    if truncation.retention_ratio is None:
        return "disabled" if truncation.is_disabled else "auto"
    most = truncation.post_instructions_tokens
    return {
        "type": "retention_ratio",
        "retention_ratio": truncation.retention_ratio,
        **({} if most is None else {"token_limits": {"post_instructions": most}}),
    }


def turn_detection_json(detection: TurnDetection | None) -> dict[str, Any] | None:
    if detection is None:
        return None
    replies = {
        "create_response": detection.create_response,
        "interrupt_response": detection.interrupt_response,
    }
    if isinstance(detection, ServerVad):
        return {
            "type": "server_vad",
            "threshold": detection.threshold,
            "prefix_padding_ms": detection.prefix_padding_ms,
            "silence_duration_ms": detection.silence_duration_ms,
            "idle_timeout_ms": detection.idle_timeout_ms,
            **replies,
        }
    return {"type": "semantic_vad", "eagerness": detection.eagerness, **replies}
