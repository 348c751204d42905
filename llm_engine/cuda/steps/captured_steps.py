"""Steps of a fixed size, each recorded once: from the host's word to the tokens chosen."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial

import torch
from torch import Tensor

from llm_engine.cuda.forward import Scratch, hidden_states
from llm_engine.cuda.model import DeviceModel
from llm_engine.cuda.ops.interface import LayerPages, Ops, Rows

from .cuda_graph import Graphs
from .draft_heads import DeviceHeads
from .logit_masks import MaskBuffers
from .step_inputs import StepInputs


class Choice(Enum):
    """How a step chooses; greedy rows may stand beside others. Each is a graph of its own for every
    size of step, as most need the least. That costs three runs of each size when they are recorded,
    and the nodes of those graphs (`memory.Room.num_graphs`)."""

    GREEDY = auto()
    SAMPLED = auto()
    MASKED = auto()
    """What the host forbids is left out first."""


@dataclass(frozen=True, slots=True)
class StepContext:
    """What all steps of a backend share."""

    model: DeviceModel
    ops: Ops
    cache: list[LayerPages]
    scratch: Scratch
    logits: Tensor
    """`[rows, vocab]`, float32."""
    masks: MaskBuffers
    graphs: Graphs
    heads: DeviceHeads | None = None

    def hidden(self, lanes: StepInputs, num_queries: int) -> tuple[Tensor, Rows]:
        """The residual stream `[M, hidden]` of each lane's first rows, and where they stand."""
        rows = lanes.rows(num_queries)
        embedded = self.scratch.hidden[: rows.positions.shape[0]]
        self.ops.lanes.embed(lanes.state, self.model.embedding, rows.positions, embedded)
        hidden = hidden_states(self.model, self.ops, self.cache, rows, self.scratch)
        return hidden, rows

    def score(self, hidden: Tensor) -> Tensor:
        """Logits `[M, vocab]` after each row of `hidden [M, hidden]`."""
        logits = self.logits[: hidden.shape[0]]
        self.ops.logits(hidden, self.model.norm, self.model.head, logits)
        return logits

    def choose(
        self, hidden: Tensor, positions: Tensor, lanes: StepInputs, choice: Choice, out: Tensor
    ) -> None:
        """A token after each row of `hidden [M, hidden]`, into `out [B, Q]`, int32."""
        logits = self.score(hidden)
        if choice is Choice.GREEDY:
            self.ops.lanes.likeliest(logits, out)
            return
        if choice is Choice.MASKED:
            self.ops.lanes.mask(logits, self.masks.rows(len(logits)))
        self.ops.lanes.sample(logits, positions, lanes.sampling, out)


class DecodeStep:
    """A token after each of up to eight rows: `lanes.num_lanes` sequences of `num_queries` rows."""

    def __init__(self, machinery: StepContext, lanes: StepInputs, num_queries: int) -> None:
        self._machinery = machinery
        self.lanes, self.num_queries = lanes, num_queries
        device = machinery.logits.device
        # Several sequences at once are not drafted for.
        self._heads = machinery.heads if lanes.num_lanes == 1 else None
        num_drafted = 0 if self._heads is None else self._heads.count
        shape = lanes.num_lanes, num_queries + num_drafted
        self.out = torch.zeros(shape, dtype=torch.int32, device=device)
        """`[B, Q + drafted]`, on the device: tokens chosen after each row, and what heads think
        follows the last that is certain."""
        self._last = torch.zeros(lanes.num_lanes, dtype=torch.int32, device=device)
        self._replays = _captured(machinery.graphs, self._run)

    def replay(self, choice: Choice) -> None:
        """Run on what the lanes hold, and leave in them what the next step needs."""
        self._replays[choice]()

    def _run(self, choice: Choice) -> None:
        ops = self._machinery.ops
        hidden, rows = self._machinery.hidden(self.lanes, self.num_queries)
        chosen, drafted = self.out.tensor_split((self.num_queries,), dim=1)
        self._machinery.choose(hidden, rows.positions, self.lanes, choice, chosen)
        ops.lanes.advance(self.lanes.state, chosen, self._last)
        if self._heads is not None:
            row, token = hidden.index_select(0, self._last), self.lanes.first_token()
            self._heads.draft(ops, row, token, drafted)
            self.lanes.expect(drafted)


class PromptStep:
    """Part of one sequence's prompt; a token behind its last row, if one is wanted."""

    def __init__(self, machinery: StepContext, lanes: StepInputs, sizes: Sequence[int]) -> None:
        """`sizes`: numbers of rows, ascending; a part takes the first that has room for it."""
        self._machinery = machinery
        self.lanes = lanes
        like = machinery.scratch.hidden
        self._last = torch.zeros(1, like.shape[1], dtype=like.dtype, device=like.device)
        self._position = torch.zeros(1, dtype=torch.int32, device=like.device)
        num_drafted = 0 if machinery.heads is None else machinery.heads.count
        self.out = torch.zeros(1, 1 + num_drafted, dtype=torch.int32, device=like.device)
        """`[1, 1 + drafted]`, on the device."""
        graphs = machinery.graphs
        self._parts = {size: graphs.capture(partial(self._read, size)) for size in sizes}
        self._ends = _captured(graphs, self._choose)

    def replay(self, num_rows: int, choice: Choice | None) -> None:
        """Run on what the lane holds. None: nothing is chosen."""
        size = next(size for size in self._parts if size >= num_rows)
        self._parts[size]()
        if choice is not None:
            self._ends[choice]()

    def _read(self, size: int) -> None:
        hidden, rows = self._machinery.hidden(self.lanes, size)
        last = self.lanes.last_row()
        torch.index_select(hidden, 0, last, out=self._last)
        torch.index_select(rows.positions, 0, last, out=self._position)

    def _choose(self, choice: Choice) -> None:
        token, drafted = self.out.tensor_split((1,), dim=1)
        self._machinery.choose(self._last, self._position, self.lanes, choice, token)
        heads = self._machinery.heads
        if heads is not None:
            heads.draft(self._machinery.ops, self._last, token[0], drafted)


def _captured(graphs: Graphs, run: Callable[[Choice], None]) -> dict[Choice, Callable[[], None]]:
    return {choice: graphs.capture(partial(run, choice)) for choice in Choice}
