"""Latency from a stereo recording alone: caller on the left, agent on the right.

It checks the accounts of server and client, so it is independent of them: no event, no label, no
clock but the file's samples, and none of their code. It applies the definition of latency in
ARCHITECTURE.md ("Time") anew:

- the caller's channel is cut into frames of 20 ms, counted from the file's start. Frames within
  25 dB of the file's loud ones are speech; a silence longer than `APART_S` or the beginning of an
  answer ends an utterance. Its last voiced frame is the last one within 25 dB of the 99th
  percentile of its own frames;
- an answer begins with the first sample of the agent's above 1 % of full scale after a silence,
  where the caller has spoken since the previous answer. Sound after a silence without words of the
  caller in between continues the same answer.

Where a frame begins is chance: a voice that ends in its middle is taken to end up to 20 ms later
than it did, here as at the server, whose frames may lie elsewhere.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import soundfile

from agent.errors import BenchError

FRAME_S: Final = 0.02
VOICED_DB: Final = 25.0
AUDIBLE_SHARE: Final = 0.01
"""Threshold of audible samples, as a share of full scale."""

APART_S: Final = 2.0
"""Silence in s between two utterances. People stop for a second in the middle of a sentence."""

SILENT_S: Final = 0.2
"""Silence in s of the agent before an answer: a shorter one is a pause between words."""

AROUND_S: Final = 1.0
"""Margin in s around loud frames: it holds the soft ends of a quieter speaker."""


@dataclass(frozen=True, slots=True)
class FileTurn:
    """An answer and the words before it. Times in s from the file's start."""

    voiced_s: float
    """End of the caller's last voiced frame before it."""
    onset_s: float
    """First audible sample of the answer."""
    goes_on: bool
    """True if the caller speaks again before the agent is silent: one interrupts the other."""

    @property
    def waited_ms(self) -> float:
        return (self.onset_s - self.voiced_s) * 1000


@dataclass(frozen=True, slots=True)
class FileTurns:
    """Turns found in one file. Times in s from the file's start."""

    turns: tuple[FileTurn, ...]
    unanswered: tuple[float, ...]
    """Ends of utterances after which the caller spoke again or the file ends."""
    unasked: tuple[float, ...]
    """Onsets of the agent's speech before any of the caller's."""


def read_turns(path: Path) -> FileTurns:
    """Read a file with two channels and find its turns. Raises BenchError."""
    try:
        sound, rate_hz = soundfile.read(path, dtype="float64", always_2d=True)
    except (OSError, soundfile.SoundFileError) as error:
        raise BenchError(f"Can't read {path}: {error}") from None
    if sound.shape[1] != 2:
        raise BenchError(
            f"{path} has {sound.shape[1]} channels; the caller's and the agent's are 2."
        )
    return find_turns(sound[:, 0], sound[:, 1], rate_hz)


def find_turns(caller: npt.NDArray[Any], agent: npt.NDArray[Any], rate_hz: int) -> FileTurns:
    """Find the turns in two channels, float [n] within -1..1."""
    frame = round(FRAME_S * rate_hz)
    levels = _levels(caller, frame)
    speech = np.flatnonzero(levels > _threshold(levels))
    audible = np.flatnonzero(np.abs(agent) > AUDIBLE_SHARE)
    turns: list[FileTurn] = []
    unanswered: list[float] = []
    first = 0
    """Frame with which the previous answer began."""
    sounds = _sounds(audible, rate_hz)
    unasked = [onset / rate_hz for onset in sounds if not (speech < onset // frame).any()]
    answers = []
    for onset in sounds:
        said = speech[(speech >= first) & (speech < onset // frame)]
        if len(said):
            answers.append((onset, said))
            first = onset // frame
    for number, (onset, said) in enumerate(answers):
        *before, last = _utterances(said)
        unanswered += [_voiced_end(levels, each) * FRAME_S for each in before]
        next_onset = answers[number + 1][0] if number + 1 < len(answers) else len(agent)
        end = audible[audible < next_onset][-1]
        goes_on = ((speech * frame >= onset) & (speech * frame < end)).any()
        voiced_s = _voiced_end(levels[: onset // frame], last) * FRAME_S
        turns.append(FileTurn(voiced_s, onset / rate_hz, bool(goes_on)))
    rest = speech[speech >= first]
    unanswered += [_voiced_end(levels, each) * FRAME_S for each in _utterances(rest)]
    return FileTurns(tuple(turns), tuple(unanswered), tuple(unasked))


def first_voiced(caller: npt.NDArray[Any], rate_hz: int, from_sample: int) -> int | None:
    """First sample of the first voiced frame from `from_sample` on; None without speech."""
    frame = round(FRAME_S * rate_hz)
    levels = _levels(caller[from_sample:], frame)
    voiced = np.flatnonzero(levels > _threshold(_levels(caller, frame)))
    return from_sample + int(voiced[0]) * frame if len(voiced) else None


def _levels(sound: npt.NDArray[Any], frame: int) -> npt.NDArray[np.float64]:
    """RMS of each whole frame."""
    count = len(sound) // frame
    frames = sound[: count * frame].reshape(count, frame).astype(np.float64)
    levels: npt.NDArray[np.float64] = np.sqrt(np.mean(frames * frames, axis=1))
    return levels


def _threshold(levels: npt.NDArray[np.float64]) -> float:
    """Threshold of voiced frames. Frames of digital silence are left out."""
    sounding = levels[levels > 0]
    if not len(sounding):
        return 0.0
    return float(np.percentile(sounding, 99) * 10 ** (-VOICED_DB / 20))


def _sounds(audible: npt.NDArray[np.int64], rate_hz: int) -> list[int]:
    """First samples after silence."""
    after_silence = np.diff(audible, prepend=-rate_hz) >= SILENT_S * rate_hz
    return [int(sample) for sample in audible[after_silence]]


def _utterances(speech: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
    """Split frames of speech at silences longer than `APART_S`."""
    if not len(speech):
        return []
    cuts = np.flatnonzero(np.diff(speech) * FRAME_S > APART_S) + 1
    return np.split(speech, cuts)


def _voiced_end(levels: npt.NDArray[np.float64], utterance: npt.NDArray[np.int64]) -> int:
    """Frame after the last voiced one of an utterance, by the utterance's own loudness."""
    around = round(AROUND_S / FRAME_S)
    first = max(0, int(utterance[0]) - around)
    threshold = _threshold(levels[int(utterance[0]) : int(utterance[-1]) + 1])
    voiced = np.flatnonzero(levels[first : int(utterance[-1]) + around] >= threshold)
    return first + int(voiced[-1]) + 1
