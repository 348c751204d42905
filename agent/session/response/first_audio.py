"""When the first sound of a reply comes: not before its pace, and not much after its budget.

Theory of operation. An ordinary reply answers a caller who has just fallen silent, and two settings
look at the time since that caller's last voiced sample, which is the origin of every latency here.

*Pace*: some callers find an answer within half a second rude. A reply that is ready sooner is held
back, and the machine does not hear of it until it may sound: so a caller who goes on meanwhile
interrupts a reply that is still being prepared, of which nothing was heard, like any other.

*Openers*: where nothing of a reply is ready shortly before its first sound is due, a few words that
the voice keeps at hand ("One moment,") are put in front of it, once. They are heard, so they stand
in the transcript and in the history; the model, which did not say them, is told so when the reply
is over (`items.py`). A reply that is nearly ready is waited for instead: the words would only
delay it.

Neither touches a greeting, an apology, or what a client asked for: nobody has just stopped speaking
there, or something else decides when to speak.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from agent.turn_taking import events as ev
from latency_budget.account.actions import ActionTaken
from latency_budget.account.clock import Clock
from latency_budget.account.marks import MarkName
from latency_budget.account.turn import TurnId

from .budget_actions import BudgetActions
from .task import ResponseTask

NS_PER_MS: Final = 1_000_000

MARGIN_NS: Final = 60 * NS_PER_MS
"""Before the first sound is due. Until then a reply may still be ready in time: of what comes
later, sending takes 10 ms and the way to the ear 30."""

GRACE_NS: Final = 100 * NS_PER_MS
"""After the turn was decided over, however late that was, unless the reply is predicted to take
longer. One that was prepared in the pause and lacks its last steps is there by then; an opener in
front of it would make it later."""


class FirstAudioGate:
    """Of one session's replies, one at a time. Its tasks live in the session's group."""

    def __init__(
        self,
        group: asyncio.TaskGroup,
        clock: Clock,
        emit: Callable[[ev.Event], None],
        budget_ms: Callable[[], int],
        openers: Sequence[str],
        enforcement: BudgetActions,
    ) -> None:
        """`emit` feeds the turn-taking machine. `budget_ms`: tells what may lie between the
        caller's last voiced sample and the first sound."""
        self._enforcement = enforcement
        self._group = group
        self._clock = clock
        self._emit = emit
        self._budget_ms = budget_ms
        self._openers = openers
        self._task: asyncio.Task[None] | None = None
        """Waits until the reply may sound, or until it is late."""

    def expect(self, run: ResponseTask, voiced_ns: int | None) -> None:
        """This reply has begun; the machine is to hear once when it may sound. `voiced_ns`: when
        the caller it answers was last heard; None: it may come at any time."""
        self.forget()
        if not run.reply.speaks:
            voiced_ns = None
        run.on_audible = partial(self._ready, run, voiced_ns)
        if run.is_ready:
            run.on_audible()
        elif voiced_ns is not None and self._openers:
            self._task = self._group.create_task(self._open(run, voiced_ns))

    def forget(self) -> None:
        """Whatever was expected does not come any more, or is not to be waited for."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def _ready(self, run: ResponseTask, voiced_ns: int | None) -> None:
        self.forget()
        turn = run.reply.turn
        if voiced_ns is not None:
            due_ns = voiced_ns + run.reply.settings.pace_ms * NS_PER_MS
            if due_ns > self._clock.now_ns():
                self._task = self._group.create_task(self._hold_back(run, due_ns))
                return
        self._emit(ev.ReplyAudible(turn))

    async def _hold_back(self, run: ResponseTask, due_ns: int) -> None:
        run.mark(MarkName.PACE_START, self._clock.now_ns())
        await self._sleep_until(due_ns)
        run.mark(MarkName.PACE_END, self._clock.now_ns())
        self._task = None
        self._emit(ev.ReplyAudible(run.reply.turn))

    async def _open(self, run: ResponseTask, voiced_ns: int) -> None:
        """Say an opener if nothing of the reply is ready in time."""
        turn, settings = run.reply.turn, run.reply.settings
        text = self._openers[turn % len(self._openers)]
        speech = await run.voice.opener(text)
        due_ms = max(self._budget_ms(), settings.pace_ms)
        late_ns = voiced_ns + due_ms * NS_PER_MS - MARGIN_NS
        if not self._is_far(turn):
            late_ns = max(late_ns, self._clock.now_ns() + GRACE_NS)
        await self._sleep_until(late_ns)
        self._task = None  # from here on nothing is waited for: this can't be stopped in the middle
        taken = self._enforcement.opener(turn)
        if speech is None or taken is None or run.reply.has_speech:
            return
        run.reply.begin_with(text, speech)
        now_ns = self._clock.now_ns()
        run.mark(MarkName.OPENER, now_ns)
        run.mark(MarkName.FIRST_AUDIBLE_READY, now_ns)
        self._enforcement.opened(turn, taken)
        run.on_own_sound = partial(self._own_sound, turn, taken, now_ns)
        run.audible()

    def _own_sound(self, turn: TurnId, taken: ActionTaken, opened_ns: int) -> None:
        saved_ms = (self._clock.now_ns() - opened_ns) / NS_PER_MS
        self._enforcement.opened(turn, taken, saved_ms)

    def _is_far(self, turn: TurnId) -> bool:
        """Whether the reply is not to be expected before long."""
        taken = self._enforcement.opener(turn)
        return taken is not None and taken.predicted_ms * NS_PER_MS >= GRACE_NS

    async def _sleep_until(self, at_ns: int) -> None:
        """Never before it: loops wake up to a millisecond early."""
        left_s = (at_ns - self._clock.now_ns()) / 1e9
        await asyncio.sleep(max(0.0, left_s + 0.001))
