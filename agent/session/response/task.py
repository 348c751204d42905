"""One response on its way to the caller: tokens become text pieces, speech, and paced audio frames.

Theory of operation. Three tasks in one group, joined by a bounded queue, so that the second piece
is generated while the first is spoken:

- *generation*: the model's tokens are cut into speakable pieces. A model that calls a server tool
  has said what comes before; the tool runs, the model reads its result and continues: another round
  of the same response. No tool runs before the response is announced and its turn certain to be
  over: a preemptive response may be discarded, one behind an early opener taken back, one that is
  held cut, and a tool run for it would be useless and perhaps harmful. A tool in the background
  is started, and what the model reads is that it runs. A call of a client's tool
  is sent to the client and ends the response; the client asks for the next one. A handoff ends it
  as well: the next one is the other agent's.
- *synthesis*: the pieces become speech, in order. Nothing beyond the first sound is synthesized
  before the response is released.
- *pacing*: frames are sent as `Playback` says that they are due.

Cancelling `run` is the barge-in: the engine stops within a step, the voice within a chunk, and
nothing more is sent. A preemptive response is the same task without an announcement.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from agent.errors import StageError
from agent.session.api.conversation import ItemId, ModelCall, ToolRound
from agent.session.api.server_events import Extension, Notice, ReplyAudio, ReplyText, Usage
from agent.session.ports.playback import Outgoing, Playback, duration_ns
from agent.session.ports.stage_ports import (
    APOLOGY,
    ChatMessage,
    ChatPort,
    ReplyToken,
    Speech,
    Tools,
    ToolsPort,
    VoicePort,
    apology_in,
)
from agent.tools.offered import NO_TOOLS
from agent.turn_taking import events as ev
from latency_budget.account.clock import Clock
from latency_budget.account.marks import AUDIBLE, MarkName
from tts.text_chunker import CutterConfig, SpeakablePiece, TextChunker

from .handoff import NOT_THIS_ONE, transferred
from .repetition import RepetitionGuard
from .response import Reply

MAX_PIECES: Final = 4
"""Limit of pieces cut but not yet spoken. The engine is faster than speech; more would only be
discarded at a barge-in."""

SILENCE_NS: Final = 2_000_000_000
"""Silence after which a caller who waits for a tool hears the filler: longer sounds like a dead
line."""

RUNS_DRY_NS: Final = 300_000_000
"""Speech left to play below which the next piece is ended at the next gap: more than the voice
takes for a piece. Lower leaves a hole in the sentence where the model is slow; higher cuts
sentences that would have come in time."""

CONTINUED_NS: Final = 5_000_000_000
"""Shortest time between two `ReplyContinued` events: a twelfth of what the turn-taking machine
waits for one."""

MAX_ROUNDS: Final = 5
"""Limit of tool rounds in one response. After the last the model has to answer, and after one of
calls that it has made before, which are not run again: a small one may repeat a call for ever, and
must not book twice."""

INTERRUPTED: Final = "Error: this was cancelled, because the caller interrupted."
LOST: Final = (
    "Error: this was lost when the call moved to another server. It may have been done or not, and "
    "was not started again."
)
TOO_LONG: Final = "Error: the result is too long to be read."
OUT_OF_BAND: Final = "Error: this tool can't be used outside of the conversation."
LOOPING: Final = (
    "The model repeated itself without end: the response ends behind a whole repetition."
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ScriptedText:
    """The words of a response that no model generates: a greeting, a prompt after silence."""

    text: str


async def _stay(agent: str) -> str:
    return f"Error: there is no agent {agent!r} here."


def _no_background(reply: Reply, call: ModelCall) -> str:
    return f"Error: {call.name} can't run in the background here."


def _ignore(*_: Any) -> None:
    """Take no notice."""


@dataclass(frozen=True, slots=True)
class ResponseCallbacks:
    """Receivers of what a response reports. All are called on the event loop; none may wait."""

    notify: Callable[[Notice], None]
    """Sends a notice to the client."""
    mark: Callable[[Reply, MarkName, int], None]
    """Records a mark of the reply's turn, at a monotonic time in ns."""
    audible: Callable[["ResponseTask"], None] = _ignore
    """Called once, when the first of the response could be heard or read."""
    own_audio: Callable[["ResponseTask"], None] = _ignore
    """Called once, when the first sound behind an opener is ready."""
    audio_sent: Callable[[Playback, Outgoing], None] = _ignore
    """Called with each frame that is sent, and the playback that it belongs to."""
    message_begins: Callable[[Reply], None] = _ignore
    """Called before the first word of a reply that has no item yet."""
    client_call: Callable[[Reply, ModelCall], None] = _ignore
    """Called when the client has to run a tool."""
    hand_off: Callable[[str], Awaitable[str | None]] = _stay
    """Hands the call to this agent; returns None, or why it stays with the present one, as text for
    the model."""
    start_background: Callable[[Reply, ModelCall], str] = _no_background
    """Starts a tool that goes on in the background; returns what the model reads at once."""
    synthesized: Callable[[], None] = _ignore
    """Called once all speech is there: the response only has to be played."""
    event: Callable[[ev.Event], None] = _ignore
    """Feeds the turn-taking machine: `ReplyContinued`, at most every `CONTINUED_NS`."""


