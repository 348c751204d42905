"""The decoder on one GPU: graphs of fixed sizes, and the next step launched before it is asked for.

Theory of operation
-------------------
*Steps.* A plan is cut into groups, each the size of a recorded step: up to eight sequences with a
row each, one sequence with up to eight rows (a draft to be checked, the end of a prompt), or a part
of a prompt. Up to eight rows one arithmetic holds: see `ops.py`.

*One step ahead.* When a step has been launched that continues replies by one token each, the next
one is launched behind it at once: the tokens it needs are on the device already. If the engine's
next plan is just that, which it is unless a reply ends, is cut off, or others come in, its outcome
is under way and the device has never waited for the host. If not, nothing is lost but the time of
a step: it wrote keys and values behind what any sequence holds, in a page that the sequence owned
when it was launched, and whoever uses these places later writes them first.

A plan is the step that was launched ahead if it continues the same sequences, in the same order,
the same way, with the tokens that the step before chose, at the positions that follow, in the pages
that were known.

Everything runs on one stream in the order in which it was launched. All calls come from one thread.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from llm_engine.backends.base import (
    CacheLayout,
    PageCopy,
    Plan,
    SequenceRows,
    Slot,
    StepHandle,
    StepResult,
)
from llm_engine.cuda.answers import Answer
from llm_engine.cuda.device import Fault, fault_of
from llm_engine.cuda.forward import Scratch
from llm_engine.cuda.graphs import Graphs
from llm_engine.cuda.groups import PROMPT_ROWS, groups
from llm_engine.cuda.masks import MaskBuffers, needs_masks
from llm_engine.cuda.model import DeviceModel
from llm_engine.cuda.ops import MAX_ROWS, LayerPages, Ops
from llm_engine.cuda.recorded import Group, RecordedSteps, choice_for
from llm_engine.cuda.steps import Choice, DecodeStep, Machinery
from llm_engine.errors import DeviceLostError

PAGE_SIZE = 16
"""Tokens. The smallest that FlashInfer's kernels for single streams read."""


@contextlib.contextmanager
def _telling_of_loss() -> Iterator[None]:
    """Errors after which the device does nothing any more become DeviceLostError."""
    try:
        yield
    except RuntimeError as error:
        if fault_of(error) is Fault.LOST:
            first_line = str(error).partition("\n")[0]
            raise DeviceLostError(f"the GPU is lost: {first_line}") from error
        raise


@dataclass(frozen=True, slots=True)
class _Launched:
    plan: Plan
    groups: tuple[Group, ...]


