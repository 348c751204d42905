"""A call without its sockets' network: how long it waits, and what ends it, in virtual time."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any, cast

import pytest
from starlette.websockets import WebSocket

from agent import errors
from agent.calls.call_state import read_state
from agent.calls.registry import CallRegistry
from agent.calls.service import CallOver
from agent.calls.session_start import SessionStart
from agent.calls.state_store.memory import MemoryStateStore
from agent.calls.state_writer import CallStateWriter, FleetCalls
from agent.config.access import AccessSettings
from agent.config.schema import AgentProfile, Config
from agent.errors import SlowReader
from agent.realtime.protocol.protocol import RealtimeProtocol
from agent.realtime.resume_tokens import ResumeTokens
from agent.realtime.socket import (
    CHARS_PER_MESSAGE,
    MESSAGES_AT_ONCE,
    MESSAGES_PER_S,
    SEND_TIMEOUT_S,
    WORK,
    CallSocket,
)
from agent.realtime.transport import RealtimeTransport, Resuming
from agent.session.api.server_events import Extension
from agent.session.api.settings import SessionSettings
from agent.session.session import Session
from latency_budget.account.clock import ManualClock
from latency_budget.account.turn import SessionId
from tests.support.session import virtual_time
from tests.support.session.session_call import call_with

WAIT_S = 60
SESSION = SessionId("sess_test")


class Peer:
    """A client's end of a WebSocket."""

    def __init__(self, clock: ManualClock, *, reads: bool = True) -> None:
        self.told: list[dict[str, Any]] = []
        self.code: int | None = None
        """With which the server closed."""
        self._reads = reads
        self._said: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        scope = {"type": "websocket", "subprotocols": ["halfsec.v1"], "headers": []}
        self._said.put_nowait({"type": "websocket.connect"})
        self.socket = CallSocket(
            WebSocket(scope, self._said.get, self._send), clock, AccessSettings()
        )

    async def _send(self, message: Any) -> None:
        if message["type"] == "websocket.close":
            self.code = message["code"]
        elif message["type"] == "websocket.send":
            if not self._reads:
                await asyncio.Event().wait()
            self.told.append(json.loads(message["text"]))

    def say(self, kind: str, **fields: Any) -> None:
        text = json.dumps({"type": kind, **fields})
        self._said.put_nowait({"type": "websocket.receive", "text": text})

    def leave(self, code: int) -> None:
        self._said.put_nowait({"type": "websocket.disconnect", "code": code})


class Place:
    key_id = "key:a"
    is_left = False

    def leave(self) -> None:
        self.is_left = True


class Scene:
    def __init__(self, clock: ManualClock) -> None:
        self.calls = CallRegistry(Config(), clock)
        self.tokens: ResumeTokens[RealtimeTransport] = ResumeTokens()
        self.place = Place()
        self.voice: RealtimeTransport
        self.session: Session
        self.serving: asyncio.Task[Any]


@asynccontextmanager
async def scene(
    clock: ManualClock,
    first: Peer,
    *,
    resumes: bool = True,
    writer: CallStateWriter | None = None,
    hangs_up_on: type[Exception] = CallOver,
) -> AsyncIterator[Scene]:
    """A call that is served, until it ends with this error."""
    made = Scene(clock)
    call = made.calls.admit(SESSION, "default")
    protocol = RealtimeProtocol(SessionSettings(), model="m", extensions=True)
    resuming = Resuming(made.tokens, WAIT_S, writer) if resumes else None
    voice = made.voice = RealtimeTransport(
        call, cast(Any, made.place), made.calls, protocol, resuming, first.socket, clock
    )
    await first.socket.accept()
    async with call_with(clock=clock) as faked:
        made.session = faked.session
        try:
            async with asyncio.TaskGroup() as group:
                made.serving = group.create_task(voice.serve(faked.session))
                yield made
                await made.serving
        except* hangs_up_on:
            pass
    await voice.end(1000, "")  # the session has ended by then


def play(story: Callable[[ManualClock], Awaitable[None]]) -> None:
    virtual_time.run(story)


def token_in(peer: Peer) -> str:
    return str([each["resume_token"] for each in peer.told if "resume_token" in each][-1])


