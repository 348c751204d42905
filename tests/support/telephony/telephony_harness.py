"""A telephone call on fake stages in virtual time, from the carrier's socket to the session,
through every part of the service that a call passes."""

import asyncio
import base64
import json
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, cast

from starlette.websockets import WebSocket

from agent.calls.registry import CallRegistry
from agent.calls.service import CallService
from agent.calls.state_store.memory import MemoryStateStore
from agent.calls.stream_tokens import CallTokens
from agent.config.layers import load_config
from agent.http.auth.authenticator import Authenticator
from agent.http.auth.keys import KeyFile
from agent.http.auth.principal import ANYONE, SCOPE_KEY, Principal
from agent.session.ports.stage_ports import VoicePort
from agent.stages.registry import Stages
from agent.telephony.carriers.carrier import Carrier
from agent.telephony.carriers.media_stream import MediaStreamProtocol
from agent.telephony.carriers.twilio import Twilio
from agent.telephony.endpoint import PhoneSocket
from agent.telephony.signatures import PhoneSignatures
from agent.tools.server_tools import ServerTools
from latency_budget.account.clock import ManualClock
from tests.agent.telephony.carriers.test_twilio import frame, media, start
from tests.support.fakes.stages import Calling, FakeChat, FakeEars, FakeVoice
from tests.support.session import virtual_time

CHAR_S: Final = 0.15
"""The fake voice's, at 8 kHz."""

SILENCE: Final = base64.b64encode(b"\xff" * 160).decode()


class FakeStages:
    """Stand-in for `Stages` without models."""

    status = "ready"
    remote_llm = None
    is_troubled = False

    def __init__(self, replies: Sequence[str | Exception | Calling]) -> None:
        self.chat = FakeChat(replies)
        self.ears = FakeEars()
        self.fault: Exception | None = None
        """Raised by `new_ears` when set."""

    def open_chat(self, instructions: str, examples: object) -> FakeChat:
        return self.chat

    def open_voice(self, name: str, rate_hz: int, speed: float = 1.0) -> VoicePort:
        return FakeVoice()

    async def prepare_language(self, language: str, voice: str) -> str:
        return voice

    def is_prepared(self, language: str, voice: str) -> bool:
        return True

    def speaking_voice(self, name: str) -> str:
        return name

    async def new_ears(self, detection: object) -> FakeEars:
        if self.fault is not None:
            raise self.fault
        return self.ears


class ScriptedCarrier:
    """Twilio's end of the stream: plays what it gets in real time, returns marks."""

    def __init__(self, scope: dict[str, Any], *, reads: bool = True, plays: bool = True) -> None:
        self.frames: list[dict[str, Any]] = []
        self.events: list[str] = []
        """Types of the events received, in order; repeats are folded."""
        self.heard = bytearray()
        """The audio played so far, in mu-law."""
        self.closed: tuple[int, str] | None = None
        self._reads = reads
        self._plays = plays
        self._queue: deque[bytes | str] = deque()
        self._news = asyncio.Event()
        self._said: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._said.put_nowait({"type": "websocket.connect"})
        self.socket = WebSocket(scope, self._said.get, self._send)

    async def _send(self, message: Any) -> None:
        if message["type"] == "websocket.close":
            self.closed = message["code"], message.get("reason") or ""
        elif message["type"] == "websocket.send":
            if not self._reads:
                await asyncio.Event().wait()
            self._take(json.loads(message["text"]))
        self._news.set()

    def _take(self, sent: dict[str, Any]) -> None:
        event = sent["event"]
        self.frames.append(sent)
        if self.events[-1:] != [event]:
            self.events.append(event)
        if event == "media":
            self._queue.append(base64.b64decode(sent["media"]["payload"]))
        elif event == "mark":
            self._queue.append(sent["mark"]["name"])
        elif event == "clear":
            self._queue = deque(each for each in self._queue if isinstance(each, str))

    def say(self, text: str) -> None:
        self._said.put_nowait({"type": "websocket.receive", "text": text})

    def press(self, keys: str) -> None:
        for digit in keys:
            self.say(frame("dtmf", dtmf={"track": "inbound_track", "digit": digit}))

    def leave(self, code: int = 1000) -> None:
        self._said.put_nowait({"type": "websocket.disconnect", "code": code})

    async def until(self, is_so: Callable[[], object]) -> None:
        while not is_so():
            self._news.clear()
            await self._news.wait()

    async def play(self) -> None:
        """Play queued audio in real time until cancelled."""
        while True:
            await self.until(lambda: self._queue and self._plays)
            piece = self._queue.popleft()
            if isinstance(piece, str):
                self.say(frame("mark", mark={"name": piece}))
            else:
                await asyncio.sleep(len(piece) / 8000)
                self.heard += piece
                self._news.set()

    async def be_quiet(self) -> None:
        """Send silence until cancelled."""
        while True:
            self.say(media(SILENCE))
            await asyncio.sleep(1)


