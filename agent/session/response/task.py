"""One reply on its way: tokens become pieces, pieces become speech, speech is paced out.

Three tasks in one group, joined by a bounded queue, so that the second piece is generated while the
first is spoken. Cancelling `run` is the barge-in: the engine stops within a step, the voice within
a chunk, and nothing more is sent.
"""

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial

import numpy as np

from agent.errors import StageError
from agent.session.api.conversation import ModelCall
from agent.session.api.server_events import Notice, ReplyAudio, ReplyText
from agent.session.ports.playback import Outgoing, Playback, duration_ns
from agent.session.ports.stage_ports import APOLOGY, ChatPort, ToolsPort, VoicePort
from agent.tools.offered import NO_TOOLS
from latency_budget.account.clock import Clock
from latency_budget.account.marks import MarkName
from tts.text_chunker import CutterConfig

from .generation import Generation
from .heartbeat import Pulse
from .response import Reply
from .synthesis import AUDIBLE, SynthesisQueue, max_abs

OnSound = Callable[[Playback, Outgoing], None]
"""Takes what is sent, and of which reply's sound."""


class ResponseTask:
    """Drives one reply. Belongs to the session's task group; one `run` per instance."""

    def __init__(
        self,
        reply: Reply,
        voice: VoicePort,
        clock: Clock,
        notify: Callable[[Notice], None],
        mark: Callable[[MarkName, int], None],
        cutting: Callable[[], CutterConfig | None] = lambda: None,
    ) -> None:
        self.mark = mark
        """Where marks go; may be changed on the way."""
        self.reply = reply
        self.voice = voice
        self._cutting = cutting
        self._clock = clock
        self._notify = notify
        self._wake = asyncio.Event()
        self.released = asyncio.Event()
        """It may be heard."""
        self.flowing = asyncio.Event()
        """Not held."""
        self.flowing.set()
        self._tell_played_until: Callable[[int], None] = lambda at_ns: None
        self.announced = asyncio.Event()
        """Set when the client knows of the reply. Nothing of it leaves before that."""
        self.is_sent = False
        """All of it was; the client may still be playing."""
        self.is_ready = False
        """Something of it could be heard or read."""
        self.on_sound: OnSound = lambda playback, frame: None
        """Called with whatever is sent."""
        self.on_audible: Callable[[], None] = lambda: None
        """Called once, when the first of the reply could be heard or read."""
        self.on_own_sound: Callable[[], None] = lambda: None
        """Called once, when the first sound of the reply behind its opener is ready."""
        self.tools: ToolsPort = NO_TOOLS
        """Those of the server."""
        self.filler = ""
        """Said while they take too long."""
        self.on_message: Callable[[Reply], None] = lambda reply: None
        """Called before the first word of a reply that has no item yet."""
        self.on_call: Callable[[Reply, ModelCall], None] = lambda reply, call: None
        """Called when the client is to run a tool."""
        self.pulse = Pulse(clock)
        """Beats while the reply is being sent."""
        self.mouth = SynthesisQueue(self, clock)

    def audible(self) -> None:
        """From here on something of it could be heard or read."""
        self.is_ready = True
        self.on_audible()

    def release(self) -> None:
        """Let the reply be heard."""
        self.released.set()

    def hold(self) -> None:
        """Send nothing more, and speak nothing that is not begun."""
        self.flowing.clear()
        self._wake.set()

    def go_on(self, rest: Reply) -> None:
        """Send what is left as this reply, and whatever else is still being made."""
        self.reply = rest
        self.is_sent = False
        self.flowing.set()
        self._wake.set()

    async def conclude(self) -> None:
        """Send what is left of a reply that is complete, once nothing holds it."""
        await self.flowing.wait()
        if self.reply.speaks:
            await self._pace()
        self._show(len(self.reply.text))

    async def run(self, chat: ChatPort) -> None:
        """Generate, speak and send; then `conclude`. Raises StageError where a stage failed."""
        self._tell_played_until = partial(chat.played_until, self.reply.turn)
        try:
            async with asyncio.TaskGroup() as group:
                wording = Generation(self, self.mouth, chat, self._clock, self.tools, self._cutting)
                group.create_task(wording.generate())
                if self.reply.speaks:
                    group.create_task(self.mouth.speak())
                    group.create_task(self._pace())
        except* StageError as errors:
            raise _first_leaf(errors) from None

    async def apologize(self) -> None:
        """Have the cached apology said after whatever has been said, by `conclude`. Raises nothing
        of a stage."""
        reply = self.reply
        start = len(reply.text)
        reply.text += (" " if reply.text[-1:].strip() else "") + APOLOGY
        self.released.set()
        speech = await self.voice.apology() if reply.speaks else None
        if speech is not None:
            reply.playback.push(speech.pcm, (start, len(reply.text)), speech.words)
        reply.playback.finish()

    async def show_text(self) -> None:
        """Of a reply that is not spoken: what there is, when it may be shown."""
        if not self.is_ready:
            self.audible()
        await self.released.wait()
        await self.flowing.wait()
        self._show(len(self.reply.text))

    async def call(self, call: ModelCall) -> None:
        """For the client to run, as soon as it knows of the reply and nothing holds it."""
        await self.announced.wait()
        await self.flowing.wait()
        if not self.reply.ended:  # cut at this very moment: cancelling comes a step later
            self.on_call(self.reply, call)

    def spoke(self) -> None:
        """There is more speech to send, or no more will come."""
        self._tell_played_until(self.reply.playback.lasts_until_ns(self._clock.now_ns()))
        self._wake.set()

    # --- speech to the client, in real time ---

    async def _pace(self) -> None:
        await self.released.wait()
        while True:
            await self.flowing.wait()
            self._wake.clear()
            playback = self.reply.playback
            for frame in playback.due(self._clock.now_ns()):
                self._send(frame)
                # Later than was told before, where it was held back or ran dry.
                self._tell_played_until(playback.lasts_until_ns(self._clock.now_ns()))
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
        self._notify(ReplyAudio(reply.response_id, frame.pcm, reply.playback.rate_hz))
        self.on_sound(reply.playback, frame)
        self.pulse.touch()
        if reply.first_audible_sample is None and max_abs(frame.pcm) > AUDIBLE:
            offset = int(np.argmax((frame.pcm > AUDIBLE) | (frame.pcm < -AUDIBLE)))
            reply.first_audible_sample = frame.first_sample + offset
            released_ns = self._clock.now_ns()
            offset_ns = duration_ns(reply.first_audible_sample, reply.playback.rate_hz)
            reply.claims.released(offset_ns, released_ns)
            self.mark(MarkName.RELEASED, released_ns)

    def _show(self, end: int) -> None:
        reply = self.reply
        if end > reply.shown_chars and not reply.ended:
            self.pulse.touch()
            delta = reply.text[reply.shown_chars : end]
            reply.shown_chars = end
            self._begin_message()
            self._notify(ReplyText(reply.response_id, delta))

    def _begin_message(self) -> None:
        if not self.reply.has_item:
            self.on_message(self.reply)


def _first_leaf(group: ExceptionGroup[StageError]) -> StageError:
    first = group.exceptions[0]
    return _first_leaf(first) if isinstance(first, ExceptionGroup) else first
