"""Captured steps: CUDA graph capture and replay, the steps of fixed sizes, and the runner.

From the bottom up: `Graphs` captures work and replays it (`EagerGraphs` runs it uncaptured, on any
device); `DecodeStep` and `PrefillStep` are one captured step each, from the inputs that the host
sent to the chosen tokens; `GraphRunner` captures a step of every size at start and launches the one
that fits; a `LaunchedStep` is awaited for its tokens.

All memory is allocated at start. A step is one H2D copy of inputs (`StepInputs`), one graph replay
and one asynchronous D2H copy of tokens (`PendingTokens`).
"""

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from llm_engine.backends.base import SequenceRows
from llm_engine.cuda.megakernel.kernel import Megakernel
from llm_engine.cuda.model import DeviceModel, Scratch, hidden_states
from llm_engine.cuda.ops.interface import MAX_ROWS, LayerPages, Ops
from llm_engine.cuda.steps.batching import BATCH_SIZES, DRAFT_SIZES, split
from llm_engine.cuda.steps.draft_heads import DeviceHeads
from llm_engine.cuda.steps.logit_masks import MaskBuffers, needs_masks
from llm_engine.cuda.steps.step_inputs import StepInputs

Replay = Callable[[], None]

_WARM_UPS = 2
"""Runs before a capture: the first compiles kernels and lets libraries choose theirs."""


class Graphs(Protocol):
    """Captures and replays work of one thread."""

    def running(self) -> AbstractContextManager[object]:
        """Context in which all work is launched, captured or not: one stream, in order."""
        ...

    def capture(self, work: Callable[[], None]) -> Replay:
        """Run some work, and return a function that runs it again on the same tensors. The work may
        not allocate tensors that outlive it, nor read a tensor's values."""
        ...

    def release(self) -> None:
        """Wait for all launched work and free the graphs. Nothing may be replayed after that."""
        ...


class EagerGraphs:
    """Runs the work itself, without graphs: for CPUs and for debugging."""

    def running(self) -> AbstractContextManager[object]:
        return nullcontext()

    def capture(self, work: Callable[[], None]) -> Replay:
        work()
        return work

    def release(self) -> None:
        pass


class CudaGraphs:
    """CUDA graphs on one stream. They share one memory pool, as they never run at the same time.

    The stream is not the default one, which would synchronize with all other work on the device: a
    recognizer may run beside it.
    """

    def __init__(self, device: torch.device) -> None:
        torch.cuda.synchronize(device)  # the weights are loaded
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()
        self._captured: list[torch.cuda.CUDAGraph] = []

    def running(self) -> AbstractContextManager[object]:
        return torch.cuda.stream(self._stream)

    def capture(self, work: Callable[[], None]) -> Replay:
        with self.running():
            for _ in range(_WARM_UPS):
                work()
            self._stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        # Thread-local: other threads may load their models meanwhile.
        with (
            _without_garbage_collection(),
            torch.cuda.graph(
                graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
            ),
        ):
            work()
        with self.running():
            graph.replay()  # the first replay takes longer: it uploads the graph
            self._stream.synchronize()
        self._captured.append(graph)
        return graph.replay

    def release(self) -> None:
        self._stream.synchronize()
        for graph in self._captured:
            graph.reset()
        self._captured.clear()


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Keep the garbage collector off during a capture: garbage may hold page-locked memory, whose
    release records an event on the captured stream."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class PendingTokens:
    """Tokens of one step on their way to the host, in an asynchronous copy."""

    def __init__(self, chosen: Tensor) -> None:
        """Start to copy `chosen [B, Q]`, as it will be when all work launched so far is done."""
        is_cuda = chosen.device.type == "cuda"
        # Page-locked memory comes from torch's cache, which waits for copies under way.
        self._host = torch.empty(chosen.shape, dtype=chosen.dtype, pin_memory=is_cuda)
        self._host.copy_(chosen, non_blocking=True)
        self._arrived = torch.cuda.Event() if is_cuda else None  # type: ignore[no-untyped-call]
        if self._arrived is not None:
            self._arrived.record()
        self._tokens: list[list[int]] | None = None

    def wait(self) -> list[list[int]]:
        """Wait for the tokens of each sequence's rows. The thread waits without the GIL and spins:
        a wake-up would take longer than the rest of a short step."""
        if self._tokens is None:
            if self._arrived is not None:
                self._arrived.synchronize()
            self._tokens = self._host.tolist()
        return self._tokens


