"""Preemptive generation, and early openers: prepare a response before the end of the turn is
certain, and say that it comes.

Theory of operation
-------------------
A preemptive response costs a prefill, one clause of synthesis, and tokens for as long as it is
held: a quarter of a second of two cores and more. That pays once the caller pauses and the words
before the pause are known: most pauses end a turn, and the wait that identifies the others is about
as long as the preparation. Nothing of it is visible, audible or remembered until the machine
commits the same words.

*Early openers*: the certainty decides what may be said in the pause. Nothing; an opener; the
answer. An opener ("Well,", "Let me see,") is a sign that the agent has heard, and is right in front
of any answer. Speech that goes on over it has lost a moment, so it may be spoken at a lower
certainty than the answer (`TurnScore.opener_wait_ms`), where that is so far off that the opener
does not delay it, and a response to the same words is being prepared to follow it.

The turn is then *committed for the opener alone*. It ends as any turn does, and its reply begins,
with what was prepared in the pause; but the answer behind the opener is held back for the rest of
its own wait (`StartReply.answer_after_ms`), and no tool runs before. The agent is OPENING once the
opener can be heard. Where the caller goes on, then or before, the turn is re-opened like any other
of which nothing was heard (`reopening.py`): the reply never was. So the message goes on as one, and
neither the conversation nor the model has a scrap of an opener between its halves.

The evidence is that of the moment of the opener: an utterance that was committed has no pause any
more of which more could become known. The rest of the wait is time, not samples. A caller who goes
on is heard meanwhile, by the detector's onset over the agent's voice.

One message has one opener at most: where speech has cut a reply before anything of it counted as
heard, the next pause waits for the answer.

What was left out: an opener before the commit. Clients then get audio of a response to a message
that does not exist yet, and items in the wrong order.
"""

from latency_budget.account.turn import TurnId

from . import commands as cmd
from .commands import Command
from .end_of_turn import opener_silence_ms
from .end_of_turn_model import Evidence
from .state import TurnState
from .tables import Agent
from .thresholds import MAX_PREEMPTIVE, OPENER_LEAD_MS


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


def may_open(s: TurnState, evidence: Evidence, missing_ms: int) -> bool:
    """True if an opener may be spoken in the current pause, `missing_ms` before the answer may."""
    is_prepared = s.guess == evidence.words
    is_free = s.agent in (Agent.IDLE, Agent.TRAILING) and not (s.away or s.awaited)
    is_new = not (s.wanted or s.unheard_cut)
    if not (is_prepared and is_free and is_new) or missing_ms < OPENER_LEAD_MS:
        return False
    wait_ms = opener_silence_ms(s.rules, evidence)
    return wait_ms is not None and s.silence_ms >= wait_ms


def _next_turn(s: TurnState) -> TurnId:
    return TurnId(s.turn + 1)
