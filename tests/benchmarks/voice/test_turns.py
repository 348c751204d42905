"""`halfsec bench turns` and `bench voice`: plan of the calls, the report, runs with a server."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent.client.simulated_caller.spoken_turn import SpokenTurn
from agent.config.sources import read_config
from agent.errors import BenchError
from agent.turn_taking.end_of_turn_model import EAGERNESS
from asr.speech_detection.turn_model import EMBEDDING
from benchmarks.signals.recordings import Label, TurnRecording
from benchmarks.voice import conversations, turns
from benchmarks.voice.harness import HeldCall, in_batches
from benchmarks.voice.report import figures_of, missed_gates, show
from benchmarks.voice.variants import PARTS, WHOLE, variants
from tests.support.models import model_path

pytestmark = pytest.mark.slow

RECORDINGS = Path(__file__).parents[2] / "recordings"


def recording(number: int, kind: str = "") -> TurnRecording:
    return TurnRecording(Path(f"{number}.wav"), np.zeros(8, np.int16), 16_000, Label(1, kind))


def exchange(e2e_ms: float | None, *, cut_in: bool = False, reopened: bool = False) -> SpokenTurn:
    found = SpokenTurn(1, np.zeros(0, np.int16), 0)
    found.e2e_ear_ms, found.cut_in, found.reopened = e2e_ms, cut_in, reopened
    return found


@pytest.mark.parametrize(
    ("count", "turns_a_call", "callers", "sizes"),
    [
        (10, 5, 1, [[5], [5]]),
        (11, 5, 1, [[4], [4], [3]]),
        (12, 3, 2, [[3, 3], [3, 3]]),
        (7, 2, 2, [[2, 2], [2, 1]]),
        (1, 5, 3, [[1]]),
        (2, 5, 3, [[1, 1]]),
    ],
)
def test_callers_have_about_as_much_to_say(
    count: int, turns_a_call: int, callers: int, sizes: list[list[int]]
) -> None:
    recordings = [recording(number) for number in range(count)]
    rounds = in_batches(recordings, turns_a_call, callers)
    assert [[len(batch) for batch in batches] for batches in rounds] == sizes
    said = [one.path.name for batches in rounds for batch in batches for one in batch]
    assert sorted(said) == sorted(one.path.name for one in recordings)


def test_ways_to_answer() -> None:
    whole, guess, naive = variants(naive=True, without=["guess", "guess"])
    assert (whole, whole.serve_args, whole.turn_detection) == (WHOLE, [], None)
    assert guess.name == "without guess"
    assert guess.serve_args == ["--set", "agent.guess=false"]
    assert guess.turn_detection is None
    assert naive.turn_detection == {"type": "server_vad", "silence_duration_ms": 500}
    assert naive.serve_args.count("--set") == 7
    assert variants(naive=False, without=[]) == [WHOLE]


def test_what_a_way_leaves_out_are_settings_that_exist() -> None:
    flags: dict[str, object] = {}
    for arguments in PARTS.values():
        flags |= dict(pair.split("=") for pair in arguments[1::2])
    config = read_config(flags, env={})
    assert (config.agent.guess, config.agent.preview) == (False, False)
    assert (config.asr.pause_ms, config.asr.early_ms) == (500, 0)
    assert not config.agent.first_clause


def test_figures_by_kind_and_gates(capsys: pytest.CaptureFixture[str]) -> None:
    first = HeldCall([recording(1, "command"), recording(2, "hesitant"), recording(3, "hesitant")])
    first.exchanges = [exchange(400.0), exchange(700.0, cut_in=True, reopened=True)]
    first.exchanges[0].silenced_ms = 130.0
    first.exchanges[1].ducked_ms, first.exchanges[1].silenced_ms = 90.0, 600.0
    first.num_checked, first.mismatches = 2, ["history has 'a'"]
    first.errors = ["The call has ended: 1011."]
    second = HeldCall([recording(4, "command")], [exchange(None)])
    figures = figures_of([first, second])
    assert figures["summary"]["turns"] == 3
    assert (figures["missed"], figures["reopened"]) == (1, 1)
    assert figures["kinds"]["command"]["summary"]["p95"] == 400.0
    assert figures["kinds"]["hesitant"]["summary"]["cut_in_rate"] == 1.0
    assert figures["errors"] == ["The call has ended: 1011."]
    assert missed_gates(figures, 400, 400, 34) == []
    assert missed_gates(figures, 399, None, 33) == [
        "GATE MISSED: p50 400.0 ms > 399 ms",
        "GATE MISSED: cut-ins 33.3 % > 33 %",
    ]
    barge_ins = figures["barge_ins"]
    assert (barge_ins["count"], barge_ins["replies_checked"]) == (2, 2)
    assert [barge_ins[f"{name}_max_ms"] for name in ("ducked", "silenced", "stopped")] == [
        *(90.0, 600.0, 130.0)
    ]
    assert missed_gates(figures, None, None, None, 130) == []
    assert missed_gates(figures, None, None, None, 129) == [
        "GATE MISSED: barge-in 130.0 ms > 129 ms"
    ]
    assert missed_gates(figures_of([]), 1, None, None) == ["GATE MISSED: p50 - ms > 1 ms"]
    named: dict[str, Any] = {"machine": "M", "date": "D", "server": None}
    show({**named, **figures, "compared": {"naive": figures}})
    printed = capsys.readouterr().out
    for part in ("whole", "  hesitant", "naive", "2 barge-ins", "turned down after", "1 differ"):
        assert part in printed


def test_options_that_exclude_each_other() -> None:
    with pytest.raises(BenchError, match="leave out --url"):
        turns.main([str(RECORDINGS), "--naive", "--url", "ws://127.0.0.1:1"])
    with pytest.raises(BenchError, match="9999 recordings are needed"):
        turns.main([str(RECORDINGS), "--turns", "1", "--warm-up", "9998"])
    with pytest.raises(SystemExit):
        turns.main([str(RECORDINGS), "--turns", "0"])
    with pytest.raises(SystemExit):
        turns.main([str(RECORDINGS), "--virtual", "--scales", "0,1"])


@pytest.mark.models
def test_a_recording_in_two_ways(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With servers of its own, by telephone, after another that is not counted."""
    for name in ("whisper-tiny.en", "smollm2-135m-instruct", "silero-vad"):
        model_path(name)
    monkeypatch.chdir(Path(__file__).resolve().parents[3])
    out = tmp_path / "out.json"
    names = ("conf-locked", "vm-changeto")
    arguments = [str(RECORDINGS / f"{name}.wav") for name in names]
    arguments += ["--turns", "1", "--warm-up", "1", "--naive", "--telephony"]
    status = turns.main([*arguments, "--json", str(out), "--gate-cut-ins", "100"])
    result = json.loads(out.read_text())
    assert (status, result["errors"]) == (0, [])
    assert result["summary"]["turns"] == 1
    assert result["compared"]["naive"]["summary"]["turns"] == 1
    assert result["compared"]["naive"]["speculation"]["guesses"] == 0
    assert len(result["turns"]) == 1
    assert result["missed"] == 0
    assert result["turns"][0]["reply_s"] > 0
    assert result["server"]["ready_s"] > 0
    print(capsys.readouterr().out)


