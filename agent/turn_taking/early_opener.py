"""Early openers: what may be said at a given certainty that the turn is over.

Theory of operation
-------------------
Nothing; an opener; the answer. An opener ("Well,", "Let me see,") is a sign that the agent has
heard, and promises nothing about what follows. Speech that goes on over it has lost a moment, so it
may be spoken at a lower certainty than the answer (`TurnScore.opener_wait_ms`), where that is so
far off that the opener does not delay it.

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
heard, the next pause waits for the answer. And there is none where no answer is being prepared to
the same words (`preemptive.py`): an opener promises that one follows.

What was left out: an opener before the commit. Clients then get audio of a response to a message
that does not exist yet, and items in the wrong order.
"""

from .end_of_turn import opener_silence_ms
from .end_of_turn_model import Evidence
from .state import TurnState
from .tables import Agent
from .thresholds import OPENER_LEAD_MS


def may_open(s: TurnState, evidence: Evidence, missing_ms: int) -> bool:
    """True if an opener may be spoken in the current pause, `missing_ms` before the answer may."""
    is_prepared = s.guess == evidence.words
    is_free = s.agent in (Agent.IDLE, Agent.TRAILING) and not (s.away or s.awaited)
    is_new = not (s.wanted or s.unheard_cut)
    if not (is_prepared and is_free and is_new) or missing_ms < OPENER_LEAD_MS:
        return False
    wait_ms = opener_silence_ms(s.rules, evidence)
    return wait_ms is not None and s.silence_ms >= wait_ms
