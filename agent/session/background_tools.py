"""Tools in the background of a call: they run beside the conversation, and their results join it.

Theory of operation. A response calls such a tool and reads at once that it runs (`RUNNING`); the
response ends with words like "I'm looking into it", and the tool goes on as a task of the session:
a caller who interrupts does not stop it, the end of the call does. When the tool ends, with a
result, an error or at its time limit, two things follow, each once:

- *It joins the conversation*, as a message of the agent without words whose tool round is the call
  and its result: what the model reads of any tool. The client sees the message, not the round. It
  waits while a response is made or heard, and while the caller pauses: a response that is prepared
  for the pause would have to be prepared anew. So what is heard of a response and what the model
  has of it are never apart. It does not wait for a client that owes the output of a function, and
  may never send it: the model reads that output behind its call, wherever it stands.
- *A response has it in its context.* That is the caller's next one, if the caller speaks first.
  Otherwise both parties are silent for `ANNOUNCE_AFTER_NS`, and the agent asks for a response as a
  client does. In calls whose client asks for each response, that one comes from the client; so
  does the one that follows the output of a function, which is waited for.

Results that come together are announced together. One that nobody heard of is announced again;
where the model failed, once. A call that is equal to one that runs is not run again: a model may
ask for news by calling. Nor is one whose result has joined since the caller's last words: a model
that reads a result may call once more, and must not book twice.

Another server that goes on with the call starts nothing again, because nobody knows how far a tool
had come. The model reads `LOST` as its result, and tells the caller.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

from agent.errors import ClientError
from agent.session.api.conversation import Message, ModelCall, ToolRound
from agent.session.api.ids import Identifiers
from agent.session.api.server_events import ItemAdded, ItemDeleted, Notice
from agent.session.api.session_state import BackgroundResult, BackgroundState
from agent.session.context.chat_context import ChatContext
from agent.session.ports.stage_ports import ChatMessage, ToolsPort
from agent.session.response.response import Reply
from agent.session.response.task import LOST, OUT_OF_BAND, TOO_LONG
from agent.turn_taking import events as ev
from agent.turn_taking.machine import TurnTaking
from agent.turn_taking.thresholds import ANNOUNCE_AFTER_NS
from latency_budget.account.clock import Clock
from latency_budget.account.turn import TurnId

from .item_operations import SURE_CHARS, check_text

MAX_BACKGROUND: Final = 4
"""Most tools in the background of a call, those included whose results have not joined it. Fewer
keep an agent from asking a few places at once; more are a model that calls without end, and results
that nobody can listen to."""

MAX_KNOWN: Final = 4 * MAX_BACKGROUND
"""Most results kept for calls that are made once more. Fewer would be run again; more are a model
that calls without end."""

RUNNING: Final = (
    '{"status": "running", "note": "The result comes later by itself. Tell the caller that you are '
    'looking into it, and go on."}'
)
"""First result of a tool in the background, for the model."""

OVER: Final = "Error: this was not started, because the call ends."

_log = logging.getLogger(__name__)


def too_many(name: str) -> str:
    """Result of a call beyond the limit, for the model."""
    return (
        f"Error: {name} was not started, because {MAX_BACKGROUND} tools are running already. Try "
        "again when one of them has ended."
    )


class BackgroundTools:
    """Tools in the background of one session. Belongs to its event loop."""

    def __init__(  # noqa: PLR0913
        self,
        group: asyncio.TaskGroup,
        tools: ToolsPort,
        context: ChatContext,
        ids: Identifiers,
        machine: TurnTaking,
        clock: Clock,
        *,
        notify: Callable[[Notice], None],
        feed: Callable[[ev.Event], None],
        awaits_request: Callable[[], bool],
        joined: Callable[[], None],
        changed: Callable[[int], None],
    ) -> None:
        """`group` is the session's: its end cancels the tools. `feed` gives the machine an event,
        and calls `look`. `awaits_request`: the client is to ask for the next response. `joined` is
        called when the conversation has a result, `changed` with the number of tools that run
        whenever it changes."""
        self._group = group
        self._tools = tools
        self._context = context
        self._ids = ids
        self._machine = machine
        self._clock = clock
        self._notify = notify
        self._feed = feed
        self._awaits_request = awaits_request
        self._joined = joined
        self._changed = changed
        self._running: list[ModelCall] = []
        self._ended: list[BackgroundResult] = []
        """Results that have not joined the conversation, at most as many as may run."""
        self._known: dict[ModelCall, str] = {}
        """Results that have joined the conversation since the caller's last words."""
        self._is_due = False
        """The conversation has results that no response has had in its context."""
        self._had_by: TurnId | None = None
        """The newest response that was the first to have a result."""
        self._has_failed = False
        """The announcement of the newest results has failed."""
        self._quiet_since_ns: int | None = None
        """Time since which the agent may speak of its own accord, ns; None: it may not."""

    def start(self, reply: Reply, call: ModelCall) -> str:
        """Start a tool that this reply has called. Returns what the model reads at once."""
        if reply.options.out_of_band:
            return OUT_OF_BAND
        if call in self._running or any(call == each.call for each in self._ended):
            return RUNNING
        if call in self._known:
            return self._known[call]
        if len(self._running) + len(self._ended) >= MAX_BACKGROUND:
            _log.warning("tool %s: %d run in the background already", call.name, MAX_BACKGROUND)
            return too_many(call.name)
        tool = self._tools.run(call, reply.item_id)  # this agent's, whatever comes next
        run = self._run(call, tool)
        try:
            task = self._group.create_task(run)
        except RuntimeError:  # the group is ending
            run.close()
            tool.close()
            return OVER
        task.add_done_callback(lambda _: tool.close())  # it was never begun, perhaps
        self._running.append(call)
        self._report()
        return RUNNING

    def look(self) -> None:
        """Follow the machine, whose state may have changed: let results join the conversation."""
        if self._ended and self._machine.takes_items and self._may_join():
            self._join()
        has_news = bool(self._ended) or self._is_due
        if not self._machine.takes_announcements or (has_news and not self._may_announce()):
            self._quiet_since_ns = None
        elif self._quiet_since_ns is None:
            self._quiet_since_ns = self._clock.now_ns()

    @property
    def announce_at_ns(self) -> int | None:
        """Time at which a response is to announce results, ns; None: none is."""
        if self._quiet_since_ns is None or not (self._is_due and self._may_announce()):
            return None
        if self._awaits_request():
            return None
        return self._quiet_since_ns + ANNOUNCE_AFTER_NS

    def answered(self, turn: TurnId) -> None:
        """A response begins that has the whole conversation in its context."""
        if self._is_due:
            self._is_due, self._had_by = False, turn

    def unheard(self, turn: TurnId) -> None:
        """The response of this turn ends, and nothing of it was heard."""
        self._is_due = self._is_due or turn == self._had_by

    def failed(self, turn: TurnId) -> None:
        """The response of this turn has failed, and nothing of it was heard. A model that fails
        again is left alone: the caller's next response has the results."""
        if turn == self._had_by and not self._has_failed:
            self._is_due = self._has_failed = True

    def caller_said(self) -> None:
        """The caller has said something: what was called before may be called again."""
        self._known.clear()

    def state(self, *, is_unheard: bool) -> BackgroundState:
        """What another server needs to know. `is_unheard`: a response is in progress, and nothing
        of it was heard."""
        is_due = self._is_due or (is_unheard and self._machine.turn == self._had_by)
        return BackgroundState(tuple(self._running), tuple(self._ended), is_due)

    def restore(self, state: BackgroundState) -> None:
        """Take over what another server had in the background, before the session runs. The
        conversation has been restored: results that joined since the caller's last words are in it.
        """
        lost = [BackgroundResult(call, LOST) for call in state.running]
        self._ended = [*state.ended, *lost]
        self._is_due = state.is_due
        for item in self._context.conversation:
            match item:
                case Message(role="user"):
                    self._known.clear()
                case Message(role="assistant", text="", rounds=rounds):
                    for each in rounds:
                        for call, result in zip(each.calls, each.results, strict=False):
                            if result not in (RUNNING, OVER, too_many(call.name)):
                                self._know(call, result)

    async def _run(self, call: ModelCall, tool: Coroutine[Any, Any, str]) -> None:
        text = await tool
        if len(text) > SURE_CHARS:
            try:
                await check_text(self._context.chat, ChatMessage("tool", text), "result")
            except ClientError:
                text = TOO_LONG
        self._running.remove(call)
        self._ended.append(BackgroundResult(call, text))
        self._report()

    def _report(self) -> None:
        self._changed(len(self._running))
        self._feed(ev.BackgroundChanged(len(self._running)))

    def _know(self, call: ModelCall, result: str) -> None:
        """Keep a result that has joined the conversation."""
        self._known[call] = result
        if len(self._known) > MAX_KNOWN:
            del self._known[next(iter(self._known))]

    def _may_join(self) -> bool:
        """True where no message is torn apart that the caller goes on with."""
        return not self._context.open_text

    def _may_announce(self) -> bool:
        """True where no response of the client's is due: it follows the output of a function."""
        return self._may_join() and not self._context.conversation.has_open_call

    def _join(self) -> None:
        ended, self._ended = self._ended, []
        conversation = self._context.conversation
        for each in ended:
            for old in self._context.make_room():
                self._notify(ItemDeleted(old))
            rounds = (ToolRound(0, 0, (each.call,), (each.text,)),)
            item = Message(self._ids.item(), "assistant", "text", "", rounds=rounds)
            previous = conversation.add(item)
            self._ids.release(item.id)
            self._context.added(item)
            self._notify(ItemAdded(item, previous))
            self._know(each.call, each.text)
        self._is_due, self._has_failed = True, False
        self._joined()
