"""Without torch the ONNX backend runs, and what needs torch says which extra to install."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from llm_engine.checkpoints.load import load_checkpoint
from llm_engine.config import BackendName, EngineConfig, Precision
from llm_engine.engine import Engine
from llm_engine.errors import ModelError
from llm_engine.models.tensors import tensor
from tests.support.fakes.fp8_models import save_fp8_model
from tests.support.fakes.int4_models import save_int4_model
from tests.support.fakes.llm_models import save_tiny_gguf, save_tiny_model

REPLY = """
import asyncio, sys
from pathlib import Path

if sys.argv[2] == "without":
    sys.modules["torch"] = None  # an import raises ModuleNotFoundError
import agent.server.app
from llm_engine import Engine, EngineConfig, Precision, SamplingParams

async def main():
    config = EngineConfig(precision=Precision(sys.argv[3]), num_threads=1)
    engine = Engine.load(Path(sys.argv[1]), config)
    sampling = SamplingParams(temperature=0.9, top_p=0.9, seed=3, max_tokens=40)
    print([chunk.text async for chunk in engine.generate(list(range(5, 40)), sampling)])
    print("torch" in sys.modules and sys.modules["torch"] is not None)

asyncio.run(main())
"""
"""Loads the server's modules and a model, and prints a reply and whether torch was imported."""


@pytest.mark.parametrize(
    ("name", "kind", "precision"),
    [
        ("model.gguf", "Q8_0", "int4"),
        ("model.gguf", "Q4_0", "int4"),
        ("model.gguf", "Q4_1", "int4"),
        ("", "Q8_0", "int8"),
    ],
)
def test_a_reply_is_the_same_without_torch(
    name: str, kind: str, precision: str, tmp_path: Path
) -> None:
    save_tiny_model(tmp_path, "llama")
    save_tiny_gguf(tmp_path / "model.gguf", tmp_path, kind)
    replies = []
    for way in ("with", "without"):
        command = [sys.executable, "-c", REPLY, str(tmp_path / name), way, precision]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        reply, imported = done.stdout.splitlines()
        replies.append(reply)
    assert imported == "False"
    assert replies[0] == replies[1]
    assert len(replies[0]) > 40


def test_bfloat16_is_read_with_ml_dtypes_or_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_tiny_model(tmp_path, "llama").bfloat16().save_pretrained(tmp_path)
    checkpoint = load_checkpoint(tmp_path)
    stored = checkpoint.read("norm.weight"), checkpoint.read("embed_tokens.weight")
    assert {array.dtype.name for array in stored} == {"bfloat16"}
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    for name, array in zip(("norm.weight", "embed_tokens.weight"), stored, strict=True):
        widened = checkpoint.read(name)
        assert widened.dtype == np.float32
        assert np.array_equal(widened, array.astype(np.float32))
        assert torch.equal(tensor(array).float(), tensor(widened))


@pytest.fixture
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llm_engine.torch_extra.find_spec", lambda name: None)


@pytest.mark.parametrize(
    ("config", "extra"),
    [
        (EngineConfig(), "torch"),
        (EngineConfig(precision=Precision.INT4, calibration=Path("said.txt")), "torch"),
        (EngineConfig(precision=Precision.FP8, backend=BackendName.CUDA), "cuda"),
        (EngineConfig(precision=Precision.INT8, draft_heads=Path("heads")), "torch"),
    ],
)
@pytest.mark.usefixtures("no_torch")
def test_what_needs_torch_names_its_extra(config: EngineConfig, extra: str, tmp_path: Path) -> None:
    save_tiny_model(tmp_path, "llama")
    with pytest.raises(ModelError, match=rf"needs torch, .*: pip install 'halfsec\[{extra}\]'"):
        Engine.load(tmp_path, config)


@pytest.mark.parametrize("kind", ["gptq", "awq", "fp8"])
@pytest.mark.usefixtures("no_torch")
def test_so_do_checkpoints_in_four_bits_and_eight_bit_floats(kind: str, tmp_path: Path) -> None:
    if kind == "fp8":
        save_fp8_model(tmp_path, "fp8, block")
    else:
        save_int4_model(tmp_path, kind, 32)
    with pytest.raises(ModelError, match=r"pip install 'halfsec\[torch\]'"):
        load_checkpoint(tmp_path)
