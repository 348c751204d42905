"""Decision when a call's oldest turns are condensed to a summary, and to how much. Pure.

A context that is full loses its oldest turns. So they are condensed before it is, while nobody
waits for the model: the agent's reply plays or nobody speaks, and all of the reply is generated and
synthesized. The caller's speech or a request for a reply ends the work at once; it goes on in the
next such time. Where it never comes to an end, dropping stays as it was.

All shares are of the *room*: the context without what is fixed (instructions, tools, examples) and
without what is kept free for a reply.
"""

from dataclasses import dataclass
from typing import Final

from agent.session.ports.stage_ports import CondensingGoal, ContextUse

START_SHARE: Final = 0.6
"""Share of the room in use from which on turns are condensed. Lower: summaries of what would still
fit, and the model forgets words that it could have. Higher: too few turns are left until the
context is full, for a caller who leaves short pauses: at 0.6 of 1,600 tokens some 14 (50 tokens a
turn), in each of which 0.4 s of idling are enough; at 0.9 some 3. Also, the time of a first token
grows with the context that it reads: half a billion parameters take 91 ms at 520 tokens and some
115 at 1,400."""

RECENT_SHARE: Final = 0.25
"""Share of the room for recent turns that stay word for word. Lower: references to what was just
said ("the second one") are lost. Higher: there is more to compute in idle times, and the next time
comes sooner: at 0.35 of 1,600 tokens every 7 turns, and with pauses of 0.8 s on two busy cores it
took so many turns that the context was full before; at 0.25 some 9 turns stay."""

SUMMARY_SHARE: Final = 0.08
"""Share of the room for the summary. Lower: facts are lost. Higher: small models take no more from
a longer one, and the next one is due sooner."""

MIN_SUMMARY_TOKENS: Final = 64
MAX_SUMMARY_TOKENS: Final = 256
"""Six to eight sentences at least; at most about twenty, which take a processor some 10 s to
write (at 40 ms a token)."""

MIN_ROOM_TOKENS: Final = 512
"""Least room. In less, recent turns and a summary crowd each other out: dropping stays."""

IDLE_MS: Final = 100
"""Time without anything to do before it begins. Shorter: it begins in the gaps between a client's
messages, and computes what a preview would. Longer: short replies leave no time; with pauses of
0.8 s, 300 ms were a third of what there was."""

RETRY_MS: Final = 10_000
"""Time after a failure (no room in the cache, a model that is being loaded) until the next attempt.
Shorter: a full cache is asked again and again. Longer: a chance between two calls is missed."""


@dataclass(slots=True)
class CondensingCounts:
    """Counts of attempts to condense the oldest turns, shared by all calls."""

    begun: int = 0
    done: int = 0
    abandoned: int = 0
    """Attempts that gave way to a turn. The next one goes on with what they prepared."""
    failed: int = 0


def goal_of(use: ContextUse) -> CondensingGoal | None:
    """The context that condensing is to make; None where it is not due."""
    room = use.length - use.num_fixed - use.num_reserved
    if room < MIN_ROOM_TOKENS or use.num_turns < START_SHARE * room:
        return None
    summary = min(max(int(SUMMARY_SHARE * room), MIN_SUMMARY_TOKENS), MAX_SUMMARY_TOKENS)
    return CondensingGoal(int(RECENT_SHARE * room), summary)


class CondensingAttempts:
    """When the next attempt of one call may begin. Time is an argument, in monotonic ns."""

    def __init__(self) -> None:
        self._idle_since_ns: int | None = None
        self._failed_ns: int | None = None

    def idle(self, now_ns: int) -> None:
        """Nobody waits for the model from now on. Called again, it changes nothing."""
        if self._idle_since_ns is None:
            self._idle_since_ns = now_ns

    def busy(self) -> None:
        """Note that a reply needs the model, or soon will."""
        self._idle_since_ns = None

    def failed(self, now_ns: int) -> None:
        """An attempt ended with an error."""
        self._failed_ns = now_ns

    def due_ns(self) -> int | None:
        """Time at which the next attempt may begin; None while it may not at all."""
        if self._idle_since_ns is None:
            return None
        due_ns = self._idle_since_ns + IDLE_MS * 1_000_000
        if self._failed_ns is None:
            return due_ns
        return max(due_ns, self._failed_ns + RETRY_MS * 1_000_000)
