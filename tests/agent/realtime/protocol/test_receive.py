"""Parser of a client's frames, valid and invalid."""

import base64
import json
from typing import Any

import numpy as np
import pytest

from agent.codec.g711 import mulaw_encode
from agent.codec.json_frame import MAX_DEPTH, MAX_FRAME_BYTES, MAX_MARKS
from agent.realtime.protocol.fields import MAX_TEXT_CHARS
from agent.session.api.client_events import (
    AppendAudio,
    CancelResponse,
    ClearAudio,
    CommitAudio,
    CreateItem,
    CreateResponse,
    DeleteItem,
    PlaybackReport,
    Request,
    RetrieveItem,
    TruncateItem,
)
from agent.session.api.conversation import (
    ROOT,
    FunctionCall,
    FunctionOutput,
    ItemId,
    ItemReference,
    Message,
)
from agent.session.api.server_events import ItemAdded
from agent.session.api.settings import ResponseOptions
from tests.support.wire.wire_frames import make, one, refused, update


def item_of(**item: Any) -> Any:
    answer = one(make(), type="conversation.item.create", item=item)
    assert isinstance(answer, CreateItem), answer
    return answer.item


def test_the_longest_text_is_shown_again_in_frames_that_clients_read() -> None:
    for char in ("a", "\N{CJK UNIFIED IDEOGRAPH-65E5}", "\N{GRINNING FACE}", "\x01"):
        protocol = make()
        content = [{"type": "input_text", "text": char * MAX_TEXT_CHARS}]
        item = {"type": "message", "role": "user", "content": content}
        answer = one(protocol, type="conversation.item.create", item=item)
        assert isinstance(answer, CreateItem)
        frames = protocol.send(ItemAdded(answer.item, None))
        assert len(frames) == 2
        assert max(len(frame.encode()) for frame in frames) < 1 << 20


