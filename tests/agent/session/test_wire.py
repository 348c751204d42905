"""Whatever clients send and callers do, in whatever order: what comes back is in order.

A whole session on fake stages, spoken to through the dialect as over a socket, in virtual time. The
moves are drawn by hypothesis, which finds the shortest story that breaks a promise.
"""

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncGenerator
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from agent.errors import StageError
from agent.realtime.protocol.protocol import RealtimeProtocol
from agent.session.api.conversation import ModelCall
from agent.session.api.server_events import Problem
from agent.session.api.settings import SessionSettings
from agent.session.ports.stage_ports import ReplyToken, Tools
from agent.turn_taking.tables import Agent
from latency_budget.account.clock import ManualClock
from latency_budget.account.turn import TurnId
from tests.support.fakes.remembering import RememberingChat
from tests.support.fakes.stages import Calling
from tests.support.session import virtual_time
from tests.support.session.session_call import Call, call_with
from tests.support.wire.wire_order import WireOrder

Move = tuple[str, Any]

REPLIES = ("Yes.", "That is a long way from here, and a longer one back.", "It is. Really. Is it?")

CLOCK = {"type": "function", "name": "clock", "parameters": {"type": "object"}}
CALL = ModelCall("clock", "{}")
CALLINGS = (Calling("", (CALL,)), Calling("Let me look.", (CALL, CALL)), Calling("", (CALL, CALL)))

DETECTIONS = st.sampled_from(
    [
        None,
        {"type": "semantic_vad"},
        {"type": "semantic_vad", "interrupt_response": False},
        {"type": "server_vad", "create_response": False},
        {"type": "server_vad", "idle_timeout_ms": 5000},
        {"type": "server_vad", "idle_timeout_ms": None, "silence_duration_ms": 200},
    ]
)
FORMATS = st.sampled_from([{"type": "audio/pcm", "rate": 24000}, {"type": "audio/pcmu"}])

SESSIONS = st.fixed_dictionaries(
    {},
    optional={
        "instructions": st.sampled_from(["Be kind.", ""]),
        "output_modalities": st.sampled_from([["audio"], ["text"]]),
        "max_output_tokens": st.sampled_from([1, "inf"]),
        "tools": st.sampled_from([[], [CLOCK]]),
        "tool_choice": st.sampled_from(["auto", "required", "none"]),
        "audio": st.fixed_dictionaries(
            {},
            optional={
                "input": st.fixed_dictionaries({"turn_detection": DETECTIONS}),
                "output": st.fixed_dictionaries(
                    {}, optional={"format": FORMATS, "voice": st.sampled_from(["hibari", "nobody"])}
                ),
            },
        ),
    },
)

NEW_ITEMS = st.sampled_from(
    [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi."}]},
        {"type": "message", "role": "system", "content": [{"type": "input_text", "text": "Sh."}]},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Hello."}],
        },
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "42"},
    ]
)

WHICH = st.integers(-1, 6)
"""An item: the last but so many, or (-1) one that is not there."""

RESPONSES = st.fixed_dictionaries(
    {},
    optional={
        "conversation": st.sampled_from(["auto", "none"]),
        "output_modalities": st.sampled_from([["audio"], ["text"]]),
        "instructions": st.just("Say banana."),
        "max_output_tokens": st.sampled_from([1, "inf"]),
        "metadata": st.just({"client_event_id": "c"}),
        "input": NEW_ITEMS.map(lambda item: [item]),
    },
)

