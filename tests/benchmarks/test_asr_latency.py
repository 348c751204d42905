import gzip
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asr.audio.files import read_file
from asr.audio.samples import voiced_rms
from asr.errors import AudioError
from benchmarks.asr import finals
from benchmarks.asr.command import main as main_with_telephone
from benchmarks.asr.latency import at_level, find_recordings, half_of, main, read_transcripts
from tests.support.models import model_path

pytestmark = pytest.mark.slow

RECORDINGS = Path(__file__).parents[1] / "recordings"


def test_transcripts_as_lines_packed_or_not(tmp_path: Path) -> None:
    lines = "; sounds\n\nvm-for: for: you\ndigits/1: one\n"
    (tmp_path / "core.txt").write_text(lines)
    (tmp_path / "core.txt.gz").write_bytes(gzip.compress(lines.encode()))
    expected = {"vm-for": "for: you", "digits/1": "one"}
    assert read_transcripts(tmp_path / "core.txt") == expected
    assert read_transcripts(tmp_path / "core.txt.gz") == expected


@pytest.mark.parametrize("name", ["none.txt", "bad.json", "list.json", "bad.txt.gz"])
def test_unreadable_transcripts(tmp_path: Path, name: str) -> None:
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "bad.txt.gz").write_bytes(b"\x1f\x8b\x08 no")
    with pytest.raises(AudioError, match=f"{name}: not readable as transcripts"):
        read_transcripts(tmp_path / name)


def test_recordings_with_enough_words_in_two_halves() -> None:
    texts = read_transcripts(RECORDINGS / "transcripts.json")
    found = find_recordings(RECORDINGS, texts, min_words=5)
    assert "vm-changeto" not in [one.name for one in found]
    assert len(found) == 6
    halves = [half_of(found, half) for half in ("a", "b")]
    assert sorted(one.name for half in halves for one in half) == [one.name for one in found]
    assert half_of(found, "all") == found


@pytest.mark.models
def test_the_bench_reports_both_windows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.json"
    arguments = [str(RECORDINGS), "--transcripts", str(RECORDINGS / "transcripts.json")]
    arguments += ["--model", str(model_path("whisper-tiny.en")), "--json", str(out)]
    arguments += ["--vad", str(model_path("silero-vad") / "silero_vad.onnx"), "--limit", "3"]
    arguments += ["--errors", "--telephony", "--level-db", "-40", "--level-db", "-90"]
    assert main_with_telephone(arguments) in (0, 1)
    report = json.loads(out.read_text())
    assert report["recordings"] == 3
    wide, narrow = ["streaming", "full window"], ["streaming, telephone", "full window, telephone"]
    quiet = ["streaming, -40 dBFS", "streaming, -90 dBFS"]
    assert list(report["ways"]) == [*wide, *narrow, *quiet]
    assert report["ways"]["streaming"]["words"] == 20
    assert report["ways"]["full window"]["wer"] < 0.2
    assert report["ways"]["streaming, telephone"]["words"] == 20
    assert report["ways"]["streaming, telephone"]["wer"] < 0.3
    assert report["ways"]["streaming, -40 dBFS"]["wer"] < 0.3
    assert report["ways"]["streaming, -40 dBFS"]["unheard"] == 0
    assert report["ways"]["streaming, -90 dBFS"]["unheard"] == 3, "below mu-law's first step"
    assert report["ways"]["full window"]["encode_ms"]["p50"] > 0
    printed = capsys.readouterr().out
    assert "3 recordings, whisper-tiny.en" in printed
    assert ", 3 unheard" in printed
    print(printed)


@pytest.mark.parametrize("level_db", [-50.0, -20.0, -3.0])
def test_a_voice_is_brought_to_a_level(level_db: float) -> None:
    pcm = read_file(RECORDINGS / "conf-locked.wav")
    brought = at_level(pcm, level_db)
    assert brought.dtype == np.float32
    assert np.abs(brought).max() <= 1
    own_db = 20 * math.log10(voiced_rms(brought))
    loudest = np.abs(pcm).max() * 10 ** (level_db / 20) / voiced_rms(pcm)
    assert own_db == pytest.approx(level_db, abs=0.1) if loudest <= 1 else own_db < level_db
    assert not at_level(np.zeros(16_000, np.float32), level_db).any()


@pytest.mark.models
def test_nothing_to_measure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path), "--transcripts", str(RECORDINGS / "transcripts.json")]) == 2
    assert "no recording has a transcript" in capsys.readouterr().err


@pytest.mark.models
def test_the_bench_reports_when_the_last_words_are_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = finals.Cost.measured

    def on_an_idle_machine(recognizer: Any, audio: Any) -> finals.Cost:
        """In virtual time passes take what they took when this was written."""
        found = measured(recognizer, audio)
        assert min(found.encode_ms_per_s, found.decode_ms_per_token, found.tokens_per_s) > 0
        return replace(found, encode_ms_per_s=4.44, decode_ms_per_token=4.0)

    monkeypatch.setattr(finals.Cost, "measured", on_an_idle_machine)
    out = tmp_path / "out.json"
    arguments = [str(RECORDINGS), "--transcripts", str(RECORDINGS / "transcripts.json")]
    arguments += ["--model", str(model_path("whisper-tiny.en")), "--json", str(out)]
    arguments += ["--vad", str(model_path("silero-vad") / "silero_vad.onnx"), "--limit", "4"]
    assert main([*arguments, "--finals", "--early-ms", "32", "--tails"]) == 0
    report = json.loads(out.read_text())
    without, early = report["finals"]["ways"].values()
    assert list(report["finals"]["ways"]) == ["timed partials alone", "early_ms 32"]
    assert without["no_final"] == early["no_final"] == 0
    assert early["taken_over"] >= max(2, without["taken_over"])
    assert without["passes"].get("early", 0) < early["passes"]["early"]
    assert early["ready_ms"]["p50"] < without["ready_ms"]["p50"]
    assert early["errors"] <= without["errors"] + 1
    assert set(report["tails_ms"]) == {"0", "32", "64", "96", "128", "192"}
    print(capsys.readouterr().out)


def test_transcripts_of_turns(tmp_path: Path) -> None:
    (tmp_path / "turns.jsonl").write_text('{"file": "a.command.wav", "text": "Stop.", "end": 9}\n')
    assert read_transcripts(tmp_path / "turns.jsonl") == {"a.command": "Stop."}
    (tmp_path / "bad.jsonl").write_text('{"text": "Stop."}\n')
    with pytest.raises(AudioError, match=r"bad\.jsonl: not readable"):
        read_transcripts(tmp_path / "bad.jsonl")
