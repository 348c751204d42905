"""Is the caller's turn over, judged by the sound of it: Smart Turn v3.2 on ONNX Runtime.

Theory of operation
-------------------
The network is Whisper tiny's encoder with a pooled classifier behind it, trained on how turns end
and how they only pause: pitch, lengthening, the breath before the next word. It sees exactly 8 s:
the newest 8 s of the utterance, silence in front where there is less, the pause at the end. The
samples are brought to mean 0 and variance 1, the silence in front included, before Whisper's
log-mel is taken; without that a quiet caller never finishes. The answer is a probability already.

One utterance at a time: the owner passes the caller's present turn, not the call. Audio of an
earlier turn, or of the agent, is another speaker to it.

The network is quantized throughout, activations too, its answer included: between 0.1 and 0.9 an
input that differs in the fifth digit can move it by 0.1. So it is evidence, to be weighed with the
words and the silence, not a decision.

What was tried: the last 4 s only, with the graph cut to match (the cost is nearly halved, and so
is what it knows); keeping the mel of samples already seen (2 ms of 33 are mel: nothing to win);
a thread that spins (a quarter faster alone, and it takes a core from Whisper).
"""

from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from .audio import RATE_HZ, Pcm, finite
from .errors import ModelError

WINDOW_S: Final = 8
"""What the network sees; its positions are fixed."""

WINDOW: Final = WINDOW_S * RATE_HZ

NUM_MELS: Final = 80

_FRAMES: Final = 100 * WINDOW_S

_LEAST_VARIANCE: Final = 1e-7
"""Added before the root, as where the network was trained: digital silence stays finite."""


class TurnModel:
    """The network. Thread-safe; a call blocks for its time."""

    def __init__(self, session: Any, extractor: Any) -> None:
        self._session = session
        self._extractor = extractor

    @classmethod
    def load(cls, path: Path | str, *, threads: int = 1) -> "TurnModel":
        """Load the ONNX file. Raises ModelError when it is missing, damaged or another model."""
        path = Path(path)
        if not path.is_file():
            raise ModelError(
                f"{path}: the end-of-turn model is missing; run `halfsec models fetch smart-turn`"
            )
        import onnxruntime
        from faster_whisper.feature_extractor import FeatureExtractor

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.log_severity_level = 4
        try:
            session = onnxruntime.InferenceSession(
                str(path), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # the runtime's exceptions share no base class
            reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
            raise ModelError(
                f"{path}: not a readable ONNX model, probably damaged or cut short; delete it and "
                f"run `halfsec models fetch smart-turn` ({reason})"
            ) from error
        inputs = [(value.name, value.shape[1:]) for value in session.get_inputs()]
        if inputs != [("input_features", [NUM_MELS, _FRAMES])]:
            raise ModelError(
                f"{path}: not Smart Turn version 3: it takes {inputs} instead of input_features "
                f"[{NUM_MELS}, {_FRAMES}]"
            )
        return cls(session, FeatureExtractor(feature_size=NUM_MELS, chunk_length=WINDOW_S))

    def probability(self, pcm: Pcm) -> float:
        """That the turn is over at the end of `pcm`, 0..1.

        `pcm` is the turn so far, float32 [n] at 16 kHz, of any length, with the pause in question
        at its end; NaN and infinities count as silence.
        """
        features = self.features(pcm)[None]
        (output,) = self._session.run(None, {"input_features": features})
        return float(output[0, 0])

    def features(self, pcm: Pcm) -> npt.NDArray[np.float32]:
        """Log-mel of the newest 8 s, float32 [80, 800]."""
        if pcm.ndim != 1:
            raise ValueError(f"a turn is float32 [n], got {list(pcm.shape)}")
        newest = finite(pcm[-WINDOW:])
        window = np.zeros(WINDOW, np.float32)
        window[WINDOW - len(newest) :] = newest
        window -= window.mean()
        window /= np.sqrt(window.var() + np.float32(_LEAST_VARIANCE))
        mel = self._extractor(window, padding=0)
        return np.ascontiguousarray(mel[:, :_FRAMES], dtype=np.float32)

    def warm(self) -> None:
        """Run every part once, so that the first caller does not pay for it."""
        self.probability(np.zeros(WINDOW, np.float32))