FROM_CLIENTS: dict[str, st.SearchStrategy[Any]] = {
    "session.update": SESSIONS,
    "input_audio_buffer.append": st.sampled_from([0, 480, 24_000]),
    "input_audio_buffer.commit": st.none(),
    "input_audio_buffer.clear": st.none(),
    "conversation.item.create": st.tuples(NEW_ITEMS, st.none() | WHICH, st.booleans()),
    "conversation.item.retrieve": WHICH,
    "conversation.item.delete": WHICH,
    "conversation.item.truncate": st.tuples(WHICH, st.sampled_from([0, 300, 10**9])),
    "response.create": RESPONSES,
    "response.cancel": st.sampled_from(["whichever", "the one", "another"]),
    "output_audio_buffer.clear": st.none(),
    "nonsense": st.sampled_from(["{", "[]", "{}", '{"type": 5}', '{"type": "response.audio"}']),
}

HAPPENINGS: dict[str, st.SearchStrategy[Any]] = {
    "says": st.sampled_from(["Hello there.", "", "Mm-hmm.", "Stop."]),
    "pauses": st.sampled_from(["I would", "", "And the bill?"]),
    "falls silent": st.none(),
    "wait": st.sampled_from([0.001, 0.05, 0.4, 3.0, 6.0]),
    "the model hangs": st.booleans(),
    "the model fails": st.none(),
    "the model calls": st.sampled_from(CALLINGS),
    "the voice fails": st.booleans(),
}


