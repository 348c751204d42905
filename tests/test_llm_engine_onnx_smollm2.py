"""The ONNX backend on the model that comes with the service."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from llm_engine.backends.base import SequenceRows, Slot
from llm_engine.backends.cpu import CpuBackend
from llm_engine.backends.onnx_cpu import OnnxBackend
from llm_engine.checkpoint import Checkpoint
from llm_engine.config import EngineConfig, Precision, SamplingParams
from llm_engine.weights import load_checkpoint
from tests.fakes.llm_decoding import PAGES
from tests.models import model_path

pytestmark = pytest.mark.models

NUM_POSITIONS = 500
LICENCE = Path(__file__).parents[1] / "LICENSE"


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return load_checkpoint(model_path("smollm2-135m-instruct/SmolLM2-135M-Instruct.Q4_1.gguf"))


@pytest.fixture(scope="module")
def backend(checkpoint: Checkpoint) -> OnnxBackend:
    return OnnxBackend(checkpoint, EngineConfig(precision=Precision.INT8, max_batch=3), 1024)


@pytest.fixture(scope="module")
def text(checkpoint: Checkpoint) -> list[int]:
    return checkpoint.tokenizer.encode(LICENCE.read_text(encoding="utf-8"))[:NUM_POSITIONS]


def feed(
    backend: OnnxBackend | CpuBackend, slot: Slot, token_ids: Sequence[int], first: int, count: int
) -> Tensor:
    rows = SequenceRows(slot, tuple(token_ids), first, count, SamplingParams(), 0, pages=PAGES)
    with torch.inference_mode():
        return backend.logits(rows)


@pytest.fixture(scope="module")
def whole(backend: OnnxBackend, text: list[int]) -> Tensor:
    slot = backend.open_slot()
    logits = feed(backend, slot, text, 0, len(text)).clone()
    backend.close_slot(slot)
    return logits


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 16, 31, 33, 36, 47, 63, 64])
def test_a_row_does_not_depend_on_its_neighbours(
    backend: OnnxBackend, text: list[int], whole: Tensor, size: int
) -> None:
    slot = backend.open_slot()
    for first in range(0, NUM_POSITIONS, size):
        piece = text[first : first + size]
        got = feed(backend, slot, piece, first, len(piece))
        assert torch.equal(got, whole[first : first + size]), first
    backend.close_slot(slot)


def test_it_stays_near_float32(checkpoint: Checkpoint, text: list[int], whole: Tensor) -> None:
    """Within 8 % of the logits' norm, and 93 % of the likeliest tokens the same."""
    reference = CpuBackend(checkpoint, EngineConfig(), 1024)
    exact = feed(reference, reference.open_slot(), text, 0, len(text))
    centred, wanted = (values - values.mean(dim=1, keepdim=True) for values in (whole, exact))
    errors = (centred - wanted).norm(dim=1) / wanted.norm(dim=1)
    same = (whole.argmax(dim=1) == exact.argmax(dim=1)).double().mean()
    print(f"error {float(errors.mean()):.4f}, at most {float(errors.max()):.4f}, same {same:.3f}")
    assert errors.mean() < 0.08
    assert same > 0.93


def test_replies_do_not_depend_on_how_the_prompt_was_read(
    backend: OnnxBackend, checkpoint: Checkpoint
) -> None:
    prompt = checkpoint.tokenizer.encode_template(
        "<|im_start|>user\nTell me a story about a dog.<|im_end|>\n<|im_start|>assistant\n"
    )

    def reply(size: int, detour: int) -> list[int]:
        slot = backend.open_slot()
        if detour:
            feed(backend, slot, [*prompt[:detour], *prompt], 0, 1)
        for first in range(detour, len(prompt) - 1, size):
            feed(backend, slot, prompt[first : min(first + size, len(prompt) - 1)], first, 0)
        ids = prompt[-1:]
        for position in range(len(prompt) - 1, len(prompt) + 60):
            ids = [*ids, int(feed(backend, slot, ids[-1:], position, 1).argmax())]
        backend.close_slot(slot)
        return ids[1:]

    expected = reply(len(prompt), 0)
    assert len(set(expected)) > 20
    for size, detour in ((1, 0), (2, 0), (5, 7), (16, 1), (1, 10)):
        assert reply(size, detour) == expected


def test_sequences_that_share_passes_get_what_each_gets_alone(
    backend: OnnxBackend, text: list[int], whole: Tensor
) -> None:
    """One reads a prompt while two reply, from different places."""
    slots = [backend.open_slot() for _ in range(3)]
    lengths = [0, 100, 211]
    for slot, length in zip(slots, lengths, strict=True):
        if length:
            feed(backend, slot, text[:length], 0, 0)
    for _ in range(30):
        counts = [11, 1, 1]
        work = [
            SequenceRows(slot, tuple(text[start : start + count]), start, 1, SamplingParams(), 0)
            for slot, start, count in zip(slots, lengths, counts, strict=True)
        ]
        lengths = [start + count for start, count in zip(lengths, counts, strict=True)]
        for (_, logits), length in zip(backend.read(work), lengths, strict=True):
            assert torch.equal(logits, whole[length - 1 : length])
    for slot in slots:
        backend.close_slot(slot)