@pytest.mark.parametrize(("after_s", "is_back"), [(WAIT_S - 1, True), (WAIT_S + 1, False)])
def test_call_waits_for_a_reconnect_until_its_timeout(after_s: float, is_back: bool) -> None:
    async def story(clock: ManualClock) -> None:
        first, second = Peer(clock), Peer(clock)
        async with scene(clock, first) as call:
            first.leave(1006)
            await asyncio.sleep(1)
            assert len(call.calls.waiting) == 1
            await asyncio.sleep(after_s - 1)
            await second.socket.accept()
            call.voice.come_back(second.socket)
            await asyncio.sleep(1)
            assert [each["type"] for each in second.told] == (
                ["session.updated", "halfsec.resumed", "halfsec.session"] if is_back else []
            )
            assert call.serving.done() == (not is_back)
            assert len(call.calls.waiting) == 0
            second.leave(1000)
        assert len(call.tokens) == 0

    play(story)


def test_a_client_that_resumes_in_the_last_moment_may_resume_again() -> None:
    """It comes back in the pass of the loop in which its time is over, behind that."""

    async def story(clock: ManualClock) -> None:
        first, second, third = (Peer(clock) for _ in range(3))
        async with scene(clock, first) as call:
            first.leave(1006)
            await second.socket.accept()
            while not call.calls.waiting:  # noqa: ASYNC110 - no time passes
                await asyncio.sleep(0)
            loop = asyncio.get_running_loop()
            loop.call_at(loop.time() + WAIT_S + 5e-7, call.voice.come_back, second.socket)
            await asyncio.sleep(WAIT_S + 1)
            second.leave(1006)
            await asyncio.sleep(1)
            await third.socket.accept()
            call.voice.come_back(third.socket)
            await asyncio.sleep(1)
            third.leave(1000)
        for peer in (second, third):
            assert "halfsec.resumed" in [each["type"] for each in peer.told]

    play(story)


def test_a_client_that_resumes_has_what_is_left_of_its_limits() -> None:
    """After each burst, on a new socket, as long as the old one is open or not."""

    async def story(clock: ManualClock) -> None:
        peers = [Peer(clock) for _ in range(4)]
        async with scene(clock, peers[0]) as call:
            for number, peer in enumerate(peers):
                if number:
                    await peer.socket.accept()
                    call.voice.come_back(peer.socket)
                for _ in range(MESSAGES_AT_ONCE):
                    peer.say("input_audio_buffer.clear")
                await asyncio.sleep(1)
            told = [each for peer in peers for each in peer.told]
            received = [each["received"] for each in told if each["type"] == "halfsec.resumed"]
            at_once, per_s = MESSAGES_AT_ONCE // WORK, MESSAGES_PER_S // WORK
            assert at_once * 0.9 < received[0] <= at_once + per_s
            later = [after - before for before, after in pairwise(received)]
            assert len(later) == 2
            assert min(later) > 0
            assert max(later) <= per_s
            peers[-1].leave(1000)
            await asyncio.sleep(10)

    play(story)


def test_a_client_that_was_over_its_limits_waits_on_its_next_socket() -> None:
    """One message a socket would be without limit else: a wait ends with its socket."""

    async def story(clock: ManualClock) -> None:
        peers = [Peer(clock) for _ in range(6)]
        text = "x" * CHARS_PER_MESSAGE * 2 * MESSAGES_AT_ONCE
        async with scene(clock, peers[0]) as call:
            for number, peer in enumerate(peers):
                if number:
                    await peer.socket.accept()
                    call.voice.come_back(peer.socket)
                peer.say("session.update", session={"type": "realtime"}, event_id=text)
                await asyncio.sleep(1)
            refused = [sum(each["type"] == "error" for each in peer.told) for peer in peers]
            assert refused == [1, 0, 0, 0, 0, 0]
            await asyncio.sleep(MESSAGES_AT_ONCE / MESSAGES_PER_S)
            assert sum(each["type"] == "error" for each in peers[-1].told) == 1
            peers[-1].leave(1000)
            await asyncio.sleep(60)

    play(story)


@pytest.mark.parametrize("code", [1000, 1001, 1005, 1002, 3000])
def test_application_close_code_ends_the_call(code: int) -> None:
    async def story(clock: ManualClock) -> None:
        first = Peer(clock)
        async with scene(clock, first):
            first.leave(code)
        assert clock.now_ns() < 2e9, "nobody waited"

    play(story)


def test_client_without_a_token_is_not_waited_for() -> None:
    async def story(clock: ManualClock) -> None:
        first = Peer(clock)
        async with scene(clock, first, resumes=False):
            first.leave(1006)
        assert clock.now_ns() < 2e9

    play(story)


