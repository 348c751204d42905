"""The GPU bench without a GPU: targets, saved results, and continuation after a failure."""

import json
import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.llm.__main__ import main
from benchmarks.llm.gpu.arguments import IN_8_BITS, LAUNCH_VARIANTS, PROMPT_VARIANTS
from benchmarks.llm.gpu.draft_heads import drafted_step, in_graph, session_with
from benchmarks.llm.gpu.driving import SLOT
from benchmarks.llm.gpu.figures import Figure, gaps_ms, percentile, table
from benchmarks.llm.gpu.harness import Job, JobResult, RunContext, run_jobs
from benchmarks.llm.gpu.models import DeviceUnderTest, Lab, LoadedModel, Subject, random_subjects
from benchmarks.llm.gpu.other_engines import huggingface_config
from benchmarks.llm.gpu.random_weights import SHAPES, random_heads
from benchmarks.llm.gpu.steps import drafted_steps
from benchmarks.llm.gpu.targets import Bars, expected_tokens, prompt_ms, step_ms
from latency_budget.account.clock import ManualClock
from llm_engine.checkpoints.huggingface_config import read_config
from llm_engine.cuda.backend import CudaBackend
from llm_engine.cuda.ops.gemm_tiles import product_tiles
from llm_engine.cuda.ops.interface import Matrix
from llm_engine.cuda.steps.draft_heads import DeviceHeads, step_bytes
from llm_engine.errors import ModelError
from tests.support.fakes.llm_cuda import CountingGraphs


def test_a_figure_is_judged_by_its_bar_and_stands_beside_its_limit() -> None:
    slow = Figure("ITL", 2.5, "ms", limit=2.0, bar=2.2)
    fast = Figure("ITL", 2.1, "ms", limit=2.0, bar=2.2)
    rate = Figure("read", 4.0, "TB/s", limit=5.0, bar=3.0, is_rate=True)
    assert [slow.is_held, fast.is_held, rate.is_held] == [False, True, True]
    assert [slow.share, rate.share] == [pytest.approx(0.8), pytest.approx(0.8)]
    assert replace(slow, bar=None).is_held is None
    assert replace(slow, value=math.nan).is_held is False
    printed = table([slow, fast, rate])
    assert "MISSED: <= 2.2" in printed
    assert "held: >= 3" in printed
    assert "limit        2 (80%)" in printed
    assert json.dumps(replace(slow, value=math.nan).as_data(), allow_nan=False)


def test_percentiles_and_gaps() -> None:
    assert gaps_ms([0, 2_000_000, 3_000_000]) == [2.0, 1.0]
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert math.isnan(percentile([], 0.5))


def test_bars_are_for_one_card_and_one_shape() -> None:
    fp8 = Bars("8b", "fp8", slowdown=1.0)
    assert (fp8.itl_ms(), fp8.ttft_ms(512, 0), fp8.ttft_ms(32, 4096)) == (2.2, 14.0, 5.0)
    assert fp8.speculative_ms(2.82) == 1.1
    assert fp8.speculative_ms(3.5) is None
    assert Bars("8b", "fp8", slowdown=None).itl_ms() is None
    assert Bars("3b", "fp8", slowdown=1.0).itl_ms() is None


def test_limits_are_bytes_over_bandwidth_and_operations_over_rate() -> None:
    assert step_ms(15_000_000_000, 0, 4.3e12) == pytest.approx(3.49, abs=0.01)
    config = SHAPES["8b"]
    short = prompt_ms(config, 1, 7_500_000_000, 4.3e12, 790e12)
    assert short == pytest.approx(1.744, abs=0.01)
    assert prompt_ms(config, 512, 7_500_000_000, 4.3e12, 790e12) == pytest.approx(9.05, abs=0.1)
    assert expected_tokens(0.77, 3) == pytest.approx(2.82, abs=0.01)


class Bench:
    """Jobs by a clock that is turned by hand, and what was told of them."""

    def __init__(self, limit_s: float | None = None) -> None:
        self.clock = ManualClock()
        self.saved: list[int] = []
        self.marked: list[str] = []
        self.num_recovered = 0
        self.around = RunContext(
            self.clock, limit_s, self.mark, self.recover, lambda records: self.save(records)
        )

    def mark(self, name: str) -> AbstractContextManager[None]:
        self.marked.append(name)
        return nullcontext()

    def recover(self) -> None:
        self.num_recovered += 1

    def save(self, records: Sequence[JobResult]) -> None:
        self.saved.append(sum(len(record.figures) for record in records))

    def figures(
        self, number: int, error: Exception | None = None
    ) -> Callable[[], Iterator[Figure]]:
        def measure() -> Iterator[Figure]:
            for index in range(number):
                self.clock.advance_ms(1000)
                yield Figure(str(index), float(index), "ms")
            if error is not None:
                raise error

        return measure


