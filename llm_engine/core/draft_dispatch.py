"""Who is asked for drafts: what a grammar forces first, then each drafter in its order."""

import logging
from collections.abc import Iterable

from llm_engine.backends.base import Slot
from llm_engine.speculative.draft_length import Speculation
from llm_engine.speculative.ngram import Draft, Drafter

from .request import ActiveRequest
from .structured_output import ForcedDraft, Matcher

_log = logging.getLogger(__name__)


class Drafting:
    """An engine's drafters and their records. Belongs to the engine's thread."""

    def __init__(self, drafters: Iterable[Drafter]) -> None:
        """Without drafters nothing is drafted, not even what a grammar forces."""
        self._drafters = [(drafter, Speculation(drafter.name)) for drafter in drafters]
        self._forced = Speculation("grammar")

    @property
    def speculations(self) -> list[Speculation]:
        """The records, one for each name."""
        return [self._forced, *(each for _, each in self._drafters)] if self._drafters else []

    def begin(self, slot: Slot, matcher: Matcher | None) -> list[tuple[Draft, Speculation]]:
        """The drafts of one reply, in the order in which they are asked."""
        drafts = [(drafter.begin(slot), speculation) for drafter, speculation in self._drafters]
        if drafts and matcher is not None:
            return [(ForcedDraft(matcher), self._forced), *drafts]
        return drafts

    def draft(
        self, active: ActiveRequest, others: Iterable[ActiveRequest]
    ) -> tuple[Speculation | None, tuple[int, ...]]:
        """What may come next. After a drafter that raises nobody is asked again."""
        try:
            return active.draft()
        except Exception:
            _log.exception("drafting failed; the engine goes on without")
            self._drafters.clear()
            for each in others:
                each.drafts.clear()
            return None, ()
