"""`session.update`: what it changes, what it refuses, and what is left of a refused one."""

import json
from typing import Any

import pytest

from agent.session.api.client_events import UpdateSession
from agent.session.api.server_events import Problem, SessionUpdated
from agent.session.api.settings import (
    SemanticVad,
    ServerVad,
    SessionSettings,
    Truncation,
)
from tests.support.wire.wire_frames import make, one, refused, say, update, update_refused


def test_an_update_changes_only_what_it_names() -> None:
    protocol = make(instructions="Old.", voice="joe")
    assert update(protocol, instructions="New.") == SessionSettings(
        instructions="New.", voice="joe"
    )


def test_updates_build_on_each_other_before_they_are_answered() -> None:
    protocol = make()
    update(protocol, instructions="A")
    assert update(protocol, audio={"output": {"voice": "b", "speed": 1.5}}) == SessionSettings(
        instructions="A", voice="b", speed=1.5
    )


def test_a_refused_update_leaves_no_trace() -> None:
    protocol = make()
    event = {
        "type": "session.update",
        "event_id": "mine",
        "session": {"type": "realtime", "audio": {"output": {"voice": "nobody"}}},
    }
    request = one(protocol, **event)
    assert isinstance(request, UpdateSession)
    assert request.settings.voice == "nobody"
    problem = Problem("no such voice", "invalid_value", event_id=request.event_id)
    (frame,) = protocol.send(problem)
    assert json.loads(frame)["error"]["event_id"] == "mine"
    assert update(protocol, instructions="A") == SessionSettings(instructions="A")


def test_an_answered_update_is_what_the_next_one_builds_on() -> None:
    protocol = make()
    protocol.send(SessionUpdated(update(protocol, instructions="A").changed(voice="resolved")))
    assert update(protocol, max_output_tokens=7) == SessionSettings(
        instructions="A", voice="resolved", max_output_tokens=7
    )


def test_turn_detection_merges_within_its_type_and_starts_anew_across() -> None:
    protocol = make()

    def detect(**fields: Any) -> Any:
        return update(protocol, audio={"input": {"turn_detection": fields}}).turn_detection

    assert detect(type="semantic_vad", eagerness="low") == SemanticVad("low")
    assert detect(type="semantic_vad", create_response=False) == SemanticVad("low", False)
    assert detect(type="server_vad", silence_duration_ms=300) == ServerVad(silence_duration_ms=300)
    assert detect(type="server_vad", threshold=1, idle_timeout_ms=6000) == ServerVad(
        threshold=1.0, silence_duration_ms=300, idle_timeout_ms=6000
    )
    assert detect(type="server_vad", idle_timeout_ms=None).idle_timeout_ms is None
    assert update(protocol, audio={"input": {"turn_detection": None}}).turn_detection is None
    assert detect(type="semantic_vad") == SemanticVad()


def test_every_documented_field_is_taken() -> None:
    tool = {
        **{"type": "function", "name": "f", "description": "d"},
        **{"parameters": {"type": "object"}, "strict": True},
    }
    after = update(
        make(),
        id="sess_1",
        object="realtime.session",
        model="m",
        expires_at=5,
        instructions="I",
        output_modalities=["text"],
        max_output_tokens="inf",
        tools=[tool],
        tool_choice={"type": "function", "name": "f"},
        include=["item.input_audio_transcription.logprobs"],
        prompt=None,
        tracing="auto",
        truncation="disabled",
        reasoning={"effort": "low"},
        parallel_tool_calls=False,
        audio={
            "input": {
                "format": {"type": "audio/pcm", "rate": 24000},
                "transcription": {"model": "whisper-1", "language": "en"},
                "noise_reduction": {"type": "near_field"},
            },
            "output": {"format": {"type": "audio/pcma"}, "voice": {"id": "joe"}, "speed": 1},
        },
    )
    assert after == SessionSettings(
        instructions="I",
        output_modality="text",
        tools=(tool,),
        tool_choice={"type": "function", "name": "f"},
        voice="joe",
        output_encoding="pcma",
        transcription={"model": "whisper-1", "language": "en"},
        truncation=Truncation(is_disabled=True),
        parallel_tool_calls=False,
        ignored=after.ignored,
    )
    assert {each.param for each in after.ignored} == {
        "session.audio.input.transcription.model",
        "session.audio.input.noise_reduction",
        "session.reasoning.effort",
        "session.include",
        "session.tracing",
    }


BETA = "beta_api_shape_disabled"