class Choice(Enum):
    """Way in which a step chooses tokens; greedy rows may stand beside sampled ones. Each is a
    graph of its own for every size of step, as most steps need the least. That costs three captures
    of each size at start, and the nodes of those graphs (`memory.MemoryBudget.num_graphs`)."""

    GREEDY = auto()
    SAMPLED = auto()
    MASKED = auto()
    """Sampled after the host's masks: grammars, penalties, banned tokens."""


@dataclass(frozen=True, slots=True)
class Forwarded:
    """Result of a forward pass over M rows."""

    hidden: Tensor
    """`[M, hidden]`: the residual stream behind the last layer, not yet normalized."""
    positions: Tensor
    """`[M]`, int32."""
    logits: Tensor | None = None
    """`[M, vocab]`, float32. None: they are still to be computed."""


@dataclass(frozen=True, slots=True)
class StepContext:
    """Model, cache and buffers that all steps of a backend share."""

    model: DeviceModel
    ops: Ops
    cache: list[LayerPages]
    scratch: Scratch
    logits: Tensor
    """Logits buffer `[rows, vocab]`, float32."""
    masks: MaskBuffers
    graphs: Graphs
    heads: DeviceHeads | None = None
    megakernel: Megakernel | None = None
    """Runs the layers of up to `MAX_ROWS` rows. None: a kernel for each operation does."""

    def forward(self, inputs: StepInputs, num_queries: int) -> Forwarded:
        """Forward pass of each sequence's first rows."""
        rows = inputs.rows(num_queries)
        embedded = self.scratch.hidden[: rows.positions.shape[0]]
        self.ops.step.embed(inputs.state, self.model.embedding, rows.positions, embedded)
        if self.megakernel is not None and len(embedded) <= MAX_ROWS:
            self.megakernel.run(rows)
            logits = self.logits[: len(embedded)] if self.megakernel.scores else None
            return Forwarded(embedded, rows.positions, logits)
        hidden = hidden_states(self.model, self.ops, self.cache, rows, self.scratch)
        return Forwarded(hidden, rows.positions)

    def score(self, forwarded: Forwarded) -> Tensor:
        """Logits `[M, vocab]` after each row."""
        if forwarded.logits is not None:
            return forwarded.logits
        logits = self.logits[: len(forwarded.hidden)]
        self.ops.logits(forwarded.hidden, self.model.norm, self.model.head, logits)
        return logits

    def choose(self, forwarded: Forwarded, inputs: StepInputs, choice: Choice, out: Tensor) -> None:
        """Choose a token after each row, into `out [B, Q]`, int32."""
        logits, positions = self.score(forwarded), forwarded.positions
        if choice is Choice.GREEDY:
            self.ops.step.likeliest(logits, out)
            return
        if choice is Choice.MASKED:
            self.ops.step.mask(logits, self.masks.rows(len(logits)))
        self.ops.step.sample(logits, positions, inputs.sampling, out)