@pytest.mark.parametrize("resumes", [True, False])
def test_client_that_stops_reading_may_reconnect(resumes: bool) -> None:
    """A network that is gone looks the same as a client that does not read."""

    async def story(clock: ManualClock) -> None:
        first, second = Peer(clock, reads=False), Peer(clock)
        ends: type[Exception] = CallOver if resumes else SlowReader
        async with scene(clock, first, resumes=resumes, hangs_up_on=ends) as call:
            call.voice.notify(Extension("halfsec.turn", {}))
            await asyncio.sleep(SEND_TIMEOUT_S + 1)
            assert call.serving.done() == (not resumes)
            if resumes:
                await second.socket.accept()
                call.voice.come_back(second.socket)
                await asyncio.sleep(1)
                assert second.told[0]["type"] == "session.updated"
                second.leave(1000)

    play(story)


def test_draining_server_waits_for_no_reconnect() -> None:
    async def story(clock: ManualClock) -> None:
        first = Peer(clock)
        async with scene(clock, first) as call:
            call.calls.draining = True
            first.leave(1006)
        assert clock.now_ns() < 2e9

    play(story)


def test_evicted_call_frees_its_line_at_once() -> None:
    async def story(clock: ManualClock) -> None:
        first, late = Peer(clock), Peer(clock)
        async with scene(clock, first) as call:
            first.leave(1006)
            await asyncio.sleep(1)
            assert call.calls.waiting.give_way()
            assert call.place.is_left
            await late.socket.accept()
            call.voice.come_back(late.socket)
            await late.socket.attend()
            assert late.code == errors.CLOSE_NOT_RESUMED

    play(story)


@pytest.mark.parametrize("is_evicted", [True, False])
def test_evicted_call_is_left_to_the_other_servers(is_evicted: bool) -> None:
    """One whose client does not come back is over."""

    async def story(clock: ManualClock) -> None:
        store = MemoryStateStore(clock)
        start = SessionStart("default", AgentProfile(), SessionSettings(), "m")
        writer = FleetCalls(store, WAIT_S).begin(SESSION, start, Place.key_id, 3600)
        first, late = Peer(clock), Peer(clock)
        async with scene(clock, first, writer=writer) as call:
            first.leave(1006)
            await asyncio.sleep(1)
            if is_evicted:
                assert call.calls.waiting.give_way()
        await late.socket.accept()
        call.voice.come_back(late.socket)
        await late.socket.attend()
        code = errors.CLOSE_OVERLOADED if is_evicted else errors.CLOSE_NOT_RESUMED
        assert late.code == code, "the client tries again, or opens another call"
        record = await store.read_record(f"call:{SESSION}")
        assert (record is not None and not record.is_over) == is_evicted

    play(story)


def test_reconnecting_call_is_not_evicted() -> None:
    async def story(clock: ManualClock) -> None:
        first, second = Peer(clock), Peer(clock)
        async with scene(clock, first) as call:
            first.leave(1006)
            await asyncio.sleep(1)
            await second.socket.accept()
            call.voice.come_back(second.socket)
            assert not call.calls.waiting.give_way()
            await asyncio.sleep(1)
            assert len(second.told) == 3
            second.leave(1000)

    play(story)


def test_frame_numbers_continue_across_connections() -> None:
    async def story(clock: ManualClock) -> None:
        first, second, third = Peer(clock), Peer(clock), Peer(clock)
        async with scene(clock, first) as call:
            first.say("input_audio_buffer.clear")
            first.say("nonsense")
            first.leave(1006)
            await asyncio.sleep(1)
            for peer in (second, third):
                await peer.socket.accept()
                call.voice.come_back(peer.socket)
                await asyncio.sleep(1)
                peer.say("input_audio_buffer.clear")
                await asyncio.sleep(1)
            assert [each["received"] for each in second.told if "received" in each] == [2]
            assert [each["received"] for each in third.told if "received" in each] == [3]
            await second.socket.attend()
            assert second.code == errors.CLOSE_TAKEN_OVER
            assert token_in(third) != token_in(second)
            third.leave(1000)

    play(story)


def load_on(call: Scene, gate: asyncio.Event) -> None:
    """Let models of other languages than English be loaded when the gate opens, and the client hear
    of it."""

    async def prepare(language: str, voice: str) -> str:
        await gate.wait()
        return voice

    session = call.session
    session._notify = call.voice.notify
    session._stages = replace(
        session._stages, prepare_language=prepare, is_prepared=lambda language, _: language == "en"
    )


def speak(peer: Peer, language: str) -> None:
    audio = {"input": {"transcription": {"language": language}}}
    peer.say("session.update", event_id=language, session={"type": "realtime", "audio": audio})


