"""Lines of simulated callers: pauses between the right words, in room tone."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest

import tts
from agent.errors import BenchError
from asr.audio.samples import RATE_HZ, last_voiced_sample, samples_from_ms
from benchmarks.chat.caller_voice import TAIL_MS, CallerVoice, in_room
from benchmarks.chat.dialogue import DialogueTurn, Hesitation

VOICE_HZ = 8_000
WORD_S = 0.3
GAP_S = 0.05


class BurstVoice:
    """A voice whose words are bursts of noise of 300 ms, 50 ms apart."""

    name = "bursts"
    rate_hz = VOICE_HZ

    def __init__(self) -> None:
        self.spoken: list[str] = []

    def synthesize(
        self, piece: tts.SpeakablePiece, speed: float = 1.0
    ) -> Iterator[tts.SpeechChunk]:
        if "unspeakable" in piece.text:
            raise tts.VoiceError("no such phoneme")
        self.spoken.append(piece.text)
        rng = np.random.default_rng(5)
        parts: list[npt.NDArray[np.int16]] = []
        times: list[tts.WordTime] = []
        at_char = 0
        for word in piece.text.split():
            first = piece.text.index(word, at_char)
            at_char = first + len(word)
            begun = sum(map(len, parts))
            burst = (6000 * rng.standard_normal(int(WORD_S * VOICE_HZ))).clip(-20_000, 20_000)
            parts += [burst.astype(np.int16), np.zeros(int(GAP_S * VOICE_HZ), np.int16)]
            times.append(tts.WordTime((first, at_char), begun, begun + len(burst), False))
        if parts:
            span = (0, len(piece.text))
            yield tts.SpeechChunk(np.concatenate(parts), VOICE_HZ, span, tuple(times), True)

    def warm(self) -> None:
        pass


def test_pauses_lie_before_their_words() -> None:
    turn = DialogueTurn("one two three four", pauses=(Hesitation(4, 600), Hesitation(14, 300)))
    voice = CallerVoice(BurstVoice())
    plain, line = voice.speak(DialogueTurn("one two three four")), voice.speak(turn)
    assert line.speech_s - plain.speech_s == pytest.approx(0.9)
    sound = line.pcm.astype(np.float32) / np.float32(32768)
    loud = np.abs(sound) > 0.05
    edges = np.flatnonzero(np.diff(np.flatnonzero(loud)) > samples_from_ms(200))
    starts = np.flatnonzero(loud)[edges] / RATE_HZ
    assert starts == pytest.approx([WORD_S, 3 * (WORD_S + GAP_S) - GAP_S + 0.6], abs=0.03)
    for start_s, length_s in zip(starts, (0.6, 0.3), strict=True):
        first = int((start_s + 0.1) * RATE_HZ)
        inside = sound[first : first + int((length_s - 0.15) * RATE_HZ)]
        assert inside.any(), "room tone, not digital silence"


def test_a_line_is_synthesized_once() -> None:
    bursts = BurstVoice()
    voice = CallerVoice(bursts)
    assert voice.name == "bursts"
    turn = DialogueTurn("one two", pauses=(Hesitation(4, 500),))
    assert voice.speak(turn) is voice.speak(turn)
    assert voice.speak(DialogueTurn("one two")) is not voice.speak(turn)
    assert bursts.spoken == ["one two", "one two"]


def test_room_tone_behind_a_line_does_not_count_as_speech() -> None:
    line = CallerVoice(BurstVoice()).speak(DialogueTurn("one two"))
    sound = line.pcm.astype(np.float32) / np.float32(32768)
    assert len(sound) / RATE_HZ == pytest.approx(line.speech_s + TAIL_MS / 1000)
    last = last_voiced_sample(sound)
    assert last is not None
    assert last / RATE_HZ == pytest.approx(2 * WORD_S + GAP_S, abs=0.03)


def test_the_line_decides_the_room_tone() -> None:
    speech = np.zeros(RATE_HZ, np.float32)
    assert np.array_equal(in_room(speech, "a").pcm, in_room(speech, "a").pcm)
    assert not np.array_equal(in_room(speech, "a").pcm, in_room(speech, "b").pcm)


@pytest.mark.parametrize(
    ("turn", "problem"),
    [
        (DialogueTurn("unspeakable"), "no such phoneme"),
        (DialogueTurn(" "), "has no words"),
        (DialogueTurn("one two", pauses=(Hesitation(4, 300), Hesitation(4, 300))), "another pause"),
        (DialogueTurn("one two", pauses=(Hesitation(0, 300),)), "no place between"),
    ],
)
def test_lines_that_can_not_be_spoken(turn: DialogueTurn, problem: str) -> None:
    with pytest.raises(BenchError, match=problem):
        CallerVoice(BurstVoice()).speak(turn)
