"""Deadlines for every state that waits for an outside event: detector, recognizer, stage, client.

Every state of the two automata but QUIET and IDLE waits for an event from outside, so each has a
deadline here, and what follows it leads towards QUIET and IDLE without any further event:

    caller SPEAKING    ends as if the audio had stopped: the final pass decides
    caller PAUSING     committed with the words there are; without them dropped, with an apology
    words outstanding  never come: the transcript has failed
    agent PREPARING    an apology in place of the reply
    agent OPENING      an apology behind the opener
    agent SPEAKING     the same; an apology that gets stuck itself is abandoned
    agent TRAILING     over
    agent HELD         cut, or it goes on: see `barge_in.py`

All but the second are last resorts, for the parts that are waited for have shorter deadlines of
their own.
"""

from collections.abc import Callable
from typing import Final

from . import barge_in
from . import commands as cmd
from . import events as ev
from .commands import Command
from .state import TurnState
from .tables import Agent, Caller, Signal
from .thresholds import STALL_SILENCE_MS
from .transitions import begin_if_wanted, fail_reply, start_final_pass
from .user_handlers import pause_evidence


def deadlines(s: TurnState) -> tuple[int | None, ...]:
    """Deadline of each wait, ns; None: not waiting."""
    overlap_ns = None if s.overlap is None else s.overlap.deadline_ns
    return s.pause_deadline_ns, s.awaited_deadline_ns, s.reply_deadline_ns, overlap_ns


def expire(s: TurnState, now_ns: int) -> list[Command]:
    """Act on the deadlines that have passed."""
    out: list[Command] = []
    if _has_passed(s.pause_deadline_ns, now_ns):
        out += _end_speech(s, now_ns)
    if _has_passed(s.awaited_deadline_ns, now_ns):
        out += _end_awaiting(s, now_ns)
    if _has_passed(s.reply_deadline_ns, now_ns):
        out += _END_REPLY[s.agent](s, now_ns)
    if s.overlap is not None and _has_passed(s.overlap.deadline_ns, now_ns):
        out += barge_in.on_deadline(s, now_ns)
    return out


def _has_passed(deadline_ns: int | None, now_ns: int) -> bool:
    return deadline_ns is not None and now_ns >= deadline_ns


def _end_speech(s: TurnState, now_ns: int) -> list[Command]:
    if s.caller is Caller.SPEAKING:
        s.move_caller(ev.AudioStalled)
        return start_final_pass(s, STALL_SILENCE_MS, now_ns)
    s.pause_deadline_ns = None
    s.silence_ms = STALL_SILENCE_MS
    return barge_in.give_up(s, now_ns) if s.text is None else pause_evidence(s, now_ns)


def _end_awaiting(s: TurnState, now_ns: int) -> list[Command]:
    out: list[Command] = [cmd.FailTranscript(utterance) for utterance in s.awaited]
    s.awaited.clear()
    s.awaited_deadline_ns = None
    return out + begin_if_wanted(s, now_ns)


def _end_speaking(s: TurnState, now_ns: int) -> list[Command]:
    if not s.apologized:
        return fail_reply(s, now_ns)
    s.move_agent(Signal.CUT)
    s.reply_deadline_ns = None
    return [cmd.AbandonReply(s.turn), *begin_if_wanted(s, now_ns)]


def _end_trailing(s: TurnState, now_ns: int) -> list[Command]:
    s.move_agent(ev.ReplyPlayed)
    s.reply_deadline_ns = None
    return []


_END_REPLY: Final[dict[Agent, Callable[[TurnState, int], list[Command]]]] = {
    Agent.PREPARING: fail_reply,
    Agent.OPENING: fail_reply,
    Agent.SPEAKING: _end_speaking,
    Agent.TRAILING: _end_trailing,
}
