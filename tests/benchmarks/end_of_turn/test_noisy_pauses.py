"""Pauses again in noise: which noise, how loud, which part of the turn is heard."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import soundfile

from asr.audio.samples import RATE_HZ, Pcm, voiced_rms
from asr.speech_detection.turn_model import EMBEDDING
from benchmarks.end_of_turn.noisy_pauses import (
    SNR_DB,
    heard_in_noise,
    main,
    noises_of,
    noisy,
    steady_noise,
)
from benchmarks.end_of_turn.turn_data import LabelledTurn
from benchmarks.end_of_turn.turn_pauses import Pause, read_embeddings, read_pauses
from tests.support.models import model_path

SPEECH = RATE_HZ
SILENCE_MS = 250


class Lengths:
    """A turn model that tells how much it heard."""

    def __init__(self) -> None:
        self.heard: list[Pcm] = []

    def embedding(self, pcm: Pcm) -> npt.NDArray[np.float32]:
        self.heard.append(pcm)
        return np.full(EMBEDDING, len(pcm), np.float32)


def voice(hz: float = 200.0, length: int = SPEECH) -> Pcm:
    time = np.arange(length) / RATE_HZ
    return (0.1 * np.sign(np.sin(2 * np.pi * hz * time))).astype(np.float32)


def turn() -> Pcm:
    return np.concatenate([np.zeros(1600, np.float32), voice(), np.zeros(RATE_HZ, np.float32)])


def pause(silence_ms: int = SILENCE_MS) -> Pause:
    return Pause("1.wav", "halting", "a", 1600 + SPEECH, False, silence_ms, 0, "", speech_ms=900)


def test_the_voice_is_as_far_above_the_noise_as_is_said() -> None:
    for seed in range(20):
        found = noisy(turn(), {"steady": steady_noise}, np.random.default_rng(seed))
        kind, _, snr_db = found.channel.partition("@")
        assert kind == "steady"
        assert SNR_DB[0] <= float(snr_db) <= SNR_DB[1]
        noise = found.pcm[-RATE_HZ // 2 :]
        level = float(np.sqrt(np.mean((found.pcm - turn()) ** 2)))
        assert 20 * np.log10(voiced_rms(turn()) / level) == pytest.approx(float(snr_db), abs=0.1)
        assert np.any(noise), "the noise goes on behind the last word"


def test_a_pause_is_heard_where_it_is_and_no_later_than_it_lasts() -> None:
    model, noises = Lengths(), {"steady": steady_noise}
    long = dataclasses.replace(pause(900), at_sample=1600 + SPEECH // 2)
    pauses = [long, *[pause(200)] * 20]
    found = heard_in_noise(pauses, turn(), noises, model, [1, 2])  # type: ignore[arg-type]
    assert len(found) == 2 * len(pauses)
    begin = 900 * RATE_HZ // 1000
    for heard in (model.heard[1:21], model.heard[22:]):
        lengths = {len(pcm) - begin for pcm in heard}
        assert min(lengths) >= 80 * RATE_HZ // 1000
        assert max(lengths) <= 200 * RATE_HZ // 1000
        assert len(lengths) > 1
    first, second = found[0][0], found[len(pauses)][0]
    assert first.channel != second.channel
    assert dataclasses.replace(first, channel="plain") == long
    again = Lengths()
    heard_in_noise(pauses, turn(), noises, again, [1, 2])  # type: ignore[arg-type]
    assert all(np.array_equal(*both) for both in zip(model.heard, again.heard, strict=True))


def folder_of_turns(folder: Path, speakers: int) -> Path:
    folder.mkdir()
    lines = []
    for number in range(speakers):
        name = f"{number}.wav"
        pcm = np.concatenate([voice(150 + 20 * number), np.zeros(RATE_HZ, np.float32)])
        soundfile.write(folder / name, pcm, RATE_HZ, subtype="PCM_16")
        made = LabelledTurn(
            name, "halting", "ab"[number // 8], name, "", SPEECH, (), "c", str(number)
        )
        lines.append(json.dumps(dataclasses.asdict(made)) + "\n")
    (folder / "turns.jsonl").write_text("".join(lines))
    return folder


def test_babble_is_of_the_same_half_and_needs_voices(tmp_path: Path) -> None:
    folder = folder_of_turns(tmp_path / "turns", 11)
    assert "babble" in noises_of(folder, "a")
    assert "babble" not in noises_of(folder, "b"), "three voices would be the same three always"
    assert "steady" in noises_of(folder, "b")
    mixed = noises_of(folder, "a")["babble"](np.random.default_rng(1), 8 * RATE_HZ)
    spectrum = np.abs(np.fft.rfft(mixed))
    pitches = [spectrum[8 * hz] for hz in range(150, 150 + 20 * 11, 20)]
    assert max(pitches[8:]) < 0.1 * max(pitches[:8])


@pytest.mark.models
def test_the_command_writes_what_a_fit_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = folder_of_turns(tmp_path / "turns", 9)
    pauses = tmp_path / "pauses.jsonl"
    known = [
        Pause(f"{number}.wav", "halting", "ab"[number // 8], SPEECH, True, 900, 0, "", "c", "s")
        for number in range(9)
    ]
    short = dataclasses.replace(known[0], silence_ms=128)
    lines = [json.dumps(dataclasses.asdict(one)) + "\n" for one in [*known, short]]
    pauses.write_text("".join(lines))
    out = tmp_path / "noisy.jsonl"
    asked = [str(folder), str(pauses), str(out), "--jobs", "1"]
    models = ["--models", str(model_path("smart-turn").parent)]
    assert main([*asked, *models]) == 0
    assert "18 pauses in noise, of 9 turns" in capsys.readouterr().out
    found = read_pauses(out)
    assert {dataclasses.replace(one, channel="plain") for one in found} == set(known)
    assert all("@" in one.channel for one in found)
    rows = read_embeddings(out)
    assert rows.shape == (18, EMBEDDING)
    assert np.isfinite(rows).all()

    later = dataclasses.replace(known[0], file="8.wav", half="b", silence_ms=300)
    pauses.write_text("".join(lines[1:8]) + json.dumps(dataclasses.asdict(later)) + "\n")
    assert main([*asked, *models]) == 0
    assert read_pauses(out) == found, "turns that are there already are left out"
    assert np.array_equal(read_embeddings(out), rows)

    assert main([*asked, "--models", str(tmp_path)]) == 2
    assert "halfsec models fetch smart-turn" in capsys.readouterr().err
