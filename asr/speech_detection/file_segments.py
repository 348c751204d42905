"""Segmentation of a long recording into short pieces, and the speech within each.

Theory of operation: transcribing a file must not delay calls, and a pass that has begun can't be
broken off. So pieces are short: at most `MAX_PIECE_S`, which with Whisper's lead and
margin fills its window of 15 s and takes 0.15 s on two cores, a fifth of the window of 30 s and its
decode. They are cut at their quietest places. Shorter ones would be cut more often, and the words
at a cut have context on one side only.

Whisper answers silence and hum with sentences of its own ("you", "I'm going to go to the next
one"). The voice detector decides what of a piece is speech; the rest is never shown to it. Its
frames place the speech in time as well.

A piece and its detector's state belong to one request.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from asr.audio.samples import RATE_HZ, Pcm, quietest_sample

from .vad import FRAME, VadState, VoiceDetector

MAX_PIECE_S: Final = 12.0
MIN_PIECE_S: Final = 6.0
"""Shortest piece before a cut: the 6 s up to `MAX_PIECE_S` nearly always hold a pause."""

SPEECH_PROBABILITY: Final = 0.5
"""Probability above which a frame is speech: the detector's own threshold."""

MIN_SPEECH_FRAMES: Final = 3
"""96 ms: the shortest words last longer, a click does not."""

MARGIN_S: Final = 0.3
"""Seconds kept around the speech: the detector is late for soft beginnings ("h", "f") and early for
endings."""

STEP_FRAMES: Final = 31
"""Frames that the detector sees in one job, about a second: 5 to 10 ms of work."""


@dataclass(frozen=True, slots=True)
class FilePiece:
    """A stretch of a recording."""

    first_sample: int
    """Position in the recording, 16 kHz samples."""
    pcm: Pcm
    """float32 [n]."""


def cut_into_pieces(blocks: Iterable[Pcm]) -> Iterator[FilePiece]:
    """Cut a recording into pieces. Holds one piece, and reads as far ahead as that needs."""
    first_sample = 0
    held = np.zeros(0, np.float32)
    for block in blocks:
        held = np.concatenate([held, block])
        while len(held) > MAX_PIECE_S * RATE_HZ:
            cut = quietest_sample(held, int(MIN_PIECE_S * RATE_HZ), int(MAX_PIECE_S * RATE_HZ))
            yield FilePiece(first_sample, held[:cut].copy())
            held = held[cut:]
            first_sample += cut
    if len(held):
        yield FilePiece(first_sample, held)


class SpeechFinder:
    """Finds the speech in a piece. Call `look` until it returns False, then `speech`."""

    def __init__(self, piece: FilePiece, state: VadState) -> None:
        """`state` is the recording's, carried from piece to piece."""
        self._piece = piece
        self._state = state
        self._speech: list[int] = []
        self._next_frame = 0

    def look(self, detector: VoiceDetector) -> bool:
        """Run the detector over about a second more; returns whether audio is left."""
        for _ in range(STEP_FRAMES):
            start = self._next_frame * FRAME
            frame = self._piece.pcm[start : start + FRAME]
            if len(frame) < FRAME:
                return False
            if detector.probability(frame, self._state) > SPEECH_PROBABILITY:
                self._speech.append(self._next_frame)
            self._next_frame += 1
        return True

    def speech(self) -> FilePiece | None:
        """The piece from its first to its last speech with a margin; None: no speech."""
        if len(self._speech) < MIN_SPEECH_FRAMES:
            return None
        margin = int(MARGIN_S * RATE_HZ)
        first = max(0, self._speech[0] * FRAME - margin)
        end = (self._speech[-1] + 1) * FRAME + margin
        piece = self._piece
        return FilePiece(piece.first_sample + first, piece.pcm[first:end])
