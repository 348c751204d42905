"""Turns made from recordings: pauses where they belong, the same bytes for the same seed."""

import dataclasses
import io
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import soundfile

from asr.audio.samples import RATE_HZ, Pcm, last_voiced_sample
from asr.errors import AudioError
from benchmarks.end_of_turn.corpora import LICENCES, SPEECHOCEAN, CorpusRecording
from benchmarks.end_of_turn.turn_data import (
    CHANNELS,
    MIN_APART_S,
    PAUSE_MS,
    SourceRecording,
    UnusableRecording,
    babble_of,
    card_of,
    command_turn,
    decoded,
    half_of,
    hesitant_turn,
    read_texts,
    read_turns,
    recorded_turn,
    recorded_turns,
    trimmed,
    word_boundaries,
)


def words(count: int, gap_s: float = 0.05) -> tuple[Pcm, list[float], list[float]]:
    """So many bursts of 0.6 s as "words", with their ends and starts in seconds."""
    rng = np.random.default_rng(3)
    parts: list[Pcm] = []
    ends, starts = [], []
    for index in range(count):
        at_s = sum(map(len, parts)) / RATE_HZ
        if index:
            starts.append(at_s)
        parts.append((0.2 * rng.standard_normal(int(0.6 * RATE_HZ))).astype(np.float32))
        if index < count - 1:
            ends.append(at_s + 0.6)
            parts.append(np.zeros(int(gap_s * RATE_HZ), np.float32))
    return np.concatenate(parts), ends, starts


def source(name: str = "hello") -> SourceRecording:
    pcm, ends, starts = words(6)
    return SourceRecording(name, pcm, "a b c d e f", word_boundaries(pcm, ends, starts))


def test_boundaries_are_moved_to_where_it_is_quiet() -> None:
    pcm, ends, starts = words(4)
    late = [second + 0.05 for second in ends]
    found = word_boundaries(pcm, late, [second + 0.05 for second in starts])
    assert len(found) == 3
    for at, end, start in zip(found, ends, starts, strict=True):
        assert end * RATE_HZ <= at <= start * RATE_HZ


def test_no_boundary_where_the_sound_does_not_drop() -> None:
    pcm, _, _ = words(1)
    assert word_boundaries(pcm, [0.3], [0.3]) == ()
    assert word_boundaries(pcm[:0], [0.3], [0.3]) == ()


def test_a_command_is_the_recording_in_a_room() -> None:
    turn, pcm = command_turn(source())
    assert turn.pauses == ()
    assert abs(turn.end - (last_voiced_sample(pcm) or 0)) <= RATE_HZ // 50
    assert 0 < np.abs(pcm[-RATE_HZ:]).max() < 0.05, "room tone, not digital silence"


