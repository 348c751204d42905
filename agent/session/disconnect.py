"""What becomes of a session while its client has no connection, and when it is back.

What the machine makes of it stands in `agent/turn_taking/connection_handlers.py`. Here are the
accounts: what was heard of
the reply that broke off, and that nobody's times are counted across the gap.

The axis of the caller's audio has no gap: it counts what was received. What is said of the agent's
voice to the ears, which look for its echo, counts from the client's return.
"""

from collections.abc import Callable

from agent.observability.turn_recorder import TurnRecorder
from agent.session.ports.playback import client_lost
from agent.session.ports.stage_ports import EarsPort
from agent.session.response.items import ReplyItems
from agent.session.response.overlap import CurrentResponse
from agent.turn_taking import events as ev
from agent.turn_taking.machine import TurnTaking
from latency_budget.account.clock import Clock
from latency_budget.account.marks import MarkName


class Absence:
    """Belongs to one session, which is running. `begin` and `end` take turns."""

    def __init__(
        self,
        machine: TurnTaking,
        feed: Callable[[ev.Event], None],
        present: Callable[[], CurrentResponse],
        ears: EarsPort,
        items: ReplyItems,
        log: TurnRecorder,
        clock: Clock,
    ) -> None:
        self._machine = machine
        self._feed = feed
        self._present = present
        self._ears = ears
        self._items = items
        self._log = log
        self._clock = clock

    @property
    def will_answer(self) -> bool:
        """Whether a reply begins when the client is back, or soon after."""
        return self._machine.is_asked

    def begin(self) -> None:
        """The connection broke."""
        unheard = True
        run = self._present().run
        if run is not None:
            client_lost(run.reply.playback, self._clock.now_ns())
            run.reply.claims.close()
            unheard = not self._items.stands(run.reply)[0].strip()
        self._feed(ev.ClientLost(unheard))
        self._log.over.settle_all()

    def end(self) -> None:
        """There is another one."""
        self._ears.resumed_ns = self._clock.now_ns()
        if self.will_answer:
            # The caller has waited for the network, not for the answer.
            self._log.utterance_dropped()
            self._log.guessed(MarkName.ASKED, self._clock.now_ns())
        self._feed(ev.ClientBack())