BETA_FIELDS = {
    "modalities": ["text", "audio"],
    "voice": "alloy",
    "speed": 1.0,
    "input_audio_format": "pcm16",
    "output_audio_format": "g711_ulaw",
    "input_audio_transcription": {"model": "whisper-1"},
    "input_audio_noise_reduction": {"type": "near_field"},
    "turn_detection": {"type": "server_vad"},
    "max_response_output_tokens": "inf",
    "temperature": 0.8,
}


@pytest.mark.parametrize("field", BETA_FIELDS)
def test_every_field_of_the_beta_is_refused_by_name(field: str) -> None:
    """A beta client sends no session type either: the field is the better thing to complain of."""
    session = {field: BETA_FIELDS[field]}
    for type_, inside in (("session.update", "session"), ("response.create", "response")):
        problem = refused(make(), json.dumps({"type": type_, inside: session}))
        assert (problem.code, problem.param) == (BETA, f"{inside}.{field}")


@pytest.mark.parametrize(
    ("session", "code", "param"),
    [
        ({"modalities": ["text"]}, BETA, "session.modalities"),
        ({"voice": "alloy"}, BETA, "session.voice"),
        ({"turn_detection": None}, BETA, "session.turn_detection"),
        ({"input_audio_format": "pcm16"}, BETA, "session.input_audio_format"),
        ({"temperature": 0.8}, BETA, "session.temperature"),
        ({"audio": {"input": {"format": "pcm16"}}}, BETA, "session.audio.input.format"),
        ({"instruction": "x"}, "unknown_parameter", "session.instruction"),
        ({"instructions": "x" * 65_537}, "invalid_value", "session.instructions"),
        ({"output_modalities": ["text", "audio"]}, "invalid_value", "session.output_modalities"),
        ({"max_output_tokens": 4097}, "invalid_value", "session.max_output_tokens"),
        ({"max_output_tokens": "all"}, "invalid_value", "session.max_output_tokens"),
        ({"tools": [{"type": "mcp"}]}, "invalid_value", "session.tools[0].type"),
        (
            {"tools": [{"type": "function", "name": "f", "strict": "yes"}]},
            "invalid_value",
            "session.tools[0].strict",
        ),
        ({"tools": [{"type": "function"}]}, "missing_required_parameter", "session.tools[0].name"),
        ({"tool_choice": "maybe"}, "invalid_value", "session.tool_choice"),
        ({"tracing": 5}, "invalid_value", "session.tracing"),
        ({"tracing": {"workflow": "w"}}, "unknown_parameter", "session.tracing.workflow"),
        ({"tracing": {"metadata": 1}}, "invalid_value", "session.tracing.metadata"),
        ({"tracing": {"group_id": "x" * 20_000}}, "invalid_value", "session.tracing"),
        ({"truncation": "much"}, "invalid_value", "session.truncation"),
        ({"truncation": {"type": "ratio"}}, "invalid_value", "session.truncation.type"),
        (
            {"truncation": {"type": "retention_ratio"}},
            "missing_required_parameter",
            "session.truncation.retention_ratio",
        ),
        (
            {"truncation": {"type": "retention_ratio", "retention_ratio": 1.1}},
            "invalid_value",
            "session.truncation.retention_ratio",
        ),
        (
            {
                "truncation": {
                    "type": "retention_ratio",
                    "retention_ratio": 0.5,
                    "token_limits": {"post_instructions": 0},
                }
            },
            "invalid_value",
            "session.truncation.token_limits.post_instructions",
        ),
        ({"include": ["item.all"]}, "invalid_value", "session.include[0]"),
        ({"include": "item.all"}, "invalid_value", "session.include"),
        ({"prompt": {"id": "p"}}, "invalid_value", "session.prompt"),
        ({"reasoning": {"effort": "much"}}, "invalid_value", "session.reasoning.effort"),
        ({"reasoning": {"summary": "auto"}}, "unknown_parameter", "session.reasoning.summary"),
        ({"parallel_tool_calls": "no"}, "invalid_value", "session.parallel_tool_calls"),
        (
            {"type": "transcription", "instructions": "x"},
            "unknown_parameter",
            "session.instructions",
        ),
        (
            {"type": "transcription", "audio": {"output": {}}},
            "unknown_parameter",
            "session.audio.output",
        ),
        (
            {"audio": {"input": {"noise_reduction": {"type": "near"}}}},
            "invalid_value",
            "session.audio.input.noise_reduction.type",
        ),
        (
            {"audio": {"input": {"transcription": {"delay": "none"}}}},
            "invalid_value",
            "session.audio.input.transcription.delay",
        ),
        (
            {"audio": {"input": {"transcription": {"languages": ["en", "de"]}}}},
            "invalid_value",
            "session.audio.input.transcription.languages",
        ),
        ({"audio": []}, "invalid_value", "session.audio"),
        ({"audio": {"inptu": {}}}, "unknown_parameter", "session.audio.inptu"),
        (
            {"audio": {"input": {"format": {"type": "audio/pcm", "rate": 16000}}}},
            "invalid_value",
            "session.audio.input.format.rate",
        ),
        (
            {"audio": {"input": {"format": {"type": "audio/opus"}}}},
            "invalid_value",
            "session.audio.input.format.type",
        ),
        (
            {"audio": {"input": {"turn_detection": {"silence_duration_ms": 200}}}},
            "missing_required_parameter",
            "session.audio.input.turn_detection.type",
        ),
        (
            {"audio": {"input": {"turn_detection": {"type": "server_vad", "threshold": 2}}}},
            "invalid_value",
            "session.audio.input.turn_detection.threshold",
        ),
        (
            {"audio": {"input": {"turn_detection": {"type": "server_vad", "eagerness": "low"}}}},
            "unknown_parameter",
            "session.audio.input.turn_detection.eagerness",
        ),
        (
            {"audio": {"input": {"transcription": {"languages": [1]}}}},
            "invalid_value",
            "session.audio.input.transcription.languages[0]",
        ),
        ({"audio": {"output": {"speed": 3}}}, "invalid_value", "session.audio.output.speed"),
        ({"audio": {"output": {"voice": ""}}}, "invalid_value", "session.audio.output.voice"),
        ({"audio": {"output": {"voice": None}}}, "invalid_value", "session.audio.output.voice"),
    ],
)
def test_updates_that_are_refused(session: dict[str, Any], code: str, param: str) -> None:
    protocol = make()
    problem = update_refused(protocol, **session)
    assert (problem.code, problem.param) == (code, param)
    assert update(protocol) == SessionSettings()


