"""Transitions for events of the agent's response: requested, audible, sent, played, failed."""

from typing import Final

from . import barge_in
from . import commands as cmd
from . import events as ev
from .commands import Command
from .dialogue.agent_question import NO_QUESTION
from .preemptive import discard_preemptive, would_reply
from .state import Handlers, TurnState
from .tables import Agent
from .thresholds import PREPARING_DEADLINE_NS, SPEAKING_DEADLINE_NS, TRAILING_DEADLINE_NS
from .transitions import begin_if_wanted, cut, fail_reply, takes_requests

_SILENT = (Agent.IDLE, Agent.HELD)
"""States in which late events of a response are stale: it is over, or held."""

_GOING_ON: Final = {
    Agent.PREPARING: PREPARING_DEADLINE_NS,  # it runs tools
    Agent.OPENING: PREPARING_DEADLINE_NS,
    Agent.SPEAKING: SPEAKING_DEADLINE_NS,
}


def _on_reply_requested(s: TurnState, event: ev.ReplyRequested, now_ns: int) -> list[Command]:
    s.caller_has_spoken = s.caller_has_spoken or event.caller_has_spoken
    if not takes_requests(s):
        return [cmd.RefuseRequest("conversation_already_has_active_response")]
    s.wanted = True
    s.answers_caller = False
    out = barge_in.stop(s) if s.agent is Agent.HELD else []
    return out + begin_if_wanted(s, now_ns)


def _on_follow_up_requested(
    s: TurnState, event: ev.FollowUpRequested, now_ns: int
) -> list[Command]:
    if takes_requests(s) or s.wanted:
        return _on_reply_requested(s, ev.ReplyRequested(), now_ns)
    s.wanted = True
    s.answers_caller = False
    return []


def _on_reply_cancelled(s: TurnState, event: ev.ReplyCancelled, now_ns: int) -> list[Command]:
    if s.agent is Agent.HELD:
        return barge_in.stop(s, "client_cancelled") + begin_if_wanted(s, now_ns)
    if s.agent in (Agent.PREPARING, Agent.OPENING, Agent.SPEAKING):
        return cut(s, "client_cancelled") + begin_if_wanted(s, now_ns)
    if not s.wanted:
        if not s.answers_caller:
            s.unheard_cut = False  # what the client asked for does not begin anew behind a noise
        return [cmd.RefuseRequest("response_cancel_not_active")]
    s.wanted = False
    return [] if would_reply(s) else discard_preemptive(s)


def _on_opener_audible(s: TurnState, event: ev.OpenerAudible, now_ns: int) -> list[Command]:
    if event.turn != s.turn or s.agent in _SILENT or s.apologized:
        return s.stale()
    s.move_agent(type(event))
    return [cmd.ReleaseOpener(event.turn)]


def _on_reply_audible(s: TurnState, event: ev.ReplyAudible, now_ns: int) -> list[Command]:
    if event.turn != s.turn or s.agent in _SILENT or s.apologized:
        return s.stale()
    s.move_agent(type(event))
    s.reply_deadline_ns = now_ns + SPEAKING_DEADLINE_NS
    s.audible_ns = now_ns
    s.question = NO_QUESTION
    return [cmd.ReleaseReply(event.turn)]


def _on_reply_continued(s: TurnState, event: ev.ReplyContinued, now_ns: int) -> list[Command]:
    if event.turn != s.turn or s.agent not in _GOING_ON:
        return s.stale()
    s.reply_deadline_ns = now_ns + _GOING_ON[s.agent]
    return []


def _on_reply_called_client(
    s: TurnState, event: ev.ReplyCalledClient, now_ns: int
) -> list[Command]:
    if event.turn != s.turn or s.agent is Agent.IDLE:
        return s.stale()
    s.has_called = True
    return []


def _on_reply_failed(s: TurnState, event: ev.ReplyFailed, now_ns: int) -> list[Command]:
    if event.turn != s.turn or s.agent is Agent.IDLE or s.apologized:
        return s.stale()
    if s.agent is Agent.HELD and s.overlap is not None:
        s.overlap.has_failed = True
        return []
    return fail_reply(s, now_ns)


def _on_reply_sent(s: TurnState, event: ev.ReplySent, now_ns: int) -> list[Command]:
    if event.turn != s.turn or s.agent in _SILENT:
        return s.stale()
    s.move_agent(type(event))
    s.reply_deadline_ns = now_ns + TRAILING_DEADLINE_NS
    return begin_if_wanted(s, now_ns)


def _on_reply_played(s: TurnState, event: ev.ReplyPlayed, now_ns: int) -> list[Command]:
    if event.turn != s.turn or s.agent in _SILENT:
        return s.stale()
    s.move_agent(type(event))
    s.reply_deadline_ns = None
    s.agent_said(event.text)
    return []


def _on_background_changed(s: TurnState, event: ev.BackgroundChanged, now_ns: int) -> list[Command]:
    s.num_background = event.num_running
    return []


HANDLERS: Final[Handlers] = {
    ev.ReplyRequested: _on_reply_requested,
    ev.FollowUpRequested: _on_follow_up_requested,
    ev.ReplyCancelled: _on_reply_cancelled,
    ev.OpenerAudible: _on_opener_audible,
    ev.ReplyAudible: _on_reply_audible,
    ev.ReplyContinued: _on_reply_continued,
    ev.ReplyCalledClient: _on_reply_called_client,
    ev.ReplySent: _on_reply_sent,
    ev.ReplyPlayed: _on_reply_played,
    ev.ReplyFailed: _on_reply_failed,
    ev.BackgroundChanged: _on_background_changed,
}
