"""Steps of a fixed size, each recorded once: from the host's word to the tokens chosen."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial

import torch
from torch import Tensor

from llm_engine.cuda.device_heads import DeviceHeads
from llm_engine.cuda.forward import Scratch, hidden_states
from llm_engine.cuda.graphs import Graphs
from llm_engine.cuda.lanes import Lanes
from llm_engine.cuda.masks import MaskBuffers
from llm_engine.cuda.model import DeviceModel
from llm_engine.cuda.ops import LayerPages, Ops, Rows
from llm_engine.cuda.sampling import likeliest, masked, sampled


class Choice(Enum):
    """How a step chooses. Each is a graph of its own: most steps need the least."""

    GREEDY = auto()
    SAMPLED = auto()
    MASKED = auto()
    """What the host forbids is left out first; greedy rows may stand beside others."""


@dataclass(frozen=True, slots=True)
class Machinery:
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

    def choose(self, hidden: Tensor, positions: Tensor, lanes: Lanes, choice: Choice) -> Tensor:
        """A token after each row of `hidden [M, hidden]`: `[M]` int64."""
        num_rows = hidden.shape[0]
        logits = self.logits[:num_rows]
        self.ops.logits(hidden, self.model.norm, self.model.head, logits)
        if choice is Choice.GREEDY:
            return likeliest(logits)
        if choice is Choice.MASKED:
            logits = masked(logits, self.masks.rows(num_rows))
        return sampled(logits, lanes.sampling(positions))

    def hidden(self, token_ids: Tensor, rows: Rows) -> Tensor:
        return hidden_states(self.model, self.ops, self.cache, token_ids, rows, self.scratch)


class DecodeStep:
    """A token after each of up to eight rows: `lanes.num_lanes` sequences of `num_queries` rows."""

    def __init__(self, machinery: Machinery, lanes: Lanes, num_queries: int) -> None:
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
        self._replays = _captured(machinery.graphs, self._run)

    def replay(self, choice: Choice) -> None:
        """Run on what the lanes hold, and leave in them what the next step needs."""
        self._replays[choice]()

    def _run(self, choice: Choice) -> None:
        token_ids, rows = self.lanes.rows(self.num_queries)
        hidden = self._machinery.hidden(token_ids, rows)
        chosen, drafted = self.out.tensor_split((self.num_queries,), dim=1)
        tokens = self._machinery.choose(hidden, rows.positions, self.lanes, choice)
        chosen.copy_(tokens.view_as(chosen))
        last = self.lanes.advance(chosen)
        if self._heads is not None:
            row, token = hidden.index_select(0, last), self.lanes.first_token()
            self._heads.draft(self._machinery.ops, row, token, drafted)
            self.lanes.expect(drafted)


class PromptStep:
    """Part of one sequence's prompt; a token behind its last row, if one is wanted."""

    def __init__(self, machinery: Machinery, lanes: Lanes, sizes: Sequence[int]) -> None:
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
        token_ids, rows = self.lanes.rows(size)
        hidden = self._machinery.hidden(token_ids, rows)
        last = self.lanes.last_row()
        torch.index_select(hidden, 0, last, out=self._last)
        torch.index_select(rows.positions, 0, last, out=self._position)

    def _choose(self, choice: Choice) -> None:
        chosen = self._machinery.choose(self._last, self._position, self.lanes, choice)
        token, drafted = self.out.tensor_split((1,), dim=1)
        token.copy_(chosen.view(1, 1))
        heads = self._machinery.heads
        if heads is not None:
            heads.draft(self._machinery.ops, self._last, token[0], drafted)


def _captured(graphs: Graphs, run: Callable[[Choice], None]) -> dict[Choice, Callable[[], None]]:
    return {choice: graphs.capture(partial(run, choice)) for choice in Choice}
