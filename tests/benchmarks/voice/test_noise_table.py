"""`halfsec bench noise`: which turns, whose babble, and the figures of a row."""

import io
import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import soundfile

import asr
from agent.errors import BenchError
from benchmarks.end_of_turn.corpora import LICENCES, SPEECHOCEAN, FolderFiles
from benchmarks.end_of_turn.noisy_call import NoisyOutcome
from benchmarks.end_of_turn.turn_data import LabelledTurn
from benchmarks.signals.noise_mixing import GENERATED, Mixer, SoundCondition
from benchmarks.voice import noise_table
from benchmarks.voice.noise_table import (
    CallModels,
    HeardTurn,
    babble_voices,
    chosen_turns,
    default_conditions,
    heard_turn,
    measured,
    row,
)
from tests.benchmarks.test_simulation import Counting, Float32, Judge, Loudness, sound


def turn(number: int, speaker: str, half: str = "b", channel: str = "plain") -> LabelledTurn:
    return LabelledTurn(
        f"corpus/{number}", "halting", half, f"{number}.wav", "a", 16_000, (), SPEECHOCEAN,
        speaker, channel,
    )  # fmt: skip


def spoken(hz: float) -> Float32:
    """A second of a voice-like buzz after silence."""
    time = np.arange(16_000) / 16_000
    tone = 0.2 * np.sign(np.sin(2 * np.pi * hz * time)) * (time > 0.2)
    return tone.astype(np.float32)


def test_each_speaker_comes_once_before_anyone_comes_twice() -> None:
    turns = [turn(10 * index + each, f"s{index}") for index in range(4) for each in range(3)]
    others = [turn(90, "x", half="a"), turn(91, "y", channel="babble"), turn(92, "")]
    chosen = chosen_turns([*turns, *others], 7, seed=1)
    assert {one.speaker for one in chosen[:4]} == {"s0", "s1", "s2", "s3"}
    assert len({one.name for one in chosen}) == 7
    assert Counter(Counter(one.speaker for one in chosen).values()) == {2: 3, 1: 1}
    assert chosen == chosen_turns([*turns, *others], 7, seed=1)
    assert chosen != chosen_turns([*turns, *others], 7, seed=2)


def corpus(folder: Path) -> Path:
    """Speakers v0 to v3 in `test/` and t0 in `train/`, each with a buzz of an own pitch."""
    (folder / "README.md").parent.mkdir(parents=True, exist_ok=True)
    (folder / "README.md").write_text(LICENCES[SPEECHOCEAN][1])
    for part, speakers in (("test", ["v0", "v1", "v2", "v3"]), ("train", ["t0"])):
        (folder / part).mkdir()
        lines = {"text": "{0}u\tWORDS HERE", "wav.scp": "{0}u\t{0}.wav", "utt2spk": "{0}u {0}"}
        for name, line in lines.items():
            text = "".join(line.format(speaker) + "\n" for speaker in speakers)
            (folder / part / name).write_text(text)
    for index, name in enumerate(["v0", "v1", "v2", "v3", "t0"]):
        data = io.BytesIO()
        soundfile.write(data, spoken(100 + 50 * index), 16_000, format="WAV")
        (folder / f"{name}.wav").write_bytes(data.getvalue())
    return folder


def pitches(voices: list[Float32]) -> set[int]:
    """Pitch of each voice in Hz, to the next 50."""
    found = set()
    for pcm in voices:
        spectrum = np.abs(np.fft.rfft(pcm, 16_000))
        found.add(round(int(spectrum.argmax()) / 50) * 50)
    return found


def test_babble_is_of_speakers_who_are_not_judged(tmp_path: Path) -> None:
    files = FolderFiles(corpus(tmp_path / "ocean"))
    assert pitches(babble_voices(files, [turn(1, "t0")], seed=1)) == {100, 150, 200, 250}
    assert pitches(babble_voices(files, [turn(1, "v1")], seed=1)) == {100, 200, 250}


