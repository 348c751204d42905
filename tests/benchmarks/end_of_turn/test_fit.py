"""Fitting the end of turn: from pauses to what ships, and to figures beside the plain rules."""

import contextlib
import dataclasses
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent.turn_taking.end_of_turn_model import EAGERNESS, Evidence, Release, TurnScore
from asr.speech_detection.turn_model import EMBEDDING
from asr.speech_detection.turn_model_head import TurnModelHead
from benchmarks.end_of_turn import fit, head_training
from benchmarks.end_of_turn.evaluation import (
    KnownPause,
    calls_of,
    figures,
    known_turns,
    outcome,
    percentile_interval,
    trials_of,
)
from benchmarks.end_of_turn.line_score import LineScore, read_line_head
from benchmarks.end_of_turn.message_ends import read_message_ends
from benchmarks.end_of_turn.turn_pauses import Pause


def pause(**changes: object) -> Pause:
    whole = Pause("x.command.wav", "command", "b", 16_000, True, 2500, 10, "Yes.")
    return dataclasses.replace(whole, **changes)  # type: ignore[arg-type]


def recorded(folder: Path, seed: int = 2) -> Path:
    """Turns of two pauses, of which one direction of the embedding tells most, the language model
    some (in `ends.json`), and the words little."""
    rng = np.random.default_rng(seed)
    lines, embeddings, ends = [], [], {}
    for number in range(320):
        kind = fit.KINDS[number % 4]
        half = "ab"[number // 4 % 2]
        for is_end in (False, True):
            is_closed = rng.random() < (0.9 if is_end else 0.5)
            text = f"{'Yes' if is_closed else 'Hello'} {number} {is_end}{'.' if is_closed else ','}"
            ends[text] = float(rng.normal(-1.0 if is_end else -5.0, 1.5))
            one = pause(
                file=f"{number}.{kind}.wav",
                kind=kind,
                half=half,
                is_end=is_end,
                silence_ms=2500 if is_end else int(rng.integers(200, 900)),
                final=text,
                speaker="" if kind in ("command", "hesitant") else f"s{number // 8}{half}",
            )
            lines.append(json.dumps(dataclasses.asdict(one)) + "\n")
            noise = np.zeros(EMBEDDING)
            noise[:50] = rng.normal(0, 1, 50)
            noise[7] = rng.normal(1.0 if is_end else -1.0, 0.7)
            embeddings.append(noise)
    path = folder / "pauses.jsonl"
    path.write_text("".join(lines))
    np.save(folder / "pauses.jsonl.npy", np.array(embeddings, np.float32))
    (folder / "ends.json").write_text(json.dumps(ends))
    return path


@dataclasses.dataclass(frozen=True)
class Fitted:
    """A fit's input and output, in a folder of its own."""

    folder: Path
    printed: str

    @property
    def asked(self) -> list[str]:
        """Arguments of the fit."""
        return [str(self.folder / "pauses.jsonl"), "--message-ends", str(self.folder / "ends.json")]

    def figures(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "figures.json").read_text())
        return found


