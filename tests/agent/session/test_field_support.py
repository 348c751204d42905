"""Every field of OpenAI's sessions and responses is obeyed, refused or said to be ignored.

The fields are those of OpenAI's published types, the promises those of the reference page's table.
What is obeyed is proved by a probe for each row, which looks at what the stages got.
"""

import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest

from agent.calls.session_start import SessionStart, session_start
from agent.config.layers import load_config
from agent.http.auth.principal import Principal
from agent.realtime.protocol.field_support import (
    IMAGE,
    RESPONSE,
    SESSION,
    TRANSCRIPTION_SESSION,
    FieldSupport,
)
from agent.realtime.protocol.protocol import RealtimeProtocol
from agent.session.api.server_events import (
    AudioCommitted,
    Extension,
    ItemAdded,
    Problem,
    ReplyEnded,
    ReplyStarted,
    SessionCreated,
)
from agent.session.api.session_state import SessionState
from agent.session.api.settings import IgnoredField, SessionSettings, Truncation
from agent.stages.speech_input import endpointing_for
from agent.turn_taking.end_of_turn import NOT_IDLE, rules_of
from asr.recognition.recognizer import TranscriptionOptions
from tests.support.fakes.stages import FakeChat
from tests.support.session.session_call import Call, call_with
from tests.support.wire.openai_schema import (
    SchemaField,
    response_fields,
    session_fields,
    transcription_session_fields,
)

pytestmark = pytest.mark.virtual_time

TABLES: Final = {
    "session": (SESSION, session_fields()),
    "transcription": (TRANSCRIPTION_SESSION, transcription_session_fields()),
    "response": (RESPONSE, response_fields()),
}

SHOWN_ALL_THE_SAME: Final = ("transcription.model", "transcription.delay")
"""Ignored fields that `session.updated` shows as they were set: names of what OpenAI has."""


