"""Is the caller's turn over, judged by the sound of it: Smart Turn v3.2 on ONNX Runtime.

Theory of operation
-------------------
The network is Whisper tiny's encoder with a pooled classifier behind it, trained on how turns end
and how they only pause: pitch, lengthening, the breath before the next word. It was exported for
the newest 8 s of a turn, silence in front where there is less, the pause at the end. The samples
are brought to mean 0 and variance 1, the silence in front included, before Whisper's log-mel is
taken; without that a quiet caller never finishes. The answer is a probability already.

What tells an end from a pause lies in the last words, so only the newest WINDOW_S go through the
network, at a third of the cost and with nothing lost that could be measured. Area under the curve
over 648 pauses of hesitant turns, 96 ms after their begin, and ms of a call on one thread (two-core
Xeon, `turn_bench`): 8 s 0.75 and 33, 6 s 0.75 and 22, 4 s 0.74 and 13, 2 s 0.75 and 6; standard
error 0.02. 4 s, because recordings read by one voice can't show what others need. Two threads win
a tenth to a third alone and nothing beside a final pass, where one takes 22 ms with 4 s, 58 with 8,
and makes the final pass 12 ms later, or 20.

It is asked as early as a pause is noticed: after 64, 96, 160 and 256 ms of silence the areas are
0.75, 0.74, 0.71 and 0.69. And it is quantized throughout, activations and answer
included: between 0.1 and 0.9 an input that differs in the fifth digit can move it by 0.1. So it is
evidence, to be weighed with words and silence, not a decision.

One turn at a time: the owner passes the caller's present turn, not the call. Audio of an earlier
turn, or of the agent, is another speaker to it.

What was tried: keeping the mel of samples already seen. All of it takes 2 ms, there is nothing to
win.
"""

from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from .audio import RATE_HZ, Pcm, finite
from .errors import ModelError
from .turn_window import shortened

TRAINED_S: Final = 8
"""What the network was trained on, and over which samples are normalized."""

WINDOW_S: Final = 4
"""What goes through it. At 2 s a probability differs by 0.20 from that with 8 s on the average, at
4 s by 0.12."""

_TRAINED: Final = TRAINED_S * RATE_HZ

NUM_MELS: Final = 80

_LEAST_VARIANCE: Final = 1e-7
"""Added before the root, as where the network was trained: digital silence stays finite."""


class TurnModel:
    """The network. Thread-safe; a call blocks for its time."""

    def __init__(self, session: Any, extractor: Any, window_s: int) -> None:
        self._session = session
        self._extractor = extractor
        self._window_s = window_s

    @classmethod
    def load(cls, path: Path | str, *, threads: int = 1, window_s: int = WINDOW_S) -> "TurnModel":
        """Load the ONNX file, for a window of 1 to 8 s. A quarter of a second.

        Raises ModelError when it is missing, damaged or another model.
        """
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
            model = str(path) if window_s == TRAINED_S else shortened(path, window_s)
            session = onnxruntime.InferenceSession(
                model, options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # the runtime's exceptions share no base class
            reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
            raise ModelError(
                f"{path}: not a readable ONNX model, probably damaged or cut short; delete it and "
                f"run `halfsec models fetch smart-turn` ({reason})"
            ) from error
        frames = 100 * window_s
        inputs = [(value.name, value.shape[1:]) for value in session.get_inputs()]
        if inputs != [("input_features", [NUM_MELS, frames])]:
            raise ModelError(
                f"{path}: not Smart Turn version 3: it takes {inputs} instead of input_features "
                f"[{NUM_MELS}, {frames}]"
            )
        return cls(session, FeatureExtractor(feature_size=NUM_MELS), window_s)

    def probability(self, pcm: Pcm) -> float:
        """That the turn is over at the end of `pcm`, 0..1.

        `pcm` is the turn so far, float32 [n] at 16 kHz, of any length, with the pause in question
        at its end; NaN and infinities count as silence.
        """
        features = self.features(pcm)[None]
        (output,) = self._session.run(None, {"input_features": features})
        return float(output[0, 0])

    def features(self, pcm: Pcm) -> npt.NDArray[np.float32]:
        """Log-mel of the newest `window_s` seconds, float32 [80, 100 * window_s]."""
        if pcm.ndim != 1:
            raise ValueError(f"a turn is float32 [n], got {list(pcm.shape)}")
        newest = finite(pcm[-_TRAINED:])
        samples = np.zeros(_TRAINED, np.float32)
        samples[_TRAINED - len(newest) :] = newest
        samples -= samples.mean()
        samples /= np.sqrt(samples.var() + np.float32(_LEAST_VARIANCE))
        mel = self._extractor(samples[-self._window_s * RATE_HZ :], padding=0)
        return np.ascontiguousarray(mel[:, : 100 * self._window_s], dtype=np.float32)

    def warm(self) -> None:
        """Run every part once, so that the first caller does not pay for it."""
        self.probability(np.zeros(RATE_HZ, np.float32))
