"""Overlap scheduling: launches the likely next decode step before the engine asks for it.

When a step has been launched that continues replies, the next one is launched behind it at once:
the tokens that it needs are on the device already. If the engine's next plan is exactly that, as it
is unless a reply ends, is cancelled, or others join, its result is under way and the device never
waited for the host. If not, only the time of a step is lost: it wrote keys and values behind what
any sequence holds, in pages that the sequence owned when it was launched, and the next step that
uses these positions writes them first.

A plan is the step that was launched ahead if it continues the same sequences, in the same order,
the same way, with the tokens that the step before chose (and drafted, where there are heads), at
the positions that follow, in the pages that were known.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from llm_engine.backends.base import SequenceRows

from .graph_runner import Choice, DecodeStep, GraphRunner, LaunchedStep
from .logit_masks import needs_masks


@dataclass(frozen=True, slots=True)
class _StepAhead:
    """A step that was launched before the engine asked for it."""

    before: LaunchedStep
    """The step that it follows."""
    num_rows: int
    """Rows of each sequence: 1, or one more than there are heads."""
    pages: tuple[dict[int, int], ...]
    """Pages in which each sequence's rows may stand, by index in the block table."""
    launched: LaunchedStep
    choice: Choice
    step: DecodeStep

    def matches(self, sequences: Sequence[SequenceRows], page_size: int) -> bool:
        """True if this step computes exactly these rows."""
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
                rows.pages[index] != pages.get(index)
                for index in _page_indices(rows.first_position, self.num_rows, page_size)
            ):
                return False
        return True


class OverlapScheduler:
    """Launches the next step ahead, and recognizes the plan that asks for it. One thread."""

    def __init__(
        self, runner: GraphRunner, page_size: int, context_length: int, num_heads: int
    ) -> None:
        self._runner = runner
        self._page_size = page_size
        self._context_length = context_length
        self.num_drafted = num_heads
        self._ahead: _StepAhead | None = None

    @property
    def lookahead(self) -> int:
        """Tokens behind those of a step for which pages should be reserved: the rows of the next
        step, the first of which may stand as far behind as all drafts are right."""
        return 1 + self.num_drafted

    def discard(self) -> None:
        """Forget the step that was launched ahead."""
        self._ahead = None

    def take(self, sequences: tuple[SequenceRows, ...]) -> LaunchedStep | None:
        """Return the step that was launched ahead if it is this one, and launch the next behind."""
        ahead = self._ahead
        if ahead is None or not ahead.matches(sequences, self._page_size):
            return None
        launched = LaunchedStep(sequences, ahead.launched.tokens, ahead.launched.num_queries)
        self._launch_next(launched, ahead.step, ahead.choice, ahead.num_rows)
        return launched

    def after(self, launched: LaunchedStep) -> None:
        """Launch the next step behind this one, if it is a decode step without masks."""
        sequences = launched.sequences
        num_rows = len(sequences[0].token_ids)
        is_decode = all(len(rows.token_ids) == rows.num_sampled == num_rows for rows in sequences)
        if not is_decode or num_rows not in (1, 1 + self.num_drafted):
            return
        choice = self._runner.choice_for(sequences)
        if choice is not Choice.MASKED:
            step = self._runner.step_for(len(sequences), num_rows)
            self._launch_next(launched, step, choice, num_rows)

    def _launch_next(
        self, launched: LaunchedStep, step: DecodeStep, choice: Choice, num_rows: int
    ) -> None:
        """Launch the step that continues these sequences, where their pages have room for it."""
        self._ahead = None
        known: list[dict[int, int]] = []
        for rows in launched.sequences:
            # The next rows begin behind the first of these, or as late as behind the last.
            first, count = rows.first_position + 1, 2 * num_rows - 1
            indices = _page_indices(first, count, self._page_size)
            if first + count > self._context_length or indices[-1] >= len(rows.pages):
                return
            known.append({index: rows.pages[index] for index in indices})
        for seq, pages in enumerate(known):
            for index, page in pages.items():
                step.inputs.set_page(seq, index, page)
        following = self._runner.replay(step, choice, launched.sequences)
        self._ahead = _StepAhead(launched, num_rows, tuple(known), following, choice, step)


def _page_indices(first_position: int, num_rows: int, page_size: int) -> range:
    """Indices in the block table of the pages of these rows."""
    return range(first_position // page_size, (first_position + num_rows - 1) // page_size + 1)
