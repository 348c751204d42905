"""All steps of a backend, recorded at start: what runs a group of sequences."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from llm_engine.backends.base import SequenceRows
from llm_engine.cuda.ops.interface import MAX_ROWS

from .batching import LANES, QUERIES, split
from .captured_steps import Choice, DecodeStep, PromptStep, StepContext
from .logit_masks import needs_masks
from .step_inputs import StepInputs
from .token_copy import Answer


@dataclass(frozen=True, slots=True)
class Continuation:
    """How a sequence goes on behind a step."""

    position: int
    """Of the token that is certain."""
    token: int
    drafted: tuple[int, ...]
    """What heads think follows it."""


@dataclass(frozen=True, slots=True)
class Group:
    """Sequences of one step, on its way."""

    sequences: tuple[SequenceRows, ...]
    answer: Answer | None
    """None: nothing was to be chosen. Of each sequence `num_queries` tokens, and drafts."""
    num_queries: int

    def chosen(self) -> Iterator[tuple[SequenceRows, tuple[int, ...]]]:
        """Wait for the step: the tokens chosen after each sequence's sampled rows."""
        found = [] if self.answer is None else self.answer.wait()
        for rows, tokens in zip(self.sequences, found, strict=False):
            end = min(self.num_queries, len(rows.token_ids))  # of a prompt there is only the last
            yield rows, tuple(tokens[end - rows.num_sampled : end])

    def continuations(self) -> Iterator[Continuation]:
        """Wait for the step: how each sequence goes on, as far as its draft was right."""
        found = [] if self.answer is None else self.answer.wait()
        for (rows, chosen), tokens in zip(self.chosen(), found, strict=False):
            first_sampled = len(rows.token_ids) - rows.num_sampled
            draft = rows.token_ids[first_sampled + 1 :]
            right = 0
            while right < len(draft) and draft[right] == chosen[right]:
                right += 1
            position = rows.first_position + first_sampled + right + 1
            drafted = tuple(tokens[self.num_queries :])
            yield Continuation(position, chosen[right] if chosen else -1, drafted)


class GraphRunner:
    """A step for every size. Memory is taken when this is made, and never again."""

    def __init__(
        self,
        machinery: StepContext,
        table_length: int,
        prompt_rows: Sequence[int],
        on_progress: Callable[[float], None],
    ) -> None:
        """`table_length`: pages of the longest sequence. `prompt_rows`: sizes of parts of prompts,
        ascending. `on_progress` hears which share is recorded."""
        self._machinery = machinery
        device = machinery.logits.device
        shapes = [(lanes, 1) for lanes in LANES[1:]] + [(1, queries) for queries in QUERIES]
        lone = StepInputs(1, MAX_ROWS, table_length, device)
        self._steps: dict[tuple[int, int], DecodeStep] = {}
        for number, (num_lanes, num_queries) in enumerate(shapes):
            on_progress(number / (len(shapes) + 1))
            lanes = lone if num_lanes == 1 else StepInputs(num_lanes, 1, table_length, device)
            self._steps[num_lanes, num_queries] = DecodeStep(machinery, lanes, num_queries)
        on_progress(len(shapes) / (len(shapes) + 1))
        prompt = StepInputs(1, prompt_rows[-1], table_length, device)
        self._prompts = PromptStep(machinery, prompt, prompt_rows)
        on_progress(1.0)

    def launch(self, sequences: tuple[SequenceRows, ...]) -> Group:
        """Run one of `groups.groups`."""
        num_rows = max(len(rows.token_ids) for rows in sequences)
        if num_rows > MAX_ROWS:
            return self._launch_prompt(sequences[0])
        step = self.step_for(len(sequences), num_rows)
        choice = self.choice_for(sequences)
        step.lanes.send(sequences)
        if choice is Choice.MASKED:
            self._machinery.masks.send(sequences, step.lanes.num_lanes, step.num_queries)
        return self.replay(step, choice, sequences)

    def replay(
        self, step: DecodeStep, choice: Choice, sequences: tuple[SequenceRows, ...]
    ) -> Group:
        """Run a step on what its lanes hold."""
        step.replay(choice)
        is_wanted = any(rows.num_sampled for rows in sequences)
        return Group(sequences, Answer(step.out) if is_wanted else None, step.num_queries)

    def step_for(self, num_lanes: int, num_rows: int) -> DecodeStep:
        """The smallest that has room: several sequences have one row each."""
        if num_lanes == 1:
            return self._steps[1, next(size for size in QUERIES if size >= num_rows)]
        return self._steps[next(size for size in LANES if size >= num_lanes), 1]

    def logits(self, rows: SequenceRows) -> Tensor:
        """`[num_sampled, vocab]` after the last rows, on the host, without a graph."""
        found: list[Tensor] = []
        lanes = self._steps[1, 1].lanes
        for part in split(rows, MAX_ROWS):
            lanes.send([part])
            hidden, _ = self._machinery.hidden(lanes, MAX_ROWS)
            logits = self._machinery.score(hidden)
            first = len(part.token_ids) - part.num_sampled
            found.append(logits[first : len(part.token_ids)].cpu().clone())
        return torch.cat(found)

    def _launch_prompt(self, rows: SequenceRows) -> Group:
        step = self._prompts
        last = replace(rows, token_ids=rows.token_ids[-1:])
        choice = self.choice_for([last]) if rows.num_sampled else None
        step.lanes.send([rows])
        if choice is Choice.MASKED:
            self._machinery.masks.send([last], 1, 1)
        step.replay(len(rows.token_ids), choice)
        return Group((rows,), None if choice is None else Answer(step.out), 1)

    @staticmethod
    def choice_for(sequences: Sequence[SequenceRows]) -> Choice:
        """The least that these sequences need."""
        if any(needs_masks(rows) for rows in sequences):
            return Choice.MASKED
        if all(rows.sampling.temperature == 0 for rows in sequences):
            return Choice.GREEDY
        return Choice.SAMPLED