def shrink(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """A small grid, and models that are written to a folder and read from it."""
    patch.setattr(fit, "HEAD_FILE", folder / "head.npz")
    patch.setattr(fit, "SCORE_FILE", folder / "score.json")
    patch.setattr(head_training, "LEARNING_RATE", 3e-3)  # fewer pauses than the real ones
    patch.setattr(fit, "LOG_ODDS", (0.0, 1.0, 2.0))
    patch.setattr(fit, "LEASTS_MS", dict.fromkeys(EAGERNESS, (256,)))
    patch.setattr(fit, "MOSTS_MS", dict.fromkeys(EAGERNESS, (900,)))


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Fitted:
    """One fit for all tests that look at what comes out."""
    folder = tmp_path_factory.mktemp("fit")
    recorded(folder)
    printed = io.StringIO()
    found = Fitted(folder, "")
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        shrink(patch, folder)
        asked = [*found.asked, "--write", "--json", str(folder / "figures.json")]
        assert fit.main(asked) == 0
    return dataclasses.replace(found, printed=printed.getvalue())


@pytest.fixture
def small_grid(fitted: Fitted, monkeypatch: pytest.MonkeyPatch) -> None:
    shrink(monkeypatch, fitted.folder)


@pytest.mark.usefixtures("small_grid")
def test_what_tells_is_found_and_beats_one_silence(fitted: Fitted) -> None:
    assert "auto fitted, language model 1" in fitted.printed

    head = TurnModelHead.read(fitted.folder / "head.npz")
    assert int(np.argmax(head.log_odds(np.eye(EMBEDDING, dtype=np.float32)))) == 7
    score = TurnScore.load(fitted.folder / "score.json")
    waits = [score.wait_ms(Evidence("Yes.", sound), "auto") for sound in (4.0, -4.0)]
    assert waits[0] < waits[1]
    waits = [score.wait_ms(Evidence("Yes.", 0.0, message_end=end), "auto") for end in (-0.5, -6.0)]
    assert waits[0] < waits[1]

    result = fitted.figures()
    held_back, price_ms = result["held_back"], fit.PRICE_MS["auto"]
    cost_ms = fit.cost_ms(held_back["auto fitted, language model 1"], price_ms)
    without = fit.cost_ms(held_back["auto fitted, sound only"], price_ms)
    plain = [fit.cost_ms(each, price_ms) for each in result["curves"]["one silence"].values()]
    assert cost_ms < min(plain)
    assert cost_ms < without
    assert held_back["auto fitted, language model 1"]["halting"]["turns"] == 40
    counts = {name: one["count"] for name, one in result["calibration"]["300"].items()}
    assert counts["all"] == sum(counts[kind] for kind in fit.KINDS) > 200
    assert result["calibration"]["300"]["all"]["brier"] < 0.15
    assert result["decision_time"]["decisions"] == 320
    assert all(area > 0.85 for each in result["areas"].values() for area in each.values())


@pytest.mark.usefixtures("small_grid")
def test_what_is_shipped_is_judged_as_the_fit_judged_it(
    fitted: Fitted,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """And version 1 is judged beside it."""
    files = (fitted.folder / "score.json", fitted.folder / "head.npz")
    shipped_at = [path.read_bytes() for path in files]
    line = {"base_ms": 400, "slope_ms": 100, "least_ms": 256, "most_ms": 1000}
    old = {"with_sound": {"sound": 1.0}, "words_alone": {}, "waits": dict.fromkeys(EAGERNESS, line)}
    (tmp_path / "line.json").write_text(json.dumps(old))
    head = {"bias": 0.0, "weights": [0.0] * EMBEDDING}
    (tmp_path / "line_head.json").write_text(json.dumps(head))
    saved = tmp_path / "figures.json"
    beside = ["--line-score", str(tmp_path / "line.json"), "--line-head"]
    asked = [*fitted.asked, *beside, str(tmp_path / "line_head.json"), "--json", str(saved)]
    assert fit.main([*asked, "--shipped", "--write"]) == 0
    shipped, before = json.loads(saved.read_text()), fitted.figures()
    assert [path.read_bytes() for path in files] == shipped_at
    assert [before["models"], shipped["models"]] == ["fitted in this run", "shipped"]
    assert shipped["calibration"] == before["calibration"]
    for part in ("held_back", "areas", "curves"):
        for name, found in before[part].items():
            assert shipped[part][name] == found or name == "version 1"
    assert shipped["areas"]["sound, version 1"]["halting"] == 0.5, "a head that knows nothing"
    assert shipped["curves"]["version 1"]
    assert not before["curves"]["version 1"]
    equal = shipped["equal_cut_ins"]
    assert equal["cut_in_rate"] <= equal["other_cut_in_rate"]
    capsys.readouterr()
    (tmp_path / "line_head.json").write_text('{"bias": 0, "weights": 1}')
    assert fit.main([*asked, "--shipped"]) == 2
    assert "line_head.json" in capsys.readouterr().err
    (tmp_path / "line.json").write_text("{}")
    assert fit.main([*asked, "--shipped"]) == 2
    assert "line.json" in capsys.readouterr().err
    monkeypatch.setattr(fit, "SCORE_FILE", tmp_path / "score.json")
    fit.SCORE_FILE.write_text('{"version": 1}')
    assert fit.main([*fitted.asked, "--shipped"]) == 2
    assert "has version 1, this needs 2" in capsys.readouterr().err


def test_a_line_of_the_sound_is_what_version_1_had(tmp_path: Path) -> None:
    path = tmp_path / "line_head.json"
    path.write_text(json.dumps({"bias": -1.0, "weights": [0.5, -2.0]}))
    embeddings = np.array([[1, 1], [4, 0], [0, 0]], np.float32)
    assert read_line_head(path).log_odds(embeddings).tolist() == [-2.5, 1.0, -1.0]


def test_a_line_waits_as_version_1_did(tmp_path: Path) -> None:
    line = {"base_ms": 500, "slope_ms": 100, "least_ms": 250, "most_ms": 900}
    score = LineScore(
        {"sound": 1.0, "closed": 0.5}, {"closed": 2.0}, dict.fromkeys(EAGERNESS, line)
    )
    waits = [score.wait_ms(Evidence("call me", sound), "auto") for sound in (-6, -2, 0, 1.5, 6)]
    assert waits == [900, 700, 500, 350, 250]
    assert score.wait_ms(Evidence("Call me."), "auto") == 300
    assert score.wait_ms(Evidence("I would like the", 6.0), "auto") == 1200
    assert score.wait_ms(Evidence("my number is 5 5", 6.0), "auto") == 2000


def test_no_release_is_below_that_of_a_higher_eagerness(tmp_path: Path) -> None:
    real = fit.read(recorded(tmp_path)).of_half("a")
    ends = read_message_ends(tmp_path / "ends.json")
    seventh = np.eye(1, EMBEDDING, 7, np.float32)
    one_unit = TurnModelHead(seventh, np.zeros(1, np.float32), np.ones(1, np.float32), -0.5)
    turns = fit.turns_of(fit.judge(real, one_unit), ends)
    score = fit.fit_score(turns)
    for name in ("log_odds", "least_ms", "most_ms"):
        numbers = [getattr(score.releases[each], name) for each in EAGERNESS]
        assert numbers == sorted(numbers)


def test_pauses_in_noise_are_judged_by_noise_and_level() -> None:
    seventh = np.eye(1, EMBEDDING, 7, np.float32)
    head = TurnModelHead(seventh, np.zeros(1, np.float32), np.ones(1, np.float32), -0.5)
    rows = [
        ("babble@3.0", "b", True, 9.0), ("babble@4.9", "b", False, 1.0),
        ("babble@5.0", "b", True, 1.0), ("babble@9.0", "b", False, 9.0),
        ("babble@9.0", "a", False, 0.0), ("plain", "b", False, 0.0),
        ("steady@3.0", "b", True, 9.0),
    ]  # fmt: skip
    pauses = [pause(channel=noise, half=half, is_end=is_end) for noise, half, is_end, _ in rows]
    embeddings = seventh * np.array([[level] for *_, level in rows], np.float32)
    found = fit.in_noise(fit.EmbeddedPauses(tuple(pauses), embeddings), head)
    assert found == {
        "areas_in_noise": {
            "babble, 0-5 dB": {"pauses": 2, "area": 1.0},
            "babble, 5-10 dB": {"pauses": 2, "area": 0.0},
        }
    }


def test_a_valley_of_costs_is_chosen_before_a_lone_dip() -> None:
    costs = {1.0: 9.0, 1.25: 3.0, 1.5: 9.0, 1.75: 4.5, 2.0: 4.0, 2.25: 4.5, 2.5: 9.0}

    def cost(release: Release) -> float:
        return costs[release.log_odds]

    inner = [Release(log_odds, 416, 1000) for log_odds in list(costs)[1:-1]]
    assert min(inner, key=cost).log_odds == 1.25
    chosen = min(inner, key=lambda release: fit.smoothed(cost, release))
    assert chosen == Release(2.0, 416, 1000)
    assert fit.smoothed(cost, chosen) == pytest.approx(13 / 3)


def test_parts_of_a_half_share_no_speaker() -> None:
    pauses = [pause(speaker=f"s{number % 9}", file=f"{number}.x.wav") for number in range(90)]
    parts = [
        {one.speaker for one in pauses if fit.part_of(one) == part} for part in range(fit.NUM_PARTS)
    ]
    assert sum(map(len, parts)) == 9
    assert sum(map(bool, parts)) > 1
    both = [pause(file="hi.command.wav"), pause(file="hi.hesitant.wav", kind="hesitant")]
    assert len({fit.part_of(one) for one in both}) == 1


def test_an_answer_a_cut_in_and_a_missed_turn() -> None:
    inner = pause(is_end=False, silence_ms=500, final="Please hold.")
    (trial,) = trials_of([KnownPause(inner, 0.0), KnownPause(pause(), 0.0)])
    (turn,) = known_turns([[trial]])

    def waiting(ms: float) -> tuple[bool, int | None]:
        found = outcome(turn, lambda evidence: ms)
        return found.cut_in, found.after_ms

    assert waiting(480) == (True, None)
    assert waiting(500) == (False, 522), "asked at whole frames of 32 ms"
    assert waiting(10) == (True, None), "nothing is decided before anything is known"
    assert waiting(3000) == (False, None)


def test_without_words_nobody_answers() -> None:
    (trial,) = trials_of([KnownPause(pause(final=""), 5.0)])
    (turn,) = known_turns([[trial]])
    assert outcome(turn, lambda evidence: 300).after_ms is None


def test_a_callers_own_pauses_are_those_before() -> None:
    inner = pause(is_end=False, silence_ms=800)
    trial = trials_of([KnownPause(inner, 0.0), KnownPause(pause(), 0.0)])[0]
    turns = known_turns([[trial] * 6])
    first, last = turns[0].pauses[0][1], turns[-1].pauses[0][1]
    assert first.own_pause_ms < last.own_pause_ms == 800


def test_a_speakers_turns_are_one_call() -> None:
    turns = [pause(file=f"{n}.wav", speaker="s" + "12"[n % 2], source="x") for n in range(6)]
    others = [pause(file=f"{n}.x.wav") for n in range(10)]
    calls = calls_of(trials_of([KnownPause(one, 0.0) for one in [*turns, *others]]), seed=1)
    speakers = [{trial.pauses[0].pause.speaker for trial in call} for call in calls]
    assert [len(each) for each in speakers] == [1] * len(calls)
    assert sum(each == {"s1"} for each in speakers) == 1
    assert sum(map(len, calls)) == 16


def test_the_language_model_is_evidence_of_its_words() -> None:
    trials = trials_of([KnownPause(pause(), 0.0)])
    (turn,) = known_turns([trials], {"Yes.": -0.5})
    assert turn.pauses[0][1].message_end == -0.5
    (turn,) = known_turns([trials], {"No.": -0.5})
    assert turn.pauses[0][1].message_end is None


def test_intervals_of_percentiles_hold_them() -> None:
    times = list(range(300, 700, 4))
    low, high = percentile_interval(times, 50)
    assert low < 500 < high
    assert high - low < 200
    assert percentile_interval([], 50) == []


def test_rates_stand_with_their_interval() -> None:
    (trial,) = trials_of([KnownPause(pause(), 0.0)])
    turns = known_turns([[trial]] * 4)
    found = figures([outcome(turn, lambda evidence: 320) for turn in turns], "command")
    assert (found["turns"], found["cut_ins"], found["p50_ms"]) == (4, 0, 330)
    assert found["cut_in_wilson"][1] > 0.3


def test_what_cannot_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head_training, "EPOCHS", 1)  # heads are trained before words are missed
    path, ends = recorded(tmp_path), tmp_path / "ends.json"
    with_ends = ["--message-ends", str(ends)]
    assert fit.main([str(tmp_path / "none.jsonl"), *with_ends]) == 2
    hint = "make them with `python -m benchmarks.end_of_turn.turn_pauses`"
    assert hint in capsys.readouterr().err
    assert fit.main([str(path), "--message-ends", str(tmp_path / "none.json")]) == 2
    hint = "make them with `python -m benchmarks.end_of_turn.message_ends`"
    assert hint in capsys.readouterr().err
    ends.write_text('{"Other words.": -1.0}')
    assert fit.main([str(path), *with_ends]) == 2
    assert "give PAUSES with words, and --message-ends of them" in capsys.readouterr().err
    np.save(f"{path}.npy", np.zeros((3, EMBEDDING), np.float32))
    assert fit.main([str(path), *with_ends]) == 2
    assert "3 embeddings beside it" in capsys.readouterr().err