def test_a_text_too_long_is_refused_whole_or_in_parts() -> None:
    half = {"type": "input_text", "text": "a" * (MAX_TEXT_CHARS // 2)}
    for content, param in (
        ([{"type": "input_text", "text": "a" * (MAX_TEXT_CHARS + 1)}], "item.content[0].text"),
        ([half, half], "item.content"),
    ):
        item = {"type": "message", "role": "user", "content": content}
        problem = refused(make(), json.dumps({"type": "conversation.item.create", "item": item}))
        assert (problem.code, problem.param) == ("invalid_value", param)
        assert str(MAX_TEXT_CHARS) in problem.message


USER = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}


@pytest.mark.parametrize(
    ("event", "request_"),
    [
        ({"type": "input_audio_buffer.commit"}, CommitAudio("e")),
        ({"type": "input_audio_buffer.clear"}, ClearAudio("e")),
        (
            {"type": "conversation.item.create", "item": USER | {"id": "i1"}},
            CreateItem(Message(ItemId("i1"), "user", "text", "hi"), None, "e"),
        ),
        (
            {
                "type": "conversation.item.create",
                "item": USER | {"id": "i1"},
                "previous_item_id": "root",
            },
            CreateItem(Message(ItemId("i1"), "user", "text", "hi"), ROOT, "e"),
        ),
        (
            {"type": "conversation.item.retrieve", "item_id": "i1"},
            RetrieveItem(ItemId("i1"), "e"),
        ),
        ({"type": "conversation.item.delete", "item_id": "i1"}, DeleteItem(ItemId("i1"), "e")),
        (
            {
                "type": "conversation.item.truncate",
                "item_id": "i1",
                "content_index": 0,
                "audio_end_ms": 1500,
            },
            TruncateItem(ItemId("i1"), 1500, "e"),
        ),
        ({"type": "response.create"}, CreateResponse(ResponseOptions(), "e")),
        ({"type": "response.cancel"}, CancelResponse(None, "e")),
        ({"type": "response.cancel", "response_id": "r1"}, CancelResponse("r1", "e")),
    ],
)
def test_each_client_event_becomes_its_request(event: dict[str, Any], request_: Request) -> None:
    assert one(make(), **event, event_id="e") == request_


def test_audio_before_any_update_is_24_khz_pcm() -> None:
    pcm = np.array([0, 1, -1, 32767, -32768], dtype=np.int16)
    audio = base64.b64encode(pcm.astype("<i2").tobytes()).decode()
    answer = one(make(), type="input_audio_buffer.append", audio=audio)
    assert isinstance(answer, AppendAudio)
    assert answer.rate_hz == 24_000
    assert answer.pcm.tolist() == pcm.tolist()


def test_audio_right_behind_an_update_is_in_the_new_format() -> None:
    protocol = make()
    update(protocol, audio={"input": {"format": {"type": "audio/pcmu"}}})
    codes = mulaw_encode(np.array([1000, -1000], dtype=np.int16))
    answer = one(protocol, type="input_audio_buffer.append", audio=base64.b64encode(codes).decode())
    assert isinstance(answer, AppendAudio)
    assert answer.rate_hz == 8_000
    assert np.abs(answer.pcm - [1000, -1000]).max() < 50


def test_empty_audio_asks_for_nothing() -> None:
    assert make().receive('{"type":"input_audio_buffer.append","audio":""}') == ()


@pytest.mark.parametrize("audio", ["AAA", "AA==", "AA A", "AAAA\n", "ä", "====", "AAAB====", "A"])
def test_bad_base64_and_odd_bytes_are_refused(audio: str) -> None:
    frame = json.dumps({"type": "input_audio_buffer.append", "audio": audio, "event_id": "e1"})
    problem = refused(make(), frame)
    assert (problem.code, problem.param, problem.event_id) == ("invalid_value", "audio", "e1")


@pytest.mark.parametrize(
    "frame",
    [
        "", "nonsense", "{", "[]", "null", '"text"', "1", '{"a":NaN}', '{"a":Infinity}',
        '{"a":-Infinity}', '{"a":1e999}', '{"a":' + "9" * 5000 + "}", '{"a":"\\ud800"}',
        '{"\\udfff":1}', b"\xff\xfe", '{"type":"x","a":' + "[" * 100_000 + "]" * 100_000 + "}",
        '{"type":"x","a":' + "[" * MAX_DEPTH + "]" * MAX_DEPTH + "}",
        " " * (MAX_FRAME_BYTES + 1),
        "{}", '{"type":"nonsense"}', '{"type":"halfsec.playback","item_id":"i","played_ms":1}',
        '{"type":"output_audio_buffer.clear"}', '{"type":"response.audio.delta"}',
    ],
)  # fmt: skip
def test_frames_that_are_not_events_are_refused(frame: str | bytes) -> None:
    problem = refused(make(), frame)
    assert problem.code == "invalid_event"
    assert problem.type == "invalid_request_error"
    assert len(problem.message) < 300


def test_type_that_is_not_a_string_is_refused() -> None:
    assert refused(make(), '{"type":5}').param == "type"


@pytest.mark.parametrize(
    ("event", "code", "param"),
    [
        ({"type": "session.update"}, "missing_required_parameter", "session"),
        ({"type": "session.update", "session": 1}, "invalid_value", "session"),
        ({"type": "session.update", "session": {}}, "missing_required_parameter", "session.type"),
        (
            {"type": "session.update", "session": {"type": "translation"}},
            "invalid_value",
            "session.type",
        ),
        ({"type": "input_audio_buffer.append"}, "missing_required_parameter", "audio"),
        ({"type": "input_audio_buffer.append", "audio": 1}, "invalid_value", "audio"),
        ({"type": "response.cancel", "respond_id": "r"}, "unknown_parameter", "respond_id"),
        ({"type": "response.cancel", "response_id": 5}, "invalid_value", "response_id"),
        ({"type": "response.cancel", "event_id": 5}, "invalid_value", "event_id"),
        ({"type": "response.create", "response": []}, "invalid_value", "response"),
        (
            {"type": "conversation.item.truncate", "item_id": "i", "audio_end_ms": 1},
            "missing_required_parameter",
            "content_index",
        ),
        (
            {
                "type": "conversation.item.truncate",
                "item_id": "i",
                "content_index": 0,
                "audio_end_ms": -1,
            },
            "invalid_value",
            "audio_end_ms",
        ),
        (
            {
                "type": "conversation.item.truncate",
                "item_id": "i",
                "content_index": 0,
                "audio_end_ms": 1.5,
            },
            "invalid_value",
            "audio_end_ms",
        ),
        ({"type": "conversation.item.delete"}, "missing_required_parameter", "item_id"),
        ({"type": "transcription_session.update"}, "beta_api_shape_disabled", "type"),
    ],
)
def test_errors_name_the_field(event: dict[str, Any], code: str, param: str) -> None:
    problem = refused(make(), json.dumps(event))
    assert (problem.code, problem.param) == (code, param)


@pytest.mark.parametrize(
    ("response", "code", "param"),
    [
        ({"modalities": ["audio"]}, "beta_api_shape_disabled", "response.modalities"),
        ({"output_modalities": ["audio", "text"]}, "invalid_value", "response.output_modalities"),
        ({"metadata": {"a": 1}}, "invalid_value", "response.metadata.a"),
        ({"metadata": {"a": "x" * 513}}, "invalid_value", "response.metadata.a"),
        ({"metadata": {"k" * 65: ""}}, "invalid_value", "response.metadata"),
        ({"metadata": {str(n): "" for n in range(17)}}, "invalid_value", "response.metadata"),
        ({"max_output_tokens": 0}, "invalid_value", "response.max_output_tokens"),
        ({"max_output_tokens": True}, "invalid_value", "response.max_output_tokens"),
        ({"conversation": "mine"}, "invalid_value", "response.conversation"),
        (
            {"tools": [{"type": "mcp", "server_label": "f"}]},
            "invalid_value",
            "response.tools[0].type",
        ),
        (
            {"audio": {"output": {"voice": ""}}},
            "invalid_value",
            "response.audio.output.voice",
        ),
        (
            {"input": [{"type": "item_reference"}]},
            "missing_required_parameter",
            "response.input[0].id",
        ),
        (
            {"input": [USER, {"type": "message", "role": "user", "content": [{"type": 1}]}]},
            "invalid_value",
            "response.input[1].content[0].type",
        ),
    ],
)
def test_responses_that_are_refused(response: dict[str, Any], code: str, param: str) -> None:
    problem = refused(make(), json.dumps({"type": "response.create", "response": response}))
    assert (problem.code, problem.param) == (code, param)


def test_a_response_out_of_band_with_its_own_input() -> None:
    answer = one(
        make(max_output_tokens=50),
        type="response.create",
        response={
            "instructions": "Be brief.",
            "conversation": "none",
            "output_modalities": ["text"],
            "max_output_tokens": "inf",
            "metadata": {"client_event_id": "x"},
            "input": [USER | {"id": "i9"}, {"type": "item_reference", "id": "i1"}],
            "tools": [],
            "audio": {"output": {"voice": "joe", "format": {"type": "audio/pcmu"}}},
        },
    )
    assert isinstance(answer, CreateResponse)
    assert answer.options == ResponseOptions(
        instructions="Be brief.",
        output_modality="text",
        max_output_tokens="inf",
        tools=(),
        voice="joe",
        output_encoding="pcmu",
        metadata={"client_event_id": "x"},
        out_of_band=True,
        input=(Message(ItemId("i9"), "user", "text", "hi"), ItemReference(ItemId("i1"))),
    )


def test_items_of_every_kind() -> None:
    spoken = {"type": "input_audio", "transcript": "said", "audio": "AAAA"}
    assert item_of(type="message", role="user", id="i", content=[spoken]) == Message(
        ItemId("i"), "user", "audio", "said"
    )
    parts = [{"type": "output_text", "text": "a"}, {"type": "output_audio", "transcript": "b"}]
    assert item_of(type="message", role="assistant", id="i", content=parts) == Message(
        ItemId("i"), "assistant", "audio", "a\nb"
    )
    typed = [{"type": "input_text", "text": "rule"}]
    assert item_of(type="message", role="system", id="i", content=typed) == Message(
        ItemId("i"), "system", "text", "rule"
    )
    assert item_of(
        type="function_call", id="i", call_id="c", name="f", arguments="{}"
    ) == FunctionCall(ItemId("i"), "c", "f", "{}")
    assert item_of(type="function_call_output", id="i", call_id="c", output="42") == FunctionOutput(
        ItemId("i"), "c", "42"
    )


def test_items_without_an_id_get_one() -> None:
    assert item_of(**USER).id.startswith("item_")


@pytest.mark.parametrize(
    ("item", "code", "param"),
    [
        ({"type": "mcp_call"}, "invalid_value", "item.type"),
        ({"type": "message", "role": "robot", "content": []}, "invalid_value", "item.role"),
        ({"type": "message", "role": "user"}, "missing_required_parameter", "item.content"),
        ({"type": "message", "role": "user", "content": []}, "invalid_value", "item.content"),
        ({"type": "message", "role": "user", "content": "hi"}, "invalid_value", "item.content"),
        (USER | {"id": "root"}, "invalid_value", "item.id"),
        (USER | {"id": ""}, "invalid_value", "item.id"),
        (USER | {"status": "cancelled"}, "invalid_value", "item.status"),
        (USER | {"colour": "red"}, "unknown_parameter", "item.colour"),
        (
            {"type": "message", "role": "user", "content": [{"type": "text", "text": ""}]},
            "beta_api_shape_disabled",
            "item.content[0].type",
        ),
        (
            {"type": "message", "role": "user", "content": [{"type": "output_text", "text": ""}]},
            "invalid_value",
            "item.content[0].type",
        ),
        (
            {"type": "message", "role": "user", "content": [{"type": "input_audio"}]},
            "invalid_value",
            "item.content[0].transcript",
        ),
        (
            {"type": "message", "role": "user", "content": [{"type": "input_image"}]},
            "invalid_value",
            "item.content[0].type",
        ),
        (
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{"},
            "invalid_value",
            "item.arguments",
        ),
        (
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "NaN"},
            "invalid_value",
            "item.arguments",
        ),
        (
            {"type": "function_call_output", "output": ""},
            "missing_required_parameter",
            "item.call_id",
        ),
    ],
)
def test_items_that_are_refused(item: dict[str, Any], code: str, param: str) -> None:
    problem = refused(make(), json.dumps({"type": "conversation.item.create", "item": item}))
    assert (problem.code, problem.param) == (code, param)


def test_playback_reports_are_for_clients_that_offered_extensions() -> None:
    event = {"type": "halfsec.playback", "item_id": "i", "played_ms": 40}
    assert one(make(extensions=True), **event) == PlaybackReport(ItemId("i"), 40)


@pytest.mark.parametrize("value", ["[]", "{}", "0", '""', '{"a":0}'])
def test_a_frame_of_too_many_values_is_not_parsed(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    marks = 1 + value.count("{") + value.count("[")
    frame = '{"type":"x","a":[' + ",".join([value] * (MAX_MARKS // marks + 1)) + "]}"
    problem = refused(make(), frame)
    assert (problem.code, str(MAX_MARKS) in problem.message) == ("invalid_event", True)
    monkeypatch.setattr("json.loads", None)
    assert refused(make(), frame.encode()) == problem


def test_a_text_of_commas_is_taken() -> None:
    text = "," * (MAX_TEXT_CHARS - 20)
    item = item_of(type="message", role="user", content=[{"type": "input_text", "text": text}])
    assert item.text == text