def test_too_many_unanswered_updates_are_refused() -> None:
    protocol = make()
    for _ in range(64):
        update(protocol)
    assert update_refused(protocol).code == "rate_limit_exceeded"


def test_the_pace_is_for_clients_that_offered_extensions() -> None:
    protocol = make(extensions=True)
    settings = update(protocol, halfsec={"pace_ms": 700}, instructions="A")
    assert settings == SessionSettings(instructions="A", pace_ms=700)
    (frame,) = protocol.send(SessionUpdated(settings))
    assert json.loads(frame)["session"]["halfsec"] == {"pace_ms": 700, "budget_ms": 500}
    assert update(protocol, instructions="B").pace_ms == 700
    for wrong in ({"pace_ms": 5001}, {"pace_ms": -1}, {"pace_ms": "fast"}, {"pace_ms": None}):
        assert update_refused(protocol, halfsec=wrong).param == "session.halfsec.pace_ms"
    assert update_refused(protocol, halfsec={"pace_ms": 1, "x": 1}).code == "unknown_parameter"
    plain = make()
    assert update_refused(plain, halfsec={"pace_ms": 700}).code == "unknown_parameter"
    (frame,) = plain.send(SessionUpdated(SessionSettings()))
    assert "halfsec" not in json.loads(frame)["session"]


def test_a_session_may_have_a_budget_of_its_own() -> None:
    protocol = make(extensions=True)
    settings = update(protocol, halfsec={"budget_ms": 900})
    assert settings == SessionSettings(budget_ms=900)
    assert update(protocol, halfsec={"pace_ms": 100}).budget_ms == 900
    assert update(protocol, halfsec={}).budget_ms == 900
    for wrong in ({"budget_ms": 49}, {"budget_ms": 60_001}, {"budget_ms": "500"}):
        assert update_refused(protocol, halfsec=wrong).param == "session.halfsec.budget_ms"


def test_a_session_that_only_transcribes_says_so() -> None:
    protocol = make()
    settings = update(
        protocol,
        type="transcription",
        include=["item.input_audio_transcription.logprobs"],
        audio={"input": {"transcription": {"model": "gpt-realtime-whisper", "language": "en"}}},
    )
    assert settings.transcribes_only
    (event,) = say(protocol, [SessionUpdated(settings)])
    session = event["session"]
    assert (session["type"], session["object"]) == (
        "transcription",
        "realtime.transcription_session",
    )
    assert session["audio"].keys() == {"input"}
    assert session["audio"]["input"]["transcription"]["model"] == "gpt-realtime-whisper"
    assert not update(protocol).transcribes_only