def write(peer: Peer, text: str) -> None:
    content = [{"type": "input_text", "text": text}]
    peer.say(
        "conversation.item.create", item={"type": "message", "role": "user", "content": content}
    )


def told(peer: Peer) -> list[str]:
    """Types of what the client was sent, but for events of the connection."""
    types = [each["type"] for each in peer.told]
    return [each for each in types if each not in ("session.created", "halfsec.session")]


def test_a_socket_is_read_while_models_of_a_language_are_loaded() -> None:
    async def story(clock: ManualClock) -> None:
        first, gate = Peer(clock), asyncio.Event()
        async with scene(clock, first) as call:
            load_on(call, gate)
            speak(first, "de")
            first.say("response.create", event_id="later")
            first.say("response.cancel")
            await asyncio.sleep(1)
            (error,) = [each["error"] for each in first.told if each["type"] == "error"]
            assert (error["code"], error["event_id"]) == ("response_cancelled", "later")
            assert told(first) == ["error"]
            gate.set()
            await asyncio.sleep(1)
            assert told(first) == ["error", "session.updated"]
            first.leave(1000)

    play(story)


def test_a_client_hangs_up_while_models_of_a_language_are_loaded() -> None:
    async def story(clock: ManualClock) -> None:
        first = Peer(clock)
        async with scene(clock, first) as call:
            load_on(call, asyncio.Event())
            speak(first, "de")
            await asyncio.sleep(1)
            assert call.session.first_deferred == 0
            first.leave(1000)
        assert call.serving.done()
        assert clock.now_ns() < 3e9, "nobody waited"
        assert told(first) == []

    play(story)


def saved(call: Scene) -> tuple[str, int, int]:
    """What another server would go on with: language, number of items, frames that are counted."""
    state, num_received, _ = call.voice._snapshot(call.session)
    return state.settings.language, len(state.items), num_received


def test_another_server_does_not_count_frames_that_are_deferred() -> None:
    """It counts those that are done, while others still wait."""

    async def story(clock: ManualClock) -> None:
        first, gate = Peer(clock), asyncio.Event()
        async with scene(clock, first) as call:
            load_on(call, gate)
            first.say("input_audio_buffer.clear")
            speak(first, "de")
            write(first, "Hallo.")
            speak(first, "pt")
            write(first, "Olá.")
            await asyncio.sleep(1)
            assert saved(call) == ("en", 0, 1)
            gate.set()  # for the one that waits
            gate.clear()
            await asyncio.sleep(1)
            assert saved(call) == ("de", 1, 3)
            gate.set()
            await asyncio.sleep(1)
            assert saved(call) == ("pt", 2, 5)
            first.leave(1000)

    play(story)


def test_a_server_that_drains_leaves_deferred_frames_to_another() -> None:
    async def story(clock: ManualClock) -> None:
        store = MemoryStateStore(clock)
        start = SessionStart("default", AgentProfile(), SessionSettings(), "m")
        writer = FleetCalls(store, WAIT_S).begin(SESSION, start, Place.key_id, 3600)
        first = Peer(clock)
        async with scene(clock, first, writer=writer) as call:
            load_on(call, asyncio.Event())
            first.say("input_audio_buffer.clear")
            speak(first, "de")
            first.say("response.create")
            await asyncio.sleep(1)
            call.calls.draining = True
            first.leave(1006)
        record = await store.read_record(f"call:{SESSION}")
        assert record is not None
        state = read_state(record.fields)
        assert (state.session.settings.language, state.head.received) == ("en", 1)

    play(story)


def test_a_change_that_is_deferred_outlasts_its_connection() -> None:
    async def story(clock: ManualClock) -> None:
        first, second, gate = Peer(clock), Peer(clock), asyncio.Event()
        async with scene(clock, first) as call:
            load_on(call, gate)
            speak(first, "de")
            await asyncio.sleep(1)
            first.leave(1006)
            await asyncio.sleep(1)
            await second.socket.accept()
            call.voice.come_back(second.socket)
            await asyncio.sleep(1)
            assert told(second) == ["session.updated", "halfsec.resumed"]
            assert [each["received"] for each in second.told if "received" in each] == [1]
            gate.set()
            await asyncio.sleep(1)
            assert told(second)[2:] == ["session.updated"]
            shown = second.told[-1]["session"]["audio"]["input"]["transcription"]
            assert shown == {"language": "de"}
            second.leave(1000)

    play(story)
