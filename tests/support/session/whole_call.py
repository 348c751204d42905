"""A whole call on fake stages in virtual time, and a client that knows what it has played.

Every word that the fake voice speaks ends with a sample of its own, so that the words that came out
of the client's loudspeaker are known from its samples, whatever the session believes. Every word of
the model, the caller and a tool stands nowhere else in the call: one that is lost, or said twice,
is found.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from agent.config.schema import AgentProfile
from agent.errors import ClientError, StageError
from agent.realtime.protocol.protocol import RealtimeProtocol
from agent.session.api import server_events as say
from agent.session.api.conversation import FunctionCall, ItemId, ModelCall
from agent.session.api.server_events import Notice
from agent.session.api.settings import SessionSettings, TurnDetection
from agent.session.context.chat_messages import told
from agent.session.ports.playback import HeardWord
from agent.session.ports.stage_ports import (
    APOLOGY,
    FULL_EFFORT,
    ChatMessage,
    Condensed,
    CondensingGoal,
    ContextUse,
    Effort,
    ReplyToken,
    Speech,
    SpeechResult,
    Tools,
)
from agent.session.response.handoff import AgentSwitch
from agent.turn_taking import commands as cmd
from agent.turn_taking import events as ev
from latency_budget.account.clock import ManualClock
from latency_budget.account.turn import TurnId
from tests.support.fakes.remembering import RememberingChat
from tests.support.fakes.stages import Calling, FakeEars, FakeVoice
from tests.support.session.session_call import Call
from tests.support.wire.wire_order import WireOrder
from tts.text_chunker import SpeakablePiece

OPENERS: Final = ("Well now,", "Let me see,")

_CHARS_PER_S: Final = 20
_FIRST_MARK: Final = -1000
"""Sample at the end of the first word; the next word's is one lower."""
_TOOLS: Final = ("lookup", "search", "transfer_to_other", "transfer_to_default")
_Pcm = npt.NDArray[np.int16]


@dataclass(eq=False)
class ToolRun:
    """One run of a server tool."""

    call: ModelCall
    result: str | None = None


class World:
    """What the stages of one call do, whichever server it is at."""

    def __init__(self) -> None:
        self.tool_s = 0.0
        self.tool_fails = False
        self.num_words = 8
        """Of the next replies."""
        self.voice_splits = False
        """Each piece is spoken in two parts."""
        self.runs: list[ToolRun] = []
        self.failed: set[int] = set()
        """Utterances that were not recognized."""
        self._texts: list[str] = []
        self._num_replies = 0
        self.heal()

    def heal(self) -> None:
        """Everything works, at once."""
        self.voice_delay_s = self.ears_delay_s = self.model_delay_s = 0.0
        self.voice_fails = ""
        self.ears_fail = False
        self.breaks_after: int | None = None
        """Words after which the model fails, once."""

    def next_reply(self, num_words: int) -> str:
        """Words that stand nowhere else. A sentence ends with each sixth."""
        self._num_replies += 1
        words = [f"r{self._num_replies}w{n}" for n in range(1, num_words + 1)]
        ends = [word + "." * (n % 6 == 5) for n, word in enumerate(words)]
        return " ".join(ends).rstrip(".") + "."

    def mark(self, text: str) -> int:
        """The sample that ends this text."""
        self._texts.append(text)
        return _FIRST_MARK - len(self._texts) + 1

    def heard(self, pcm: _Pcm) -> str:
        """The words that end in these samples."""
        return " ".join(self._texts[_FIRST_MARK - int(each)] for each in pcm[pcm <= _FIRST_MARK])


