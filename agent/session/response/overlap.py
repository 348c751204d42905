"""What becomes of a reply that the caller speaks over: held and taken up again, or turned down.

`agent/turn_taking/barge_in.py` decides; here it is done to the reply in progress, and counted.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from agent.observability.counters import BargeIns
from agent.session.api.server_events import Extension, Notice
from agent.turn_taking import commands as cmd
from agent.turn_taking import events as ev
from latency_budget.account.turn import TurnId

from .items import ReplyItems
from .task import ResponseTask

STOCK: Final = "stock"
DUCKS: Final = "ducks"


@dataclass(slots=True)
class CurrentResponse:
    """The newest reply, and the task that makes and sends it."""

    run: ResponseTask | None = None
    task: asyncio.Task[None] | None = None

    def of(self, turn: TurnId) -> ResponseTask | None:
        """The run, if it is this turn's."""
        return self.run if self.run is not None and self.run.reply.turn == turn else None

    @property
    def awaits_client(self) -> bool:
        """Whether it has asked the client to run a tool."""
        return self.run is not None and self.run.reply.has_called

    def cancel(self) -> None:
        if self.task is not None:
            self.task.cancel()


class OverlapHandler:
    """Belongs to one session."""

    def __init__(
        self,
        present: CurrentResponse,
        items: ReplyItems,
        counts: BargeIns,
        notify: Callable[[Notice], None],
        emit: Callable[[ev.Event], None],
        send_rest: Callable[[ResponseTask], None],
    ) -> None:
        """`emit` feeds the turn-taking machine; `send_rest` starts a task for what a reply that had
        been sent has left."""
        self._present = present
        self._items = items
        self._counts = counts
        self._notify = notify
        self._emit = emit
        self._send_rest = send_rest
        self._client: str | None = None
        """Which kind of client's overlap is undecided."""
        self._ducked = ""
        """The item that is turned down, or was last."""

    def do(
        self, command: cmd.HoldReply | cmd.ResumeReply | cmd.DuckReply | cmd.UnduckReply
    ) -> None:
        """Nothing is held or resumed of a turn that is not the present one."""
        run = self._present.of(command.turn)
        if isinstance(command, cmd.UnduckReply):
            self._kept()
            self._tell("halfsec.unduck", self._ducked)
        if run is None:
            return
        match command:
            case cmd.HoldReply():
                self._client = STOCK
                self._hold(run)
            case cmd.ResumeReply():
                self._kept()
                self._resume(run)
            case cmd.DuckReply():
                self._client = DUCKS
                self._ducked = run.reply.item_id
                self._tell("halfsec.duck", self._ducked)
                self._emit(ev.ReplyStands(command.turn, *self._items.stands(run.reply)))

    def cut(self) -> None:
        """The present reply is cut: whatever overlapped it was meant."""
        if self._client is not None:
            self._counts.barged_in[self._client] += 1
            self._client = None

    def forget(self) -> None:
        """Another reply begins: what overlapped the one before is settled by other means."""
        self._client = None

    def _kept(self) -> None:
        if self._client is not None:
            self._counts.kept[self._client] += 1
            self._client = None

    def _hold(self, run: ResponseTask) -> None:
        run.hold()
        if run.reply.ended:
            self._present.cancel()  # all was sent: it waits for what is not played now
        self._emit(ev.ReplyStands(run.reply.turn, *self._items.hold(run.reply)))

    def _resume(self, run: ResponseTask) -> None:
        """Say the rest. Where there is none, the reply is over."""
        turn, was_sent = run.reply.turn, run.is_sent
        rest = self._items.resume(run.reply)
        if rest is None:
            self._present.cancel()
            self._items.cut(run.reply, "turn_detected", keeps_heard=True)
            self._emit(ev.ReplySent(turn))
            self._emit(ev.ReplyPlayed(turn))
            return
        run.go_on(rest)
        if was_sent:
            self._send_rest(run)

    def _tell(self, kind: str, item_id: str) -> None:
        self._notify(Extension(kind, {"item_id": item_id}))
