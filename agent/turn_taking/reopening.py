"""When the caller goes on with a turn that was taken for over.

A caller who is only thinking, and speaks again just as the agent begins, has not been answered and
does not interrupt: the turn was taken for over too early. It is re-opened. The agent stops at once,
without waiting for words; what it had begun to say never was; and what the caller says now goes on
with the message before it, so that the model reads one message and answers the whole.

That holds for the answer to the caller's last words alone, begun because the turn was over. A reply
that the client asked for (and a greeting, and the answer to what was typed) may be cut by speech,
but there is nothing to go on with, and the client decides what comes next. Nor does it hold for the
apology of a turn that failed, or for a reply that was held and went on (`barge_in.py`): what was
heard of it by then counts, and the rest is cut to what is heard like any other.
"""

from typing import Final

from . import commands as cmd
from .commands import Command
from .state import TurnState
from .tables import Agent, Signal

REOPEN_MS: Final = 450
"""From the reply's first sound to the event of the caller's speech, which the detector gives 96 ms
after the onset: an onset in the first 350 ms. Whoever begins so early was about to go on anyway,
for nobody answers a voice in less than 200 ms, and has heard a word at most. Lower, and the two
halves of a hesitant sentence become two messages with a scrap of an answer between them; higher,
and the model denies words that the caller heard and objects to."""

REOPEN_NS: Final = REOPEN_MS * 1_000_000


def reopens(s: TurnState, now_ns: int) -> bool:
    """Whether speech that begins now goes on with the message that is being answered."""
    if s.agent is Agent.IDLE or not s.answers_caller or s.wanted or s.apologized:
        return False
    if s.agent is Agent.PREPARING:
        return True
    return s.audible_ns is not None and now_ns - s.audible_ns < REOPEN_NS


def reopen(s: TurnState) -> list[Command]:
    """Stop the answer: the present utterance goes on with its message. Noise begins it anew."""
    s.move_agent(Signal.CUT)
    s.reply_deadline_ns = None
    s.unheard_cut = True
    return [cmd.ReopenTurn(s.turn, s.utterance)]


def caller_said(s: TurnState) -> None:
    """The caller's turn is over: is what was said answered without anybody's asking for it?"""
    s.answers_caller = s.rules.replies and (s.answers_caller or not s.wanted)
