"""Measured costs of decoding, shared by all drafters of an engine.

What a step costs is a property of the model, the machine and the number of rows. It does not depend
on the drafter that filled the rows, and outlives a request. Two causes change it: the load of the
machine and the length of the context change every step alike, within seconds; the price of a
further row beside the first one hardly changes. So a step's time is modelled as

    time of a one-row step now  x  ratio of its number of rows

and each measurement corrects both factors by the logarithm of its error (least mean squares). A
machine that becomes slower is noticed by steps of any size, and no size looks cheap only because
it was last measured before. Logarithms, and a bound on each error, keep a step that was descheduled
from counting more than another.

Where every step has a draft, the two factors cannot be told apart. Then a one-row step is due every
`PLAIN_EVERY` steps; its error moves the first factor, and the ratios of the sizes that ran since
move the other way, so that their times stay what was measured.

Steps under a grammar compute a mask for each row, and have ratios of their own.
"""

import math
from typing import Final

from llm_engine.config import MAX_STEP_ROWS

_ASSUMED_ROW_RATIO: Final = 0.12
"""Assumed cost of each further row, in one-row steps, until that size was timed. Measured on CPUs:
two rows 0 to 0.1, eight rows 0.7 in all."""
_PLAIN_WEIGHT: Final = 1 / 16
"""Weight of a measurement's error in the time of a one-row step. Lower: a machine under load is
noticed later. Higher: its jitter decides."""
_RATIO_WEIGHT: Final = 1 / 32
"""Least weight of an error in the ratio of a size, which hardly changes."""
_MAX_ERROR: Final = math.log(2)
"""Bound of one measurement's error: a factor of two. A step on a busy machine can take ten times
as long as the next."""
NUM_FIRST: Final = 2
"""First measurements of a kind, of which the least counts: the first one also allocates memory."""
_SHORTEST_MS: Final = 0.01
"""Lower bound of a step's time, for clocks that stand still."""
_NUM_MIXED: Final = 8
"""Steps of other sizes in a row from which on a one-row step corrects both factors."""
PLAIN_EVERY: Final = 200
"""Drafted steps in a row after which a step without a draft is due. It loses less than one step:
0.5 % of the time."""
_INITIAL_REPLY_TOKENS: Final = 32.0
"""Assumed length of a reply until some have ended: two spoken sentences."""
_REPLY_WEIGHT: Final = 1 / 8

_PLAIN: Final = (1, False)


class DecodingCosts:
    """Times of steps by rows, decoding time in all, usual length of a reply. Belongs to the
    engine's thread."""

    def __init__(self) -> None:
        self.decoding_ms = 0.0
        """Time of all steps of one reply so far, drafting included."""
        self.reply_tokens = _INITIAL_REPLY_TOKENS
        """Moving average of the replies' lengths in tokens."""
        self._plain_ms: float | None = None
        self._ratios: dict[tuple[int, bool], float] = {_PLAIN: 1.0}
        self._num_measured: dict[tuple[int, bool], int] = {}
        self._num_since_plain = 0
        self._num_since_unmasked = 0
        self._since_plain: set[tuple[int, bool]] = set()
        """Sizes that were timed since the last one-row step without a grammar."""

    @property
    def plain_ms(self) -> float:
        """Time of a one-row step now; 1 before any step was timed."""
        return 1.0 if self._plain_ms is None else self._plain_ms

    @property
    def is_plain_due(self) -> bool:
        """True when the next step should have no draft, so that its cost is known."""
        return self._plain_ms is None or self._num_since_plain >= PLAIN_EVERY

    def ratio(self, num_rows: int, *, is_masked: bool = False) -> float:
        """Cost of a step of one sequence in one-row steps without a grammar."""
        known = self._ratios.get((num_rows, is_masked))
        if known is not None:
            return known
        for distance in range(1, MAX_STEP_ROWS):
            for nearest in (num_rows - distance, num_rows + distance):
                known = self._ratios.get((nearest, is_masked))
                if known is not None:
                    return known * _assumed_ratio(num_rows) / _assumed_ratio(nearest)
        return self.ratio(num_rows)

    def note_step(self, num_rows: int, ms: float, *, is_masked: bool = False) -> None:
        """Record the time of a step of one sequence with this many rows, drafting excluded."""
        self.decoding_ms += ms
        ms = max(ms, _SHORTEST_MS)
        size = (num_rows, is_masked)
        self._num_since_plain = 0 if num_rows == 1 else self._num_since_plain + 1
        num_measured = self._num_measured.get(size, 0)
        self._num_measured[size] = num_measured + 1
        if self._plain_ms is None:
            self._plain_ms = ms / _assumed_ratio(num_rows)
        if size == _PLAIN:
            self._correct_plain(ms, num_measured)
        elif num_measured < NUM_FIRST:
            ratio = ms / self._plain_ms
            self._ratios[size] = min(ratio, self._ratios[size]) if num_measured else ratio
        else:
            error = _bounded(math.log(ms / (self._plain_ms * self._ratios[size])))
            self._plain_ms *= math.exp(_PLAIN_WEIGHT * error)
            self._ratios[size] *= math.exp(max(_RATIO_WEIGHT, 1 / (num_measured + 1)) * error)
            self._since_plain.add(size)
            self._num_since_unmasked += 1

    def note_drafting(self, ms: float) -> None:
        """Record time that went into drafting."""
        self.decoding_ms += ms

    def note_reply(self, num_tokens: int) -> None:
        """Record the length of a reply that has ended."""
        self.reply_tokens += _REPLY_WEIGHT * (num_tokens - self.reply_tokens)

    def _correct_plain(self, ms: float, num_measured: int) -> None:
        assert self._plain_ms is not None
        if num_measured < NUM_FIRST:
            self._plain_ms = min(ms, self._plain_ms) if num_measured else ms
            return
        error = _bounded(math.log(ms / self._plain_ms))
        num_other = self._num_since_unmasked
        weight = _PLAIN_WEIGHT if num_other < _NUM_MIXED else num_other / (num_other + _NUM_MIXED)
        self._plain_ms *= math.exp(weight * error)
        if num_other >= _NUM_MIXED:
            for size in self._since_plain:
                self._ratios[size] *= math.exp(-weight * error)
        self._since_plain.clear()
        self._num_since_unmasked = 0


def _assumed_ratio(num_rows: int) -> float:
    return 1 + _ASSUMED_ROW_RATIO * (num_rows - 1)


def _bounded(error: float) -> float:
    return min(max(error, -_MAX_ERROR), _MAX_ERROR)
