import json
from pathlib import Path

import numpy as np
import pytest
import soundfile

from asr.__main__ import main
from tests.support.models import model_path

RECORDINGS = Path(__file__).parents[1] / "recordings"


@pytest.fixture
def models() -> list[str]:
    vad = model_path("silero-vad") / "silero_vad.onnx"
    return ["--model", str(model_path("whisper-tiny.en")), "--vad", str(vad)]


@pytest.mark.models
def test_transcript_is_printed_as_it_is_recognized(
    models: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(RECORDINGS / "vm-nobodyavail.wav"), *models]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "partial" in lines[0]
    assert "FINAL    Nobody is available to take your call at the moment." in lines[-1]


@pytest.mark.models
def test_json_lines(models: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    path = str(RECORDINGS / "conf-locked.wav")
    assert main([path, "--json", "--no-partials", *models]) == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert records[0]["type"] == "SpeechStarted"
    assert records[-1]["type"] == "FinalTranscript"
    assert records[-1]["text"] == "This conference is locked."
    assert "PartialTranscript" not in {record["type"] for record in records}


@pytest.mark.models
def test_silence_prints_nothing(
    tmp_path: Path, models: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    soundfile.write(tmp_path / "silence.wav", np.zeros((96_000, 2)), 48_000)
    assert main([str(tmp_path / "silence.wav"), *models]) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.models
def test_a_bad_file_is_one_line_of_error(
    tmp_path: Path, models: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "letter.wav"
    path.write_text("Dear Sir or Madam")
    assert main([str(path), *models]) == 2
    assert capsys.readouterr().err.startswith(f"asr: {path}: not readable as audio")


def test_a_missing_model_is_one_line_of_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(RECORDINGS / "conf-locked.wav")
    assert main([path, "--vad", str(tmp_path / "none.onnx")]) == 2
    assert "halfsec models fetch" in capsys.readouterr().err