class DecodeStep:
    """Captured step of up to eight rows, each with a token chosen after it: `inputs.num_seqs`
    sequences of `num_queries` rows."""

    def __init__(self, context: StepContext, inputs: StepInputs, num_queries: int) -> None:
        self._context = context
        self.inputs, self.num_queries = inputs, num_queries
        device = context.logits.device
        # Only a single sequence is drafted for.
        self._heads = context.heads if inputs.num_seqs == 1 else None
        num_drafted = 0 if self._heads is None else self._heads.count
        shape = inputs.num_seqs, num_queries + num_drafted
        self.out = torch.zeros(shape, dtype=torch.int32, device=device)
        """`[B, Q + drafted]`, on the device: tokens chosen after each row, and the heads' draft
        after the last that is certain."""
        self._last = torch.zeros(inputs.num_seqs, dtype=torch.int32, device=device)
        self._replays = _captured(context.graphs, self._run)

    def replay(self, choice: Choice) -> None:
        """Run on the inputs, and leave in them what the next step needs."""
        self._replays[choice]()

    def _run(self, choice: Choice) -> None:
        ops = self._context.ops
        forwarded = self._context.forward(self.inputs, self.num_queries)
        chosen, drafted = self.out.tensor_split((self.num_queries,), dim=1)
        self._context.choose(forwarded, self.inputs, choice, chosen)
        ops.step.advance(self.inputs.state, chosen, self._last)
        if self._heads is not None:
            row = forwarded.hidden.index_select(0, self._last)
            token = self.inputs.first_token()
            self._heads.draft(ops, row, token, drafted)
            self.inputs.expect(drafted)


class PrefillStep:
    """Captured prefill of a part of one prompt; chooses a token after its last row if wanted."""

    def __init__(self, context: StepContext, inputs: StepInputs, sizes: Sequence[int]) -> None:
        """`sizes`: numbers of rows, ascending; a part takes the first with room for it."""
        self._context = context
        self.inputs = inputs
        like = context.scratch.hidden
        self._last = torch.zeros(1, like.shape[1], dtype=like.dtype, device=like.device)
        self._position = torch.zeros(1, dtype=torch.int32, device=like.device)
        num_drafted = 0 if context.heads is None else context.heads.count
        self.out = torch.zeros(1, 1 + num_drafted, dtype=torch.int32, device=like.device)
        """`[1, 1 + drafted]`, on the device: the chosen token and the heads' draft."""
        graphs = context.graphs
        self._parts = {size: graphs.capture(partial(self._compute, size)) for size in sizes}
        self._ends = _captured(graphs, self._choose)

    def replay(self, num_rows: int, choice: Choice | None) -> None:
        """Run on the inputs. `choice` None: no token is chosen."""
        size = next(size for size in self._parts if size >= num_rows)
        self._parts[size]()
        if choice is not None:
            self._ends[choice]()

    def _compute(self, size: int) -> None:
        forwarded = self._context.forward(self.inputs, size)
        last = self.inputs.last_row()
        torch.index_select(forwarded.hidden, 0, last, out=self._last)
        torch.index_select(forwarded.positions, 0, last, out=self._position)

    def _choose(self, choice: Choice) -> None:
        token, drafted = self.out.tensor_split((1,), dim=1)
        self._context.choose(Forwarded(self._last, self._position), self.inputs, choice, token)
        heads = self._context.heads
        if heads is not None:
            heads.draft(self._context.ops, self._last, token[0], drafted)


def _captured(graphs: Graphs, run: Callable[[Choice], None]) -> dict[Choice, Callable[[], None]]:
    return {choice: graphs.capture(partial(run, choice)) for choice in Choice}


@dataclass(frozen=True, slots=True)
class Continuation:
    """Next token of a sequence after a step, and the draft behind it."""

    position: int
    """Position of the token that is certain."""
    token: int
    drafted: tuple[int, ...]
    """The heads' draft after it."""


