"""Device and models under test: one model is on the device at a time."""

import gc
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from llm_engine.backends.base import PageId
from llm_engine.config import ModelConfig, Precision, SamplingParams
from llm_engine.cuda import memory
from llm_engine.cuda.backend import PAGE_SIZE, CudaBackend
from llm_engine.cuda.device import FP8_CAPABILITY, Device
from llm_engine.cuda.megakernel.compiled import launcher_or_none
from llm_engine.cuda.megakernel.kernel import Launcher
from llm_engine.cuda.memory import Int4Storage, MemoryBudget, Storage, plan_memory
from llm_engine.cuda.model import DeviceModel
from llm_engine.cuda.ops.interface import Ops
from llm_engine.cuda.quantization.quantize import BLOCK
from llm_engine.cuda.steps.graph_runner import CudaGraphs, EagerGraphs, Graphs
from llm_engine.cuda.weights import WeightFormat, int4_storage, load_model

from .driving import BackendSequence
from .random_weights import INT4_GROUP, SHAPES, random_model
from .targets import Bars, slowdown_of

if TYPE_CHECKING:
    from llm_engine.checkpoints.checkpoint import Checkpoint

TINY: Final = replace(
    SHAPES["1b"],
    num_layers=2,
    hidden_size=64,
    intermediate_size=96,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    vocab_size=320,
    context_length=8192,
    rope_scaling=None,
)
"""Shape of the model for a rehearsal without a GPU."""

FORMATS: Final = {
    "fp8": WeightFormat(Precision.FP8),
    "fp8-blocks": WeightFormat(Precision.FP8, block=BLOCK),
    "int4": WeightFormat(Precision.INT4, rest=Precision.FP8),
    "bfloat16": WeightFormat(),
}
"""Formats of weights by the names that `--precision` takes. 8-bit weights have a scale for each
row, or one for each block of 128 x 128, as in the official checkpoints of Qwen3 and DeepSeek.
Weights that a file has in 8 bits keep their scales. 4-bit ones have groups of 128 columns with zero
points, as in GPTQ and AWQ checkpoints, beside an LM head of 8 bits."""

_SEED: Final = 1


@dataclass(slots=True)
class DeviceUnderTest:
    """Device, with its limits as far as they are measured."""

    found: Device | None
    """GPU; None: a rehearsal on the CPU, whose figures are not valid."""
    bytes_a_s: float | None = None
    """Read bandwidth in bytes a second; None: not measured yet."""
    flops: dict[torch.dtype, float] = field(default_factory=dict)
    """Operations a second of large products, by the type of the factors."""
    num_steps: int = 10_000
    repeats: int = 20
    uses_megakernel: bool = False

    @property
    def is_gpu(self) -> bool:
        return self.found is not None

    @property
    def has_fp8(self) -> bool:
        """True if 8-bit floats are supported; the CPU emulates them."""
        return self.found is None or self.found.capability >= FP8_CAPABILITY

    @property
    def device(self) -> torch.device:
        return torch.device("cuda", self.found.index) if self.found else torch.device("cpu")

    @property
    def l2_bytes(self) -> int:
        return self.found.l2_bytes if self.found else 1 << 12

    def ops(self, *, flashinfer: bool = True, **options: Any) -> Ops:
        """Operations as in the service. `flashinfer=False`: attention by our own kernel.
        `options`: of `TritonOps`; ignored in a rehearsal."""
        if self.found is None:
            from llm_engine.cuda.ops.reference_ops import ReferenceOps

            return ReferenceOps()
        from llm_engine.cuda.ops.flashinfer_attention import xqa_or_none
        from llm_engine.cuda.ops.triton_ops import TritonOps

        attention = xqa_or_none(self.device) if flashinfer else None
        return TritonOps(self.device, attention=attention, **options)

    def launcher(self, model: DeviceModel) -> Launcher | None:
        """Launcher of the kernel for all layers, if it is measured."""
        if self.found is None or not self.uses_megakernel:
            return None
        return launcher_or_none(model, self.device)

    def graphs(self) -> Graphs:
        return CudaGraphs(self.device) if self.is_gpu else EagerGraphs()

    def synchronize(self) -> None:
        if self.is_gpu:
            torch.cuda.synchronize(self.device)


