"""GPU backend with its own kernels, run by Triton's interpreter."""

from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed: its kernels are not tested")

from llm_engine.backends.base import PageId, Plan, SequenceRows, SubBatch
from llm_engine.checkpoints.load import load_checkpoint
from llm_engine.config import Precision, SamplingParams
from llm_engine.cuda.backend import CudaBackend
from llm_engine.cuda.ops.interface import Ops
from llm_engine.cuda.ops.reference_ops import ReferenceOps
from llm_engine.cuda.ops.triton_ops import TritonOps
from llm_engine.cuda.weights import WeightFormat, load_model
from tests.support.fakes.int4_models import save_int4_model
from tests.support.fakes.llm_models import save_tiny_model
from tests.support.llm import triton_interpreter
from tests.support.llm.replayed_work import ReplayedWork

pytestmark = pytest.mark.slow

PAGES = [PageId(page) for page in (5, 2, 7, 0, 1, 3)]
NEAR = 0.1
"""Of bfloat16 sums in another order, in logits that reach from -10 to 10."""


@pytest.mark.parametrize(
    ("family", "precision"), [("qwen2", Precision.BFLOAT16), ("qwen3", Precision.FP8)]
)
def test_a_reply_token_by_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, precision: Precision
) -> None:
    save_tiny_model(tmp_path, family, num_hidden_layers=1)
    assert_replies(tmp_path, monkeypatch, WeightFormat(body=precision))


@pytest.mark.parametrize(("layout", "group"), [("gptq", 128), ("awq", 64)])
def test_a_reply_in_4_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str, group: int
) -> None:
    save_int4_model(tmp_path, layout, group, num_hidden_layers=1, head_dim=64)
    assert_replies(tmp_path, monkeypatch, WeightFormat(Precision.INT4, rest=Precision.FP8))


def assert_replies(
    path: Path, monkeypatch: pytest.MonkeyPatch, weight_format: WeightFormat
) -> None:
    """A prompt in a part and a rest, a draft, a lone token; every choice as the oracle's, unless
    its two best are nearer to one another than the arithmetic."""
    monkeypatch.setattr("llm_engine.cuda.steps.graph_runner.BATCH_SIZES", (1,))
    monkeypatch.setattr("llm_engine.cuda.steps.graph_runner.DRAFT_SIZES", (1, 4, 8))
    triton_interpreter.mend()
    model = load_model(load_checkpoint(path), weight_format, "cpu", context_length=96)

    def backend(ops: Ops) -> CudaBackend:
        return CudaBackend(
            model,
            ops,
            ReplayedWork(),
            num_pages=8,
            cache_dtype=torch.bfloat16,
            prompt_rows=(16,),
        )

    kernels, oracle = backend(TritonOps(torch.device("cpu"))), backend(ReferenceOps())
    tokens, num_cached = [3 + index * index % 290 for index in range(22)], 0
    for num_new in (16, 6, 4, 1):
        rows = SequenceRows(
            slot=oracle.open_slot(),
            token_ids=tuple(tokens[num_cached : num_cached + num_new]),
            first_position=num_cached,
            num_sampled=1 if num_new != 4 else 4,
            sampling=SamplingParams(),
            seed=0,
            pages=PAGES,
        )
        plan = Plan((SubBatch((rows,)),))
        chosen, expected = (
            each.collect(each.launch(plan)).tokens[rows.slot] for each in (kernels, oracle)
        )
        with torch.inference_mode():
            logits = oracle.logits(rows)
            torch.testing.assert_close(kernels.logits(rows), logits, rtol=0, atol=NEAR)
        for ours, theirs, row in zip(chosen, expected, logits, strict=True):
            assert ours == theirs or row[theirs] - row[ours] < NEAR
        num_cached += num_new
        if num_cached == len(tokens):
            tokens += [expected[-1], 5, 6, 7] if num_new == 6 else [expected[-1]]