@dataclass(frozen=True, slots=True)
class LaunchedStep:
    """A step on the device and its sequences."""

    sequences: tuple[SequenceRows, ...]
    tokens: PendingTokens | None
    """`num_queries` tokens of each sequence, and drafts. None: no token was wanted."""
    num_queries: int

    def chosen(self) -> Iterator[tuple[SequenceRows, tuple[int, ...]]]:
        """Wait for the step; yields the tokens chosen after each sequence's sampled rows."""
        found = [] if self.tokens is None else self.tokens.wait()
        for rows, tokens in zip(self.sequences, found, strict=False):
            end = min(self.num_queries, len(rows.token_ids))  # a prefill step has only the last
            yield rows, tuple(tokens[end - rows.num_sampled : end])

    def continuations(self) -> Iterator[Continuation]:
        """Wait for the step; yields each sequence's next token, as far as its draft was
        accepted."""
        found = [] if self.tokens is None else self.tokens.wait()
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
    """Captures a step of every size at start, and runs them. Memory is allocated here, once."""

    def __init__(
        self,
        context: StepContext,
        table_length: int,
        prompt_rows: Sequence[int],
        on_progress: Callable[[float], None],
    ) -> None:
        """`table_length`: pages of the longest sequence. `prompt_rows`: sizes of prefill steps,
        ascending. `on_progress` is called with the share that is captured."""
        self._context = context
        device = context.logits.device
        shapes = [(size, 1) for size in BATCH_SIZES[1:]] + [(1, queries) for queries in DRAFT_SIZES]
        single = StepInputs(1, MAX_ROWS, table_length, device)
        self._steps: dict[tuple[int, int], DecodeStep] = {}
        for number, (num_seqs, num_queries) in enumerate(shapes):
            on_progress(number / (len(shapes) + 1))
            inputs = single if num_seqs == 1 else StepInputs(num_seqs, 1, table_length, device)
            self._steps[num_seqs, num_queries] = DecodeStep(context, inputs, num_queries)
        on_progress(len(shapes) / (len(shapes) + 1))
        prompt = StepInputs(1, prompt_rows[-1], table_length, device)
        self._prefill = PrefillStep(context, prompt, prompt_rows)
        on_progress(1.0)

    def launch(self, sequences: tuple[SequenceRows, ...]) -> LaunchedStep:
        """Launch one of the steps of `batching.split_plan`."""
        num_rows = max(len(rows.token_ids) for rows in sequences)
        if num_rows > MAX_ROWS:
            return self._launch_prefill(sequences[0])
        step = self.step_for(len(sequences), num_rows)
        choice = self.choice_for(sequences)
        step.inputs.send(sequences)
        if choice is Choice.MASKED:
            self._context.masks.send(sequences, step.inputs.num_seqs, step.num_queries)
        return self.replay(step, choice, sequences)

    def replay(
        self, step: DecodeStep, choice: Choice, sequences: tuple[SequenceRows, ...]
    ) -> LaunchedStep:
        """Replay a step on the inputs that it holds."""
        step.replay(choice)
        is_wanted = any(rows.num_sampled for rows in sequences)
        return LaunchedStep(
            sequences, PendingTokens(step.out) if is_wanted else None, step.num_queries
        )

    def step_for(self, num_seqs: int, num_rows: int) -> DecodeStep:
        """The smallest step with room: several sequences have one row each."""
        if num_seqs == 1:
            return self._steps[1, next(size for size in DRAFT_SIZES if size >= num_rows)]
        return self._steps[next(size for size in BATCH_SIZES if size >= num_seqs), 1]

    def logits(self, rows: SequenceRows) -> Tensor:
        """Logits `[num_sampled, vocab]` after the last rows, on the host, without a graph."""
        found: list[Tensor] = []
        inputs = self._steps[1, 1].inputs
        for part in split(rows, MAX_ROWS):
            inputs.send([part])
            logits = self._context.score(self._context.forward(inputs, MAX_ROWS))
            first = len(part.token_ids) - part.num_sampled
            found.append(logits[first : len(part.token_ids)].cpu().clone())
        return torch.cat(found)

    def _launch_prefill(self, rows: SequenceRows) -> LaunchedStep:
        step = self._prefill
        last = replace(rows, token_ids=rows.token_ids[-1:])
        choice = self.choice_for([last]) if rows.num_sampled else None
        step.inputs.send([rows])
        if choice is Choice.MASKED:
            self._context.masks.send([last], 1, 1)
        step.replay(len(rows.token_ids), choice)
        return LaunchedStep((rows,), None if choice is None else PendingTokens(step.out), 1)

    @staticmethod
    def choice_for(sequences: Sequence[SequenceRows]) -> Choice:
        """The least that these sequences need: greedy, sampled, or masked."""
        if any(needs_masks(rows) for rows in sequences):
            return Choice.MASKED
        if all(rows.sampling.temperature == 0 for rows in sequences):
            return Choice.GREEDY
        return Choice.SAMPLED
