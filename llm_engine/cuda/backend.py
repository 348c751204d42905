"""The decoder on one GPU: captured steps of fixed sizes, launched one ahead.

Theory of operation
-------------------
*Steps.* A plan is cut into steps of captured sizes (`steps/batching.py`): up to eight sequences
with a row each, one sequence with up to eight rows (a draft to verify, the end of a prompt), or a
prefill chunk. Up to eight rows results are batch-invariant: see `ops/interface.py`.

*Overlap.* The next decode step is launched before the engine asks for it: see `steps/overlap.py`.

*Draft heads*, where there are any, draft in the graph that has chosen, for the next step to verify:
`drafted` returns their draft to the engine.

Everything runs on one stream in the order of launches. All calls come from one thread.
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
from llm_engine.cuda.megakernel.kernel import Launcher, megakernel_or_none
from llm_engine.cuda.model import Scratch
from llm_engine.cuda.ops.interface import MAX_ROWS, LayerPages, Ops
from llm_engine.cuda.steps.batching import PROMPT_ROWS, split_plan
from llm_engine.cuda.steps.draft_heads import DeviceHeads
from llm_engine.cuda.steps.graph_runner import (
    Continuation,
    GraphRunner,
    Graphs,
    LaunchedStep,
    StepContext,
)
from llm_engine.cuda.steps.logit_masks import MaskBuffers
from llm_engine.cuda.steps.overlap import OverlapScheduler
from llm_engine.errors import DeviceLostError
from llm_engine.models.medusa_heads import DraftHeads

from .device import Fault, fault_of
from .model import DeviceModel

PAGE_SIZE = 16
"""Tokens in a page: the smallest that FlashInfer's decode kernels read."""


@contextlib.contextmanager
def _raising_device_lost() -> Iterator[None]:
    """Turn errors that leave the CUDA context unusable into DeviceLostError."""
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
    steps: tuple[LaunchedStep, ...]


class CudaBackend:
    """The decoder on one GPU."""

    def __init__(  # noqa: PLR0913
        self,
        model: DeviceModel,
        ops: Ops,
        graphs: Graphs,
        *,
        num_pages: int,
        cache_dtype: torch.dtype,
        heads: DraftHeads | None = None,
        launcher: Launcher | None = None,
        prompt_rows: Sequence[int] = PROMPT_ROWS,
        on_progress: Callable[[float], None] = lambda share: None,
    ) -> None:
        """Allocate all memory that will ever be needed, and capture every step. Weights lie on the
        device already. `launcher`: of the kernel that runs all layers of up to eight rows, where
        it serves the model; None: a kernel for each operation. `prompt_rows`: sizes of prefill
        steps, ascending, the last at least 8. `on_progress` is called with the share of steps that
        is captured."""
        self._graphs = graphs
        self._longest = prompt_rows[-1]
        self._next_slot = 0
        self._continuations: dict[Slot, Continuation] = {}
        with torch.inference_mode(), graphs.running():
            self._cache = _empty_cache(model, num_pages, cache_dtype)
            context = _step_context(
                model, ops, graphs, self._cache, prompt_rows[-1], heads, launcher
            )
            context_length = model.rope.cos.shape[0]
            table_length = -(-context_length // PAGE_SIZE)
            self._runner = GraphRunner(context, table_length, prompt_rows, on_progress)
        num_heads = 0 if heads is None else heads.shape.num_heads
        self._overlap = OverlapScheduler(self._runner, PAGE_SIZE, context_length, num_heads)
        self._layout = CacheLayout(PAGE_SIZE, num_pages, True, self._overlap.lookahead)

    @property
    def layout(self) -> CacheLayout:
        return self._layout

    def open_slot(self) -> Slot:
        self._next_slot += 1
        return Slot(self._next_slot)

    def close_slot(self, slot: Slot) -> None:
        """Forget the sequence; its pages may be reused."""
        self._continuations.pop(slot, None)

    def copy_prefix(self, source: Slot, target: Slot, num_tokens: int) -> None:
        """Do nothing: the tokens lie in pages that both list."""

    def launch(self, plan: Plan) -> StepHandle:
        with _raising_device_lost(), torch.inference_mode(), self._graphs.running():
            return self._launched(plan)

    def _launched(self, plan: Plan) -> "_Launched":
        parts = [
            part for each in plan.sub_batches for part in split_plan(each.sequences, self._longest)
        ]
        if len(parts) == 1 and not plan.copies:
            known = self._overlap.take(parts[0])
            if known is not None:
                return _Launched(plan, (known,))
        self._overlap.discard()
        self._copy(plan.copies)
        launched = tuple(self._runner.launch(part) for part in parts)
        if len(parts) == 1:
            self._overlap.after(launched[0])
        return _Launched(plan, launched)

    def collect(self, handle: StepHandle) -> StepResult:
        assert isinstance(handle, _Launched)
        tokens: dict[Slot, tuple[int, ...]] = {}
        with _raising_device_lost():
            for step in handle.steps:
                for rows, chosen in step.chosen():
                    tokens[rows.slot] = tokens.get(rows.slot, ()) + chosen
                for rows, then in zip(step.sequences, step.continuations(), strict=False):
                    self._continuations[rows.slot] = then
        return StepResult(tokens)

    @property
    def num_drafted(self) -> int:
        return self._overlap.num_drafted

    def drafted(self, slot: Slot, position: int) -> tuple[int, ...]:
        then = self._continuations.get(slot)
        return then.drafted if then is not None and then.position == position else ()

    def cache_bytes(self) -> int:
        return self._cache.nbytes

    def close(self) -> None:
        """Wait for what was launched and release the graphs: libraries whose work was captured
        can't shut down before."""
        self._graphs.release()

    def logits(self, rows: SequenceRows) -> Tensor:
        """Logits `[num_sampled, vocab]` after the last rows, on the host: for tests and benches."""
        self._overlap.discard()
        with torch.inference_mode(), self._graphs.running():
            return self._runner.logits(rows)

    def _copy(self, copies: Sequence[PageCopy]) -> None:
        for each in copies:
            self._cache[:, :, each.target] = self._cache[:, :, each.source]


def _empty_cache(model: DeviceModel, num_pages: int, dtype: torch.dtype) -> Tensor:
    """KV cache of all layers, `[layers, 2, pages, kv_heads, page_size, head_dim]`."""
    config, device = model.config, model.embedding.device
    shape = config.num_layers, 2, num_pages, config.num_kv_heads, PAGE_SIZE, config.head_dim
    return torch.zeros(shape, dtype=dtype, device=device)


def _step_context(
    model: DeviceModel,
    ops: Ops,
    graphs: Graphs,
    cache: Tensor,
    longest: int,
    heads: DraftHeads | None,
    launcher: Launcher | None,
) -> StepContext:
    vocab_size, device = model.config.vocab_size, model.embedding.device
    layers = [LayerPages(keys, values) for keys, values in cache]
    scratch = Scratch(model, longest)
    logits = torch.zeros(MAX_ROWS, vocab_size, device=device)
    return StepContext(
        model=model,
        ops=ops,
        cache=layers,
        scratch=scratch,
        logits=logits,
        masks=MaskBuffers(MAX_ROWS, vocab_size, device),
        graphs=graphs,
        heads=None if heads is None else DeviceHeads(heads, model),
        megakernel=megakernel_or_none(model, layers, scratch, logits, launcher),
    )
