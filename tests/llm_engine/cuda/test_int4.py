"""4-bit weights on a GPU: what is kept, what is made, and the replies of a whole model."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from llm_engine.backends.base import PageId, Plan, SequenceRows, SubBatch
from llm_engine.backends.cpu import CpuBackend
from llm_engine.checkpoints.checkpoint import Checkpoint
from llm_engine.checkpoints.load import load_checkpoint
from llm_engine.config import BackendName, EngineConfig, Precision, SamplingParams
from llm_engine.cuda import loading
from llm_engine.cuda.device import DeviceProbe
from llm_engine.cuda.memory import MATRICES, weight_bytes
from llm_engine.cuda.model import DeviceModel
from llm_engine.cuda.ops.int4_layout import pack, unpack
from llm_engine.cuda.ops.interface import Int4Weight, Matrix, Weight
from llm_engine.cuda.ops.reference_ops import dense
from llm_engine.cuda.quantization import emulation
from llm_engine.cuda.quantization.emulation import Arithmetic
from llm_engine.cuda.steps import draft_heads
from llm_engine.cuda.weights import WeightFormat, load_model
from llm_engine.engine import Engine
from llm_engine.errors import ModelError
from llm_engine.models.int4_rounding import GPU_GROUPS
from tests.support.fakes.int4_models import AWQ, GPTQ, LAYOUTS, configure, save_int4_model
from tests.support.fakes.llm_cuda import H200, on_cpu
from tests.support.fakes.llm_models import save_tiny_gguf, save_tiny_model
from tests.support.llm.int4_cases import INT4_KINDS, int4_matrix

ON_GPU = EngineConfig(precision=Precision.INT4, backend=BackendName.CUDA)
INT4 = WeightFormat(Precision.INT4, dtype=torch.float32)
WITH_FP8 = replace(INT4, rest=Precision.FP8)
CONTEXT = 200
each_layout = pytest.mark.parametrize("layout", LAYOUTS)
each_group = pytest.mark.parametrize("group", [32, 64, 128, -1])


def loaded(
    checkpoint: Checkpoint, weights: WeightFormat = INT4, text: list[list[int]] | None = None
) -> DeviceModel:
    return load_model(checkpoint, weights, "cpu", context_length=CONTEXT, calibration=text or ())


def matrices(model: DeviceModel, index: int = 0) -> dict[str, Weight]:
    layer = model.layers[index]
    found = (layer.attention.qkv, layer.out, layer.gate_up, layer.down)
    return dict(zip(MATRICES, found, strict=True))


def stored_bytes(model: DeviceModel) -> int:
    """Bytes of what the memory plan counts as weights, without rotary tables."""
    parts = [model.embedding, model.norm.weight]
    for layer in model.layers:
        parts += [layer.attention.norm.weight, layer.mlp_norm.weight]
    return sum(part.nbytes for part in parts) + model.step_bytes


@each_group
@each_layout
def test_a_checkpoint_in_4_bits_stays_so_code_for_code(
    tmp_path: Path, layout: str, group: int
) -> None:
    made = save_int4_model(tmp_path, layout, group)
    checkpoint = load_checkpoint(tmp_path)
    model = loaded(checkpoint, replace(WITH_FP8, dtype=torch.bfloat16))
    for index in range(2):
        for name, weight in matrices(model, index).items():
            assert isinstance(weight, Int4Weight), name
        down = unpack(matrices(model, index)["down"])  # type: ignore[arg-type]
        own = made[f"layers.{index}.mlp.down_proj.weight"]
        assert torch.equal(down.codes, torch.from_numpy(own.codes).to(torch.uint8))
    assert isinstance(model.head, Matrix)
    assert model.head.bits == 8, "floats in the file: the next larger format"
    storage = loading._storage(checkpoint, WITH_FP8, 2)
    assert storage.int4 is not None
    assert storage.int4.is_whole
    assert "int4 weights" in str(storage)
    assert stored_bytes(model) <= weight_bytes(checkpoint.config, storage)


def test_the_memory_plan_is_exact(tmp_path: Path) -> None:
    for layout in LAYOUTS:
        save_int4_model(tmp_path, layout, 64)
        checkpoint = load_checkpoint(tmp_path)
        storage = loading._storage(checkpoint, INT4, 2)
        model = loaded(checkpoint, replace(INT4, dtype=torch.bfloat16))
        assert stored_bytes(model) == weight_bytes(checkpoint.config, storage), layout


def replies(backend: object, length: int, count: int) -> list[int]:
    """Greedy tokens after a prompt."""
    assert hasattr(backend, "open_slot")
    slot = backend.open_slot()
    tokens, num_cached = [3 + index * index % 290 for index in range(length)], 0
    pages = [PageId(page) for page in range(14)]
    for _ in range(count):
        new = tuple(tokens[num_cached:])
        rows = SequenceRows(slot, new, num_cached, 1, SamplingParams(), 5, pages=pages)
        chosen = backend.collect(backend.launch(Plan((SubBatch((rows,)),)))).tokens[slot]  # type: ignore[attr-defined]
        num_cached = len(tokens)
        tokens += chosen
    return tokens[length:]


@each_layout
def test_replies_are_those_of_the_reference(tmp_path: Path, layout: str) -> None:
    """The steps and graphs of a GPU in plain torch, beside the CPU's float32 decoder."""
    save_int4_model(tmp_path, layout, 64)
    checkpoint = load_checkpoint(tmp_path)
    ours = on_cpu(checkpoint, context_length=CONTEXT, num_pages=14, weight_format=INT4)
    reference = CpuBackend(checkpoint, EngineConfig(), CONTEXT)
    for length in (5, 70):
        assert replies(ours, length, 20) == replies(reference, length, 20)