class TelephonyHarness:
    """One service and successive calls to it."""

    def __init__(
        self,
        clock: ManualClock,
        tmp_path: Path,
        *replies: str | Exception | Calling,
        settings: str = "",
        calls: dict[str, Any] | None = None,
    ) -> None:
        """`settings`: as in the settings file. `calls`: further parts of `CallRegistry`."""
        self.config = load_config(file_text=settings)
        self.clock = clock
        self.stages = FakeStages(replies)
        self.calls = CallRegistry(self.config, clock, **(calls or {}))
        self.access = Authenticator(self.config, KeyFile(tmp_path / "keys.json"), clock)
        tools = ServerTools(self.config, clock)
        stages = cast(Stages, self.stages)
        self.call_service = CallService(
            self.config, stages, self.calls, clock, self.access, tools, MemoryStateStore(clock)
        )
        tokens, signatures = CallTokens(clock), PhoneSignatures(self.config.telephony)
        self.sockets = PhoneSocket(
            self.config, self.calls, clock, self.call_service, tokens, signatures
        )
        self.principal: Principal = ANYONE
        self.serving: asyncio.Task[None] | None = None
        """The newest call's task, which the web server runs and cancels at the end."""

    @property
    def chat(self) -> FakeChat:
        return self.stages.chat

    @property
    def ears(self) -> FakeEars:
        return self.stages.ears

    async def call(
        self,
        story: Callable[[ScriptedCarrier], Awaitable[None]],
        *,
        reads: bool = True,
        plays: bool = True,
        silent: bool = False,
        parameters: Mapping[str, str] = MappingProxyType({}),
        dialect: MediaStreamProtocol | None = None,
    ) -> ScriptedCarrier:
        """Run a call to its end.

        `silent`: the carrier sends only what the story sends. `dialect`: a media stream protocol
        other than Twilio's.
        """
        scope = {
            "type": "websocket",
            "path": "/telephony/twilio/stream",
            "subprotocols": [],
            "headers": [],
            "client": ("127.0.0.1", 5000),
            SCOPE_KEY: self.principal,
        }
        carrier = ScriptedCarrier(scope, reads=reads, plays=plays)
        carrier.say(start(customParameters=dict(parameters)))
        async with asyncio.timeout(7200), asyncio.TaskGroup() as group:
            beside = [group.create_task(carrier.play())]
            if not silent:
                beside.append(group.create_task(carrier.be_quiet()))
            serving = self.serving = group.create_task(
                self.sockets.serve(carrier.socket, _carrier(dialect or Twilio()))
            )
            beside.append(group.create_task(self._tell(story, carrier)))
            await asyncio.wait({serving})
            for task in beside:
                task.cancel()
        return carrier

    async def _tell(
        self, story: Callable[[ScriptedCarrier], Awaitable[None]], carrier: ScriptedCarrier
    ) -> None:
        await self.ears.running.wait()
        await story(carrier)

    @property
    def is_empty(self) -> bool:
        """True if no call has left any state behind."""
        return not (len(self.calls) or self.call_service._num_held or self.sockets._streamed)


def play(story: Callable[[ManualClock], Awaitable[None]]) -> None:
    virtual_time.run(story)


def _carrier(dialect: MediaStreamProtocol) -> Carrier:
    """A carrier whose only stream speaks this dialect."""
    return Carrier("scripted", dialect.name, lambda: dialect)