@dataclass(frozen=True, slots=True)
class _Ahead:
    """A step that nobody has asked for yet."""

    sequences: tuple[SequenceRows, ...]
    """Those of the step before it."""
    before: Answer
    """What that step chose."""
    pages: tuple[int, ...]
    """Where each sequence's row stands."""
    step: DecodeStep
    choice: Choice
    answer: Answer

    def is_for(self, sequences: Sequence[SequenceRows]) -> bool:
        """Whether these rows are what was computed."""
        if len(sequences) != len(self.sequences):
            return False
        return all(
            rows.slot == known.slot
            and rows.first_position == known.first_position + 1
            and rows.token_ids == (tokens[0],)
            and rows.num_sampled == 1
            and rows.seed == known.seed
            and rows.sampling == known.sampling
            and not needs_masks(rows)
            and rows.pages[rows.first_position // PAGE_SIZE] == page
            for rows, known, tokens, page in zip(
                sequences, self.sequences, self.before.wait(), self.pages, strict=False
            )
        )


class CudaBackend:
    """See the module's text."""

    def __init__(
        self,
        model: DeviceModel,
        ops: Ops,
        graphs: Graphs,
        *,
        num_pages: int,
        cache_dtype: torch.dtype,
        prompt_rows: Sequence[int] = PROMPT_ROWS,
        on_progress: Callable[[float], None] = lambda share: None,
    ) -> None:
        """Takes all the memory it will ever need, and records every step. Weights lie on a device
        already, and all else goes there. `prompt_rows`: sizes of parts of prompts, ascending, the
        last one at least 8. `on_progress` hears which share is recorded."""
        config = model.config
        self._device = model.embedding.device
        self._context_length = model.rope.cos.shape[0]
        self._layout = CacheLayout(PAGE_SIZE, num_pages, shares_pages=True, lookahead=1)
        shape = config.num_layers, 2, num_pages, config.num_kv_heads, PAGE_SIZE, config.head_dim
        self._cache = torch.zeros(shape, dtype=cache_dtype, device=self._device)
        self._longest = prompt_rows[-1]
        self._next_slot = 0
        self._ahead: _Ahead | None = None
        table_length = -(-self._context_length // PAGE_SIZE)
        machinery = Machinery(
            model=model,
            ops=ops,
            cache=[LayerPages(keys, values) for keys, values in self._cache],
            scratch=Scratch(model, prompt_rows[-1]),
            logits=torch.zeros(MAX_ROWS, config.vocab_size, device=self._device),
            masks=MaskBuffers(MAX_ROWS, config.vocab_size, self._device),
            graphs=graphs,
        )
        with torch.inference_mode():
            self._steps = RecordedSteps(machinery, table_length, prompt_rows, on_progress)

    @property
    def layout(self) -> CacheLayout:
        return self._layout

    def open_slot(self) -> Slot:
        self._next_slot += 1
        return Slot(self._next_slot)

    def close_slot(self, slot: Slot) -> None:
        """Nothing to do: its pages may be used again."""

    def copy_prefix(self, source: Slot, target: Slot, num_tokens: int) -> None:
        """Nothing to do: it lies in pages that both list."""

    def launch(self, plan: Plan) -> StepHandle:
        with _telling_of_loss(), torch.inference_mode():
            return self._launched(plan)

    def _launched(self, plan: Plan) -> "_Launched":
        parts = [
            group for each in plan.sub_batches for group in groups(each.sequences, self._longest)
        ]
        if len(parts) == 1 and not plan.copies:
            known = self._take_ahead(parts[0])
            if known is not None:
                return _Launched(plan, (known,))
        self._ahead = None
        self._copy(plan.copies)
        launched = tuple(self._steps.launch(group) for group in parts)
        if len(parts) == 1:
            self._launch_ahead(launched[0])
        return _Launched(plan, launched)

    def collect(self, handle: StepHandle) -> StepResult:
        assert isinstance(handle, _Launched)
        tokens: dict[Slot, tuple[int, ...]] = {}
        for group in handle.groups:
            with _telling_of_loss():
                chosen = [] if group.answer is None else group.answer.wait()
            for rows, found in zip(group.sequences, chosen, strict=False):
                end = min(len(found), len(rows.token_ids))  # of a prompt there is only the last
                own = tuple(found[end - rows.num_sampled : end])
                tokens[rows.slot] = tokens.get(rows.slot, ()) + own
        return StepResult(tokens)

    def cache_bytes(self) -> int:
        return self._cache.nbytes

    @torch.inference_mode()
    def logits(self, rows: SequenceRows) -> Tensor:
        """`[num_sampled, vocab]` after the last rows, on the host: for tests and measurements."""
        self._ahead = None
        return self._steps.logits(rows)

    def _copy(self, copies: Sequence[PageCopy]) -> None:
        for each in copies:
            self._cache[:, :, each.target] = self._cache[:, :, each.source]

    # --- one step ahead ---

    def _take_ahead(self, sequences: tuple[SequenceRows, ...]) -> Group | None:
        """The step that was launched ahead, if it is this one; the next is then ahead."""
        ahead = self._ahead
        if ahead is None or not ahead.is_for(sequences):
            return None
        group = Group(sequences, ahead.answer)
        self._follow(group, ahead.step, ahead.choice)
        return group

    def _launch_ahead(self, group: Group) -> None:
        """After a step that continued replies by a token each."""
        sequences = group.sequences
        if any(len(rows.token_ids) > 1 or not rows.num_sampled for rows in sequences):
            return
        choice = choice_for(sequences)
        if choice is not Choice.MASKED:
            self._follow(group, self._steps.step_for(len(sequences), 1), choice)

    def _follow(self, group: Group, step: DecodeStep, choice: Choice) -> None:
        """Launch what comes after these sequences, where there is room for it."""
        self._ahead = None
        assert group.answer is not None
        places = [(rows.first_position + 1) // PAGE_SIZE for rows in group.sequences]
        for rows, place in zip(group.sequences, places, strict=True):
            if rows.first_position + 1 >= self._context_length or place >= len(rows.pages):
                return
        pages = [rows.pages[place] for rows, place in zip(group.sequences, places, strict=True)]
        for lane, (place, page) in enumerate(zip(places, pages, strict=True)):
            step.lanes.set_page(lane, place, page)
        step.replay(choice)
        answer = Answer(step.chosen)
        self._ahead = _Ahead(group.sequences, group.answer, tuple(pages), step, choice, answer)
