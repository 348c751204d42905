"""How far the language model's weights are converted: for `/readyz` and for the log.

The first load of a model converts its weights and keeps the result. That takes a second for the
default model and minutes for a large one, so that whoever waits is told.
"""

import logging
from typing import Final

from latency_budget.account.clock import Clock

TELL_EVERY_NS: Final = 5_000_000_000
"""Between two lines in the log. The default model is done before the second one."""

_log = logging.getLogger(__name__)


class Conversion:
    """Told by the thread that loads the model, read by any."""

    def __init__(self, model: str, clock: Clock) -> None:
        """`model` as the settings name it."""
        self._model = model
        self._clock = clock
        self._share: float | None = None
        """None where nothing is converted, or not any more."""
        self._next_line_ns = 0

    def begin(self) -> None:
        """A model is going to be loaded: forget the load before."""
        self._share = None

    def note(self, share: float) -> None:
        """So much of the weights is converted, 0 to 1."""
        now_ns = self._clock.now_ns()
        if self._share is None:
            _log.info("converting the weights of %s; the next start finds them", self._model)
            self._next_line_ns = now_ns + TELL_EVERY_NS
        elif now_ns >= self._next_line_ns:
            _log.info("converting the weights of %s: %.0f %%", self._model, 100 * share)
            self._next_line_ns = now_ns + TELL_EVERY_NS
        self._share = share

    def __str__(self) -> str:
        """A stage's progress: "loading", and how far."""
        if self._share is None:
            return "loading"
        return f"loading: {100 * self._share:.0f} % of the weights converted"