def test_q4_0_of_a_gguf_file_with_the_head_that_is_stored_so(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    save_tiny_model(tmp_path, "llama", hidden_size=128, intermediate_size=256)
    save_tiny_gguf(path, tmp_path, "Q4_0")
    checkpoint = load_checkpoint(path)
    model, exact = loaded(checkpoint), loaded(checkpoint, WeightFormat(dtype=torch.float32))
    kept = {name for name, each in matrices(model).items() if isinstance(each, Int4Weight)}
    assert kept == set(MATRICES)
    for index in range(checkpoint.config.num_layers):
        pairs = zip(matrices(model, index).values(), matrices(exact, index).values(), strict=True)
        for ours, theirs in pairs:
            assert isinstance(ours, Int4Weight)
            assert ours.offsets is None, "all zero points are 8"
            assert torch.equal(dense(ours), dense(theirs))
    assert isinstance(model.head, Int4Weight)
    assert torch.equal(dense(model.head), dense(exact.head))
    eight = loaded(checkpoint, replace(INT4, head=Precision.FP8))
    assert eight.head.bits == 8, "a setting of one's own wins"


def test_draft_heads_take_rows_of_a_head_in_4_bits() -> None:
    generator = torch.Generator().manual_seed(2)
    for kind in INT4_KINDS:
        head = pack(int4_matrix(60, 200, kind, generator))
        rows = torch.tensor([3, 7, 59])
        taken = draft_heads._rows(head, rows, torch.float32)
        assert isinstance(taken, Int4Weight)
        assert taken.scales.is_contiguous()
        assert torch.equal(dense(taken), dense(head)[rows])


def test_what_4_bits_do_not_hold_has_more(tmp_path: Path) -> None:
    """Inputs in another order: the groups are not consecutive columns."""
    save_int4_model(tmp_path, "gptq", 32)
    checkpoint = load_checkpoint(tmp_path)
    out_of_order = replace(checkpoint, read_int4=lambda name: None)
    model = loaded(out_of_order)
    assert all(weight.bits == 32 for weight in matrices(model).values())
    storage = loading._storage(out_of_order, INT4, 2)
    assert storage.int4 is not None
    assert set(storage.int4.layers) == {frozenset()}


@pytest.fixture(scope="module")
def floats(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    path: Path = tmp_path_factory.mktemp("floats")
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2}
    save_tiny_model(path, "qwen2", **sizes)
    return load_checkpoint(path)


def test_other_checkpoints_get_4_bits_where_the_cpu_makes_them(floats: Checkpoint) -> None:
    for text in ([], [[3 + index % 200 for index in range(150)]]):
        model = loaded(floats, WITH_FP8, text)
        for index in range(2):
            bits = {name: weight.bits for name, weight in matrices(model, index).items()}
            assert bits == {name: 4 if name in GPU_GROUPS else 8 for name in MATRICES}
        down = matrices(model)["down"]
        assert isinstance(down, Int4Weight)
        assert down.group == GPU_GROUPS["down"]
        assert down.scales.dtype == torch.float16, "chosen so that these hold them"
        assert model.head.bits == 4
    without = loaded(floats, INT4)
    assert matrices(without)["gate_up"].bits == 32
    storage = loading._storage(floats, WITH_FP8, 2)
    assert "int4 and FP8 weights" in str(storage)
    held = stored_bytes(loaded(floats, replace(WITH_FP8, dtype=torch.bfloat16)))
    assert held == weight_bytes(floats.config, storage)


def test_calibrated_weights_change_the_text_less(floats: Checkpoint) -> None:
    generator = torch.Generator().manual_seed(4)
    vocab = floats.config.vocab_size
    text = torch.randint(3, vocab, (CONTEXT,), generator=generator).tolist()

    def states(model: DeviceModel) -> Tensor:
        return emulation.hidden(model, torch.tensor(text), Arithmetic())

    exact = states(loaded(floats, WeightFormat(dtype=torch.float32)))
    nearest, calibrated = (
        float((states(loaded(floats, INT4, ids)) - exact).square().mean()) for ids in ([], [text])
    )
    assert calibrated < 0.8 * nearest


def test_a_text_is_read_only_where_something_is_made(floats: Checkpoint, tmp_path: Path) -> None:
    made = loading._calibration(floats, ON_GPU)
    assert sum(map(len, made)) > 1000
    save_int4_model(tmp_path, "gptq", 64)
    assert loading._calibration(load_checkpoint(tmp_path), ON_GPU) == []
    fp8 = EngineConfig(precision=Precision.FP8)
    assert loading._calibration(floats, fp8) == []


@pytest.mark.parametrize(
    ("quantization", "named"),
    [
        ({**GPTQ, "checkpoint_format": "marlin"}, "'marlin'"),
        ({**AWQ, "version": "gemv"}, "'gemv'"),
        ({**GPTQ, "bits": 3}, "3 bits"),
    ],
)
def test_layouts_that_are_not_known_are_refused_by_name(
    tmp_path: Path, quantization: dict[str, object], named: str
) -> None:
    save_int4_model(tmp_path, "gptq", 64)
    configure(tmp_path, {**quantization, "group_size": 64})
    with pytest.raises(ModelError, match=named):
        Engine.load(tmp_path, ON_GPU)


def probed(capability: tuple[int, int], free_bytes: int) -> Callable[[int], DeviceProbe]:
    device = replace(H200, capability=capability, free_bytes=free_bytes)
    found = DeviceProbe(H200.torch, H200.cuda, H200.triton, H200.driver, num_devices=1)
    return lambda index: replace(found, device=device)


@pytest.mark.parametrize(
    ("capability", "format_name"), [((9, 0), "int4 and FP8"), ((8, 0), "int4 and bfloat16")]
)
def test_what_does_not_fit_is_refused_with_the_arithmetic(
    floats: Checkpoint,
    monkeypatch: pytest.MonkeyPatch,
    capability: tuple[int, int],
    format_name: str,
) -> None:
    """An Ampere has no 8-bit floats: what is not in 4 bits has 16 there, and is counted so."""
    monkeypatch.setattr("llm_engine.cuda.device.probe", probed(capability, 64 << 20))
    with pytest.raises(ModelError, match=f"{format_name} weights, bfloat16 cache. does not fit"):
        loading.load_backend(floats, ON_GPU, 64, lambda share: None)
