"""`halfsec bench quiet`: sounds without speech, and the counts of them."""

import json
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
import soundfile

import asr
from agent.config.sources import read_config
from agent.errors import BenchError
from asr.recognition.transcripts import Hypothesis
from benchmarks.end_of_turn.simulated_call import load_models
from benchmarks.signals.noise import SOUNDS, make_sound
from benchmarks.voice import false_triggers
from benchmarks.voice.false_triggers import BLOCK_S, Tally, measure, report, sounds
from tests.benchmarks.test_simulation import Counting, Float32, Judge, Loudness, sound
from tests.support.models import model_path
from tests.support.service.live_call import overlap, recording, transcript

LISTENING = asr.ListenerConfig(partial_interval_ms=500)


def options(**changes: object) -> Namespace:
    return Namespace(**{"minutes": 1, "seed": 1, "telephony": False, **changes})


@pytest.mark.parametrize("name", SOUNDS)
def test_sounds_are_made_from_their_seed(name: str) -> None:
    made = make_sound(name, 1, 3.0)
    assert made.dtype == np.float32
    assert len(made) == 48_000
    assert np.abs(made).max() <= 1
    assert np.array_equal(made, make_sound(name, 1, 3.0))
    assert not np.array_equal(made, make_sound(name, 2, 3.0))
    assert np.abs(make_sound(name, 1, 0.01)).max() <= 1, "shorter than any of its parts"


def test_everything_that_is_taken_for_a_turn_is_counted() -> None:
    """Two seconds of voice are a message and an answer each, the second one an interruption of the
    first answer; what is too short for words is only opened."""
    call: Float32 = np.concatenate([sound(2.048, 2.0, 2.048, 6.0), sound(0.128, 2.0)])
    (tally,) = measure(iter([("talk", call)]), Loudness(), Counting(), Judge(), LISTENING)
    assert tally.utterances == 3
    assert [text.split()[0] for text in tally.transcripts] == ["word", "word"]
    assert tally.answers == 2
    assert tally.partials > 0
    assert tally.decoded >= tally.partials + 2
    assert tally.seconds == pytest.approx(len(call) / 16_000)


def test_what_has_no_words_is_opened_and_not_answered() -> None:
    class Deaf(Counting):
        def transcribe(self, pcm: Float32, *, fallback: bool = True) -> Hypothesis:
            return Hypothesis("")

    (tally,) = measure(iter([("music", sound(2.048, 2.0))]), Loudness(), Deaf(), Judge(), LISTENING)
    assert (tally.utterances, tally.transcripts, tally.answers) == (1, [], 0)


def test_files_take_half_of_the_time_and_the_rest_is_made(tmp_path: Path) -> None:
    for number in range(4):
        soundfile.write(tmp_path / f"{number}.wav", np.zeros(8000 * 60, np.int16), 8000)
    files = sorted(tmp_path.iterdir())
    played = [(name, len(pcm) / 16_000) for name, pcm in sounds(files, options(minutes=4))]
    assert [name for name, _ in played] == [
        *(f"{tmp_path.name}/{number}.wav" for number in range(2)),
        *list(SOUNDS)[:2],
    ]
    assert {seconds for _, seconds in played} == {BLOCK_S}
    (line,) = [pcm for _, pcm in sounds([], options(minutes=1, telephony=True))]
    assert len(line) == pytest.approx(BLOCK_S * 16_000, abs=200)
    with pytest.raises(BenchError, match=r"no\.wav"):
        list(sounds([tmp_path / "no.wav"], options()))


def test_figures_add_up() -> None:
    tallies = [Tally("a", 60.0, 2, 3, 1, ["Hi."], 1), Tally("b", 30.0, 1, 0, 0, [], 0)]
    result = report(tallies, options())
    assert (result["minutes"], result["utterances"], result["answers"]) == (1.5, 3, 1)
    assert result["transcripts"] == ["Hi."]
    assert result["sounds"]["b"]["minutes"] == 0.5


@pytest.mark.models
def test_a_gate_on_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("whisper-tiny.en", "silero-vad", "smart-turn"):
        model_path(name)
    saved = tmp_path / "quiet.json"
    spoken = str(Path(__file__).parents[2] / "recordings" / "all-circuits-busy-now.wav")
    quiet = ["--minutes", "1", "--gate-answers", "0", "--json", str(saved)]
    assert false_triggers.main(quiet) == 0
    assert json.loads(saved.read_text())["sounds"]["silence"]["answers"] == 0
    assert false_triggers.main([*quiet, spoken]) == 1
    assert "GATE MISSED: 1 answers > 0" in capsys.readouterr().out


@pytest.mark.models
def test_music_on_hold_is_no_words_and_who_comes_back_is_heard() -> None:
    """Through a telephone's line. The agent is not made to talk to the music."""
    for name in ("whisper-tiny.en", "silero-vad", "smart-turn"):
        model_path(name)
    models = load_models(read_config())
    music = false_triggers._on_the_line(make_sound("music", 1, 40.0), True)
    words = recording("vm-nobodyavail", asr.RATE_HZ).astype(np.float32) / np.float32(32768)
    back = false_triggers._on_the_line(words, True)
    silence = np.zeros(2 * asr.RATE_HZ, np.float32)
    pause = asr.EndpointingConfig(pause_ms=read_config().asr.pause_ms)
    listening = asr.ListenerConfig(endpointing=pause)
    held, both = measure(
        iter([("held", music), ("both", np.concatenate([music, silence, back]))]),
        *models,
        listening,
    )
    assert (held.transcripts, held.answers) == ([], 0)
    (text,) = both.transcripts
    assert overlap(transcript("vm-nobodyavail"), text) > 0.6
    assert both.answers == 1