def test_a_job_that_fails_keeps_what_it_had_and_the_others_go_on() -> None:
    bench = Bench()
    broken = bench.figures(1, ModelError("too\nlarge"))
    jobs = [Job("a", broken), Job("b", bench.figures(2))]
    first, second = run_jobs(jobs, bench.around)
    assert (len(first.figures), first.problem) == (1, "ModelError: too large")
    assert (len(second.figures), second.problem, second.seconds) == (2, "", 2.0)
    assert bench.num_recovered == 1
    assert bench.marked == ["a", "b"]
    assert bench.saved == [1, 1, 2, 3, 3]


def test_nothing_runs_after_the_gpu_is_lost() -> None:
    bench = Bench()
    lost = RuntimeError("CUDA error: an illegal memory access was encountered")
    jobs = [Job("a", bench.figures(0, lost)), Job("b", bench.figures(2))]
    first, second = run_jobs(jobs, bench.around)
    assert "illegal memory access" in first.problem
    assert second.problem == "not begun: the GPU was lost in 'a'"
    assert (second.figures, bench.num_recovered, bench.marked) == ([], 0, ["a"])


def test_the_limit_ends_a_job_after_a_figure_and_names_those_that_are_left() -> None:
    bench = Bench(limit_s=2.5)
    jobs = [Job("a", bench.figures(2)), Job("b", bench.figures(5)), Job("c", bench.figures(1))]
    records = run_jobs(jobs, bench.around)
    assert [len(record.figures) for record in records] == [2, 1, 0]
    assert records[0].problem == ""
    assert records[1].problem.startswith("cut short")
    assert records[2].problem.startswith("not begun")


def test_a_job_that_is_cut_short_is_closed() -> None:
    bench = Bench(limit_s=0.5)
    closed = []

    def measure() -> Iterator[Figure]:
        try:
            yield from bench.figures(3)()
        finally:
            closed.append(True)

    run_jobs([Job("a", measure)], bench.around)
    assert closed == [True]


def test_one_model_at_a_time_and_a_failed_one_is_not_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lab = Lab(DeviceUnderTest(None), context_length=64, on_progress=print)
    first, second = random_subjects(["tiny"], ["fp8", "bfloat16"])
    loaded = lab.loaded(first)
    assert lab.loaded(first) is loaded
    assert lab.loaded(second) is not loaded
    tries = []

    def fail(self: Lab, subject: Subject) -> None:
        tries.append(subject.name)
        raise ModelError("no room")

    monkeypatch.setattr(Lab, "_load", fail)
    for _ in range(2):
        with pytest.raises(ModelError, match="no room"):
            lab.loaded(first)
    assert tries == ["tiny fp8"]


def test_8_bits_by_row_and_by_block_are_two_subjects() -> None:
    lab = Lab(DeviceUnderTest(None), context_length=64, on_progress=print)
    rows, blocks = random_subjects(["tiny"], ["fp8", "fp8-blocks"])
    assert [rows.name, blocks.name] == ["tiny fp8", "tiny fp8-blocks"]
    by_row, by_block = (lab.loaded(each).model.layers[0].out for each in (rows, blocks))
    assert isinstance(by_row, Matrix)
    assert isinstance(by_block, Matrix)
    assert by_row.block == (1, 64)
    assert by_block.block == blocks.storage.scale_block == (128, 128)
    assert replace(blocks, shape="8b").bars(DeviceUnderTest(None)) == Bars(
        "8b", "fp8", slowdown=None
    )


def test_a_drafter_that_knows_the_reply_saves_steps_and_changes_nothing() -> None:
    lab = Lab(DeviceUnderTest(None), context_length=128, on_progress=print)
    (subject,) = random_subjects(["tiny"], ["fp8"])
    session = lab.loaded(subject).session()
    last = session.read(session.prompt(24))
    reply = [session.step()[0] for _ in range(40)]
    session.back_to(24, last)
    assert drafted_steps(session, reply, 3, 1.0) == 10
    session.back_to(24, last)
    assert drafted_steps(session, reply, 3, 0.0) == 40
    session.back_to(24, last)
    with pytest.raises(RuntimeError, match="differs"):
        drafted_steps(session, random.Random(1).sample(range(320), 40), 3, 1.0)


