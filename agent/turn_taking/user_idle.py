"""Silent caller: prompt, then hang up.

Theory of operation: a clock runs while everybody is at rest after a reply, from the end of the
agent's last sound (or of a noise that came after it). It stands while the caller is being heard or
transcribed, while a reply is wanted, made or played, while the client is away, and for as long as
the caller waits for the agent rather than the agent for the caller: a tool that goes on in the
background is such a wait. When it has run for `idle_after_ms` the caller is asked; asking is a
reply like any other, and at its end the clock begins again.

There are two kinds of prompt. Ours is a fixed sentence, at most `MAX_IDLE_PROMPTS` times in a row.
OpenAI's `idle_timeout_ms` commits the silence as a message without words and lets the model answer;
that is documented to repeat whenever it is due, so it does, unless the operator wants silent calls
to end. Words of the caller reset the count.
"""

from collections.abc import Sequence

from . import commands as cmd
from .commands import Command
from .state import TurnState
from .thresholds import MAX_IDLE_PROMPTS
from .transitions import begin_if_wanted, is_quiet


def follow(s: TurnState, commands: Sequence[Command], now_ns: int) -> None:
    """Start, stop or keep the idle clock after these commands."""
    for command in commands:
        if isinstance(command, cmd.CommitUtterance):
            s.awaits_caller = False
            s.num_prompts = 0
        elif isinstance(command, cmd.StartReply):
            s.awaits_caller = True
    if not _at_rest(s):
        s.idle_since_ns = None
    elif s.idle_since_ns is None:
        s.idle_since_ns = now_ns


def idle_deadline_ns(s: TurnState) -> int | None:
    """Time of the next prompt or hang-up, ns; None: none is due."""
    wait_ms = s.rules.idle.idle_after_ms if _asks(s) else s.rules.idle.idle_hangup_ms
    if s.idle_since_ns is None or wait_ms == 0:
        return None
    return s.idle_since_ns + wait_ms * 1_000_000


def end_silence(s: TurnState, now_ns: int) -> list[Command]:
    """Prompt the caller, or end the call, at the deadline."""
    if not _asks(s):
        s.awaits_caller = False
        return [cmd.HangUp()]
    s.num_prompts += 1
    s.wanted = True
    s.answers_caller = False
    idle = s.rules.idle
    how = cmd.CommitSilence(idle.idle_after_ms) if idle.idle_commits else cmd.PromptCaller()
    return [how, *begin_if_wanted(s, now_ns)]


def _at_rest(s: TurnState) -> bool:
    is_waited_for = s.awaits_caller and not s.num_background
    return is_quiet(s) and is_waited_for and s.rules.enabled


def _asks(s: TurnState) -> bool:
    idle = s.rules.idle
    is_endless = idle.idle_commits and idle.idle_hangup_ms == 0
    return idle.idle_after_ms > 0 and (is_endless or s.num_prompts < MAX_IDLE_PROMPTS)