@pytest.mark.models
def test_a_conversation_with_barge_ins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("whisper-tiny.en", "smollm2-135m-instruct", "silero-vad"):
        model_path(name)
    monkeypatch.chdir(Path(__file__).resolve().parents[3])
    out = tmp_path / "out.json"
    behaviour = ["--barge-in", "--backchannels", "--stereo", str(tmp_path / "calls")]
    # With the usual seed, words are said over the answers to the second and third turn, and the
    # first is interrupted.
    conversations.main([str(RECORDINGS), "--turns", "3", *behaviour, "--json", str(out)])
    result = json.loads(out.read_text())
    assert result["backchannel_source"] == "synthesized (hibari)"
    for client, found in result["backchannels"].items():
        assert client == "ducks"
        assert found["said"] == found["kept"] + found["stopped"] + found["answers"]
    assert result["errors"] == []
    assert result["summary"]["turns"] == 3
    assert result["barge_ins"]["replies_checked"] >= 2
    assert result["barge_ins"]["mismatches"] == []
    heard = result["stereo"]
    assert heard["calls"] == [path.name for path in sorted((tmp_path / "calls").iterdir())]
    # On a busy machine a pause may be taken for the end, and then it is not known what to compare.
    assert heard["compared"] + len(heard["not_compared"]) >= 3
    assert all(row["why"] for row in heard["not_compared"])
    assert {row["call"] for row in heard["turns"]} <= set(heard["calls"])
    print(capsys.readouterr().out)


