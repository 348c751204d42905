"""Loads a checkpoint onto one GPU, or onto several (tensor parallel)."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from llm_engine.backends.base import Backend
from llm_engine.checkpoints.checkpoint import Checkpoint
from llm_engine.checkpoints.load import load_checkpoint
from llm_engine.config import EngineConfig, ModelConfig, Precision
from llm_engine.cuda.ops.interface import Ops, PartOps
from llm_engine.cuda.steps.batching import PROMPT_ROWS
from llm_engine.cuda.steps.draft_heads import heads_bytes
from llm_engine.cuda.steps.graph_runner import CudaGraphs
from llm_engine.cuda.tensor_parallel.group import ProcessGroup, lead
from llm_engine.cuda.tensor_parallel.ops import ParallelOps
from llm_engine.cuda.tensor_parallel.sharding import Shard
from llm_engine.errors import ModelError
from llm_engine.models.calibration_text import read_text
from llm_engine.models.medusa_heads import load_heads

from .backend import PAGE_SIZE, CudaBackend
from .device import FP8_CAPABILITY, require_device
from .memory import MemoryBudget, Storage, plan_memory
from .weights import WeightFormat, int4_storage, load_model

_WEIGHTS_SHARE = 0.6
"""Share of the weights in the time of loading; the rest is graph capture."""

_BYTES = {Precision.BFLOAT16: 2, Precision.FP8: 1}
_CACHE_TYPES = {Precision.BFLOAT16: torch.bfloat16, Precision.FP8: torch.float8_e4m3fn}

_CALIBRATION_CHARS = 64 << 10
"""Characters of the calibration text, some 16,000 tokens: more than a layer has inputs."""
_PIECE = 1024
"""Tokens of the text in one forward pass."""

Progress = Callable[[float], None]


def load_backend(
    checkpoint: Checkpoint, config: EngineConfig, context_length: int, on_progress: Progress
) -> Backend:
    """Load the model. Raises ModelError without a suitable GPU, or without room on it, before
    anything is loaded."""
    if config.num_gpus > 1 and config.draft_heads is not None:
        raise ModelError("draft heads work on one GPU; leave them out, or set gpus to 1")
    if config.num_gpus > 1 and config.megakernel:
        raise ModelError("megakernel works on one GPU; leave it out, or set gpus to 1")
    if config.num_gpus == 1:
        return _load(checkpoint, config, context_length, None, on_progress)()
    make = partial(_load_rank, checkpoint.path, config, context_length)

    def make_own(team: ProcessGroup) -> Callable[[], CudaBackend]:
        shard = Shard(team.rank, team.count)
        return _load(checkpoint, config, context_length, shard, on_progress)

    return lead(config.num_gpus, "nccl", make, make_own=make_own)


def _load_rank(
    path: Path, config: EngineConfig, context_length: int, team: ProcessGroup
) -> Callable[[], CudaBackend]:
    """Load a follower's part, in its own process."""
    shard = Shard(team.rank, team.count)
    return _load(load_checkpoint(path), config, context_length, shard, lambda share: None)


def _load(
    checkpoint: Checkpoint,
    config: EngineConfig,
    context_length: int,
    shard: Shard | None,
    on_progress: Progress,
) -> Callable[[], CudaBackend]:
    """Load the weights; returns the function that captures the steps and makes the backend."""
    index = 0 if shard is None else shard.rank
    needs_fp8 = Precision.FP8 in (config.precision, config.head_precision)
    device = require_device(index=index, needs_fp8=needs_fp8)
    local = checkpoint.config if shard is None else shard.local(checkpoint.config)
    # As on a CPU, what is not in 4 bits has 8, where the GPU converts these by an instruction.
    has_fp8 = device.capability >= FP8_CAPABILITY
    rest = Precision.FP8 if has_fp8 else Precision.BFLOAT16
    weight_format = WeightFormat(body=config.precision, head=config.head_precision, rest=rest)
    heads = None if config.draft_heads is None else load_heads(config.draft_heads, checkpoint)
    budget = MemoryBudget(
        device.free_bytes,
        PAGE_SIZE,
        context_length,
        config.kv_cache_mb << 20,
        draft_bytes=0 if heads is None else heads_bytes(heads.shape),
    )
    storage = _storage(checkpoint, weight_format, _BYTES[config.kv_precision])
    plan = plan_memory(local, storage, budget, name=checkpoint.path.name)
    torch.cuda.set_device(index)
    place = torch.device("cuda", index)
    model = load_model(
        checkpoint,
        weight_format,
        place,
        context_length=context_length,
        shard=shard,
        calibration=_calibration(checkpoint, config),
        on_progress=lambda share: on_progress(_WEIGHTS_SHARE * share),
    )

    def finish() -> CudaBackend:
        # Imported only where there is a GPU: they need Triton.
        from llm_engine.cuda.megakernel.compiled import launcher_or_none
        from llm_engine.cuda.ops.flashinfer_attention import xqa_or_none
        from llm_engine.cuda.ops.triton_ops import TritonOps

        ops = TritonOps(place, attention=xqa_or_none(place))
        launcher = launcher_or_none(model, place) if config.megakernel else None
        return CudaBackend(
            model,
            ops if shard is None else _parallel_ops(ops, shard, checkpoint.config, place),
            CudaGraphs(place),
            num_pages=plan.num_pages,
            cache_dtype=_CACHE_TYPES[config.kv_precision],
            heads=heads,
            launcher=launcher,
            on_progress=lambda share: on_progress(_WEIGHTS_SHARE + (1 - _WEIGHTS_SHARE) * share),
        )

    return finish


def _parallel_ops(ops: PartOps, shard: Shard, config: ModelConfig, place: torch.device) -> Ops:
    shape = PROMPT_ROWS[-1], config.hidden_size
    hidden = torch.zeros(shape, dtype=torch.bfloat16, device=place)
    return ParallelOps(ops, shard.vocab_rows(config), hidden)


def _storage(checkpoint: Checkpoint, weight_format: WeightFormat, kv_bytes: int) -> Storage:
    """What the memory plan counts: formats of the matrices as `load_model` will make them."""
    if weight_format.body is not Precision.INT4:
        body, head = weight_format.body, weight_format.head_precision
        return Storage(_BYTES[body], _BYTES[head], kv_bytes)
    return Storage(
        _BYTES[weight_format.rest],
        _BYTES[weight_format.head or weight_format.rest],
        kv_bytes,
        int4=int4_storage(checkpoint, weight_format),
    )


def _calibration(checkpoint: Checkpoint, config: EngineConfig) -> list[list[int]]:
    """Token ids of the calibration text, in chunks. Raises ModelError where it can't be read."""
    path = config.calibration
    is_made = config.precision is Precision.INT4 and not checkpoint.has_int4_layers
    if path is None and is_made:
        return [list(ids) for ids in read_text(checkpoint, None).sequences]
    if path is None:
        return []
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise ModelError(f"{path}: cannot be read as the calibration's text: {error}") from None
    ids = list(checkpoint.tokenizer.encode(text[:_CALIBRATION_CHARS]))
    if not ids:
        raise ModelError(f"{path}: there is no text to calibrate with")
    return [ids[start : start + _PIECE] for start in range(0, len(ids), _PIECE)]