@dataclass(frozen=True, slots=True)
class Subject:
    """Model to measure."""

    shape: str
    """Key of `SHAPES` such as `8b`, or name of a file."""
    weights: WeightFormat
    config: ModelConfig
    checkpoint: "Checkpoint | None" = None
    """Checkpoint; None: random weights."""

    @property
    def name(self) -> str:
        return f"{self.shape} {next(name for name in FORMATS if FORMATS[name] == self.weights)}"

    @property
    def precision(self) -> Precision:
        return self.weights.body

    @property
    def multiplied(self) -> torch.dtype:
        """Type of both factors in the products of long prompts."""
        return torch.float8_e4m3fn if self.precision is Precision.FP8 else torch.bfloat16

    @property
    def storage(self) -> Storage:
        if self.precision is Precision.INT4 and self.checkpoint is not None:
            return Storage(1, 1, int4=int4_storage(self.checkpoint, self.weights))
        if self.precision is Precision.INT4:
            layers = (frozenset(memory.MATRICES),) * self.config.num_layers
            return Storage(1, 1, int4=Int4Storage(layers, group=INT4_GROUP))
        if self.precision is not Precision.FP8:
            return memory.BFLOAT16
        return replace(memory.FP8, scale_block=self.weights.block)

    def bars(self, target: DeviceUnderTest) -> Bars:
        slowdown = None if target.found is None else slowdown_of(target.found.name)
        return Bars(self.shape, self.precision.value, slowdown)


@dataclass(slots=True)
class LoadedModel:
    """Model on the device."""

    subject: Subject
    model: DeviceModel
    ops: Ops
    num_pages: int
    target: DeviceUnderTest
    launcher: Launcher | None = None
    _backend: CudaBackend | None = None

    @property
    def backend(self) -> CudaBackend:
        """Backend, made with its captured graphs at the first access."""
        if self._backend is None:
            self._backend = CudaBackend(
                self.model,
                self.ops,
                self.target.graphs(),
                num_pages=self.num_pages,
                cache_dtype=self.model.embedding.dtype,
                launcher=self.launcher,
            )
        return self._backend

    def session(self, sampling: SamplingParams | None = None) -> BackendSequence:
        """Make a sequence with pages for the whole context. `sampling` is greedy by default."""
        num_pages = -(-self.model.rope.cos.shape[0] // PAGE_SIZE)
        pages = [PageId(page) for page in range(num_pages)]
        vocab_size = self.subject.config.vocab_size
        return BackendSequence(
            self.backend, pages, vocab_size, sampling=sampling or SamplingParams()
        )

    def kv_bytes(self, num_tokens: int) -> int:
        return num_tokens * memory.token_bytes(self.subject.config, self.subject.storage)


@dataclass(slots=True)
class Lab:
    """Loader that keeps one model on the device and frees it when another one is requested."""

    target: DeviceUnderTest
    context_length: int
    on_progress: Callable[[str], None]
    _loaded: LoadedModel | None = None
    _failed: dict[str, Exception] = field(default_factory=dict)

    def loaded(self, subject: Subject) -> LoadedModel:
        """Load a model, unless it is loaded. Raises ModelError for one that does not fit, and any
        exception of loading, again at each request."""
        if subject.name in self._failed:
            raise self._failed[subject.name]
        if self._loaded is None or self._loaded.subject is not subject:
            self.clear()
            try:
                self._loaded = self._load(subject)
            except Exception as error:
                # Without the traceback, whose frames would keep the loaded tensors alive.
                self._failed[subject.name] = error.with_traceback(None)
                raise
        return self._loaded

    def clear(self) -> None:
        """Free all memory of the device."""
        self._loaded = None
        gc.collect()
        if self.target.is_gpu:
            torch.cuda.empty_cache()

    def _load(self, subject: Subject) -> LoadedModel:
        self.on_progress(f"loading {subject.name}")
        num_pages = self._num_pages(subject)
        weights, device = subject.weights, self.target.device
        if subject.checkpoint is None:
            model = random_model(
                subject.config, weights, device, seed=_SEED, context_length=self.context_length
            )
        else:
            model = load_model(
                subject.checkpoint, weights, device, context_length=self.context_length
            )
        launcher = self.target.launcher(model)
        return LoadedModel(subject, model, self.target.ops(), num_pages, self.target, launcher)

    def _num_pages(self, subject: Subject) -> int:
        """Number of pages for two sequences of the full context. Raises ModelError if the memory
        is too small."""
        num_pages = 2 * -(-self.context_length // PAGE_SIZE)
        if self.target.is_gpu:
            page = PAGE_SIZE * memory.token_bytes(subject.config, subject.storage)
            free_bytes, _ = torch.cuda.mem_get_info(self.target.device)
            room = MemoryBudget(free_bytes, PAGE_SIZE, self.context_length, num_pages * page)
            plan_memory(subject.config, subject.storage, room, name=subject.name)
        return num_pages


def random_subjects(shapes: list[str], formats: list[str]) -> list[Subject]:
    """Models with random weights: each shape in each of the formats."""
    known = SHAPES | {"tiny": TINY}
    return [Subject(shape, FORMATS[each], known[shape]) for shape in shapes for each in formats]


def file_subjects(path: Path, formats: list[str]) -> list[Subject]:
    """Model from disk in each of the formats. Raises ModelError."""
    from llm_engine.checkpoints.load import load_checkpoint

    checkpoint = load_checkpoint(path)
    return [Subject(path.name, FORMATS[each], checkpoint.config, checkpoint) for each in formats]
