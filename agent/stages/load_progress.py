"""Progress of the conversion of the language model's weights, for `/readyz` and the log.

The first load of a model converts its weights and keeps the result. That takes a second for the
default model and minutes for a large one, so progress is shown.
"""

import logging
from typing import Final

from latency_budget.account.clock import Clock

LOG_EVERY_NS: Final = 5_000_000_000
"""Interval between two lines in the log. The default model is done before the second one."""

_log = logging.getLogger(__name__)


class Conversion:
    """Progress of one model's conversion. The thread that loads the model writes, any reads."""

    def __init__(self, model: str, clock: Clock) -> None:
        """`model`: its name in the settings."""
        self._model = model
        self._clock = clock
        self._share: float | None = None
        """Share converted, 0 to 1; None before and after a conversion."""
        self._next_line_ns = 0

    def begin(self) -> None:
        """Start another load: forget the progress of the one before."""
        self._share = None

    def note(self, share: float) -> None:
        """Note that this share of the weights is converted, 0 to 1."""
        now_ns = self._clock.now_ns()
        if self._share is None:
            _log.info("converting the weights of %s; the next start finds them", self._model)
            self._next_line_ns = now_ns + LOG_EVERY_NS
        elif now_ns >= self._next_line_ns:
            _log.info("converting the weights of %s: %.0f %%", self._model, 100 * share)
            self._next_line_ns = now_ns + LOG_EVERY_NS
        self._share = share

    def __str__(self) -> str:
        """State of the stage: "loading", and the share converted."""
        if self._share is None:
            return "loading"
        return f"loading: {100 * self._share:.0f} % of the weights converted"