def moves_of(kinds: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[Move]:
    return st.one_of([st.tuples(st.just(kind), drawn) for kind, drawn in kinds.items()])


MOVES = st.lists(moves_of(FROM_CLIENTS) | moves_of(HAPPENINGS), min_size=1, max_size=25)


class Chat(RememberingChat):
    """Calls tools where it has some."""

    def __init__(self) -> None:
        super().__init__([REPLIES[n % len(REPLIES)] for n in range(100)])
        self.callings: list[Calling] = []

    async def generate(
        self, turn: TurnId, *, tools: Tools | None = None, **options: Any
    ) -> AsyncGenerator[ReplyToken, None]:
        if tools is not None and self.callings:
            self.replies.insert(0, self.callings.pop(0))
        async with contextlib.aclosing(super().generate(turn, tools=tools, **options)) as tokens:
            async for token in tokens:
                yield token


class Connection:
    """What `realtime_socket` is between a socket and a session."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.order = WireOrder()
        self.protocol = RealtimeProtocol(SessionSettings(), model="m")
        self.num_sent = 0
        self._num_told = 0

    def hear(self) -> None:
        """Everything that the session has said since."""
        for notice in self.call.notices[self._num_told :]:
            for frame in self.protocol.send(notice):
                self.order.see(frame)
        self._num_told = len(self.call.notices)

    async def send(self, frame: str) -> None:
        self.hear()
        for request in self.protocol.receive(frame):
            if isinstance(request, Problem):
                self.call._notify(request)
            else:
                await self.call.session.handle(request)
        self.hear()

    async def ask(self, kind: str, **fields: Any) -> None:
        """Send an event. It is answered: by what it asks for, or by an error that names it."""
        self.num_sent += 1
        name = f"mine_{self.num_sent}"
        before = len(self.order.events)
        await self.send(json.dumps({"type": kind, "event_id": name, **fields}))
        answers = ANSWERS.get(kind)
        if answers is not None:
            new = self.order.events[before:]
            errors = [e for e in new if e["type"] == "error" and e["error"]["event_id"] == name]
            given = [e for e in new if e["type"] == answers]
            assert len(errors) + len(given) == 1, (kind, fields, [e["type"] for e in new])

    def item(self, which: int) -> str:
        """Its id."""
        order = self.order.order
        return order[-1 - which % len(order)] if order and which >= 0 else "nope"


ANSWERS = {
    "session.update": "session.updated",
    "input_audio_buffer.commit": "input_audio_buffer.committed",
    "input_audio_buffer.clear": "input_audio_buffer.cleared",
    "conversation.item.create": "conversation.item.done",
    "conversation.item.retrieve": "conversation.item.retrieved",
    "conversation.item.delete": "conversation.item.deleted",
    "conversation.item.truncate": "conversation.item.truncated",
}


async def play(connection: Connection, move: Move) -> None:
    kind, drawn = move
    ask = connection.ask
    match kind:
        case "session.update":
            await ask(kind, session={"type": "realtime", **drawn})
        case "input_audio_buffer.append":
            await ask(kind, audio=base64.b64encode(bytes(2 * drawn)).decode())
        case "conversation.item.create":
            item, after, taken = drawn
            own = {"id": connection.item(0)} if taken else {}
            place = {} if after is None else {"previous_item_id": connection.item(after)}
            await ask(kind, item=item | own, **place)
        case "conversation.item.retrieve" | "conversation.item.delete":
            await ask(kind, item_id=connection.item(drawn))
        case "conversation.item.truncate":
            which, end_ms = drawn
            await ask(kind, item_id=connection.item(which), content_index=0, audio_end_ms=end_ms)
        case "response.create":
            await ask(kind, response=drawn)
        case "response.cancel":
            running = [each.id for each in connection.order.running]
            named = {"whichever": None, "the one": (*running, None)[0], "another": "resp_nope"}
            await ask(kind, response_id=named[drawn])
        case "nonsense":
            await connection.send(drawn)
        case "input_audio_buffer.commit":
            ears = connection.call.ears
            ears.words.setdefault(ears.utterance + 1, "Pushed.")
            await ask(kind)
        case _ if kind in FROM_CLIENTS:
            await ask(kind)
        case _:
            await happen(connection.call, kind, drawn)
            connection.hear()


async def happen(call: Call, kind: str, drawn: Any) -> None:
    ears, chat = call.ears, call.chat
    match kind:
        case "says":
            if ears._pauses:
                ears.fall_silent()
            ears.say(drawn)
            await asyncio.sleep(0.02)
        case "pauses":
            ears.pause(drawn)
            await asyncio.sleep(0.02)
        case "falls silent":
            if ears._pauses:
                ears.fall_silent()
            await asyncio.sleep(0.02)
        case "wait":
            await asyncio.sleep(drawn)
        case "the model hangs":
            if chat.hold is not None:
                chat.hold.set()
            chat.hold = asyncio.Event() if drawn else None
        case "the model fails":
            chat.replies.insert(0, StageError("llm", "it broke"))
        case "the model calls":
            assert isinstance(chat, Chat)
            chat.callings.append(drawn)
        case "the voice fails":
            call.voice.fault = StageError("tts", "it broke") if drawn else None


async def come_to_rest(connection: Connection) -> None:
    """The caller is silent, everything works again, and time passes."""
    call = connection.call
    for kind, drawn in (("the model hangs", False), ("the voice fails", False)):
        await happen(call, kind, drawn)
    await happen(call, "falls silent", None)
    await connection.ask(
        "session.update", session={"type": "realtime", "audio": {"input": {"turn_detection": None}}}
    )
    for _ in range(200):
        await asyncio.sleep(0.5)
        connection.hear()
        if call.session._machine.agent is Agent.IDLE and not connection.order.running:
            break
    await asyncio.sleep(30)
    connection.hear()


@settings(max_examples=250)
@given(moves=MOVES, ahead=st.booleans(), callings=st.lists(st.sampled_from(CALLINGS), max_size=3))
def test_what_comes_back_is_in_order(
    moves: list[Move], ahead: bool, callings: list[Calling]
) -> None:
    async def test(clock: ManualClock) -> None:
        chat = Chat()
        chat.callings = list(callings)
        async with call_with(chat=chat, ahead=ahead, clock=clock) as call:
            call.ears.last_audio_ns = 1 << 62  # it never stalls
            connection = Connection(call)
            await asyncio.sleep(0)
            if callings:
                await connection.ask(
                    "session.update", session={"type": "realtime", "tools": [CLOCK]}
                )
            for move in moves:
                await play(connection, move)
            await come_to_rest(connection)
            connection.order.finish([item.id for item in call.session.conversation])

    virtual_time.run(test)
