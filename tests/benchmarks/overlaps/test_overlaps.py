"""What is said over the agent in made-up calls: real turn-taking, made-up ears and words."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
import soundfile

import asr
from agent.errors import BenchError
from asr.recognition.transcripts import Hypothesis
from benchmarks.end_of_turn.simulated_call import Float32
from benchmarks.overlaps import command
from benchmarks.overlaps.clips import Clip, Kind, read_clips
from benchmarks.overlaps.overlap_call import Client, OverlapCall, Overlapped

RATE_HZ = asr.RATE_HZ


class Loudness:
    def probability(self, frame: Float32, state: asr.VadState) -> float:
        return float(np.abs(frame).max() > 0.03)


class Says:
    """Recognizes the same words in everything."""

    def __init__(self, words: str) -> None:
        self._words = words
        self.num_passes = 0

    def transcribe(self, pcm: Float32, *, fallback: bool = True) -> Hypothesis:
        self.num_passes += 1
        return Hypothesis(self._words)


class Sure:
    def log_odds(self, pcm: Float32) -> float:
        return 5.0

    def warm(self) -> None: ...


def clip(kind: Kind, seconds: float, words: str = "said") -> Clip:
    sound = np.resize(np.array([0.2, -0.2], np.float32), round(seconds * RATE_HZ))
    return Clip(kind, "voice", words, False, False, sound)


def held(
    kind: Kind, words: str, seconds: float, client: Client = "stock", *, is_answer: bool = False
) -> Overlapped:
    """One call in which these words are recognized."""
    models = Loudness(), Says(words), Sure()
    said = clip(kind, seconds)
    return OverlapCall(said, client, models, random.Random(1), is_answer=is_answer).run()


@pytest.mark.parametrize("client", ["stock", "ducks"])
@pytest.mark.parametrize("words", ["Mm-hmm.", "Mama.", "Write."])
def test_a_reply_is_kept_over_a_backchannel_well_heard_or_not(client: Client, words: str) -> None:
    call = held("backchannels", words, 0.4, client)
    assert (call.kept, call.stopped, call.noticed) == (True, False, True)
    assert call.words == (words,)
    assert call.messages == ()
    assert call.gone_ms > 0


@pytest.mark.parametrize("client", ["stock", "ducks"])
@pytest.mark.parametrize(
    ("words", "seconds"), [("Stop.", 0.3), ("No, I meant Thursday.", 1.5), ("Write it down.", 0.9)]
)
def test_a_reply_stops_for_words(client: Client, words: str, seconds: float) -> None:
    call = held("interruptions", words, seconds, client)
    assert (call.kept, call.stopped) == (False, True)
    assert call.messages == (words,)
    assert call.reacted_ms is not None
    assert call.stopped_ms is not None
    assert call.reacted_ms <= call.stopped_ms


@pytest.mark.parametrize("client", ["stock", "ducks"])
def test_over_a_question_the_same_is_an_answer(client: Client) -> None:
    call = held("backchannels", "Mm-hmm.", 0.4, client, is_answer=True)
    assert call.messages == ("Mm-hmm.",)


def test_a_sound_that_is_too_short_to_be_noticed_keeps_the_reply() -> None:
    call = held("backchannels", "Mm.", 0.1)
    assert (call.kept, call.noticed, call.words) == (True, False, ())


def test_the_figures_count_each_kind_for_each_client() -> None:
    clips = [
        clip("backchannels", 0.4, "mm-hmm"), clip("interruptions", 0.4, "stop"),
    ]  # fmt: skip
    recognizer = Says("Stop.")
    calls = command.measure(clips, (Loudness(), recognizer, Sure()), 1)
    assert len(calls) == 6
    found = command.figures(calls)
    for client in ("stock", "ducks"):
        row = found[client]["synthesized"]
        assert (row["backchannels"]["said"], row["backchannels"]["right"]) == (1, 0)
        assert (row["interruptions"]["said"], row["interruptions"]["right"]) == (1, 1)
        assert (row["answers"]["said"], row["answers"]["right"]) == (1, 1)
        assert found[client]["recorded"]["backchannels"]["share"] is None
    assert sorted(each.client for each in calls if command.is_wrong(each)) == ["ducks", "stock"]


def test_the_same_audio_is_decoded_once() -> None:
    recognizer = Says("Yes.")
    remembering = command.Remembering(recognizer)
    sound = np.zeros(100, np.float32)
    assert remembering.transcribe(sound) is remembering.transcribe(sound.copy())
    remembering.transcribe(sound, fallback=False)
    assert recognizer.num_passes == 2


def test_clips_are_read_with_their_source(tmp_path: Path) -> None:
    sound = clip("backchannels", 0.3).pcm
    for voice in ("made", "person"):
        folder = tmp_path / "backchannels" / voice
        folder.mkdir(parents=True)
        soundfile.write(folder / "mm-hmm.wav", sound, RATE_HZ, subtype="PCM_16")
    sources = {"made": {"made": "synthesized", "held_out": True, "accented": True}}
    (tmp_path / "sources.json").write_text(json.dumps(sources), encoding="utf-8")
    made, person = read_clips(tmp_path)
    assert (made.voice, made.words, made.is_recorded, made.is_held_out) == (
        "made", "mm-hmm", False, True,
    )  # fmt: skip
    assert (made.is_accented, person.is_accented) == (True, False)
    assert (person.voice, person.is_recorded, person.is_held_out) == ("person", True, False)
    assert len(made.pcm) == len(sound)


def test_a_folder_without_clips_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="no recordings"):
        read_clips(tmp_path)
