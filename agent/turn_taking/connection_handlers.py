"""What becomes of the turns when the client's connection breaks, and when it is back.

Theory of operation: what can't be heard is not said. The reply in progress ends at once; history
keeps of it what was heard. Nothing begins while the client is away. But the caller had said what he
had said: an utterance that was cut off ends there, is transcribed, and becomes his message.

Back again, he is answered, if he was waiting for it: the reply is made then, from all that was said
by then, so nothing that was prepared for another moment is spoken. He was waiting where his turn
was over, or ended while he was away, and not a word of the answer had been heard. An answer that
was heard in part is not taken up: he knows what it was about, and asks for more if he wants more. A
reply that the client asked for itself is its own business: it sees that it did not come. And
who was cut off in mid-sentence, and goes on with it when he is back, re-opens his turn as always.
"""

from typing import Final

from . import events as ev
from .commands import Command
from .preemptive import drop_guess
from .state import Handlers, TurnState
from .tables import Agent, Caller
from .transitions import STALL_SILENCE_MS, begin_if_wanted, cut, decide, start_final_pass


def _on_client_lost(s: TurnState, event: ev.ClientLost, now_ns: int) -> list[Command]:
    was_waiting = s.answers_caller and s.agent is not Agent.IDLE and event.unheard
    s.wanted = s.wanted or s.unheard_cut or (was_waiting and not s.apologized)
    s.unheard_cut = False
    s.away = True
    s.overlap = None
    out = drop_guess(s)
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
    return begin_if_wanted(s, now_ns)


HANDLERS: Final[Handlers] = {ev.ClientLost: _on_client_lost, ev.ClientBack: _on_client_back}