class ResponseTask:
    """Generates, synthesizes and sends one reply. Belongs to the session's task group; one `run`
    for each instance."""

    def __init__(
        self,
        reply: Reply,
        voice: VoicePort,
        clock: Clock,
        callbacks: ResponseCallbacks,
        tools: ToolsPort = NO_TOOLS,
        *,
        chunking: Callable[[], CutterConfig | None] = lambda: None,
        piece_due_ns: Callable[[], int | None] = lambda: None,
        filler: str = "",
    ) -> None:
        """`chunking` returns, once the model is asked, how the beginning is cut into pieces (None:
        the default), and `piece_due_ns` the time by which the first piece is needed (None: no
        hurry). `filler` is spoken while server tools take too long."""
        self.reply = reply
        """The reply that is sent. `go_on` replaces it: the rest is another response."""
        self.voice = voice
        self._clock = clock
        self._callbacks = callbacks
        self._tools = tools
        self._chunking = chunking
        self._piece_due_ns = piece_due_ns
        self._first_due_ns: int | None = None
        """Time by which the first piece is needed, ns."""
        self._filler = filler
        self.announced = asyncio.Event()
        """Set when the client knows of the response. Nothing of it is sent before that."""
        self.certain = asyncio.Event()
        """Set when the response is announced, and it is certain enough that the caller's turn is
        over. No tool runs before that: the response may be taken back."""
        self._may_send = asyncio.Event()
        """Set when the response, or an early opener in front of it, may be heard."""
        self._released = asyncio.Event()
        """Set when the response may be heard."""
        self._flowing = asyncio.Event()
        """Clear while the response is held."""
        self._flowing.set()
        self._wake = asyncio.Event()
        """Wakes the pacing."""
        self.is_sent = False
        """All of it was sent; the client may still be playing."""
        self.is_synthesized = False
        """All of its speech is there."""
        self.is_asked_for = False
        """The model was asked for it."""
        self.is_ready = False
        """Something of it could be heard or read."""
        self._chat: ChatPort | None = None
        """The model that generates it; None for a scripted text."""
        self._usage = Usage()
        """Tokens of the rounds that are over."""
        self._results: dict[ModelCall, str] = {}
        """Results of the server's tools in this response."""
        self._pieces: asyncio.Queue[tuple[SpeakablePiece | Speech, int] | None] = asyncio.Queue(
            MAX_PIECES
        )
        """Pieces to speak, or speech already, each with the character of the reply that its own
        count from; None ends them."""
        self._has_sounded = False
        """Something of the generated text could be heard."""
        self._is_synthesizing = False
        """A piece is being spoken."""
        self._continued_ns = 0
        """Time of the last `ReplyContinued`, ns."""

    async def run(self, source: ChatPort | ScriptedText) -> None:
        """Generate, speak and send; then `conclude`. Raises StageError where a stage failed."""
        self._chat = None if isinstance(source, ScriptedText) else source
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._generate(source))]
                if self.reply.speaks:
                    tasks.append(group.create_task(self._synthesize()))
                    tasks.append(group.create_task(self._pace()))
                # Here, not where the group ends: before Python 3.13 the cancellation by which a
                # group that waits there ends would count as one of this response, below.
                await asyncio.wait(tasks)
        except* StageError as errors:
            task = asyncio.current_task()
            if task is not None and task.cancelling():  # by a cut at this very moment, or the end
                raise asyncio.CancelledError from None
            raise _first_leaf(errors) from None

    def release_opener(self) -> None:
        """Let the early opener be heard, and nothing behind it."""
        self._may_send.set()

    def release(self) -> None:
        """Let the response be heard."""
        self._released.set()
        self._may_send.set()
        self.reply.playback.release_rest()
        self._wake.set()

    def hold(self) -> None:
        """Send nothing more, and synthesize nothing that has not begun."""
        self._flowing.clear()
        self._wake.set()

    def go_on(self, rest: Reply) -> None:
        """Send what is left as this reply, with whatever is still being generated."""
        self.reply = rest
        self.is_sent = False
        self._flowing.set()
        self._wake.set()

    async def conclude(self) -> None:
        """Send what is left of a reply that is complete, once nothing holds it."""
        await self._flowing.wait()
        if self.reply.speaks:
            await self._pace()
        self._show(len(self.reply.text))

    async def apologize(self) -> None:
        """Queue the cached apology behind what has speech, to be sent by `conclude`: words without
        it are never heard. Raises no error of a stage."""
        reply = self.reply
        if reply.speaks:
            reply.drop_unspoken()
        apology, speech = await self._kept_apology()
        start = len(reply.text)
        reply.text += (" " if reply.text[-1:].strip() else "") + apology
        self.release()
        if speech is not None:
            reply.playback.push(speech.pcm, (start, len(reply.text)), speech.words)
        reply.playback.finish()

    async def _kept_apology(self) -> tuple[str, Speech | None]:
        """The apology in the call's language. A voice that keeps none in it, because the client
        chose the language, says the agent's or the English one: better than silence."""
        settings = self.reply.settings
        own = apology_in(settings.language)
        others = (apology_in(settings.agent_language), APOLOGY)
        for apology in dict.fromkeys((own, *others)) if self.reply.speaks else ():
            speech = await self.voice.apology(apology)
            if speech is not None:
                return apology, speech
        return own, None

    async def synthesized(self) -> None:
        """Wait until every piece generated so far has been synthesized."""
        await self._pieces.join()

    def open_with(self, text: str, speech: Speech, *, is_early: bool = False) -> None:
        """Put an opener in front of a reply that has no speech yet; `become_ready` comes next. An
        early one may be put in front of speech, which it holds back; `release_opener` comes next.
        """
        self.reply.begin_with(text, speech, is_early=is_early)
        now_ns = self._clock.now_ns()
        if is_early:
            self.mark(MarkName.EARLY_OPENER, now_ns)
        self.mark(MarkName.OPENER, now_ns)
        self.mark(MarkName.FIRST_AUDIBLE_READY, now_ns)

    def mark(self, name: MarkName, at_ns: int | None = None) -> None:
        """Record a mark of the reply's turn; `at_ns` None: now."""
        at_ns = self._clock.now_ns() if at_ns is None else at_ns
        self._callbacks.mark(self.reply, name, at_ns)

    def become_ready(self) -> None:
        """From here on something of the response could be heard or read."""
        self.is_ready = True
        self._callbacks.audible(self)

    def _report_progress(self) -> None:
        now_ns = self._clock.now_ns()
        if now_ns - self._continued_ns >= CONTINUED_NS:
            self._continued_ns = now_ns
            self._callbacks.event(ev.ReplyContinued(self.reply.turn))

    # --- generation: the model's tokens, cut into pieces, with tool rounds in between ---

    async def _generate(self, source: ChatPort | ScriptedText) -> None:
        """Return when the reply has all its words. Raises StageError."""
        tools = self.reply.tools
        self.is_asked_for = True
        self.mark(MarkName.REPLY_REQUESTED)
        chunker = TextChunker(self._chunking() if self.reply.speaks else None)
        self._first_due_ns = self._piece_due_ns()
        for number in range(MAX_ROUNDS + 1):
            calls = await self._round(source, chunker, tools)
            if calls:
                await self._await_certainty()
            own = tuple(call for call in calls if self._tools.has(call.name))
            for call in calls:
                if call not in own:
                    await self._send_call(call)
            is_repeating = all(call in self._results for call in own)
            if own and self._chat is not None:
                await self._run_tools(self._chat, own)
            if not own or len(own) < len(calls) or self.reply.hands_off:
                break
            self.mark(MarkName.REPLY_REQUESTED)
            chunker = TextChunker(None)
            self._first_due_ns = None
            must_answer = is_repeating or number == MAX_ROUNDS - 1
            if tools is not None:
                tools = replace(tools, choice="none" if must_answer else "auto")
        self.reply.is_complete = True
        await self._pieces.put(None)
        if self.reply.was_looping:
            await self._released.wait()  # else it may be taken back, and the client not know of it
            told = {"param": "response", "message": LOOPING}
            self._callbacks.notify(Extension("halfsec.notice", told))

    async def _round(
        self, source: ChatPort | ScriptedText, chunker: TextChunker, tools: Tools | None
    ) -> list[ModelCall]:
        """One answer of the model. Return the calls in it."""
        first = self.reply
        self._resume(first)
        base = len(first.text) - first.opener_chars
        calls: list[ModelCall] = []
        guard = RepetitionGuard() if first.speaks and source is self._chat else None
        async with aclosing(self._tokens(source, first, tools)) as tokens:
            async for generated in tokens:
                token = self._without_loop(guard, generated)
                self._add(token)
                calls += token.calls
                if first.speaks:
                    pieces = chunker.push(token.text)
                    if not pieces and token.finish_reason is None and self._is_pressing():
                        pieces = chunker.hurry()
                    for piece in pieces:
                        self._first_due_ns = None
                        await self._put(piece, base)
                elif token.text or token.finish_reason is not None:
                    await self._show_text()
                if self.reply.was_looping:
                    break  # the model stops
        if first.speaks:
            for piece in chunker.flush():
                await self._put(piece, base)
        return calls

    def _tokens(
        self, source: ChatPort | ScriptedText, reply: Reply, tools: Tools | None
    ) -> AsyncGenerator[ReplyToken, None]:
        if isinstance(source, ScriptedText):
            return _scripted(source.text)
        return source.generate(
            reply.turn,
            deadline_ns=reply.due_ns,
            max_tokens=reply.max_tokens,
            on_mark=self.mark,
            tools=tools,
        )

    def _without_loop(self, guard: RepetitionGuard | None, token: ReplyToken) -> ReplyToken:
        """The token; where the reply repeats itself without end, its last one, cut."""
        end = None if guard is None else guard.push(token.text)
        if end is None:
            return token
        _log.warning("a reply repeated itself without end; it was ended")
        self.reply.was_looping = True
        return replace(token, text=token.text[:end], finish_reason="stop", calls=())

    def _add(self, token: ReplyToken) -> None:
        reply = self.reply
        reply.usage = self._usage.plus(token.usage)
        reply.hit_limit = token.finish_reason == "length"
        reply.text += token.text

    def _is_pressing(self) -> bool:
        """True while the caller waits for the next piece, or soon will: the first one is due, or
        all that is there will have been played before another is spoken."""
        now_ns = self._clock.now_ns()
        if not self._has_sounded:
            return self._first_due_ns is not None and now_ns >= self._first_due_ns
        is_playing = self._released.is_set() and self._flowing.is_set()
        if not is_playing or self._is_synthesizing or not self._pieces.empty():
            return False
        return self.reply.playback.lasts_until_ns(now_ns) - now_ns < RUNS_DRY_NS

    async def _put(self, piece: SpeakablePiece, base: int) -> None:
        if piece.index == 0 and not self.reply.rounds:
            self.mark(MarkName.FIRST_PIECE)
        await self._pieces.put((piece, base))

    def _resume(self, reply: Reply) -> None:
        """The model continues after its tools, behind what was said before."""
        self._usage = reply.usage
        if reply.rounds:
            if reply.text[-1:].strip():
                reply.text += " "
            reply.rounds[-1] = replace(reply.rounds[-1], resumes_at=len(reply.text))

    async def _await_certainty(self) -> None:
        """Wait until the model's calls may run. A cut meanwhile finds that they have not."""
        self.reply.has_unrun_calls = True
        await self.certain.wait()
        await self._flowing.wait()
        self.reply.has_unrun_calls = False

    async def _send_call(self, call: ModelCall) -> None:
        """Send a client's tool call, once the response is not held."""
        await self._flowing.wait()
        if not self.reply.ended:  # cut at this very moment: cancelling comes a step later
            self._callbacks.client_call(self.reply, call)

    async def _run_tools(self, chat: ChatPort, calls: tuple[ModelCall, ...]) -> None:
        """Run the calls at once, then give the model their results. A cut in the meantime finds in
        the round the results that are there by then, and only the other calls as interrupted: a
        model that is told so of a booking that was made books again."""
        reply = self.reply
        if reply.ended and reply.held_at is None:
            raise asyncio.CancelledError  # cut at this very moment: cancelling comes a step later
        for call in calls:
            if self._tools.is_background(call.name) and call not in self._results:
                self._results[call] = self._callbacks.start_background(reply, call)
        end = len(reply.text)
        reply.rounds.append(ToolRound(end, end, calls, ()))
        self._record_results()
        self._report_progress()
        self.mark(MarkName.TOOL_START)
        async with asyncio.TaskGroup() as group:
            filling = group.create_task(self._fill_silence())
            running = [
                group.create_task(self._run_tool(call, reply.item_id))
                for call in dict.fromkeys(calls)
                if call not in self._results and self._tools.handoff_to(call.name) is None
            ]
            for task in running:
                await task
            await self._hand_off(calls)
            filling.cancel()
        self.mark(MarkName.TOOL_DONE)
        await self._commit_results(chat)

    async def _run_tool(self, call: ModelCall, item_id: ItemId) -> None:
        self._results[call] = await self._tools.run(call, item_id)
        self._record_results()

    def _record_results(self) -> None:
        """Write the results that are there into the round."""
        rounds = self.reply.rounds
        results = tuple(self._results.get(call, INTERRUPTED) for call in rounds[-1].calls)
        rounds[-1] = replace(rounds[-1], results=results)

    async def _hand_off(self, calls: tuple[ModelCall, ...]) -> None:
        """Hand the call off, once the other tools are done, where one of these asks for that: the
        first one counts, and none outside of the conversation."""
        for call in dict.fromkeys(calls):
            agent = self._tools.handoff_to(call.name)
            if agent is None:
                continue
            if self.reply.options.out_of_band or self.reply.hands_off:
                is_outside = self.reply.options.out_of_band
                self._results[call] = OUT_OF_BAND if is_outside else NOT_THIS_ONE
                self._record_results()
                continue
            began_ns, state = self._clock.now_ns(), "cancelled"
            self._tell_of_tool(call.name, "started", 0)
            try:
                problem = await self._callbacks.hand_off(agent)
                state = "done" if problem is None else "failed"
            finally:
                self._tell_of_tool(call.name, state, (self._clock.now_ns() - began_ns) // 1_000_000)
            self._results[call] = transferred(agent) if problem is None else problem
            self._record_results()
            self.reply.hands_off = problem is None

    def _tell_of_tool(self, name: str, state: str, ms: int) -> None:
        """Tell of a handoff as of any tool of the server."""
        fields = {"item_id": self.reply.item_id, "name": name, "state": state, "ms": ms}
        self._callbacks.notify(Extension("halfsec.tool", fields))

    async def _commit_results(self, chat: ChatPort) -> None:
        committed: list[str] = []
        for result in self.reply.rounds[-1].results:
            try:
                await chat.commit(ChatMessage("tool", result))
            except StageError as error:
                if not error.refused:
                    raise
                result = TOO_LONG
                await chat.commit(ChatMessage("tool", result))
            committed.append(result)
        rounds = self.reply.rounds
        rounds[-1] = replace(rounds[-1], results=tuple(committed))

    async def _fill_silence(self) -> None:
        """Speak the filler, once, when the first sound is due and there is none, or after
        `SILENCE_NS` without sound. The voice must have cached it."""
        text = self._filler
        speech = await self.voice.opener(text) if text and self.reply.speaks else None
        while speech is not None:
            left_ns = self._silent_at_ns() - self._clock.now_ns()
            if left_ns <= 0:
                break
            await asyncio.sleep(left_ns / 1e9)
        if speech is None or self._pieces.full():
            return
        reply = self.reply
        gap = " " if reply.text[-1:].strip() else ""
        base = len(reply.text) + len(gap) - reply.opener_chars
        reply.text += gap + text
        # Where the model says nothing behind its tools, the filler is no part of what it said.
        reply.rounds[-1] = replace(reply.rounds[-1], resumes_at=len(reply.text))
        if not self.is_ready:
            self.mark(MarkName.OPENER)
        self._pieces.put_nowait((speech, base))

    def _silent_at_ns(self) -> int:
        """Time at which a waiting caller has waited for too long, ns."""
        reply, now_ns = self.reply, self._clock.now_ns()
        playback = reply.playback
        left_ns = playback.lasts_until_ns(now_ns) - now_ns
        if left_ns > 0 or (reply.text.strip() and not playback.sent):
            return now_ns + left_ns + SILENCE_NS
        return playback.end_ns() + SILENCE_NS if playback.sent else reply.deadline.at_ns

    # --- synthesis: pieces become speech, in order ---

    async def _synthesize(self) -> None:
        """Speak until all is spoken. Raises StageError."""
        is_first = True
        while (queued := await self._pieces.get()) is not None:
            piece, base = queued
            if is_first:
                self.mark(MarkName.TTS_START)
                is_first = False
            elif self.is_ready:  # it may never be heard: what is ready is enough
                await self._released.wait()
                await self._flowing.wait()
            if isinstance(piece, Speech):
                self._queue(piece, base)
            else:
                self._is_synthesizing = True
                async for speech in self.voice.speak(piece):
                    self._queue(speech, base)
                self._is_synthesizing = False
            self._pieces.task_done()
        self._pieces.task_done()
        self.reply.playback.finish()
        if not self.is_ready:  # no sound that the machine could release
            await self.certain.wait()
            self.release()
        self._speech_changed()
        self.is_synthesized = True
        self._callbacks.synthesized()

    def _queue(self, speech: Speech, base: int) -> None:
        self.reply.queue(speech, base)
        if not self._has_sounded and _peak(speech.pcm) > AUDIBLE:
            self._has_sounded = True
            if self.is_ready:
                self._callbacks.own_audio(self)
            else:
                self.mark(MarkName.FIRST_AUDIBLE_READY)
                self.become_ready()
        self._speech_changed()

    def _speech_changed(self) -> None:
        """There is more speech to send, or no more will come."""
        self._report_playback(self.reply.playback)
        self._wake.set()

    def _report_playback(self, playback: Playback) -> None:
        """Let the engine know until when the caller has something to hear."""
        if self._chat is not None:
            until_ns = playback.lasts_until_ns(self._clock.now_ns())
            self._chat.played_until(self.reply.turn, until_ns)

    # --- pacing: speech to the client, in real time ---

    async def _pace(self) -> None:
        await self._may_send.wait()
        while True:
            await self._flowing.wait()
            self._wake.clear()
            playback = self.reply.playback
            for frame in playback.due(self._clock.now_ns()):
                self._send(frame)
                # Later than reported before, where it was held back or ran dry.
                self._report_playback(playback)
            if playback.all_sent:
                return
            at_ns = playback.next_due_ns()
            timeout_s = None if at_ns is None else max(0.0, (at_ns - self._clock.now_ns()) / 1e9)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._wake.wait()

    def _send(self, frame: Outgoing) -> None:
        reply = self.reply
        if reply.ended:
            return  # cut at the very moment at which this was due: cancelling comes a step later
        if frame.text is not None:
            self._show(frame.text[1])
        self._begin_message()
        self._callbacks.notify(ReplyAudio(reply.response_id, frame.pcm, reply.playback.rate_hz))
        self._callbacks.audio_sent(reply.playback, frame)
        self._report_progress()
        if reply.first_audible_sample is None and _peak(frame.pcm) > AUDIBLE:
            reply.first_audible_sample = frame.first_sample + _first_audible(frame.pcm)
            released_ns = self._clock.now_ns()
            offset_ns = duration_ns(reply.first_audible_sample, reply.playback.rate_hz)
            reply.claims.released(offset_ns, released_ns)
            self.mark(MarkName.RELEASED, released_ns)
        is_answer = reply.answer_sample is not None and frame.first_sample >= reply.answer_sample
        if is_answer and _peak(frame.pcm) > AUDIBLE:
            reply.answer_sample = None
            offset_ns = duration_ns(_first_audible(frame.pcm), reply.playback.rate_hz)
            self.mark(MarkName.ANSWER_AUDIBLE, frame.at_ns + offset_ns)

    async def _show_text(self) -> None:
        """Send the text of a reply that is not spoken, as far as it goes, when it may be shown."""
        if not self.is_ready:
            self.become_ready()
        await self._released.wait()
        await self._flowing.wait()
        self._show(len(self.reply.text))

    def _show(self, end: int) -> None:
        reply = self.reply
        if end > reply.shown_chars and not reply.ended:
            self._report_progress()
            delta = reply.text[reply.shown_chars : end]
            reply.shown_chars = end
            self._begin_message()
            self._callbacks.notify(ReplyText(reply.response_id, delta))

    def _begin_message(self) -> None:
        if not self.reply.has_item:
            self._callbacks.message_begins(self.reply)


async def _scripted(text: str) -> AsyncGenerator[ReplyToken, None]:
    """A given text as the only token; it costs none."""
    yield ReplyToken(text, Usage(), "stop")


def _peak(pcm: npt.NDArray[np.int16]) -> int:
    """Largest absolute sample; 0 where there is none."""
    return max(int(pcm.max()), -int(pcm.min())) if pcm.size else 0


def _first_audible(pcm: npt.NDArray[np.int16]) -> int:
    """Index of the first audible sample; there is one."""
    return int(np.argmax((pcm > AUDIBLE) | (pcm < -AUDIBLE)))


def _first_leaf(group: ExceptionGroup[StageError]) -> StageError:
    first = group.exceptions[0]
    return _first_leaf(first) if isinstance(first, ExceptionGroup) else first
