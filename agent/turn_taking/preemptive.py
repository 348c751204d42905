"""When a reply is prepared before it is known that the caller is done.

A guess costs a prefill, a clause of speech, and tokens for as long as it is held: a quarter of a
second of two cores and more. It is worth that once the caller pauses and the words of the pause are
known, because most pauses are the end of a turn, and the wait that tells the others is about as
long as the preparation. Nothing of it can be seen, heard or remembered until the machine commits
the same words.
"""

from typing import Final

from latency_budget.account.turn import TurnId

from . import commands as cmd
from .commands import Command
from .state import TurnState
from .tables import Agent

MAX_GUESSES: Final = 8
"""In one utterance. One in three hesitant turns has three pauses or more before its end, and an end
without a guess is answered later by all of the preparation; one in fifteen has eight, and who talks
like that is not about to be answered."""


def guess(s: TurnState) -> list[Command]:
    """Prepare a reply to the words of the present pause, if a reply would follow their end."""
    text = s.text
    is_free = s.agent in (Agent.IDLE, Agent.TRAILING) and not (s.awaited or s.away)
    if text is None or not text.strip() or not (would_reply(s) and is_free):
        return []
    if s.guess == text or s.num_guesses >= MAX_GUESSES:
        return []
    out = drop_guess(s)
    s.guess = text
    s.num_guesses += 1
    out.append(cmd.GuessReply(_next_turn(s), text))
    return out


def would_reply(s: TurnState) -> bool:
    """Whether the end of the present utterance is to be answered."""
    return s.rules.replies or s.wanted


def drop_guess(s: TurnState) -> list[Command]:
    """Forget the reply that is being prepared, if there is one."""
    if s.guess is None:
        return []
    s.guess = None
    return [cmd.DropGuess(_next_turn(s))]


def _next_turn(s: TurnState) -> TurnId:
    return TurnId(s.turn + 1)
