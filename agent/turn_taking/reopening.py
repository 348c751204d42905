"""Re-opened turns: the caller continues a turn that was taken for over.

A caller who is only thinking, and speaks again just as the agent begins, has not been answered and
does not interrupt: the turn was taken for over too early. It is re-opened. The agent stops at once,
without waiting for words; what it had begun to say never was; and what the caller says now goes on
with the message before it, so that the model reads one message and answers the whole. So it is
where nothing but an early opener was heard, however late (`preemptive.py`): the agent has said
nothing yet.

That holds for the answer to the caller's last words alone, begun because the turn was over. A reply
that the client asked for (and a greeting, and the answer to what was typed) may be cut by speech,
but there is nothing to go on with, and the client decides what comes next. Nor does it hold for the
apology of a turn that failed, or for a reply that was held and went on (`barge_in.py`): what was
heard of it by then counts, and the rest is cut to what is heard like any other.
"""

from . import commands as cmd
from .commands import Command
from .dialogue.agent_question import after_a_part
from .state import TurnState
from .tables import Agent, Signal
from .thresholds import REOPEN_NS


def reopens(s: TurnState, now_ns: int) -> bool:
    """True if speech that begins now continues the message that is being answered."""
    if s.agent is Agent.IDLE or not s.answers_caller or s.wanted or s.apologized:
        return False
    if s.agent in (Agent.PREPARING, Agent.OPENING):
        return True
    return s.audible_ns is not None and now_ns - s.audible_ns < REOPEN_NS


def reopen(s: TurnState) -> list[Command]:
    """Stop the answer; the current utterance continues its message. Noise restarts the answer,
    unless that has called a function of the client."""
    s.question = after_a_part(s.question_before)  # the reply never was, the first half is not seen
    s.move_agent(Signal.CUT)
    s.reply_deadline_ns = None
    s.unheard_cut = not s.has_called
    return [cmd.ReopenTurn(s.turn, s.utterance)]


def caller_said(s: TurnState) -> None:
    """Note at the end of a turn whether it is answered without a request of the client."""
    s.answers_caller = s.rules.replies and (s.answers_caller or not s.wanted)