def test_recordings_of_calls_need_a_folder_to_lie_in(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BenchError, match="Can't write to"):
        conversations.main([str(RECORDINGS), "--stereo", str(tmp_path / "file")])


@pytest.mark.models
def test_curves_in_virtual_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The shipped decision beside one silence, the published classifier and version 1."""
    for name in ("whisper-tiny.en", "silero-vad", "smart-turn"):
        model_path(name)
    out, svg = tmp_path / "out.json", tmp_path / "out.svg"
    line = {"base_ms": 400, "slope_ms": 100, "least_ms": 256, "most_ms": 1000}
    old = {"with_sound": {"sound": 1.0}, "words_alone": {}, "waits": dict.fromkeys(EAGERNESS, line)}
    (tmp_path / "score.json").write_text(json.dumps(old))
    (tmp_path / "head.json").write_text(json.dumps({"bias": 6.0, "weights": [0.0] * EMBEDDING}))
    arguments = [str(RECORDINGS), "--virtual", "--scales", "0.5,1,2", "--final-ms", "90"]
    arguments += ["--json", str(out), "--svg", str(svg), "--line-score"]
    arguments += [str(tmp_path / "score.json"), "--line-head", str(tmp_path / "head.json")]
    assert turns.main(arguments) == 0
    curves = json.loads(out.read_text())["curves"]
    marks = {
        name: [one["mark"] for one in points if one["mark"]] for name, points in curves.items()
    }
    assert marks == {
        "halfsec, auto": [],
        "halfsec, as shipped": ["high", "auto", "medium", "low"],
        "one silence": ["500 ms"],
        "Smart Turn, published": ["0.5"],
        "halfsec before, version 1": ["auto"],
    }
    sooner, shipped, later = curves["halfsec, auto"]
    assert sooner["turns"] == later["turns"] == len(list(RECORDINGS.glob("*.wav")))
    assert sooner["p50"] < shipped["p50"] < later["p50"]
    assert sooner["cut_ins"] >= later["cut_ins"]
    figures = {"scale", "eagerness", "mark"}
    auto = curves["halfsec, as shipped"][1]
    assert {k: v for k, v in auto.items() if k not in figures} == {
        k: v for k, v in shipped.items() if k not in figures
    }
    assert [one["silence_ms"] for one in curves["one silence"]] == [250, 500, 1000]
    assert curves["one silence"][1]["p50"] < curves["one silence"][2]["p50"]
    assert {one["scale"] for one in curves["halfsec before, version 1"]} == {0.5, 1, 2}
    loose, *_, strict = curves["Smart Turn, published"]
    assert loose["p50"] < strict["p50"]
    assert "halfsec, as shipped" in svg.read_text()
    assert "Smart Turn, published" in capsys.readouterr().out


@pytest.mark.models
def test_a_language_s_rules_in_virtual_time(tmp_path: Path) -> None:
    """By sound and silence alone, with waits of their own."""
    for name in ("whisper-tiny.en", "whisper-base", "silero-vad", "smart-turn"):
        model_path(name)
    out = tmp_path / "out.json"
    arguments = [str(RECORDINGS / "conf-locked.wav"), "--virtual", "--scales", "1"]
    arguments += ["--final-ms", "90", "--language", "de", "--json", str(out)]
    assert turns.main(arguments) == 0
    result = json.loads(out.read_text())
    assert result["language"] == "de"
    (auto,) = result["curves"]["halfsec, auto"]
    assert auto["p50"] >= 600
    with pytest.raises(BenchError, match="--line-score and --line-head go together"):
        turns.main([*arguments, "--line-score", str(out)])