class Wired:
    """A session on fake stages, behind the protocol."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.events: list[dict[str, Any]] = []
        """What the client was sent."""
        self._protocol = RealtimeProtocol(call.session.settings, model="m", extensions=True)
        self._num_sent = 0

    async def send(self, **event: Any) -> None:
        for request in self._protocol.receive(json.dumps(event)):
            if isinstance(request, Problem):
                self._take(self._protocol.send(request))
            else:
                await self.call.session.handle(request)
        self.flush()

    async def update(self, session: dict[str, Any]) -> None:
        await self.send(type="session.update", session={"type": "realtime", **session})

    async def answer(self, response: dict[str, Any] | None = None) -> None:
        """A response from its request to its end."""
        before = len(self.call.of(ReplyEnded))
        await self.send(type="response.create", response=response or {})
        assert not self.errors, self.errors
        await self.call.until(ReplyEnded, before + 1)
        self.flush()

    def flush(self) -> None:
        notices, self._num_sent = self.call.notices[self._num_sent :], len(self.call.notices)
        for notice in notices:
            self._take(self._protocol.send(notice))

    def _take(self, frames: tuple[str, ...]) -> None:
        self.events += map(json.loads, frames)

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["type"] == kind]

    @property
    def errors(self) -> list[dict[str, Any]]:
        return [event["error"] for event in self.of("error")]

    @property
    def shown(self) -> dict[str, Any]:
        """The session as `session.updated` showed it last."""
        session: dict[str, Any] = self.of("session.updated")[-1]["session"]
        return session

    @property
    def chat(self) -> FakeChat:
        return self.call.chat


@asynccontextmanager
async def wired() -> AsyncIterator[Wired]:
    async with call_with("Yes.", "No.", "Perhaps.") as call:
        made = Wired(call)
        made.flush()
        yield made


def row_of(table: tuple[FieldSupport, ...], path: str) -> FieldSupport:
    """The row that holds for a path: the longest that contains it."""
    found = [
        row
        for row in table
        if path == row.path or path.startswith((f"{row.path}.", f"{row.path}["))
    ]
    assert found, f"{path} has no row: obeyed, refused or ignored?"
    return max(found, key=lambda row: len(row.path))


def plain(path: str) -> str:
    """A path as `error.param` has it: without the types of objects."""
    return "".join(part.split("]")[-1] for part in path.split("["))


def dig(session: dict[str, Any], path: str) -> Any:
    found: Any = session
    for name in plain(path).split("."):
        found = found.get(name) if isinstance(found, dict) else None
    return found


EVERY: Final = [
    pytest.param(kind, field, id=f"{kind}:{field}")
    for kind, (_, fields) in TABLES.items()
    for field in fields
]


@pytest.mark.parametrize(("kind", "field"), EVERY)
async def test_every_field_is_what_its_row_says(kind: str, field: SchemaField) -> None:
    row = row_of(TABLES[kind][0], field.path)
    support, text = row.support, row.text
    if field.value == "input_image":
        support, text = "refused", IMAGE
    root = "response" if kind == "response" else "session"
    async with wired() as made:
        if root == "session":
            await made.send(type="session.update", session=field.object)
            done = bool(made.of("session.updated"))
        else:
            item = {"type": "message", "role": "user", "id": "item_known",
                    "content": [{"type": "input_text", "text": "x"}]}  # fmt: skip
            await made.send(type="conversation.item.create", item=item)
            await made.send(type="response.create", response=field.object)
            done = bool(made.call.of(ReplyStarted))
        notices = made.of("halfsec.notice")
        if support == "refused":
            (error,) = made.errors
            assert not done
            assert error["param"].startswith(f"{root}.{plain(field.path).split('.')[0]}")
            assert text in error["message"]
            return
        assert (made.errors, done) == ([], True)
        about = [event for event in notices if f"{root}.{plain(field.path)}".startswith(
            "".join(part.split("]")[-1] for part in event["param"].split("[")))]  # fmt: skip
        if support == "ignored":
            assert [event["message"] for event in about] == [text]
            if root == "session" and not field.path.endswith(SHOWN_ALL_THE_SAME):
                assert dig(made.shown, field.path) in (None, *_DEFAULTS)
        else:
            assert about == []
            if root == "session" and "[" not in field.path and not field.path.endswith("voice.id"):
                assert dig(made.shown, field.path) == field.value


_DEFAULTS: Final = (True, False, 6000)
"""Values of turn detection, which is shown as it was set, also where no reply has a use for it."""


def test_every_row_is_of_a_field_that_exists() -> None:
    for table, fields in TABLES.values():
        used = {row_of(table, field.path).path for field in fields}
        objects = {"audio.input.transcription", "audio.input.turn_detection"}  # rows of their null
        assert {row.path for row in table} - objects - used == set()
        assert len({row.path for row in table}) == len(table)


async def test_null_is_no_transcription_and_is_said_to_be_ignored() -> None:
    async with wired() as made:
        await made.update({"audio": {"input": {"transcription": None}}})
        (notice,) = made.of("halfsec.notice")
        assert notice["param"] == "session.audio.input.transcription"
        assert notice["message"] in row_of(SESSION, "audio.input.transcription").text


async def test_a_client_is_told_once() -> None:
    async with wired() as made:
        await made.update({"tracing": "auto"})
        await made.update({"instructions": "Be kind."})
        assert len(made.of("halfsec.notice")) == 1


async def test_a_voice_of_openai_is_said_to_be_another() -> None:
    async with wired() as made:
        await made.update({"audio": {"output": {"voice": "marin"}}})
        await made.update({"audio": {"output": {"voice": "hibari"}}})
        await made.answer({"audio": {"output": {"voice": "marin"}}})
        params = [event["param"] for event in made.of("halfsec.notice")]
        assert params == ["session.audio.output.voice", "response.audio.output.voice"]


async def test_another_model_in_an_update_is_said_to_change_nothing() -> None:
    async with wired() as made:
        await made.update({"model": "gpt-realtime"})
        (notice,) = made.of("halfsec.notice")
        assert (notice["param"], made.shown["model"]) == ("session.model", "m")


async def test_audio_in_an_item_is_said_not_to_be_heard() -> None:
    async with wired() as made:
        part = {"type": "input_audio", "audio": "AAAA", "transcript": "Hello."}
        item = {"type": "message", "role": "user", "content": [part]}
        await made.send(type="conversation.item.create", item=item)
        (notice,) = made.of("halfsec.notice")
        assert notice["param"] == "item.content[0].audio"
        assert made.of("conversation.item.added")


async def test_a_recognizer_without_prompts_is_said_to_have_none() -> None:
    async with wired() as made:
        made.call.ears.takes_prompts = False
        transcription = {"prompt": "Names.", "keywords": ["Halfsec"], "language": "de"}
        await made.update({"audio": {"input": {"transcription": transcription}}})
        params = [event["param"] for event in made.of("halfsec.notice")]
        path = "session.audio.input.transcription"
        assert params == [f"{path}.prompt", f"{path}.keywords"]


async def test_a_language_that_is_not_known_changes_nothing() -> None:
    async with wired() as made:
        asked = {"instructions": "New.", "audio": {"input": {"transcription": {"language": "tlh"}}}}
        await made.update(asked)
        (error,) = made.errors
        assert error["param"] == "session.audio.input.transcription.language"
        assert made.call.session.settings.instructions == "Be brief."
        assert made.call.ears.transcription == TranscriptionOptions("en")


# Probes: that what is obeyed has its effect.

Probe = Callable[[Wired], Awaitable[None]]
CLOCK: Final = {
    "type": "function",
    "name": "clock",
    "description": "The time.",
    "parameters": {"type": "object", "properties": {"zone": {"type": "string"}}},
}
BELL: Final = {"type": "function", "name": "bell"}


async def _type(made: Wired) -> None:
    await made.update({"type": "transcription"})
    await made.send(type="response.create")
    assert made.errors[0]["param"] == "type"
    await made.update({})
    await made.send(type="response.create")
    assert len(made.errors) == 1


async def _model(made: Wired) -> None:
    config = load_config(file_text='[agents.sales]\ninstructions = "Sell."')
    agents = []
    for model in ("sales", "gpt-realtime"):
        bound = {"type": "realtime", "model": model}
        start = session_start(config, Principal("me", "ephemeral", session=bound), None)
        assert isinstance(start, SessionStart)
        agents.append(start.agent)
    assert agents == ["sales", "default"]


async def _instructions(made: Wired) -> None:
    await made.update({"instructions": "Be kind."})
    await made.answer()
    assert ("system", "Be kind.") in made.chat.calls


async def _modality(made: Wired) -> None:
    await made.update({"output_modalities": ["text"]})
    await made.answer()
    assert made.of("response.output_text.done")
    assert not made.of("response.output_audio.delta")


async def _max_tokens(made: Wired) -> None:
    await made.update({"max_output_tokens": 7})
    await made.answer()
    await made.update({"max_output_tokens": "inf"})
    await made.answer()
    assert made.chat.max_tokens == [7, None]


async def _tools(made: Wired) -> None:
    await made.update({"tools": [CLOCK]})
    await made.answer()
    (tools,) = made.chat.may_call
    assert tools is not None
    told = [json.loads(each) for each in tools.definitions]
    assert told == [{key: value for key, value in CLOCK.items() if key != "type"}]


async def _choice(made: Wired) -> None:
    await made.update({"tools": [CLOCK, BELL], "tool_choice": "required"})
    await made.answer()
    await made.update({"tool_choice": {"type": "function", "name": "bell"}})
    await made.answer()
    await made.update({"tool_choice": "none"})
    await made.answer()
    assert [each and each.choice for each in made.chat.may_call] == ["required", "bell", None]


async def _parallel(made: Wired) -> None:
    for parallel in (None, False, True):
        await made.update({"tools": [CLOCK], "parallel_tool_calls": parallel})
        await made.answer()
    assert [each and each.in_parallel for each in made.chat.may_call] == [True, False, True]


async def _truncation(made: Wired) -> None:
    ratio = {"type": "retention_ratio", "retention_ratio": 0.5,
             "token_limits": {"post_instructions": 100}}  # fmt: skip
    rules = []
    for asked in (ratio, "disabled", "auto"):
        await made.update({"truncation": asked})
        rules.append(made.chat.truncation)
    assert rules == [
        Truncation(retention_ratio=0.5, post_instructions_tokens=100),
        Truncation(is_disabled=True),
        Truncation(),
    ]


async def _output_format(made: Wired) -> None:
    await made.update({"audio": {"output": {"format": {"type": "audio/pcma"}}}})
    made.call.opened_voices.clear()
    await made.answer()
    assert made.call.opened_voices == [("hibari", 8_000, 1.0)]
    assert made.of("response.created")[0]["response"]["audio"]["output"]["format"] == {
        "type": "audio/pcma"
    }


async def _voice(made: Wired) -> None:
    await made.update({"audio": {"output": {"voice": {"id": "marin"}}}})
    await made.answer()
    assert made.call.opened_voices[-1] == ("marin", 24_000, 1.0)


async def _speed(made: Wired) -> None:
    for speed in (1.5, 0.25):
        await made.update({"audio": {"output": {"speed": speed}}})
        await made.answer()
        assert made.call.opened_voices[-1] == ("hibari", 24_000, speed)


async def _input_format(made: Wired) -> None:
    await made.update({"audio": {"input": {"format": {"type": "audio/pcmu"}}}})
    audio = base64.b64encode(bytes(800)).decode()
    await made.send(type="input_audio_buffer.append", audio=audio)
    await made.update({"audio": {"input": {"format": {"type": "audio/pcm", "rate": 24000}}}})
    await made.send(type="input_audio_buffer.append", audio=audio)
    assert made.call.ears.fed == [800, 400]


def _transcription(asked: dict[str, Any], options: TranscriptionOptions) -> Probe:
    async def probe(made: Wired) -> None:
        await made.update({"audio": {"input": {"transcription": asked}}})
        assert made.call.ears.transcription == options

    return probe


async def _push_to_talk(made: Wired) -> None:
    await made.update({"audio": {"input": {"turn_detection": None}}})
    assert made.call.ears.detection is None
    await made.update({"audio": {"input": {"turn_detection": {"type": "server_vad"}}}})
    assert made.call.ears.detection is not None


def _detection(asked: dict[str, Any], **rules: Any) -> Probe:
    async def probe(made: Wired) -> None:
        before = rules_of(made.call.session.settings, NOT_IDLE)
        await made.update({"audio": {"input": {"turn_detection": asked}}})
        after = rules_of(made.call.session.settings, NOT_IDLE)
        for name, value in rules.items():
            assert (getattr(before, name) == value, getattr(after, name)) == (False, value)

    return probe


def _endpointing(asked: dict[str, Any], **config: Any) -> Probe:
    async def probe(made: Wired) -> None:
        await made.update({"audio": {"input": {"turn_detection": {"type": "server_vad", **asked}}}})
        found = endpointing_for(made.call.ears.detection, 80)
        assert [getattr(found, name) for name in config] == list(config.values())

    return probe


def _no_reply(kind: str) -> Probe:
    async def probe(made: Wired) -> None:
        detection = {"type": kind, "create_response": False}
        await made.update({"audio": {"input": {"turn_detection": detection}}})
        made.call.ears.say("Hello?")
        await made.call.until(AudioCommitted)
        await made.call.until(ItemAdded)
        await made.answer()
        assert len(made.call.of(ReplyStarted)) == 1

    return probe


async def _idle(made: Wired) -> None:
    detection = {"type": "server_vad", "idle_timeout_ms": 6000}
    await made.update({"audio": {"input": {"turn_detection": detection}}})
    idle = rules_of(made.call.session.settings, NOT_IDLE).idle
    assert (idle.idle_after_ms, idle.idle_commits) == (6000, True)


_SERVER, _SEMANTIC = (
    "audio.input.turn_detection[server_vad]", "audio.input.turn_detection[semantic_vad]"
)  # fmt: skip
_HEARD: Final[dict[str, Probe]] = {
    "audio.input.format": _input_format,
    "audio.input.transcription.language": _transcription(
        {"language": "de-AT"}, TranscriptionOptions("de")
    ),
    "audio.input.transcription.languages": _transcription(
        {"languages": ["de"]}, TranscriptionOptions("de")
    ),
    "audio.input.transcription.prompt": _transcription(
        {"prompt": "Anna Meyer"}, TranscriptionOptions("en", "Anna Meyer")
    ),
    "audio.input.transcription.keywords": _transcription(
        {"keywords": ["Halfsec", "VAD"], "prompt": "A call."},
        TranscriptionOptions("en", "Halfsec, VAD. A call."),
    ),
    "audio.input.turn_detection": _push_to_talk,
    f"{_SERVER}.threshold": _endpointing({"threshold": 0.7}, speech_threshold=0.7),
    f"{_SERVER}.prefix_padding_ms": _endpointing({"prefix_padding_ms": 120}, preroll_ms=120),
    f"{_SERVER}.silence_duration_ms": _detection(
        {"type": "server_vad", "silence_duration_ms": 300}, silence_ms=300
    ),
    f"{_SEMANTIC}.eagerness": _detection(
        {"type": "semantic_vad", "eagerness": "low"}, eagerness="low"
    ),
}
PROBES: Final[dict[str, dict[str, Probe]]] = {
    "session": {
        "type": _type,
        "model": _model,
        "instructions": _instructions,
        "output_modalities": _modality,
        "max_output_tokens": _max_tokens,
        "tools[function]": _tools,
        "tool_choice": _choice,
        "parallel_tool_calls": _parallel,
        "truncation": _truncation,
        "audio.output.format": _output_format,
        "audio.output.voice": _voice,
        "audio.output.speed": _speed,
        f"{_SERVER}.create_response": _no_reply("server_vad"),
        f"{_SERVER}.interrupt_response": _detection(
            {"type": "server_vad", "interrupt_response": False}, interrupts=False
        ),
        f"{_SERVER}.idle_timeout_ms": _idle,
        f"{_SEMANTIC}.create_response": _no_reply("semantic_vad"),
        f"{_SEMANTIC}.interrupt_response": _detection(
            {"type": "semantic_vad", "interrupt_response": False}, interrupts=False
        ),
        **_HEARD,
    },
    "transcription": {"type": _type, **_HEARD},
}


async def _own_instructions(made: Wired) -> None:
    await made.answer({"instructions": "Be kind."})
    await made.answer()
    told = [each for each in made.chat.calls if each[0] in ("system", "generate")]
    assert [name for name, _ in told[:2]] == ["system", "generate"]
    assert told[0] == ("system", "Be kind.")
    assert ("system", "Be brief.") in told[2:]


async def _own_modality(made: Wired) -> None:
    await made.answer({"output_modalities": ["text"]})
    assert made.of("response.output_text.done")
    await made.answer()
    assert made.of("response.output_audio.delta")


async def _own_max_tokens(made: Wired) -> None:
    await made.answer({"max_output_tokens": 7})
    await made.answer()
    await made.update({"max_output_tokens": 9})
    await made.answer({"max_output_tokens": "inf"})
    for kind in ("response.created", "response.done"):
        shown = [event["response"]["max_output_tokens"] for event in made.of(kind)]
        assert shown == [7, "inf", "inf"]
    assert made.chat.max_tokens == [7, None, None]


async def _metadata(made: Wired) -> None:
    await made.answer({"metadata": {"topic": "weather"}})
    for kind in ("response.created", "response.done"):
        assert made.of(kind)[0]["response"]["metadata"] == {"topic": "weather"}


async def _conversation(made: Wired) -> None:
    await made.answer({"conversation": "none"})
    assert len(made.call.session.conversation) == 0
    await made.answer({"conversation": "auto"})
    assert len(made.call.session.conversation) == 1


async def _own_tools(made: Wired) -> None:
    await made.answer({"tools": [BELL]})
    await made.answer()
    first, second = made.chat.may_call
    assert (first and first.definitions, second) == (('{"name": "bell"}',), None)


async def _own_choice(made: Wired) -> None:
    await made.update({"tools": [CLOCK, BELL]})
    for choice in ("required", {"type": "function", "name": "bell"}, "none", "auto"):
        await made.answer({"tool_choice": choice})
    chosen = [each and each.choice for each in made.chat.may_call]
    assert chosen == ["required", "bell", None, "auto"]


async def _own_parallel(made: Wired) -> None:
    await made.update({"tools": [CLOCK]})
    await made.answer({"parallel_tool_calls": False})
    await made.answer()
    assert [each and each.in_parallel for each in made.chat.may_call] == [False, True]


async def _own_format(made: Wired) -> None:
    await made.answer({"audio": {"output": {"format": {"type": "audio/pcmu"}}}})
    await made.answer()
    assert [rate_hz for _, rate_hz, _ in made.call.opened_voices[-2:]] == [8_000, 24_000]


async def _own_voice(made: Wired) -> None:
    await made.answer({"audio": {"output": {"voice": "marin"}}})
    await made.answer()
    assert [name for name, _, _ in made.call.opened_voices[-2:]] == ["marin", "hibari"]


async def _input(made: Wired) -> None:
    item = {"type": "message", "role": "user", "id": "item_1",
            "content": [{"type": "input_text", "text": "Who?"}]}  # fmt: skip
    await made.send(type="conversation.item.create", item=item)
    own = made.call.chat = FakeChat(["I."])
    await made.answer({"input": [
        {"type": "item_reference", "id": "item_1"},
        {"type": "message", "role": "assistant",
         "content": [{"type": "output_text", "text": "Me."}]},
        {"type": "message", "role": "system",
         "content": [{"type": "input_text", "text": "Ask."}]},
    ]})  # fmt: skip
    messages = (("user", "Who?"), ("assistant", "Me."), ("system", "Ask."))
    assert [name for name, _ in own.calls] == ["reset", "generate"]
    assert own.calls[0] == ("reset", messages)


PROBES["response"] = {
    "instructions": _own_instructions,
    "output_modalities": _own_modality,
    "max_output_tokens": _own_max_tokens,
    "metadata": _metadata,
    "conversation": _conversation,
    "tools[function]": _own_tools,
    "tool_choice": _own_choice,
    "parallel_tool_calls": _own_parallel,
    "audio.output.format": _own_format,
    "audio.output.voice": _own_voice,
    "input": _input,
}

OBEYED: Final = [
    pytest.param(kind, row.path, id=f"{kind}:{row.path}")
    for kind, (table, _) in TABLES.items()
    for row in table
    if row.support == "obeyed"
]


@pytest.mark.parametrize(("kind", "path"), OBEYED)
async def test_what_is_obeyed_has_its_effect(kind: str, path: str) -> None:
    async with wired() as made:
        await PROBES[kind][path](made)


async def test_fields_of_a_client_secret_are_told_of_at_the_beginning() -> None:
    """What a session starts with, as after `session.update`."""
    settings = SessionSettings(
        voice="marin",
        transcription={"prompt": "Anna."},
        truncation=Truncation(is_disabled=True),
        ignored=(IgnoredField("session.tracing", "No."),),
    )
    async with call_with(settings=settings) as call:
        assert call.ears.transcription == TranscriptionOptions("en", "Anna.")
        assert call.chat.truncation == Truncation(is_disabled=True)
        told = [each.fields["param"] for each in call.notices[1:] if isinstance(each, Extension)]
        assert told == ["session.tracing", "session.audio.output.voice"]
        assert isinstance(call.notices[0], SessionCreated)
        assert call.session.settings == settings.changed(ignored=())
    state = SessionState(settings, (), 0, 0, 0, 0, (), 0, False, False, None)
    async with call_with(restored=state) as call:
        assert call.ears.transcription == TranscriptionOptions("en", "Anna.")
        assert call.chat.truncation == Truncation(is_disabled=True)
        assert not call.of(Extension), "the server that began the call has told"
