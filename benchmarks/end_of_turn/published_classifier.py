"""Smart Turn's published classifier, to compare with: the whole network, as others use it.

The service uses two of the network's four blocks and a head of its own
(`asr/speech_detection/turn_model.py`). The ONNX file that it fetches has all four, and behind them
the classifier that was published: a probability, quantized to 8 bits, that the turn is complete,
and complete where it is over `THRESHOLD`. Pipecat asks it when the voice detector has heard
`ASKED_MS` of silence, and takes an incomplete turn for over after `INCOMPLETE_MS`.
"""

import math
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from agent.turn_taking.end_of_turn_model import Evidence
from asr.audio.conversion import finite
from asr.audio.samples import RATE_HZ, Pcm
from asr.audio.without_pyav import without_pyav
from asr.errors import ModelError

from .simulated_call import WaitMs

SECONDS: Final = 8
"""Window in s of the export."""

THRESHOLD: Final = 0.5
ASKED_MS: Final = 200
INCOMPLETE_MS: Final = 3000

LEAST_PROBABILITY: Final = 1 / 512
"""Half of a step of 8 bits: 0 and 1 have finite log-odds."""


class PublishedClassifier:
    """The whole network: an `asr.EndOfTurnModel`. Thread-safe; a call blocks for 20 ms."""

    def __init__(self, session: Any, extractor: Any) -> None:
        """Use `load`."""
        self._session = session
        self._extractor = extractor

    @classmethod
    def load(cls, path: Path) -> "PublishedClassifier":
        """Load the ONNX file. Raises ModelError where it is missing, damaged or another model."""
        import onnxruntime

        with without_pyav():
            from faster_whisper.feature_extractor import FeatureExtractor

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 4
        try:
            session = onnxruntime.InferenceSession(path, options, ["CPUExecutionProvider"])
            (wanted,) = session.get_inputs()
        except Exception as error:  # the runtime's exceptions share no base class
            raise ModelError(f"{path}: not Smart Turn version 3, or damaged: {error}") from error
        if wanted.shape[1:] != [80, 100 * SECONDS]:
            raise ModelError(f"{path}: not Smart Turn version 3: its input is {wanted.shape}")
        return cls(session, FeatureExtractor(feature_size=80))

    def probability(self, pcm: Pcm) -> float:
        """Probability that the turn is complete at the end of `pcm`, float32 [n] at 16 kHz."""
        found = self._session.run(None, {"input_features": self.features(pcm)[None]})
        return float(found[0][0, 0])

    def features(self, pcm: Pcm) -> npt.NDArray[np.float32]:
        """Log-mel of the newest `SECONDS`, float32 [80, 100 * SECONDS], silence in front, brought
        to mean 0 and variance 1 before."""
        samples = np.zeros(SECONDS * RATE_HZ, np.float32)
        newest = finite(pcm[-len(samples) :])
        samples[len(samples) - len(newest) :] = newest
        samples -= samples.mean()
        samples /= np.sqrt(samples.var() + np.float32(1e-7))
        mel = self._extractor(samples, padding=0)
        return np.ascontiguousarray(mel[:, : 100 * SECONDS], dtype=np.float32)

    def log_odds(self, pcm: Pcm) -> float:
        """Log-odds of `probability`."""
        limited = min(1 - LEAST_PROBABILITY, max(LEAST_PROBABILITY, self.probability(pcm)))
        return math.log(limited / (1 - limited))

    def warm(self) -> None:
        """Run every part once."""
        self.log_odds(np.zeros(RATE_HZ, np.float32))


def rule_of(threshold: float) -> WaitMs:
    """Decision where a turn is complete above this probability (0 to 1)."""
    enough = math.log(threshold / (1 - threshold))

    def wait_ms(evidence: Evidence) -> float:
        is_complete = evidence.sound is not None and evidence.sound > enough
        return ASKED_MS if is_complete else INCOMPLETE_MS

    return wait_ms
