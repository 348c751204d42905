"""Turns of a caller in recordings of calls with two channels: who spoke when, found by energy.

One channel is the caller's, the other the agent's, a person or a machine. No transcript is needed,
and none would say where a turn ended as exactly:

- each channel is cut into frames of 20 ms. A frame is *speech* where it lies within 25 dB of the
  channel's loud ones, and is not what the other channel's voice leaves in this one: the other is
  not `CROSSTALK_DB` louder;
- a *reply* is the agent's speech, with pauses of up to `JOINED_S`, of at least `REPLY_S`. Shorter
  sounds are acknowledgements and clicks: the caller's turn goes on over them;
- a *turn* is all that the caller says between the end of one reply and the begin of the next, with
  its own pauses, however long. It ends with its last voiced frame: the agent's channel says that
  the other party took it for over, and the caller's that nothing more was said.

Turns that say nothing about where they end are left out and counted: those that the agent spoke
into (the caller speaks within `GOES_ON_S` of the reply's begin), and those that nobody answered
before the recording ended.

A turn is the caller's own channel, from `LEAD_S` before its first frame to `TAIL_S` after its last
or until the caller speaks again: the room tone behind the last word is the recording's.

Which channel is the caller's is given, or found: the agent's is the one that speaks first, because
whoever answers a call says so. Where it was the agent who called, name the channel.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
import soundfile
import soxr

from asr.audio.conversion import to_mono
from asr.audio.samples import (
    RATE_HZ,
    VOICED_FRAME,
    VOICED_RANGE_DB,
    Pcm,
    frame_rms,
    last_voiced_sample,
)
from asr.errors import AudioError

FRAME_S: Final = VOICED_FRAME / RATE_HZ

CROSSTALK_DB: Final = 15.0
"""A frame whose other channel is so much louder is the other channel's voice. Lower: a quiet caller
under a loud agent is lost; higher: the echo of a handset is the caller."""

SOUNDING_RMS: Final = 1e-3
"""Least loudness of a channel with a voice in it (60 dB below full scale)."""

SAME_DB: Final = 30.0
"""Two channels that differ by so much less than they sound are one voice, written twice."""

JOINED_S: Final = 0.6
"""Longest pause in s inside a reply."""

REPLY_S: Final = 0.5
"""Shortest reply in s."""

GOES_ON_S: Final = 1.0
GOES_ON_FRAMES: Final = 5
"""A caller with so many frames of speech in the first so many s of a reply was spoken into, or
interrupts: either way the turn's end is not known."""

LEAD_S: Final = 0.3
TAIL_S: Final = 2.5

Channel = Literal["found", "left", "right"]
CHANNELS: Final[tuple[Channel, ...]] = ("found", "left", "right")

Frames = npt.NDArray[np.bool_]
Spans = list[tuple[int, int]]
"""First frame and frame after the last of each."""


@dataclass(frozen=True, slots=True)
class CallTurn:
    """One turn of the caller."""

    begin_s: float
    """Time of the turn's sound in the call, in s."""
    pcm: Pcm
    """The caller's channel, float32 [n] at 16 kHz."""
    end: int
    """Sample of `pcm` after the last voiced 20 ms."""
    reply_s: float
    """Time in s from that end to the begin of the other party's reply."""


@dataclass(frozen=True, slots=True)
class CallTurns:
    """Turns of one call."""

    turns: tuple[CallTurn, ...]
    spoken_into: int
    """Turns into which the agent spoke."""
    unanswered: int
    """Turns after which the recording ended."""


def read_call(path: Path) -> tuple[Pcm, Pcm] | None:
    """Read a recording of two channels as float32 [n] at 16 kHz, left and right. None: it is no
    call, because it has another number of channels, one is silent, or both are the same voice.
    Raises AudioError."""
    try:
        if soundfile.info(path).channels != 2:
            return None
        sound, rate_hz = soundfile.read(path, dtype="float32", always_2d=True)
    except soundfile.LibsndfileError as error:
        raise AudioError(f"{path}: not readable as audio ({error})") from error
    left, right = (_at_16_khz(to_mono(sound[:, side]), rate_hz) for side in (0, 1))
    loudness = [_loudness(each) for each in (left, right)]
    if min(loudness) < SOUNDING_RMS:
        return None
    if _loudness(left - right) < max(loudness) * 10 ** (-SAME_DB / 20):
        return None
    return left, right


