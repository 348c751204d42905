"""Engine bench: it measures what it reports, beside a peer, and reports a bad model in one line."""

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.llm import __main__ as command
from benchmarks.llm import comparison as bench
from benchmarks.llm import report, rounds
from benchmarks.llm.contestant import CallerMessage, Remote
from llm_engine.config import ModelConfig
from llm_engine.errors import EngineError
from tests.support.fakes.llm_models import save_tiny_gguf, save_tiny_model
from tests.support.llm.local_contestant import LocalContestant

pytestmark = pytest.mark.slow


def test_tokens_of_one_step_share_its_time() -> None:
    arrivals = [(10.0, 1), (12.0, 1), (18.0, 3)]
    assert rounds.between(arrivals) == [2.0, 2.0, 2.0, 2.0]
    assert rounds.between([(10.0, 1)]) == []


def test_only_the_time_counts_in_which_all_replies_go_on() -> None:
    early = [(0.0, 1), (10.0, 1), (20.0, 1), (30.0, 1)]
    late = [(10.0, 1), (20.0, 1), (30.0, 1), (40.0, 1), (50.0, 1)]
    assert rounds.tokens_a_second([early, late]) == pytest.approx(4 / 20 * 1000)


def test_percentiles_are_values_that_occurred() -> None:
    found = rounds.percentiles([float(n) for n in range(1, 1001)])
    assert found == {"p50": 501.0, "p90": 901.0, "p99": 991.0, "p99.9": 1000.0, "count": 1000}
    assert rounds.percentiles([]) == {}


def summary(token_ms: float, **changes: Any) -> dict[str, Any]:
    turns = [50.0, 30.0, 30.0, 33.0]
    return {
        "token_ms": {"p50": token_ms},
        "load_s": 1.0,
        "first_token_by_turn_ms": turns,
        "first_token_previewed_ms": [12.0, 13.0],
        "talk_token_ms": token_ms,
    } | changes


def test_a_promise_is_judged_by_what_it_is_compared_with() -> None:
    results = {"ours": summary(9), "plain": summary(10), "file": summary(12), "q8": summary(9)}
    judged = report.gates(results, 20.0, report.Names("ours", "plain", "file", "q8"), 0.75)
    assert {gate.promise: gate.is_held for gate in judged} == {
        "first load, s": False,
        "load from then on, s": True,
        "first token of turn 10 in those of turn 2": True,
        "first token after a preview, in forward passes": True,
        "a token without drafts, in llama.cpp's Q8_0": False,
        "a token of talk, in llama.cpp's of the same file": True,
    }
    alone = report.gates(results, 1.0, report.Names("ours", "plain", None, None), 0.75)
    assert len(alone) == 4


HALF_BILLION = ModelConfig("qwen2", 24, 896, 4864, 14, 2, 64, 151_936, 32_768, 1e-6, 1e6)
LARGER = ModelConfig("qwen2", 28, 1536, 8960, 12, 2, 128, 151_936, 32_768, 1e-6, 1e6)


@pytest.mark.parametrize(
    ("config", "millions", "token_ms", "is_held"),
    [
        (HALF_BILLION, 494, 9, True),
        (HALF_BILLION, 494, 10, False),
        (LARGER, 1544, 10, True),
        (LARGER, 1544, 10.3, False),
    ],
)
def test_four_bits_are_judged_by_the_same_file(
    config: ModelConfig, millions: int, token_ms: float, is_held: bool
) -> None:
    """Of Qwen2.5 0.5B and 1.5B, a token may take 0.75 and 0.85 of llama.cpp's."""
    assert round(report.num_weights(config) / 1e6) == millions
    results = {name: summary(12) for name in ("ours", "plain", "file")}
    results["int4"] = summary(token_ms)
    judged = report.gates(
        results,
        1.0,
        report.Names("ours", "plain", "file", None, "int4"),
        report.max_int4_share(config),
    )
    (gate,) = [each for each in judged if "4 bits" in each.promise]
    assert gate.measured == pytest.approx(token_ms / 12)
    assert gate.is_held is is_held


class Failing:
    """A contestant that can't."""

    def reply(self) -> None:
        raise ValueError("no such thing")

    def dialogue(self, turns: list[CallerMessage]) -> None:
        raise SystemExit(3)


def test_a_contestant_that_fails_says_so_and_one_that_dies_too() -> None:
    remote = Remote("peer", Failing)  # type: ignore[arg-type]
    with pytest.raises(EngineError, match="peer: ValueError: no such thing"):
        remote.call("reply")
    with pytest.raises(EngineError, match="peer: its process ended with status 3"):
        remote.call("dialogue", [])
    remote.close()


def remote_or_local(
    name: str, make: Callable[..., Any], **options: Any
) -> Remote | LocalContestant:
    """In place of `Remote`: the other engine is in a process of its own. That ours may be shows the
    speculation bench."""
    if name == bench.CTRANSLATE2:
        return Remote(name, make, **options)
    return LocalContestant(name, make, **options)


SHORTER = {"REPLY_TOKENS": 9, "TURN_TOKENS": 4, "TOGETHER_TOKENS": 6, "TALK_TOKENS": 8}
"""Tokens of the replies: figures of more would say no more of random weights."""


def test_a_small_model_is_measured_beside_another_engine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "tiny.gguf"
    source = tmp_path / "tiny"
    save_tiny_model(source, "llama", max_position_embeddings=4096)
    save_tiny_gguf(model, source)
    out = tmp_path / "result.json"
    found = importlib.util.find_spec

    def without_llama_cpp(name: str, package: str | None = None) -> Any:
        """It reads no tiny GGUF."""
        return None if name == "llama_cpp" else found(name, package)

    monkeypatch.setattr("importlib.util.find_spec", without_llama_cpp)
    monkeypatch.setattr(bench, "Remote", remote_or_local)
    for name, num_tokens in SHORTER.items():
        monkeypatch.setattr(rounds, name, num_tokens)
    options = [
        "--rounds",
        "1",
        "--steps",
        "3",
        "--work",
        str(tmp_path),
        "--json",
        str(out),
        "--int4",
    ]
    assert bench.main(["--model", str(model), *options]) == 0
    result = json.loads(out.read_text())
    own, peer = result["engines"][bench.PLAIN], result["engines"][bench.CTRANSLATE2]
    assert peer["steps_ms"]["count"] == 3
    # Random bytes are no text, and a token takes no time: what comes with the first isn't counted.
    assert own["token_ms"].get("count", 0) < rounds.REPLY_TOKENS
    assert peer["token_ms"]["count"] == rounds.REPLY_TOKENS - 1
    assert {bench.INT4, bench.PLAIN_INT4} < set(result["engines"])
    for name, engine in result["engines"].items():
        is_int4 = name in (bench.INT4, bench.PLAIN_INT4)
        # Random weights are rounded badly, and the peer's sums differ by processor.
        allowed = 0.2 if is_int4 else 0.05
        assert engine["perplexity"] == pytest.approx(own["perplexity"], rel=allowed)
        assert len(engine["first_token_by_turn_ms"]) == 10
        assert set(engine["together_tokens_a_s"]) == {"1", "2", "4", "8"}
    printed = capsys.readouterr().out
    assert "one caller" in printed
    assert "first token of turn 10" in printed


def test_a_model_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--device", "cpu", "--model", "/nowhere.gguf"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
