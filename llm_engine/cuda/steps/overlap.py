"""The step that is launched before it is asked for.

When a step has been launched that continues replies, the next one is launched behind it at once:
the tokens it needs are on the device already. If the engine's next plan is just that, which it is
unless a reply ends, is cut off, or others come in, its outcome is under way and the device has
never waited for the host. If not, nothing is lost but the time of a step: it wrote keys and values
behind what any sequence holds, in pages that the sequence owned when it was launched, and whoever
uses these places later writes them first.

A plan is the step that was launched ahead if it continues the same sequences, in the same order,
the same way, with the tokens that the step before chose (and drafted, where there are heads), at
the positions that follow, in the pages that were known.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from llm_engine.backends.base import SequenceRows
from llm_engine.cuda.steps.graph_runner import Choice, DecodeStep

from .graph_runner import GraphRunner, LaunchedStep
from .logit_masks import needs_masks


@dataclass(frozen=True, slots=True)
class _Ahead:
    """A step that nobody has asked for yet."""

    before: LaunchedStep
    """The step that it follows."""
    num_rows: int
    """Of each sequence: 1, or one more than there are heads."""
    pages: tuple[dict[int, int], ...]
    """For each sequence where its rows may stand: page by place in the table."""
    group: LaunchedStep
    choice: Choice
    step: DecodeStep

    def is_for(self, sequences: Sequence[SequenceRows], page_size: int) -> bool:
        """Whether these rows are what was computed."""
        if len(sequences) != len(self.before.sequences):
            return False
        known = zip(self.before.sequences, self.before.continuations(), self.pages, strict=True)
        for rows, (past, then, pages) in zip(sequences, known, strict=True):
            is_next = (
                rows.slot == past.slot
                and rows.first_position == then.position
                and rows.token_ids == (then.token, *then.drafted[: self.num_rows - 1])
                and rows.num_sampled == self.num_rows == len(rows.token_ids)
                and rows.seed == past.seed
                and rows.sampling == past.sampling
                and not needs_masks(rows)
            )
            if not is_next or any(
                rows.pages[place] != pages.get(place)
                for place in _places(rows.first_position, self.num_rows, page_size)
            ):
                return False
        return True


class OverlapScheduler:
    """Launches it, and tells whether it is what is wanted. One thread."""

    def __init__(
        self, steps: GraphRunner, page_size: int, context_length: int, num_heads: int
    ) -> None:
        self._steps = steps
        self._page_size = page_size
        self._context_length = context_length
        self.num_drafted = num_heads
        self._ahead: _Ahead | None = None

    @property
    def lookahead(self) -> int:
        """Tokens behind those of a step for which it wants room: the rows of the next step, the
        first of which may stand as far behind as all drafts are right."""
        return 1 + self.num_drafted

    def forget(self) -> None:
        """What was launched is for nobody."""
        self._ahead = None

    def take(self, sequences: tuple[SequenceRows, ...]) -> LaunchedStep | None:
        """What was launched, if it is this; the next is then ahead."""
        ahead = self._ahead
        if ahead is None or not ahead.is_for(sequences, self._page_size):
            return None
        group = LaunchedStep(sequences, ahead.group.answer, ahead.group.num_queries)
        self._follow(group, ahead.step, ahead.choice, ahead.num_rows)
        return group

    def after(self, group: LaunchedStep) -> None:
        """Go on behind a step that was launched, if it continued replies the usual way."""
        sequences = group.sequences
        num_rows = len(sequences[0].token_ids)
        is_usual = all(len(rows.token_ids) == rows.num_sampled == num_rows for rows in sequences)
        if not is_usual or num_rows not in (1, 1 + self.num_drafted):
            return
        choice = self._steps.choice_for(sequences)
        if choice is not Choice.MASKED:
            step = self._steps.step_for(len(sequences), num_rows)
            self._follow(group, step, choice, num_rows)

    def _follow(self, group: LaunchedStep, step: DecodeStep, choice: Choice, num_rows: int) -> None:
        """Launch what comes after these sequences, where there is room for it."""
        self._ahead = None
        known: list[dict[int, int]] = []
        for rows in group.sequences:
            # The next rows begin behind the first of these, or as late as behind the last.
            first, count = rows.first_position + 1, 2 * num_rows - 1
            places = _places(first, count, self._page_size)
            is_beyond = first + count > self._context_length or places[-1] >= len(rows.pages)
            if is_beyond:
                return
            known.append({place: rows.pages[place] for place in places})
        for seq, pages in enumerate(known):
            for place, page in pages.items():
                step.inputs.set_page(seq, place, page)
        following = self._steps.replay(step, choice, group.sequences)
        self._ahead = _Ahead(group, num_rows, tuple(known), following, choice, step)


def _places(first_position: int, num_rows: int, page_size: int) -> range:
    """Places in a table of so many rows' pages."""
    return range(first_position // page_size, (first_position + num_rows - 1) // page_size + 1)
