"""Transitions for a lost client connection and its resumption.

Theory of operation: a response without a listener ends at once; history keeps the part that was
heard, and no response begins while the client is away. Speech received before the disconnect is
kept: the open utterance ends there, is transcribed and becomes a user message.

After the resumption a waiting caller is answered, with a response generated then, from everything
said so far. A caller is waiting if the turn was over (or ended during the absence) and no word of
the answer had been heard. An answer that was heard in part is not continued: the caller knows what
it was about and can ask for more. A response that the client had requested itself is not repeated:
the client sees that it did not come. Nor is one that has called a function of the client, which
asks for the next. A caller who was cut off in mid-sentence and continues after
the resumption re-opens the turn as always. Speech that was on its way when the connection broke may
be open at the resumption still, or its words not known: the answer waits for the end of that turn,
and answers both.

A call that is taken over from another server begins in the same way: without a client, and with an
answer that is due or not.
"""

from typing import Final

from . import events as ev
from .commands import Command
from .preemptive import discard_preemptive
from .state import Handlers, TurnState
from .tables import Agent, Caller
from .thresholds import STALL_SILENCE_MS
from .transitions import begin_if_wanted, cut, decide, start_final_pass


def _on_client_lost(s: TurnState, event: ev.ClientLost, now_ns: int) -> list[Command]:
    was_waiting = s.answers_caller and s.agent is not Agent.IDLE and event.unheard
    s.wanted = s.wanted or s.unheard_cut or (was_waiting and not s.apologized)
    s.unheard_cut = False
    s.away = True
    s.overlap = None
    out = discard_preemptive(s)
    if s.agent is not Agent.IDLE:
        out += cut(s, "client_cancelled")
    if s.caller is Caller.SPEAKING:
        s.move_caller(ev.AudioStalled)
        out += start_final_pass(s, STALL_SILENCE_MS, now_ns)
    elif s.caller is Caller.PAUSING:
        s.silence_ms = STALL_SILENCE_MS
        out += decide(s, now_ns)
    return out


def _on_client_back(s: TurnState, event: ev.ClientBack, now_ns: int) -> list[Command]:
    s.away = False
    return begin_if_wanted(s, now_ns) if s.caller is Caller.QUIET else []


def _on_call_taken_over(s: TurnState, event: ev.CallTakenOver, now_ns: int) -> list[Command]:
    s.away = True
    s.wanted = s.answers_caller = event.answer_due
    s.caller_has_spoken = event.caller_has_spoken
    return []


HANDLERS: Final[Handlers] = {
    ev.ClientLost: _on_client_lost,
    ev.ClientBack: _on_client_back,
    ev.CallTakenOver: _on_call_taken_over,
}
