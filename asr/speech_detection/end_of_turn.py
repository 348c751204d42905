"""Interface of an end-of-turn model: from the sound of a turn, how likely it is over."""

from typing import Protocol

from asr.audio.samples import Pcm


class EndOfTurnModel(Protocol):
    """One loaded model. One thread at a time calls it, and each call blocks.

    `asr.load_end_of_turn_model` makes one.
    """

    def log_odds(self, pcm: Pcm) -> float:
        """Log odds that the turn is over at the end of `pcm`; 0 is even.

        `pcm` is the turn so far, float32 [n] at 16 kHz, of any length, with the pause in question
        at its end; NaN and infinities count as silence.
        """
        ...

    def warm(self) -> None:
        """Run every part once, so that the first caller does not pay for it."""
        ...
