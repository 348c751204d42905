"""Timing of a response's first audio: not before the agent's pace, an opener when it is late, or
before it is certain that the caller is done.

Theory of operation. An ordinary response answers a caller who has just stopped speaking, and two
settings look at the time since that caller's last voiced sample, which is the origin of every
latency here.

*Pace*: some callers find an answer within half a second rude. A response that is ready sooner is
held back, and the machine gets no `ReplyAudible` until it may sound: so a caller who goes on
meanwhile interrupts a response that is still being prepared, of which nothing was heard.

*Openers*: where nothing of a response is ready shortly before its first sound is due, a few words
that the voice has cached ("One moment,") are put in front of it, once. They are heard, so they
stand in the transcript and in the history; the model, which did not generate them, gets them when
the response is over (`items.py`). A response that is nearly ready gets no opener: the words would
only delay it.

*Early openers*: where the turn is certain enough for an opener and not for the answer
(`agent/turn_taking/preemptive.py`), the words are spoken at once, in front of what there may be
of the response. The answer is held back until it may sound and the opener is about to end; so a
caller who goes on has heard nothing of it. Tools wait for the same certainty. There is no early
opener where the pace leaves too little time before the answer, or the model has not been asked yet:
nothing could be sent behind it, nor accounted for. Such an answer is only held back, and gets an
opener of the other kind where it is late.

*Holding phrase*: a model that hangs, or is being rebuilt after it did, makes a response later than
any budget. Where nothing of it is ready after `HOLD_NS`, and a model is in trouble, the caller
hears a cached phrase in the same way; the response follows, or the apology. A response that is only
slow gets none: it would be later still.

Pace and openers do not apply to a greeting, an apology, or a response that a client asked for: no
caller has just stopped speaking there, or something else decides when to speak.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from agent.observability.turn_recorder import TurnRecorder
from agent.session.ports.playback import duration_ns
from agent.turn_taking import events as ev
from agent.turn_taking.thresholds import OPENER_LEAD_MS
from latency_budget.account.actions import ActionTaken
from latency_budget.account.clock import Clock
from latency_budget.account.marks import MarkName
from latency_budget.account.turn import TurnId
from latency_budget.account.turn_record import NS_PER_MS

from .budget_actions import BudgetActions
from .task import ResponseTask

MARGIN_NS: Final = 60 * NS_PER_MS
"""Before the first sound is due. Until then a reply may still be ready in time: of what comes
later, sending takes 10 ms and the way to the ear 30. So long before the end of an early opener the
answer is sent."""

GRACE_NS: Final = 100 * NS_PER_MS
"""After the turn was decided over, however late that was, unless the reply is predicted to take
longer. One that was prepared in the pause and lacks its last steps is there by then; an opener in
front of it would make it later."""


HOLD_NS: Final = 1_500 * NS_PER_MS
"""From the caller's last voiced sample, or from where a response begins that no caller caused.
Lower delays the apology for hangs that are found by then; higher is more than 2 s of silence."""

LOOK_S: Final = 0.2
"""Time until another look at a response that is late, whether a model is in trouble by now."""


@dataclass(frozen=True, slots=True)
class HoldingPhrase:
    """Words in front of a response that is late because a model is in trouble."""

    text_in: Callable[[str], str]
    """The words in calls of a language, by its code. Empty: none."""
    is_due: Callable[[], bool]
    """True while a model is in trouble."""


class FirstAudioGate:
    """Decides when the first audio of a session's current response may sound. One response at a
    time; its tasks live in the session's group."""

    def __init__(
        self,
        group: asyncio.TaskGroup,
        clock: Clock,
        emit: Callable[[ev.Event], None],
        log: TurnRecorder,
        openers: Callable[[str], Sequence[str]],
        budget_actions: BudgetActions,
        holding: HoldingPhrase,
    ) -> None:
        """`emit` feeds the turn-taking machine. `openers` are those of a language. `log` has the
        budget: what may lie between the caller's last voiced sample and the first sound."""
        self._budget_actions = budget_actions
        self._group = group
        self._clock = clock
        self._emit = emit
        self._log = log
        self._openers = openers
        self._expected: tuple[ResponseTask, int | None] | None = None
        """The current response, and when the caller that it answers was last heard."""
        self._opened: tuple[ResponseTask, ActionTaken, int] | None = None
        """The response that got an opener, and when (ns)."""
        self._task: asyncio.Task[None] | None = None
        """Waits until the response may sound, or until it is late."""
        self._held: ResponseTask | None = None
        """The response behind an early opener that may not sound yet."""
        self._holding = holding
        self._holding_task: asyncio.Task[None] | None = None
        """Waits until the response is so late that something is wrong."""

    def expect(self, run: ResponseTask, voiced_ns: int | None, answer_after_ms: int = 0) -> None:
        """A response begins; emit `ReplyAudible` once when it may sound. `voiced_ns`: when the
        caller it answers was last heard; None: it may sound at any time. `answer_after_ms` above 0:
        emit `OpenerAudible` first, and the other one not before that time has passed."""
        self.cancel()
        self._expected = run, voiced_ns if run.reply.speaks else None
        if answer_after_ms > 0:
            self._held = run
            opening = self._open_early(run, voiced_ns, self._clock.now_ns(), answer_after_ms)
            self._task = self._group.create_task(opening)
        elif run.is_ready:
            self.ready(run)
            return
        language = run.reply.settings.language
        if self._holding.text_in(language) and run.reply.speaks:
            since_ns = self._clock.now_ns() if voiced_ns is None else voiced_ns
            self._holding_task = self._group.create_task(self._hold_line(run, since_ns))
        is_held = self._held is not None
        if self._expected[1] is not None and self._openers(language) and not is_held:
            self._task = self._group.create_task(self._open(run, self._expected[1]))

    def cancel(self) -> None:
        """Stop waiting for the pace, the certainty, the opener or the holding phrase."""
        for task in (self._task, self._holding_task):
            if task is not None:
                task.cancel()
        self._task = self._holding_task = self._held = None

    def ready(self, run: ResponseTask) -> None:
        """The first of a response could be heard. A preemptive one is not expected yet, and one
        behind an early opener is looked at again when it may sound."""
        if self._expected is None or self._expected[0] is not run or self._held is run:
            return
        voiced_ns = self._expected[1]
        self.cancel()
        if voiced_ns is not None:
            due_ns = voiced_ns + run.reply.settings.pace_ms * NS_PER_MS
            if due_ns > self._clock.now_ns():
                self._task = self._group.create_task(self._hold_back(run, due_ns))
                return
        self._emit(ev.ReplyAudible(run.reply.turn))

    def own_audio_ready(self, run: ResponseTask) -> None:
        """The first sound behind an opener is ready: record what the opener saved."""
        if self._opened is not None and self._opened[0] is run:
            _, taken, opened_ns = self._opened
            saved_ms = (self._clock.now_ns() - opened_ns) / NS_PER_MS
            self._budget_actions.opened(run.reply.turn, taken, saved_ms)

    async def _hold_back(self, run: ResponseTask, due_ns: int) -> None:
        run.mark(MarkName.PACE_START)
        await self._sleep_until(due_ns)
        run.mark(MarkName.PACE_END)
        self._task = None
        self._emit(ev.ReplyAudible(run.reply.turn))

    async def _open_early(
        self, run: ResponseTask, voiced_ns: int | None, began_ns: int, answer_after_ms: int
    ) -> None:
        """Speak an opener, no sooner than the agent's pace, and hold the answer back until it may
        sound and the opener is about to end."""
        reply = run.reply
        text = self._opener_of(run)
        speech = await run.voice.opener(text)
        due_ns = began_ns + answer_after_ms * NS_PER_MS
        opens_ns = began_ns
        if voiced_ns is not None:
            opens_ns = max(began_ns, voiced_ns + reply.settings.pace_ms * NS_PER_MS)
        end_ns = due_ns
        if speech is not None and due_ns - opens_ns >= OPENER_LEAD_MS * NS_PER_MS:
            if opens_ns > began_ns:
                await self._sleep_until(opens_ns)
            if run.is_asked_for and not reply.opener_chars:  # it may have a holding phrase
                if opens_ns > began_ns:
                    run.mark(MarkName.PACE_START, began_ns)
                    run.mark(MarkName.PACE_END)
                run.open_with(text, speech, is_early=True)
                end_ns = self._clock.now_ns() + duration_ns(len(speech.pcm), reply.playback.rate_hz)
                self._emit(ev.OpenerAudible(reply.turn))
        await self._sleep_until(due_ns)
        run.certain.set()
        await self._sleep_until(end_ns - MARGIN_NS)
        self._held = None
        if not (run.is_ready or reply.opener_chars or voiced_ns is None):
            await self._open(run, voiced_ns)
            return
        self._task = None
        if run.is_ready:
            self.ready(run)

    async def _open(self, run: ResponseTask, voiced_ns: int) -> None:
        """Speak an opener if nothing of the response is ready in time."""
        turn, settings = run.reply.turn, run.reply.settings
        text = self._opener_of(run)
        speech = await run.voice.opener(text)
        due_ms = max(self._log.budget_of(turn).total_ms, settings.pace_ms)
        late_ns = voiced_ns + due_ms * NS_PER_MS - MARGIN_NS
        if not self._is_far(turn):
            late_ns = max(late_ns, self._clock.now_ns() + GRACE_NS)
        await self._sleep_until(late_ns)
        self._task = None  # nothing is waited for from here on: this can't be stopped half way
        taken = self._budget_actions.opener(turn)
        if speech is None or taken is None or run.reply.has_speech:
            return
        run.open_with(text, speech)
        self._budget_actions.opened(turn, taken)
        self._opened = run, taken, self._clock.now_ns()
        run.become_ready()

    async def _hold_line(self, run: ResponseTask, since_ns: int) -> None:
        """Speak the holding phrase if nothing of the response is ready, and a model in trouble."""
        text = self._holding.text_in(run.reply.settings.language)
        speech = await run.voice.opener(text)
        await self._sleep_until(since_ns + HOLD_NS)
        while not self._holding.is_due():  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(LOOK_S)
        self._holding_task = None  # this can't be stopped half way from here on
        reply = run.reply
        is_silent = not (run.is_ready or reply.has_speech or reply.opener_chars or reply.ended)
        if speech is not None and is_silent:
            run.open_with(text, speech)
            run.become_ready()

    def _opener_of(self, run: ResponseTask) -> str:
        openers = self._openers(run.reply.settings.language)
        return openers[run.reply.turn % len(openers)]

    def _is_far(self, turn: TurnId) -> bool:
        """True if the response is predicted to take longer than the grace."""
        taken = self._budget_actions.opener(turn)
        return taken is not None and taken.predicted_ms * NS_PER_MS >= GRACE_NS

    async def _sleep_until(self, at_ns: int) -> None:
        """Never wake before it: loops wake up to a millisecond early."""
        left_s = (at_ns - self._clock.now_ns()) / 1e9
        await asyncio.sleep(max(0.0, left_s + 0.001))