def _at_16_khz(pcm: Pcm, rate_hz: int) -> Pcm:
    if rate_hz == RATE_HZ or not len(pcm):
        return pcm
    resampled: Pcm = soxr.resample(pcm, rate_hz, RATE_HZ, quality="HQ")
    return resampled


def _loudness(pcm: Pcm) -> float:
    """RMS of the loud frames."""
    rms = frame_rms(pcm)
    return float(np.quantile(rms, 0.99)) if len(rms) else 0.0


def call_turns(left: Pcm, right: Pcm, channel: Channel = "found") -> CallTurns:
    """Turns of the caller in a call. `left`, `right`: float32 [n] at 16 kHz. `channel`: the
    caller's."""
    speech = _speech(left, right), _speech(right, left)
    if channel == "found":
        firsts = [int(np.argmax(each)) if each.any() else len(each) for each in speech]
        channel = "left" if firsts[0] > firsts[1] else "right"
    if channel == "left":
        return _turns(left, *speech)
    return _turns(right, *reversed(speech))


def _speech(own: Pcm, other: Pcm) -> Frames:
    """Frames of a channel in which its own voice speaks."""
    levels, others = frame_rms(own), frame_rms(other)
    loud = levels > _loudness(own) * 10 ** (-VOICED_RANGE_DB / 20)
    leaked: Frames = others > levels * 10 ** (CROSSTALK_DB / 20)
    return loud & ~leaked


def _spans(frames: Frames, joined_s: float) -> Spans:
    """Stretches of speech with pauses of up to `joined_s`."""
    places = np.flatnonzero(frames)
    if not len(places):
        return []
    cuts = np.flatnonzero(np.diff(places) * FRAME_S > joined_s + FRAME_S) + 1
    return [(int(part[0]), int(part[-1]) + 1) for part in np.split(places, cuts)]


def _turns(pcm: Pcm, caller: Frames, agent: Frames) -> CallTurns:
    replies = [each for each in _spans(agent, JOINED_S) if _seconds(each) >= REPLY_S]
    begins = [0, *(end for _, end in replies)]
    ends = [*(first for first, _ in replies), len(caller)]
    turns: list[CallTurn] = []
    spoken_into = unanswered = 0
    for begin, end in zip(begins, ends, strict=True):
        said = np.flatnonzero(caller[begin:end]) + begin
        if not len(said):
            continue
        if end == len(caller):
            unanswered += 1
        elif caller[end : end + round(GOES_ON_S / FRAME_S)].sum() >= GOES_ON_FRAMES:
            spoken_into += 1
        else:
            first = _begin_of_span(caller, int(said[0]))
            turns.append(_turn(pcm, caller, (first, int(said[-1]) + 1), end))
    return CallTurns(tuple(turns), spoken_into, unanswered)


def _seconds(span: tuple[int, int]) -> float:
    return (span[1] - span[0]) * FRAME_S


def _begin_of_span(caller: Frames, frame: int) -> int:
    """First frame of the caller's speech around this one: it may have begun over a reply."""
    return next(first for first, end in _spans(caller, JOINED_S) if first <= frame < end)


def _turn(pcm: Pcm, caller: Frames, said: tuple[int, int], reply: int) -> CallTurn:
    """The turn of the frames `said`, answered at frame `reply`."""
    later = np.flatnonzero(caller[said[1] :])
    behind = said[1] + (int(later[0]) if len(later) else len(caller))
    first = max(0, said[0] * VOICED_FRAME - round(LEAD_S * RATE_HZ))
    last = min(behind * VOICED_FRAME, said[1] * VOICED_FRAME + round(TAIL_S * RATE_HZ))
    voiced = last_voiced_sample(pcm[first : said[1] * VOICED_FRAME])
    assert voiced is not None  # it holds speech
    reply_s = (reply * VOICED_FRAME - first - voiced - 1) / RATE_HZ
    return CallTurn(first / RATE_HZ, pcm[first:last], voiced + 1, reply_s)
