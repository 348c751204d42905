"""The kernel for all layers, its threads emulated on a CPU, against plain torch."""

import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchmarks.llm.gpu.models import FORMATS
from benchmarks.llm.gpu.random_weights import SHAPES, random_model
from llm_engine.backends.base import PageId, SequenceRows, Slot
from llm_engine.config import ModelConfig, Precision, SamplingParams
from llm_engine.cuda.backend import CudaBackend
from llm_engine.cuda.megakernel import compiled, tables
from llm_engine.cuda.megakernel.kernel import Megakernel, megakernel_or_none
from llm_engine.cuda.model import DeviceModel, Scratch, hidden_states
from llm_engine.cuda.ops.interface import MAX_ROWS, LayerPages, Rows
from llm_engine.cuda.ops.reference_ops import ReferenceOps
from llm_engine.cuda.steps.graph_runner import EagerGraphs
from tests.support.llm.emulated_megakernel import EmulatedLauncher, fields_of_the_kernel, library

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ to compile it with")

SLOW = pytest.mark.slow

CONTEXT = 2048
WIDTH = 24
CLOSE = 6e-3
"""Relative. Activations are rounded to bfloat16, in two layers several times."""
Lanes = Sequence[Sequence[int]]

SMALL = replace(
    SHAPES["1b"],
    num_layers=2,
    hidden_size=128,
    intermediate_size=192,
    num_heads=4,
    num_kv_heads=2,
    head_dim=64,
    vocab_size=176,
    context_length=CONTEXT,
    rope_scaling=None,
)
LARGER_HEADS = replace(SMALL, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=128)
ODD_VOCABULARY = replace(SMALL, num_layers=1, vocab_size=171)
BIASES = replace(SMALL, architecture="qwen2", num_layers=1)
"""Queries, keys and values have biases."""


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("megakernel")