class MarkedVoice(FakeVoice):
    """Ends each word with its mark."""

    def __init__(self, world: World, rate_hz: int) -> None:
        super().__init__()
        self._world = world
        self._per_char = rate_hz // _CHARS_PER_S

    async def speak(self, piece: SpeakablePiece) -> AsyncIterator[Speech]:
        world, (first, _), text = self._world, piece.span, piece.text
        fails = world.voice_fails
        await asyncio.sleep(world.voice_delay_s)
        if fails == "at once":
            raise StageError("tts", "it broke")
        half = text.find(" ", len(text) // 2)
        parts = [(0, len(text))]
        if half > 0 and (fails or world.voice_splits):
            parts = [(0, half), (half, len(text))]
        for number, (start, end) in enumerate(parts):
            if fails and number == 1:
                break
            yield self._spoken(text[start:end], first + start)
        if fails:
            raise StageError("tts", "it broke half way")

    async def opener(self, text: str) -> Speech | None:
        return self._spoken(text, 0)

    async def apology(self, text: str = APOLOGY) -> Speech | None:
        pcm = np.full(10 * self._per_char, 5000, np.int16)
        pcm[-1] = self._world.mark(text)
        return Speech(pcm, (0, 0), ())

    def _spoken(self, text: str, first: int) -> Speech:
        pcm = np.full(len(text) * self._per_char, 5000, np.int16)
        words: list[HeardWord] = []
        start = 0
        for end in range(1, len(text) + 1):
            if text[end - 1] != " " and text[end : end + 1] in ("", " "):
                words.append(HeardWord(first + end, end * self._per_char))
                pcm[end * self._per_char - 1] = self._world.mark(text[start:end].strip())
                start = end
        return Speech(pcm, (first, first + len(text)), tuple(words))


class SlowEars(FakeEars):
    """Transcribes after a while, or fails to. One utterance at a time."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world
        self.open: int | None = None
        """The utterance that is being heard."""
        self.buffer = ""
        """Words since the last commit, in push-to-talk."""
        self.has_audio = False
        """There is some since the last commit."""

    def transcribe(self, utterance: int, revision: int) -> None:
        event: ev.Event = ev.TranscriptReady(utterance, revision, self.words.get(utterance, ""))
        if self._world.ears_fail:
            self._world.failed.add(utterance)
            event = ev.TranscriptFailed(utterance, revision)
        result = SpeechResult(utterance, event)
        asyncio.get_running_loop().call_later(self._world.ears_delay_s, lambda: self._tell(result))

    def close(self, utterance: int, *, was_echo: bool = False) -> None:
        super().close(utterance, was_echo=was_echo)
        if self.open == utterance:
            self.open = None

    def set_detection(self, detection: TurnDetection | None, effort: Effort = FULL_EFFORT) -> None:
        super().set_detection(detection, effort)
        self.buffer = ""
        if detection is None:
            self.open = None

    async def commit(self) -> int:
        if not self.has_audio:
            raise ClientError("There is no audio.", code="input_audio_buffer_commit_empty")
        if self.open is None:
            self.utterance += 1
            self.words[self.utterance] = self.buffer
        self.open, self.buffer, self.has_audio = None, "", False
        return self.utterance

    async def clear(self) -> int:
        self.open, self.buffer, self.has_audio = None, "", False
        return self.utterance


class ServerTools:
    """Tools of the server: one that a response waits for, one in the background, and handoffs."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.definitions = tuple(json.dumps({"name": name}) for name in _TOOLS)

    def has(self, name: str) -> bool:
        return name in _TOOLS

    def handoff_to(self, name: str) -> str | None:
        return name.removeprefix("transfer_to_") if name.startswith("transfer_to_") else None

    def is_background(self, name: str) -> bool:
        return name == "search"

    async def run(self, call: ModelCall, item_id: ItemId) -> str:
        world, run = self._world, ToolRun(call)
        world.runs.append(run)
        result = ("Error: " if world.tool_fails else "") + f"t{len(world.runs)}."
        await asyncio.sleep(world.tool_s)
        run.result = result
        return result


class Model(RememberingChat):
    """A model with words of its own in each reply. `check` is called with each request."""

    def __init__(self, world: World, check: Callable[["Model"], None]) -> None:
        super().__init__()
        self._world = world
        self._check = check
        self.planned: list[Exception | Calling] = []
        """What comes in place of the next replies, where their tools allow that."""
        self.wants_condensing = False
        self.summary: tuple[str, ...] = ()
        self._num_left_out = 0

    async def reset(self, messages: Sequence[ChatMessage], summary: tuple[str, ...] = ()) -> None:
        await super().reset(messages, summary)
        self.summary, self._num_left_out = summary, 0

    def context_use(self) -> ContextUse | None:
        return ContextUse(2000, 0, 1900, 0) if self.wants_condensing else None

    async def condense(self, goal: CondensingGoal) -> Condensed | None:
        await asyncio.sleep(0.3)
        users = [at for at, each in enumerate(self.history) if each.role == "user"]
        if len(users) < 3:
            return None
        gone, self.history = self.history[: users[-2]], self.history[users[-2] :]
        self._find_last_reply()
        self.summary = (*self.summary, f"Summary {len(self.summary)}.")
        self.wants_condensing = False
        num_before, self._num_left_out = self._num_left_out, self._num_left_out + len(gone)
        roles = tuple(each.role for each in gone)
        return Condensed(self.summary, num_before, roles, 1900, 500)

    async def generate(
        self, turn: TurnId, *, tools: Tools | None = None, **options: Any
    ) -> AsyncGenerator[ReplyToken, None]:
        world = self._world
        self._check(self)
        self.replies = [self._next(tools)]
        breaks, world.breaks_after = world.breaks_after, None
        num_words = 0
        async with aclosing(super().generate(turn, tools=tools, **options)) as tokens:
            async for token in tokens:
                yield token
                num_words += 1
                if num_words == breaks:
                    raise StageError("llm", "it broke")
                await asyncio.sleep(world.model_delay_s)

    def _next(self, tools: Tools | None) -> str | Exception | Calling:
        for at, each in enumerate(self.planned):
            if isinstance(each, Exception) or _may_call(tools, each):
                del self.planned[at]
                if isinstance(each, Calling) and each.text:
                    return replace(each, text=self._world.next_reply(4))
                return each
        return self._world.next_reply(self._world.num_words)


def _may_call(tools: Tools | None, calling: Calling) -> bool:
    if tools is None or tools.choice == "none":
        return False
    names = {json.loads(each)["name"] for each in tools.definitions}
    return all(call.name in names for call in calling.calls)


@dataclass(eq=False)
class Spoken:
    """One response at the client."""

    item_id: ItemId
    speaks: bool
    out_of_band: bool
    shown: str = ""
    is_over: bool = False
    is_stopped: bool = False
    """The client plays no more of it, whatever comes."""
    was_taken_back: bool = False
    """The caller went on with the message that it answered."""
    pieces: list[tuple[int, int, _Pcm]] = field(default_factory=list)
    """Of each the time at which it is played, ns, the rate, and what was or will be played."""

    def played(self, now_ns: int) -> list[_Pcm]:
        return [pcm[: _samples(now_ns - start_ns, rate)] for start_ns, rate, pcm in self.pieces]

    @property
    def end_ns(self) -> int:
        if not self.pieces:
            return 0
        start_ns, rate_hz, pcm = self.pieces[-1]
        return start_ns + -(-len(pcm) * 1_000_000_000 // rate_hz)


def _samples(duration_ns: int, rate_hz: int) -> int:
    return max(0, duration_ns) * rate_hz // 1_000_000_000


class Client(Call):
    """A call and the client at its other end: its loudspeaker, and what it may rely on."""

    def __init__(
        self, world: World, clock: ManualClock, *, has_tools: bool, truncates: bool, **options: Any
    ) -> None:
        """`truncates`: it says what it has played when it stops playing."""
        self._world, self._clock, self._truncates = world, clock, truncates
        self.order = WireOrder()
        self.protocol = RealtimeProtocol(SessionSettings(), model="m", extensions=True)
        self.spoken: dict[str, Spoken] = {}
        """By response."""
        self.to_truncate: list[tuple[ItemId, int]] = []
        """Items that it has stopped playing, and how much of each was played, ms."""
        self.calls: list[FunctionCall] = []
        """Of its tools, not answered yet."""
        self.is_away = False
        self.models: list[Model] = []
        """The conversation's own, and those of responses outside of it."""
        self._stops_for_speech = True
        self._begun_with: dict[str, list[tuple[ItemId, ChatMessage]]] = {}
        """Messages of the conversation when a response began."""
        self._tools = ServerTools(world)
        if has_tools:
            options |= {"tools": self._tools, "switch_agent": self._switch}
        ears = SlowEars(world)
        model = Model(world, self._check_request)
        super().__init__(
            model, FakeVoice(), _profile("default"), clock=clock, hearing=ears, **options
        )
        self.ears = ears
        ears.set_detection(self.session.settings.turn_detection)
        self._watch_reopened()

    def follow(self, settings: SessionSettings) -> None:
        """Note whether the session's turn detection interrupts the agent."""
        detection = settings.turn_detection
        self._stops_for_speech = detection is None or detection.interrupt_response

    def flush(self, *, tells: bool = False) -> None:
        """Stop playing."""
        now_ns = self._clock.now_ns()
        for each in self.spoken.values():
            if each.end_ns > now_ns:
                if tells:
                    self.to_truncate.append((each.item_id, self.played_ms(each)))
                played = zip(each.pieces, each.played(now_ns), strict=True)
                kept = [(start_ns, rate_hz, pcm) for (start_ns, rate_hz, _), pcm in played]
                each.pieces = [piece for piece in kept if len(piece[2])]

    def is_playing(self, each: Spoken) -> bool:
        return each.end_ns > self._clock.now_ns()

    def played_ms(self, each: Spoken) -> int:
        played = each.played(self._clock.now_ns())
        return sum(map(len, played)) * 1000 // each.pieces[0][1] if each.pieces else 0

    def heard(self, each: Spoken) -> str:
        """Words of it that were played, or shown."""
        if not each.speaks:
            return each.shown
        played = each.played(self._clock.now_ns())
        return self._world.heard(np.concatenate(played)) if played else ""

    def _notify(self, notice: Notice) -> None:
        super()._notify(notice)
        if self.is_away:
            return
        for frame in self.protocol.send(notice):
            self.order.see(frame)
        match notice:
            case say.ReplyStarted(response_id, item_id, out_of_band=out_of_band):
                speaks = notice.modality == "audio"
                self.spoken[response_id] = Spoken(item_id, speaks, out_of_band)
                self._begun_with[response_id] = told(self.session.conversation)
            case say.ReplyText(response_id, delta):
                self.spoken[response_id].shown += delta
            case say.ReplyAudio(response_id) if self.spoken[response_id].is_stopped:
                pass
            case say.ReplyAudio(response_id, pcm, rate_hz):
                ends_ns = [each.end_ns for each in self.spoken.values()]
                start_ns = max(self._clock.now_ns(), *ends_ns)
                self.spoken[response_id].pieces.append((start_ns, rate_hz, pcm))
            case say.ReplyEnded(response_id):
                self.spoken[response_id].is_over = True
            case say.ReplyCalled(call=call):
                self.calls.append(call)
            case say.SpeechStarted() if self._stops_for_speech:
                self.flush(tells=self._truncates)

    def _watch_reopened(self) -> None:
        """See which responses never were, because the caller went on."""
        record = self._log.command

        def watched(command: cmd.Command, now_ns: int, turn: TurnId) -> None:
            if isinstance(command, cmd.ReopenTurn):
                run = self.session._responses.current
                if run is not None and run.reply.turn == command.turn:
                    self.spoken[run.reply.response_id].was_taken_back = True
            record(command, now_ns, turn)

        self._log.command = watched  # type: ignore[method-assign]

    # --- stages ---

    def _open_voice(self, name: str, rate_hz: int, speed: float) -> MarkedVoice:
        super()._open_voice(name, rate_hz, speed)
        return MarkedVoice(self._world, rate_hz)

    def _open_chat(self, instructions: str, examples: Sequence[ChatMessage]) -> Model:
        model = self.chat if not self.models else Model(self._world, lambda model: None)
        assert isinstance(model, Model)
        if self.models:
            model.planned = self.models[0].planned
        self.models.append(model)
        return model

    async def _switch(
        self, agent: str, settings: SessionSettings, old: AgentProfile
    ) -> AgentSwitch:
        await asyncio.sleep(0.05)
        return AgentSwitch(agent, _profile(agent), "hibari", "", 0, 500, self._tools)

    def _check_request(self, model: Model) -> None:
        """What the model is asked is what the conversation says."""
        context, run = self.session._context, self.session._responses.current
        if context._pending or context._edited:
            return  # changed since it was asked for, or of a response that is being cancelled
        is_going = run is not None and (not run.reply.ended or run.reply.held_at is not None)
        if run is not None and run.reply.rounds and is_going:
            return  # what was before its tools may have been changed while they ran
        messages = told(self.session.conversation)
        supposed = None if context._was_said else context._supposed
        if supposed is not None and messages and messages[-1][0] == context.open_item:
            messages.pop()
        assert model.summary == context.summary
        num_covered = len(context._covered) if context.summary else 0
        assert messages[:num_covered] == context._covered[:num_covered]
        expected = _said(messages[num_covered:])
        if supposed is not None:
            expected.append(("user", supposed, ()))
        found = [(each.role, each.text.strip(), each.calls) for each in model.history]
        if found != expected and run is not None and supposed is None:
            # What was changed after it had begun may have come too late.
            expected = _said(self._begun_with[run.reply.response_id][num_covered:])
        assert found == expected


def _profile(agent: str) -> AgentProfile:
    return AgentProfile(instructions=f"You are {agent}.")


def _said(
    messages: Sequence[tuple[ItemId, ChatMessage]],
) -> list[tuple[str, str, tuple[ModelCall, ...]]]:
    return [(each.role, each.text.strip(), each.calls) for _, each in messages]
