"""Preemptive generation: prepare a response before the end of the turn is certain.

A preemptive response costs a prefill, one clause of synthesis, and tokens for as long as it is
held: a quarter of a second of two cores and more. That pays once the caller pauses and the words
before the pause are known: most pauses end a turn, and the wait that identifies the others is about
as long as the preparation. Nothing of it is visible, audible or remembered until the machine
commits the same words.
"""

from latency_budget.account.turn import TurnId

from . import commands as cmd
from .commands import Command
from .state import TurnState
from .tables import Agent
from .thresholds import MAX_PREEMPTIVE


def start_preemptive(s: TurnState) -> list[Command]:
    """Prepare a response to the words before the current pause, if one would follow."""
    text = s.text
    is_free = s.agent in (Agent.IDLE, Agent.TRAILING) and not (s.awaited or s.away)
    if text is None or not text.strip() or not (would_reply(s) and is_free):
        return []
    if s.guess == text or s.num_guesses >= MAX_PREEMPTIVE:
        return []
    out = discard_preemptive(s)
    s.guess = text
    s.num_guesses += 1
    out.append(cmd.GuessReply(_next_turn(s), text))
    return out


def would_reply(s: TurnState) -> bool:
    """True if the end of the current utterance is to be answered."""
    return s.rules.replies or s.wanted


def discard_preemptive(s: TurnState) -> list[Command]:
    """Discard the response that is being prepared, if there is one."""
    if s.guess is None:
        return []
    s.guess = None
    return [cmd.DropGuess(_next_turn(s))]


def _next_turn(s: TurnState) -> TurnId:
    return TurnId(s.turn + 1)