class Trial:
    """A model, and a cache in which only the positions before the rows are written."""

    def __init__(
        self,
        config: ModelConfig,
        weights: str,
        lanes: Lanes,
        *,
        window: int = 0,
        head: Precision | None = None,
        seed: int = 2,
    ) -> None:
        weight_format = replace(FORMATS[weights], head=head)
        made = random_model(config, weight_format, "cpu", seed=1, context_length=CONTEXT)
        self.model = _with_window(made, window) if window else made
        self.bits = 8 if weights == "fp8" else 16
        generator = torch.Generator().manual_seed(seed)
        num_pages = WIDTH * len(lanes)
        shape = (config.num_layers, 2, num_pages, config.num_kv_heads, 16, config.head_dim)
        self._cache = torch.randn(shape, generator=generator).bfloat16()
        tables_of = torch.randperm(num_pages, generator=generator).int().view(len(lanes), WIDTH)
        self.rows = Rows(torch.tensor([p for lane in lanes for p in lane]).int(), tables_of)
        for table, lane in zip(tables_of.tolist(), lanes, strict=True):
            first = max(min((p for p in lane if p >= 0), default=0), 0)
            for index, page in enumerate(table):
                self._cache[:, :, page, :, max(0, first - index * 16) :] = torch.nan
        self.x = torch.randn(len(self.rows.positions), config.hidden_size, generator=generator)

    def run(
        self,
        launcher: EmulatedLauncher | None,
        rows: Rows | None = None,
        first: int = 0,
        written: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Residual stream, logits and cache afterwards, by the kernel or by plain torch. `rows`:
        some of the trial's, from row `first`; None: all. `written`: the cache of another run."""
        rows = self.rows if rows is None else rows
        num_rows = len(rows.positions)
        cache = (self._cache if written is None else written).clone()
        layers = [LayerPages(keys, values) for keys, values in cache]
        scratch = Scratch(self.model, MAX_ROWS)
        scratch.hidden[:num_rows] = self.x[first : first + num_rows]
        logits = torch.full((MAX_ROWS, self.model.config.vocab_size), torch.nan)
        if launcher is None:
            hidden_states(self.model, ReferenceOps(), layers, rows, scratch)
            ReferenceOps().logits(
                scratch.hidden[:num_rows], self.model.norm, self.model.head, logits[:num_rows]
            )
        else:
            kernel = megakernel_or_none(self.model, layers, scratch, logits, launcher)
            assert isinstance(kernel, Megakernel)
            kernel.run(rows)
            assert kernel.scores == bool(logits[:num_rows].isfinite().all())
        return scratch.hidden[:num_rows], logits[:num_rows], cache

    def launcher(self, folder: Path, *, num_blocks: int = 3, seed: int = 1) -> EmulatedLauncher:
        head_dim = self.model.config.head_dim
        return EmulatedLauncher(folder, head_dim, self.bits, num_blocks=num_blocks, seed=seed)


def _with_window(model: DeviceModel, window: int) -> DeviceModel:
    layers = tuple(
        replace(layer, attention=replace(layer.attention, window=window)) for layer in model.layers
    )
    return replace(model, layers=layers)


def _distance(found: Tensor, expected: Tensor) -> float:
    return float((found.float() - expected.float()).norm() / expected.float().norm())


def test_another_format_of_the_head_is_left_to_others(folder: Path) -> None:
    config = replace(SMALL, num_layers=1)
    trial = Trial(config, "fp8", [[40]], head=Precision.BFLOAT16)
    found, logits, _ = trial.run(trial.launcher(folder))
    expected, _, _ = trial.run(None)
    assert _distance(found, expected) < CLOSE
    assert logits.isnan().all()


@pytest.mark.parametrize(
    ("config", "weights", "lanes", "window"),
    [
        pytest.param(SMALL, "fp8", [[100]], 0, id="one row"),
        pytest.param(SMALL, "fp8", [[0]], 0, id="the first position", marks=SLOW),
        pytest.param(SMALL, "fp8", [[30, 31, 32, 33]], 0, id="a draft across pages"),
        pytest.param(SMALL, "fp8", [[200], [15], [16]], 0, id="several sequences"),
        pytest.param(SMALL, "fp8", [list(range(40, 48))], 0, id="eight rows", marks=SLOW),
        pytest.param(ODD_VOCABULARY, "fp8", [[9]], 0, id="an odd vocabulary", marks=SLOW),
        pytest.param(SMALL, "fp8", [[5, 6, -1, -1]], 0, id="padding", marks=SLOW),
        pytest.param(SMALL, "fp8", [[120, 121]], 40, id="a window", marks=SLOW),
        pytest.param(BIASES, "fp8", [[50]], 0, id="biases", marks=SLOW),
        pytest.param(SMALL, "bfloat16", [[100]], 0, id="16 bits"),
        pytest.param(LARGER_HEADS, "fp8", [[70, 71]], 0, id="larger heads", marks=SLOW),
        pytest.param(LARGER_HEADS, "bfloat16", [[70]], 0, id="larger heads, 16 bits", marks=SLOW),
    ],
)
def test_the_kernel_computes_what_the_operations_do(
    config: ModelConfig, weights: str, lanes: Lanes, window: int, folder: Path
) -> None:
    trial = Trial(config, weights, lanes, window=window)

    hidden, logits, cache = trial.run(trial.launcher(folder))
    expected, expected_logits, expected_cache = trial.run(None)

    used = trial.rows.positions >= 0
    assert _distance(hidden[used], expected[used]) < CLOSE
    assert _distance(logits[used], expected_logits[used]) < CLOSE
    assert torch.equal(cache.isnan(), expected_cache.isnan())
    assert _distance(cache.nan_to_num(), expected_cache.nan_to_num()) < CLOSE


@pytest.mark.parametrize(
    ("lanes", "activation_bytes"),
    [
        pytest.param([[31, 32, 33]], None, id="a draft"),
        pytest.param(
            [[200], [15], [16], [40]], 8 << 10, id="sequences, activations in chunks", marks=SLOW
        ),
    ],
)
def test_a_rows_bits_do_not_depend_on_its_company(
    lanes: Lanes,
    activation_bytes: int | None,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = replace(SMALL, num_layers=1, intermediate_size=2176)
    trial = Trial(config, "fp8", lanes)
    if activation_bytes is not None:
        monkeypatch.setattr(tables, "MAX_ACTIVATION_BYTES", activation_bytes)
    launcher = trial.launcher(folder)
    together, logits, written = trial.run(launcher)

    for row in range(len(together)):
        seq = row * trial.rows.num_seqs // len(together)
        alone = Rows(trial.rows.positions[row : row + 1], trial.rows.tables[seq : seq + 1])
        # A draft's row finds the rows before it in the cache, and does not see those behind it.
        again, logits_alone, _ = trial.run(launcher, alone, row, written)
        assert torch.equal(again[0], together[row])
        assert torch.equal(logits_alone[0], logits[row])


@pytest.mark.parametrize("seed", [2, pytest.param(3, marks=SLOW), pytest.param(4, marks=SLOW)])
def test_activations_in_chunks_give_the_same_bits(
    seed: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(SMALL, num_layers=1, hidden_size=2112, intermediate_size=192, vocab_size=48)
    trial = Trial(config, "fp8", [[20, 21, 22, 23]], seed=seed)
    launcher = trial.launcher(folder)
    whole = trial.run(launcher)
    monkeypatch.setattr(tables, "MAX_ACTIVATION_BYTES", 9 << 10)
    in_chunks = trial.run(launcher)

    assert torch.equal(in_chunks[0], whole[0])
    assert torch.equal(in_chunks[1], whole[1])


@SLOW
def test_the_order_of_copies_and_blocks_does_not_matter(folder: Path) -> None:
    trial = Trial(SMALL, "fp8", [[40], [90]])
    first = trial.run(trial.launcher(folder, seed=1))
    for seed in (2, 3):
        again = trial.run(trial.launcher(folder, seed=seed))
        assert torch.equal(first[0], again[0])
        assert torch.equal(first[1], again[1])


@SLOW
def test_more_blocks_than_tiles_compute_the_same(folder: Path) -> None:
    config = replace(SMALL, num_layers=1, hidden_size=64, intermediate_size=64, vocab_size=48)
    trial = Trial(config, "fp8", [[40]])
    found, _, _ = trial.run(trial.launcher(folder, num_blocks=9))
    expected, _, _ = trial.run(None)
    assert _distance(found, expected) < CLOSE


@SLOW
def test_a_backend_with_the_kernel_scores_as_without(folder: Path) -> None:
    config = replace(SMALL, num_layers=1, hidden_size=64, intermediate_size=64, vocab_size=48)
    model = random_model(config, FORMATS["fp8"], "cpu", seed=1, context_length=64)
    pages = [PageId(page) for page in range(4)]
    prompt = SequenceRows(Slot(1), tuple(range(5, 15)), 0, 3, SamplingParams(), 0, pages=pages)

    def scores(launcher: EmulatedLauncher | None) -> Tensor:
        backend = CudaBackend(
            model,
            ReferenceOps(),
            EagerGraphs(),
            num_pages=4,
            cache_dtype=torch.bfloat16,
            launcher=launcher,
            prompt_rows=(16,),
        )
        return backend.logits(prompt)

    expected = scores(None)
    found = scores(EmulatedLauncher(folder, 64, 8))
    assert not torch.equal(found, expected)  # the sums have another order: the kernel has run
    assert _distance(found, expected) < CLOSE


def test_fields_have_the_kernels_places(folder: Path) -> None:
    """Sizes of the structures are compared by the compiler, and each number is defined by
    `tables.definitions`."""
    tables_have = {
        f"{structure.__name__}.{name}": (
            getattr(structure, name).offset,
            getattr(structure, name).size,
        )
        for structure in (tables.Phase, tables.Step)
        for name, *_ in structure._fields_
    }
    assert fields_of_the_kernel(library(folder, 64, 8)) == tables_have


@pytest.mark.parametrize(
    ("shape", "weights", "reason"),
    [
        ("1b", "int4", "weights of 4 bits"),
        ("1b", "fp8-blocks", "scales of blocks"),
        ("qwen3-8b", "fp8", "norms of heads"),
    ],
)
def test_what_the_kernel_does_not_serve_is_named(shape: str, weights: str, reason: str) -> None:
    config = replace(
        SHAPES[shape],
        num_layers=1,
        hidden_size=256,
        intermediate_size=256,
        num_heads=2,
        num_kv_heads=1,
        vocab_size=160,
    )
    model = random_model(config, FORMATS[weights], "cpu", seed=1, context_length=64)
    pages = torch.zeros(2, 2, 1, 16, config.head_dim, dtype=torch.bfloat16)
    cache = [LayerPages(pages[0], pages[1])]
    assert tables.unsupported(model, cache) == reason


@SLOW
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc to compile it with")
@pytest.mark.parametrize("head_dim", tables.HEAD_DIMS)
@pytest.mark.parametrize("bits", [8, 16])
def test_it_compiles_for_hopper_with_few_spills(head_dim: int, bits: int, tmp_path: Path) -> None:
    """Shared memory leaves little of L1: what is spilled would be read from L2 or from memory."""
    source = tmp_path / "kernel.cu"
    source.write_text(compiled.kernel_source())
    done = subprocess.run(
        [
            *("nvcc", "-std=c++17", "-gencode=arch=compute_90a,code=sm_90a", "-Xptxas", "-v"),
            *("-cubin", *tables.definitions(head_dim=head_dim, weight_bits=bits)),
            *("-o", str(tmp_path / "kernel.cubin"), str(source)),
        ],
        check=True,
        capture_output=True,
        text=True,
    )
    frames = re.findall(r"(\d+) bytes stack frame", done.stderr)
    assert max(map(int, frames), default=1 << 20) <= 64, done.stderr