def test_a_row_has_counts_with_intervals() -> None:
    fine = NoisyOutcome(500.0, False, False, False, False)
    figures = row([
        fine,
        NoisyOutcome(700.0, False, True, False, True),
        NoisyOutcome(None, True, False, False, False),
        NoisyOutcome(None, False, True, True, False),
    ])  # fmt: skip
    expected = {
        "turns": 4, "answered": 2, "p50_ms": 500.0, "p95_ms": 700.0, "cut_ins": 1, "missed": 1,
        "false_starts": 2, "answered_noise": 1, "interrupted": 1,
        "wait_ms": [500, 700, None, None],
    }  # fmt: skip
    assert {name: figures[name] for name in expected} == expected
    assert figures["cut_ins_interval"] == pytest.approx([0.0456, 0.6994], abs=1e-3)
    assert figures["interrupted_interval"] == pytest.approx([0.0945, 0.9055], abs=1e-3)
    nothing = row([NoisyOutcome(None, True, False, False, False)])
    assert (nothing["p50_ms"], nothing["interrupted_interval"]) == (None, [])


def saved_turn(folder: Path) -> LabelledTurn:
    folder.mkdir()
    pcm = np.concatenate([np.zeros(5120, np.float32), sound(1.6), np.zeros(40_000, np.float32)])
    soundfile.write(folder / "1.wav", pcm, 16_000, subtype="PCM_16")
    one = LabelledTurn(
        "corpus/1", "halting", "b", "1.wav", "a", 5120 + len(sound(1.6)), (), SPEECHOCEAN, "v0"
    )
    (folder / "turns.jsonl").write_text(json.dumps(asdict(one)) + "\n")
    return one


class Halved:
    """Suppressor that leaves a voice below the detector's threshold."""

    def process(self, pcm: Float32) -> Float32:
        return pcm * np.float32(0.1)


def models() -> CallModels:
    return CallModels(Loudness(), Counting(), Judge(), asr.ListenerConfig())


def test_each_condition_is_measured_without_and_with_the_suppressor(tmp_path: Path) -> None:
    one: HeardTurn = heard_turn(tmp_path / "turns", saved_turn(tmp_path / "turns"))
    conditions = [SoundCondition(), SoundCondition("fan", 40.0)]
    rows = list(measured([one], conditions, Mixer(GENERATED), models(), {"halved": Halved}))
    assert [(found["condition"], found["suppressor"]) for found in rows] == [
        ("clean", ""),
        ("clean", "halved"),
        ("fan@40", ""),
        ("fan@40", "halved"),
    ]
    assert [found["answered"] for found in rows] == [1, 0, 1, 0]
    again = list(measured([one], conditions, Mixer(GENERATED), models(), {"halved": Halved}))
    assert again == rows


def test_the_command_saves_its_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    saved_turn(tmp_path / "turns")
    monkeypatch.setattr(noise_table, "_models", models)
    arguments = [str(tmp_path / "turns"), "--babble", str(corpus(tmp_path / "ocean"))]
    out = tmp_path / "out.json"
    wanted = ["--conditions", "clean,babble@10+telephone", "--json", str(out)]
    assert noise_table.main([*arguments, *wanted]) == 0
    result = json.loads(out.read_text())
    assert [found["condition"] for found in result["rows"]] == ["clean", "babble@10+telephone"]
    assert (result["speakers"], result["kinds"]) == (1, {"halting": 1})
    assert "babble@10+telephone" in capsys.readouterr().out
    with pytest.raises(BenchError, match="no noise 'street'"):
        noise_table.main([*arguments, "--conditions", "street@5"])
    with pytest.raises(BenchError, match="no turns"):
        noise_table.main([str(tmp_path / "ocean")])


def test_every_noise_is_measured_at_three_levels_by_default() -> None:
    names = [str(one) for one in default_conditions(GENERATED, is_room=True)]
    assert names[:3] == ["clean", "telephone", "room"]
    assert sorted(names[3:]) == sorted(
        f"{name}@{db}" for name in ("fan", "keyboard", "music") for db in (20, 10, 5)
    )
    assert "room" not in map(str, default_conditions({}, is_room=False))
