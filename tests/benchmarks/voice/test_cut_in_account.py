"""The account of cut-ins in made-up calls: real turn-taking, made-up ears and words."""

import random
from pathlib import Path

import numpy as np
import pytest

import asr
from agent.turn_taking.reply_outcome import LateSpeech
from asr.recognition.transcripts import Hypothesis
from benchmarks.end_of_turn.simulated_call import Float32
from benchmarks.voice import cut_in_account as bench
from latency_budget.account.turn_record import Outcome

RATE_HZ = asr.RATE_HZ
GOING_ON = [
    ("I'd like a double-shot cappuccino?", "With a bit of brown sugar."),
    ("Could you book a table for four people.", "On Thursday at seven."),
    ("I need a taxi.", "To the airport."),
    ("Please send it to my office.", "And a copy to my wife."),
    ("I'm looking for a hotel.", "Because my flight was cancelled."),
    ("I want to", "change my booking."),
    ("What does it cost.", "For two nights?"),
    ("The name is Baker.", "From Baker and Sons."),
]
OVER: dict[bench.Kind, list[str]] = {
    "interrupts": ["What does it cost?", "Can you speak up?", "I meant the other one."],
    "stops": ["Stop.", "No, wait.", "Sorry, I meant Tuesday."],
    "backchannel": ["Mm-hmm.", "Yeah.", "I see."],
    "next turn": ["Can I pay by card?", "Thanks.", "What time do you close?"],
    "listens": [""],
}


class Loudness:
    def probability(self, frame: Float32, state: asr.VadState) -> float:
        return float(np.abs(frame).max() > 0.05)


class ByLevel:
    """Recognizes each voice by its level: the words are known from the start."""

    def __init__(self, words: dict[int, str]) -> None:
        self._words = words

    def transcribe(self, pcm: Float32, *, fallback: bool = True) -> Hypothesis:
        peaks = np.abs(pcm).reshape(-1)
        heard = [
            text
            for level, text in self._words.items()
            if np.count_nonzero(np.abs(peaks - level / 10) < 0.03) > RATE_HZ // 10
        ]
        return Hypothesis(" ".join(heard))


class Sure:
    def log_odds(self, pcm: Float32) -> float:
        return 5.0

    def warm(self) -> None: ...


def voice(level: int, seconds: float) -> Float32:
    length = round(seconds * RATE_HZ)
    return np.resize(np.array([1, -1], np.float32), length) * np.float32(level / 10)


def held(kind: bench.Kind, first: str, second: str, over: str, seed: int) -> bench.Heard:
    """One call, of which the account must say what is true."""
    parts = voice(2, 1.0), voice(4, 1.0)
    sentence = bench.Sentence(first, lambda: np.concatenate(parts), lambda: parts)
    models = Loudness(), ByLevel({2: first, 4: second, 8: over}), Sure()
    rng = random.Random(seed)
    length_s = 0.5 if kind == "backchannel" else 1.5
    spoken = voice(8, length_s)
    return bench.AccountedCall(kind, sentence, spoken, models, rng, ducks=seed % 2 == 1).run()


def test_the_account_agrees_with_what_is_true() -> None:
    heard = [
        held("goes on", first, second, "", seed) for seed in range(6) for first, second in GOING_ON
    ]
    for kind, texts in OVER.items():
        heard += [
            held(kind, *GOING_ON[seed % 4], over, 7 * number + seed)
            for seed in range(6)
            for number, over in enumerate(texts)
        ]
    found = bench.figures(heard)
    cut_in = found["cut_in"]
    assert cut_in["true"] >= 25
    assert cut_in["recall"] >= 0.9
    assert cut_in["precision"] >= 0.9
    assert found["interrupted"]["true"] >= 20
    assert found["interrupted"]["recall"] >= 0.9
    assert found["reopened"]["true"] == found["reopened"]["both"]
    for kind in ("backchannel", "listens"):
        ours = [each for each in heard if each.kind == kind]
        assert all(each.account is not Outcome.CUT_IN for each in ours)


def test_a_caller_who_goes_on_early_is_cut_in_on_whatever_the_words_are() -> None:
    found = [held("goes on", "A taxi.", "Stop.", "", seed) for seed in range(8)]
    early = [each for each in found if each.delay_ms is not None and each.delay_ms < 150]
    assert early
    assert all(each.account is each.truth is Outcome.CUT_IN for each in early)


def test_recordings_are_cut_where_the_voice_drops(tmp_path: Path) -> None:
    pcm = np.concatenate([voice(5, 1.0), np.zeros(RATE_HZ // 5, np.float32), voice(5, 1.0)])
    ((first, end),) = bench.dips(pcm)
    assert (first, end) == (RATE_HZ, RATE_HZ + RATE_HZ // 5)
    assert bench.dips(voice(5, 2.0)) == []
    assert len(bench.trimmed(np.concatenate([np.zeros(8000, np.float32), voice(5, 1.0)]))) <= 16_320


def test_halves_share_no_speaker_and_no_line() -> None:
    lines = bench.lines_of_callers()
    halves = {bench.half_of(line) for line in lines}
    assert len(lines) > 150
    assert halves == {"a", "b"}
    assert len(set(lines)) == len(lines)


def test_the_fit_finds_what_goes_on() -> None:
    heard = [
        bench.Heard("goes on", "", Outcome.CUT_IN, None, 700, LateSpeech("A.", "with", 700)),
        bench.Heard("stops", "", None, None, 700, LateSpeech("A.", "stop", 700)),
    ] * 50
    weights = bench.fitted(heard)
    assert weights["joins"] > 1 > -1 > weights["stops"]


@pytest.mark.parametrize("gate", ["--gate-recall", "--gate-precision"])
def test_a_missed_gate_fails(
    gate: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    halves = voice(2, 0.5), voice(2, 0.5)
    sentence = bench.Sentence("x", lambda: voice(2, 1.0), lambda: halves)
    said = bench.Material([sentence], [voice(8, 1.0)], [voice(8, 0.4)])
    models = Loudness(), ByLevel({}), Sure()
    monkeypatch.setattr(bench, "material", lambda *_: said)
    monkeypatch.setattr(bench, "installed_voices", list)
    monkeypatch.setattr(bench, "load_models", lambda: models)
    out = tmp_path / "found.json"
    assert bench.main(["--calls", "2", gate, "0.9", "--json", str(out)]) == 1
    assert "GATE MISSED" in capsys.readouterr().out
    assert '"calls": 2' in out.read_text()
