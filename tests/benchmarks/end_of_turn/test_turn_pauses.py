"""Pauses as they are written down, with the real detector, recognizer and turn model."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import soundfile

from asr.audio.files import read_file
from asr.audio.samples import RATE_HZ
from asr.errors import AudioError
from asr.speech_detection.turn_model import EMBEDDING
from benchmarks.end_of_turn.turn_data import SourceRecording, command_turn, hesitant_turn
from benchmarks.end_of_turn.turn_pauses import Models, main, pauses_of, read_embeddings, read_pauses
from tests.support.models import model_path

RECORDINGS = Path(__file__).parents[2] / "recordings"


@pytest.mark.models
def test_the_pauses_of_a_turn() -> None:
    models = Models(model_path("smart-turn").parent, words=True)
    pcm = read_file(RECORDINGS / "vm-nobodyavail.wav")
    middle = np.argmin(np.convolve(np.abs(pcm[RATE_HZ:-RATE_HZ]), np.ones(800), mode="valid"))
    source = SourceRecording("vm-nobodyavail", pcm, "", (int(middle) + RATE_HZ + 400,))
    plain, whole = command_turn(source)
    *_, (end, embedding) = pauses_of(plain, whole, models)
    assert end.is_end
    assert end.silence_ms > 2000
    assert abs(end.voiced_ms) < 200
    assert "available" in end.final
    assert embedding.shape == (EMBEDDING,)

    made = hesitant_turn(source)
    assert made is not None
    *inner, (end, _) = pauses_of(*made, models)
    ((first, last),) = made[0].pauses
    spliced = [one for one, _ in inner if first - RATE_HZ // 4 < one.at_sample < last]
    assert len(spliced) == 1
    assert not spliced[0].is_end
    assert abs(spliced[0].silence_ms - (last - first) * 1000 / RATE_HZ) < 300
    assert len(spliced[0].final) < len(end.final)
    assert end.is_end


@pytest.mark.models
def test_the_command_writes_pauses_and_embeddings(tmp_path: Path) -> None:
    pcm = read_file(RECORDINGS / "vm-changeto.wav")
    turn, whole = command_turn(SourceRecording("vm-changeto", pcm, "", ()))
    turns = tmp_path / "turns"
    turns.mkdir()
    soundfile.write(turns / turn.file, whole, RATE_HZ, subtype="PCM_16")
    (turns / "turns.jsonl").write_text(json.dumps(dataclasses.asdict(turn)) + "\n")
    out = tmp_path / "pauses.jsonl"
    folder = str(model_path("smart-turn").parent)
    asked = [str(turns), str(out), "--no-words", "--jobs", "1", "--models", folder]
    assert main(asked) == 0
    pauses = read_pauses(out)
    assert pauses[-1].is_end
    assert {pause.final for pause in pauses} == {""}
    assert read_embeddings(out).shape == (len(pauses), EMBEDDING)
    assert main(asked) == 0
    assert read_pauses(out) == pauses, "turns that are there already are left out"
    assert read_embeddings(out).shape == (len(pauses), EMBEDDING)


def test_pauses_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "pauses.jsonl"
    path.write_text("[]\n")
    with pytest.raises(
        AudioError, match=r"make them with `python -m benchmarks.end_of_turn.turn_pauses`"
    ):
        read_pauses(path)
    with pytest.raises(AudioError, match="not readable"):
        read_embeddings(path)


@pytest.mark.models
def test_a_list_names_the_turns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    turns = tmp_path / "turns"
    turns.mkdir()
    lines = []
    for name in ("vm-changeto", "conf-locked"):
        pcm = read_file(RECORDINGS / f"{name}.wav")
        turn, whole = command_turn(SourceRecording(name, pcm, "", ()))
        soundfile.write(turns / turn.file, whole, RATE_HZ, subtype="PCM_16")
        lines.append(json.dumps(dataclasses.asdict(turn)) + "\n")
    (turns / "turns.jsonl").write_text("".join(lines))
    names, out = tmp_path / "names.txt", tmp_path / "pauses.jsonl"
    folder = str(model_path("smart-turn").parent)
    asked = [str(turns), str(out), "--no-words", "--jobs", "1", "--models", folder]
    names.write_text("conf-locked.command.wav\n")
    assert main([*asked, "--names", str(names)]) == 0
    assert {one.file for one in read_pauses(out)} == {"conf-locked.command.wav"}
    names.write_text("conf-locked.command.wav\nanother.wav\n")
    assert main([*asked, "--names", str(names)]) == 2
    assert "no turn 'another.wav'" in capsys.readouterr().err
