"""`halfsec bench asr`: the recognizer's bench, with the telephone channel added (`--telephony`)."""

from collections.abc import Sequence

import numpy as np

from asr import RATE_HZ, Pcm, Resampler, float32_to_pcm16
from benchmarks.callers.telephone_channel import LINE_RATE_HZ, over_telephone

from . import latency


def main(argv: Sequence[str] | None = None) -> int:
    """Run the recognizer's bench with the telephone channel. Returns its exit status."""
    return latency.main(None if argv is None else list(argv), by_telephone)


def by_telephone(pcm: Pcm) -> Pcm:
    """Pass float32 [n] at 16 kHz through a telephone line, as a call's listener receives it."""
    resampler = Resampler(LINE_RATE_HZ)
    line = over_telephone(np.frombuffer(float32_to_pcm16(pcm), np.int16), RATE_HZ)
    return np.concatenate([resampler.push(line), resampler.flush()])