def test_hesitations_lie_between_words() -> None:
    made = hesitant_turn(source())
    assert made is not None
    turn, pcm = made
    assert 1 <= len(turn.pauses) <= 3
    plain, _ = command_turn(source())
    spliced = sum(end - first for first, end in turn.pauses)
    assert abs(turn.end - plain.end - spliced) <= RATE_HZ // 50
    for first, end in turn.pauses:
        assert PAUSE_MS[0] <= (end - first) * 1000 / RATE_HZ <= PAUSE_MS[1]
        assert np.abs(pcm[first:end]).max() < 0.05
        assert np.abs(pcm[first - RATE_HZ // 5 : first]).max() > 0.2
    firsts = [0, *(end for _, end in turn.pauses)]
    for spoken_from, (first, _) in zip(firsts, turn.pauses, strict=False):
        assert first - spoken_from >= MIN_APART_S * RATE_HZ * 0.9


def test_the_seed_and_the_name_decide() -> None:
    one, other = hesitant_turn(source(), 1), hesitant_turn(source(), 1)
    assert one is not None
    assert other is not None
    assert one[0] == other[0]
    assert np.array_equal(one[1], other[1])
    third = hesitant_turn(source("another"), 1)
    assert third is not None
    assert third[0].pauses != one[0].pauses


def test_nowhere_to_hesitate() -> None:
    pcm, _, _ = words(1)
    assert hesitant_turn(SourceRecording("x", pcm, "x", ())) is None


def test_trimmed_to_its_speech() -> None:
    silence = np.zeros(RATE_HZ, np.float32)
    pcm, _, _ = words(2)
    cut = trimmed(np.concatenate([silence, pcm, silence]))
    assert len(pcm) <= len(cut) <= len(pcm) + RATE_HZ // 4
    assert len(trimmed(silence)) == 0


def test_both_kinds_of_a_recording_are_in_one_half() -> None:
    halves = {half_of(f"prompt-{number}") for number in range(40)}
    assert halves == {"a", "b"}
    made = hesitant_turn(source())
    assert made is not None
    assert made[0].half == command_turn(source())[0].half


def test_sphinx_transcripts(tmp_path: Path) -> None:
    path = tmp_path / "transcription"
    path.write_text("<s> ten of clubs  </s> (001)\n<s> five five </s> (002)\n")
    assert read_texts(path) == {"001": "ten of clubs", "002": "five five"}
    other = tmp_path / "texts.txt"
    other.write_text("hello: Hello there.\n")
    assert read_texts(other) == {"hello": "Hello there."}


def test_turns_are_read_as_they_were_written(tmp_path: Path) -> None:
    made = hesitant_turn(source())
    assert made is not None
    (tmp_path / "turns.jsonl").write_text(json.dumps(dataclasses.asdict(made[0])) + "\n")
    assert read_turns(tmp_path) == [made[0]]
    (tmp_path / "turns.jsonl").write_text('{"name": 1}\n')
    with pytest.raises(
        AudioError, match=r"make them with `python -m benchmarks.end_of_turn.turn_data`"
    ):
        read_turns(tmp_path)
    with pytest.raises(AudioError, match="no turns in it"):
        read_turns(tmp_path / "nowhere")


def sound_file(pcm: Pcm, rate_hz: int = RATE_HZ) -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, pcm, rate_hz, format="WAV", subtype="PCM_16")
    return buffer.getvalue()


def spoken(number: int = 1) -> Pcm:
    """Words with a pause of half a second among them, in a quiet room."""
    pcm, _, _ = words(3, gap_s=0.5)
    rng = np.random.default_rng(number)
    return (pcm + 1e-4 * rng.standard_normal(len(pcm))).astype(np.float32)


def of_speaker(number: int, corpus: str = SPEECHOCEAN) -> CorpusRecording:
    return CorpusRecording(corpus, f"s{number}", "a", f"u{number}", f"{number}.wav", "one two")


def test_a_recording_of_a_speaker_keeps_its_own_pauses_and_ends_in_its_own_room() -> None:
    pcm = spoken()
    turn, sound = recorded_turn(of_speaker(1), pcm, pcm[:0])
    assert (turn.kind, turn.speaker, turn.half, turn.pauses) == ("halting", "s1", "a", ())
    assert len(sound) / RATE_HZ > turn.end / RATE_HZ + 2.4
    tail, own = sound[-RATE_HZ:], pcm[int(0.7 * RATE_HZ) : RATE_HZ]
    assert 0.5 < float(tail.std() / own.std()) < 2
    last = last_voiced_sample(sound)
    assert last is not None
    assert abs(turn.end - last) <= RATE_HZ // 50
    kinds = {recorded_turn(of_speaker(1, name), pcm, pcm[:0])[0].kind for name in LICENCES}
    assert kinds == {"halting", "numbers"}


def test_some_turns_go_through_a_telephone_or_a_crowd() -> None:
    pcm = spoken()
    made = [recorded_turn(of_speaker(number), pcm, spoken(9)) for number in range(40)]
    assert {turn.channel for turn, _ in made} == set(CHANNELS)
    levels = {turn.channel: float(sound[-RATE_HZ:].std()) for turn, sound in made}
    assert levels["babble"] > 10 * levels["plain"]
    again, sound = recorded_turn(of_speaker(0), pcm, spoken(9))
    assert again == made[0][0]
    assert np.array_equal(sound, made[0][1])


def test_babble_is_several_voices_of_one_loudness() -> None:
    loud, quiet = spoken(1), spoken(2) * np.float32(0.01)
    mixed = babble_of([loud, quiet[: len(quiet) // 2]])
    assert len(mixed) == len(trimmed(loud))
    assert len(babble_of([])) == 0


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"no sound", "not a sound file"),
        (sound_file(np.zeros(RATE_HZ, np.float32)), "silent"),
        (sound_file(np.zeros(0, np.float32)), "silent"),
        (sound_file(np.sign(np.sin(np.arange(RATE_HZ) / 9)).astype(np.float32)), "clipped"),
        (sound_file((0.1 * np.sin(np.arange(RATE_HZ) / 9)).astype(np.float32)), "noisy"),
    ],
)
def test_recordings_that_no_turn_is_made_of(content: bytes, reason: str) -> None:
    with pytest.raises(UnusableRecording, match=reason):
        decoded(content)


def test_stereo_of_another_rate_is_read() -> None:
    both = np.stack([spoken(), spoken()], axis=1)
    assert abs(len(decoded(sound_file(both, 48_000))) - len(both) / 3) < 10


class Files:
    """A corpus of two recordings, one of them silent."""

    def read(self, path: str) -> bytes:
        raise AudioError(path)

    def read_all(self, paths: Sequence[str]) -> Iterator[bytes | None]:
        known = {"1.wav": sound_file(spoken()), "2.wav": sound_file(np.zeros(99, np.float32))}
        return (known.get(path) for path in paths)


def test_what_is_left_out_is_counted_and_the_rest_is_on_the_card() -> None:
    left_out: Counter[str] = Counter()
    found = list(recorded_turns(Files(), [of_speaker(n) for n in (1, 2, 3)], left_out, seed=1))
    assert [turn.speaker for turn, _ in found] == ["s1"]
    assert left_out == {"silent": 1, "not in the repository": 1}
    (row,) = card_of([turn for turn, _ in found])
    assert (row["source"], row["speakers"], row["turns"]) == (SPEECHOCEAN, 1, 1)
    assert row["licence"] == LICENCES[SPEECHOCEAN][1]
