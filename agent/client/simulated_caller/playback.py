"""Simulated loudspeaker: when each sample of a reply is heard. Pure.

A client plays a reply from the moment its first sample arrives. Each later piece follows without a
gap if it arrived in time and at once if it did not: pacing and transport that are too slow are
heard as gaps, as by a person. A flush (barge-in) removes all that was not played yet, the rest of
the piece that is playing included. A ducked reply is played on quietly (`ducking.py`); recordings
have it as it would be heard.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from latency_budget.account.marks import AUDIBLE

from .ducking import Ducking

Int16 = npt.NDArray[np.int16]

NS_PER_S: Final = 1_000_000_000


@dataclass(slots=True)
class _Piece:
    response_id: str
    item_id: str
    rate_hz: int
    start_ns: int
    first_sample: int
    """Position in the item."""
    num_samples: int
    """Samples that were or will be played."""
    pcm: Int16 | None
    """Samples; None where recordings are not kept."""

    @property
    def end_ns(self) -> int:
        return self.start_ns + self.num_samples * NS_PER_S // self.rate_hz

    def played(self, now_ns: int) -> int:
        """Number of samples played by then."""
        elapsed = max(0, now_ns - self.start_ns) * self.rate_hz // NS_PER_S
        return min(self.num_samples, elapsed)


@dataclass(frozen=True, slots=True)
class Position:
    """Playback position in an item."""

    item_id: str
    played_ms: int


class SimulatedPlayback:
    """Loudspeaker of one caller. Methods are called in order of time. Without `record` only a few
    numbers are kept."""

    def __init__(self, *, record: bool = True) -> None:
        self._record = record
        self._pieces: list[_Piece] = []
        self._arrived: dict[str, int] = {}
        """Number of samples received, by item."""
        self._onsets: dict[str, int] = {}
        """Playback time of the first audible sample, by response."""
        self._played_s: dict[str, float] = {}
        self._ducked: dict[str, Ducking] = {}
        """Levels by item, for items that were ever ducked."""
        self._flushed: Position | None = None
        self.underruns_ns = 0
        """Total silence within replies because the next piece was late."""

    def push(self, response_id: str, item_id: str, pcm: Int16, rate_hz: int, at_ns: int) -> None:
        """Add a piece of a reply that arrived at `at_ns`."""
        if not len(pcm):
            return
        first_sample = self._arrived.get(item_id, 0)
        start_ns = max(at_ns, self.dry_ns)
        if first_sample and self._pieces and self._pieces[-1].item_id == item_id:
            self.underruns_ns += start_ns - self.dry_ns
        self._arrived[item_id] = first_sample + len(pcm)
        kept = pcm if self._record else None
        piece = _Piece(response_id, item_id, rate_hz, start_ns, first_sample, len(pcm), kept)
        if not self._record:
            self._pieces = [old for old in self._pieces if old.end_ns > at_ns]
        self._pieces.append(piece)
        self._flushed = None
        self._played_s[response_id] = self.played_s(response_id) + len(pcm) / rate_hz
        audible = np.flatnonzero((pcm > AUDIBLE) | (pcm < -AUDIBLE))
        if len(audible):
            onset_ns = start_ns + int(audible[0]) * NS_PER_S // rate_hz
            self._onsets.setdefault(response_id, onset_ns)

    def flush(self, at_ns: int) -> Position | None:
        """Stop at once. Returns the position in the item that was playing; None where none was."""
        if self.dry_ns <= at_ns:
            return None
        position = self.position(at_ns)
        for piece in self._pieces:
            played = piece.played(at_ns)
            self._played_s[piece.response_id] -= (piece.num_samples - played) / piece.rate_hz
            piece.num_samples = played
        self._pieces = [piece for piece in self._pieces if piece.num_samples]
        self._onsets = {key: ns for key, ns in self._onsets.items() if ns < at_ns}
        self._flushed = position
        return position

    def duck(self, item_id: str, at_ns: int) -> None:
        """Duck this item from `at_ns` on."""
        if self._record:
            self._ducked.setdefault(item_id, Ducking()).duck(at_ns)

    def unduck(self, item_id: str, at_ns: int) -> None:
        """End the ducking of this item."""
        if item_id in self._ducked:
            self._ducked[item_id].unduck(at_ns)

    @property
    def dry_ns(self) -> int:
        """End of the last sample; 0 before the first."""
        return self._pieces[-1].end_ns if self._pieces else 0

    def playing(self, now_ns: int) -> bool:
        return now_ns < self.dry_ns

    def has_sound_left(self, now_ns: int) -> bool:
        """True where audible samples are left to play; always True where recordings are not
        kept."""
        return any(
            piece.pcm is None
            or bool((np.abs(piece.pcm[piece.played(now_ns) : piece.num_samples]) > AUDIBLE).any())
            for piece in self._pieces
            if piece.end_ns > now_ns
        )

    def reply_heard(self, now_ns: int) -> str | None:
        """The response that is playing now; None where none is."""
        for piece in reversed(self._pieces):
            if piece.start_ns <= now_ns < piece.end_ns:
                return piece.response_id
        return None

    def position(self, now_ns: int) -> Position | None:
        """Position in the item that is playing, else in the last one; None before the first
        sample."""
        if self._flushed is not None:
            return self._flushed
        for piece in reversed(self._pieces):
            if piece.start_ns <= now_ns:
                samples = piece.first_sample + piece.played(now_ns)
                return Position(piece.item_id, samples * 1000 // piece.rate_hz)
        return None

    def onset_ns(self, response_id: str) -> int | None:
        """Playback time of the first audible sample of a reply; None without one."""
        return self._onsets.get(response_id)

    def played_s(self, response_id: str) -> float:
        """Seconds of a reply that were or will be played."""
        return self._played_s.get(response_id, 0.0)

    def recording(self, rate_hz: int, start_ns: int | None = None) -> Int16:
        """All replies of this rate as they were played, from `start_ns` or the first sample to the
        last, with silence in between. Only with `record`."""
        pieces = [piece for piece in self._pieces if piece.rate_hz == rate_hz]
        if not pieces:
            return np.zeros(0, np.int16)
        if start_ns is None:
            start_ns = pieces[0].start_ns
        length = (pieces[-1].end_ns - start_ns) * rate_hz // NS_PER_S + 1
        sound = np.zeros(max(0, length), np.int16)
        for piece in pieces:
            if piece.pcm is not None:
                first = (piece.start_ns - start_ns) * rate_hz // NS_PER_S
                last = min(first + piece.num_samples, len(sound))
                ducking = self._ducked.get(piece.item_id, Ducking())
                heard = ducking.applied(piece.pcm[: last - first], rate_hz, piece.start_ns)
                sound[max(first, 0) : max(last, 0)] = heard[max(-first, 0) :]
        return sound
