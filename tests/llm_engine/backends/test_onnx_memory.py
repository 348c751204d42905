"""The ONNX backend maps its weights, and converts them without a float32 copy of the model.
Counts allocated bytes, not resident ones."""

import ctypes
import gc
import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from llm_engine.backends import onnx_packing
from llm_engine.backends.base import SequenceRows, Slot
from llm_engine.backends.onnx_cpu import OnnxBackend
from llm_engine.backends.onnx_graph import packed_name
from llm_engine.backends.onnx_weights import convert
from llm_engine.checkpoints.checkpoint import Checkpoint
from llm_engine.checkpoints.load import load_checkpoint
from llm_engine.checkpoints.packed_cache import Array
from llm_engine.config import EngineConfig, Precision, SamplingParams
from tests.support.fakes.llm_models import save_tiny_gguf, save_tiny_model
from tests.support.models import model_path

CONTEXT = 64
SMOLLM2 = "smollm2-135m-instruct/SmolLM2-135M-Instruct.Q4_1.gguf"


class _Mallinfo(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks"),
            *("uordblks", "fordblks", "keepcost"),
        )
    )


def heap_bytes() -> int:
    """What all libraries of the process have allocated; Python's own small objects apart."""
    try:
        mallinfo = ctypes.CDLL(None).mallinfo2
    except AttributeError:
        pytest.skip("counting allocations needs glibc 2.33")
    mallinfo.restype = _Mallinfo
    info = mallinfo()
    return int(info.uordblks + info.hblkhd)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """9 million weights: 37 MB in float32."""
    path = tmp_path_factory.mktemp("medium")
    changes = {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 4}
    save_tiny_model(path, "qwen2", **changes, tie_word_embeddings=True)
    save_tiny_gguf(path / "model.gguf", path, "Q8_0")
    return path


@pytest.mark.parametrize("max_batch", [1, 2], ids=["one session", "two sessions"])
@pytest.mark.parametrize("name", ["", "model.gguf"])
def test_weights_are_mapped(name: str, max_batch: int, directory: Path, tmp_path: Path) -> None:
    """Converted at the first load, taken from the cache at the second."""
    config = EngineConfig(
        precision=Precision.INT8, num_threads=1, max_batch=max_batch, cache_dir=tmp_path
    )
    OnnxBackend(load_checkpoint(directory / name), config, CONTEXT)  # libraries allocate as well
    for file in tmp_path.iterdir():
        file.unlink()
    for _ in ("first", "second"):
        before = heap_bytes()
        backend = OnnxBackend(load_checkpoint(directory / name), config, CONTEXT)
        # Logits of 64 rows, rotary tables and the graph; the matrices alone take 9 MB.
        assert heap_bytes() - before < max_batch << 20
        del backend
        gc.collect()
        assert heap_bytes() - before < 1 << 20


def test_bytes_packed_by_another_kernel_are_not_mapped(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key that is not the hash of what this session packs: it keeps its own copy."""
    config = EngineConfig(precision=Precision.INT8, num_threads=1)
    checkpoint = load_checkpoint(directory)
    rows = SequenceRows(Slot(0), (1, 2, 3), 0, 3, SamplingParams(), seed=0, pages=())
    logits = []
    for key in ("own", "another"):
        before = heap_bytes()
        backend = OnnxBackend(checkpoint, config, CONTEXT)
        backend.open_slot()
        logits.append(torch.tensor(backend.logits(rows)))
        assert (heap_bytes() - before > 8 << 20) == (key == "another")
        del backend
        gc.collect()
        monkeypatch.setattr(
            onnx_packing, "packed_name", lambda matrix, key: packed_name(matrix, key[:-1])
        )
    assert torch.equal(*logits)


def test_a_sequence_that_was_long_gives_memory_back(directory: Path) -> None:
    """What it keeps is as before: the next token is that of a sequence that never was long."""
    config = EngineConfig(precision=Precision.INT8, num_threads=1)
    long, short = tuple(index % 300 for index in range(1200)), 100
    backend = OnnxBackend(load_checkpoint(directory), config, len(long) + 100)

    def rows(slot: Slot, token_ids: tuple[int, ...], first: int) -> SequenceRows:
        return SequenceRows(slot, token_ids, first, 1, SamplingParams(), seed=0)

    logits = []
    for num_before in (len(long), short):
        slot = backend.open_slot()
        backend.logits(rows(slot, long[:num_before], 0))
        before = backend.cache_bytes()
        logits.append(backend.logits(rows(slot, (7, 8, 9), short)).copy())
        if num_before > short:
            assert backend.cache_bytes() < before / 8
            assert not backend._slots[slot]._array[..., 2 * short :, :].any()
        backend.close_slot(slot)
    assert np.array_equal(logits[0], logits[1])


@pytest.mark.parametrize("name", ["", "model.gguf"])
def test_converting_reads_tensor_by_tensor(name: str, directory: Path) -> None:
    checkpoint = load_checkpoint(directory / name)
    alive: list[weakref.ref[Array]] = []
    most = largest = 0

    def read(tensor_name: str) -> Array:
        nonlocal most, largest
        tensor = checkpoint.read(tensor_name)
        alive.append(weakref.ref(tensor))
        held = [each for each in (reference() for reference in alive) if each is not None]
        most = max(most, sum(each.nbytes for each in held))
        largest = max(largest, tensor.nbytes)
        return tensor

    before = heap_bytes()
    peak = 0
    for _, array in convert(replace(checkpoint, read=read), lambda share: None):
        peak = max(peak, heap_bytes() - before - array.nbytes)
    assert most < 2.1 * largest  # the one before, and its bias
    assert peak < 3 * largest
    assert heap_bytes() - before < 1 << 20


def test_a_quantized_tensor_is_not_copied(directory: Path) -> None:
    checkpoint = load_checkpoint(directory / "model.gguf")
    before = heap_bytes()
    tensor = checkpoint.read("layers.0.mlp.down_proj.weight")
    assert heap_bytes() - before < tensor.nbytes + (64 << 10)


@pytest.mark.models
def test_smollm2_is_mapped() -> None:
    checkpoint: Checkpoint = load_checkpoint(model_path(SMOLLM2))
    config = EngineConfig(precision=Precision.INT8, max_batch=4)
    before = heap_bytes()
    backend = OnnxBackend(checkpoint, config, 2048)
    grown = (heap_bytes() - before) / (1 << 20)
    print(f"{grown:.0f} MB")
    assert grown < 90  # 13 and 50 MB of logits; codes and scales would be 134 in each session
    del backend