def loaded(precision: str) -> LoadedModel:
    target = DeviceUnderTest(None, bytes_a_s=1e9, num_steps=12)
    (subject,) = random_subjects(["tiny"], [precision])
    return Lab(target, context_length=1400, on_progress=print).loaded(subject)


def test_heads_are_measured_where_they_draft_in_the_graph_and_ahead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tiny = loaded("bfloat16")
    graphs = CountingGraphs()
    monkeypatch.setattr(DeviceUnderTest, "graphs", lambda target: graphs)
    session = session_with(tiny, random_heads(tiny.model, 3, seed=1))
    backend = session.backend
    assert isinstance(backend, CudaBackend)
    session.read(session.prompt(24))
    for _ in range(2):
        drafted_step(session, backend)
    for _ in range(20):
        before, num_tokens = graphs.num_replays, session.num_tokens
        assert len(backend.drafted(SLOT, num_tokens)) == 3
        assert drafted_step(session, backend) == session.num_tokens - num_tokens
        assert graphs.num_replays == before + 1


@pytest.mark.parametrize("precision", ["bfloat16", "fp8", "fp8-blocks"])
def test_the_bytes_of_heads_are_those_of_what_they_multiply_with(precision: str) -> None:
    model = loaded(precision).model
    heads = random_heads(model, 3, seed=1)
    held = DeviceHeads(heads, model)
    matrices = [m for each in held._heads for m in (each.token, each.gate_up, each.down)]
    expected = sum(each.num_bytes for each in [*matrices, *[held._output] * 3])
    assert step_bytes(heads.shape, model) == expected


def test_a_token_with_heads_is_reckoned_from_a_step_and_stands_beside_its_limit() -> None:
    tiny = loaded("fp8")
    added = step_bytes(random_heads(tiny.model, 3, seed=1).shape, tiny.model)
    plain, step, _, half, all_right = in_graph(tiny, (0.5, 1.0), (3,))
    assert (plain.name, step.name) == ("a step without heads", "a step with 3 heads")
    assert plain.limit is not None
    assert step.limit is not None
    assert step.limit == pytest.approx(plain.limit + added / 1e9 * 1e3)
    assert (half.name, all_right.unit) == ("a token with 3 heads, 50% right", "ms")
    for token, num_tokens in ((half, 1.875), (all_right, 4)):
        assert token.value * num_tokens == pytest.approx(step.value)
        assert token.limit == pytest.approx(step.limit / num_tokens)


def test_ways_to_launch_a_step_differ_in_what_their_names_say_and_in_nothing_else() -> None:
    weight = Matrix(torch.empty(28672, 4096, dtype=torch.bfloat16, device="meta"))
    usual = product_tiles(weight, 132, divisible=False)
    found = {
        variant.name: variant.divide(weight, 132, divisible=False) for variant in LAUNCH_VARIANTS
    }
    assert len(found) == len(LAUNCH_VARIANTS)
    assert found["as it is"] == found["one kernel after another"] == usual
    assert found["6 stages"] == replace(usual, num_stages=6)
    options = {variant.name: variant.options for variant in LAUNCH_VARIANTS if variant.options}
    assert options == {"one kernel after another": {"dependent": False}}
    pytest.importorskip("triton", reason="Triton is not installed: its options are NOT tested")
    from llm_engine.cuda.ops.triton_ops import TritonOps

    for variant in (*LAUNCH_VARIANTS, IN_8_BITS, *PROMPT_VARIANTS):
        TritonOps(torch.device("cpu"), num_floats=1, divide=variant.divide, **variant.options)


@pytest.mark.parametrize("shape", SHAPES)
def test_other_engines_are_given_the_same_shape(shape: str) -> None:
    config = SHAPES[shape]
    read = read_config(huggingface_config(config), Path("config.json"))
    assert read == replace(config, rope_scaling=None)


def test_what_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert main(["--device", "cuda", "--shapes", "8b"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "bench llm: " in said


@pytest.mark.parametrize(
    "options",
    [
        ["--shapes", "9b"],
        ["--sections", ""],
        ["--drafts", "8"],
        ["--heads", "8"],
        ["--acceptance", "x"],
    ],
)
def test_options_that_mean_nothing_are_refused(options: list[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--device", "cuda", *options])
