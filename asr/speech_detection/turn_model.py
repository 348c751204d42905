"""End-of-turn model by sound: Smart Turn v3.2 with a head of our own.

Theory of operation
-------------------
The network is Whisper tiny's encoder, trained further on how turns end and how they only pause:
pitch, lengthening, the breath before the next word. It was exported for the newest 8 s of a turn,
silence in front where there is less, the pause at the end. The samples are brought to mean 0 and
variance 1, the silence in front included, before Whisper's log-mel is taken; without that a quiet
caller never finishes.

The published classifier scores the last of its four blocks over the whole window, with a
probability that is quantized to 8 bits, and knows little of short pauses. What tells them apart
lies in the last second, and in how it goes: so the states behind the second block, averaged over
eight stretches that are the shorter the nearer they are to the pause, go to a small network of our
own (`turn_model_head.py`). It is trained on 2,500 recordings of 125 halting readers and on speakers
of numbers, beside one studio voice, all of them clean and with other voices, fans, music and
keyboards under them. Over pauses of at least 192 ms, asked 80 ms after the voice, the area under
the curve is 0.90 for 2,446 recordings of 125 other halting readers (0.82 with other voices 5 to 10
dB below, 0.72 for a head that had heard none), 0.86 for numbers and spelling of other speakers, and
of the studio voice's prompts 0.80, 0.92 with spliced pauses (held-back half). The published
classifier has 0.59 for the prompts and 0.70 for the spliced pauses. What else was tried as a head
stands in `benchmarks/end_of_turn/head_training.py`.

Only the newest WINDOW_S go through the network, and only through half of it: 11 ms on one thread,
where all of it takes 18 (two-core EPYC). It runs as soon as a pause is found: a sixth of a second
later it would tell a little more of halting readers, and less of numbers.

One turn at a time: the owner passes the caller's present turn, not the call. Audio of an earlier
turn, or of the agent, is another speaker to it.

What was tried: readers of four other languages, to fit the head on as well: nothing for this one,
0.01 to 0.03 for readers outside the training data. Keeping the mel of samples already seen: all of
it takes 2 ms, there is nothing to win. Pitch and energy of the last syllables by hand: 0.01 more.
Training the second block along with the head (1.8 million weights, two and a half passes over
14,000 pauses, noisy ones included): on the half that was not fitted on 0.003 for halting readers,
0.008 for numbers, 0.001 and 0.005 for the known voice, after half an hour and with 3.5 MB to ship.
What is missing is speakers.
"""

from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from asr.audio.conversion import finite
from asr.audio.one_blas_thread import use_one_blas_thread
from asr.audio.samples import RATE_HZ, Pcm
from asr.audio.without_pyav import without_pyav
from asr.errors import ModelError, first_line

from .onnx_session import open_session
from .turn_model_graph import STATE, states_graph
from .turn_model_head import TurnModelHead

TRAINED_S: Final = 8
"""Seconds of the network's training window, over which samples are normalized."""

WINDOW_S: Final = 4
"""Seconds of audio that the network sees."""

_TRAINED: Final = TRAINED_S * RATE_HZ

NUM_MELS: Final = 80

_STRETCHES: Final = ((0, 3), (3, 6), (6, 9), (9, 12), (12, 18), (18, 25), (25, 40), (40, 60))
"""Positions of 20 ms, counted back from the newest."""

EMBEDDING: Final = STATE * len(_STRETCHES)
"""Size of the head's input: the states' means over each stretch."""

HEAD_FILE: Final = Path(__file__).with_name("turn_model_head.npz")
"""The head that ships."""

_LEAST_VARIANCE: Final = 1e-7
"""Added before the root, as where the network was trained: digital silence stays finite."""

Embedding = npt.NDArray[np.float32]


class TurnModel:
    """An `EndOfTurnModel`: the network and the head. Thread-safe; a call blocks for 11 ms."""

    def __init__(self, session: Any, extractor: Any, head: TurnModelHead) -> None:
        """Use `load`."""
        self._session = session
        self._extractor = extractor
        self._head = head

    @classmethod
    def load(
        cls, path: Path | str, *, threads: int = 1, head: TurnModelHead | None = None
    ) -> "TurnModel":
        """Load the ONNX file, with the head that ships or another. A quarter of a second.

        Raises ModelError when it is missing, damaged or another model.
        """
        path = Path(path)
        if not path.is_file():
            raise ModelError(
                f"{path}: the end-of-turn model is missing; run `halfsec models fetch smart-turn`"
            )
        with without_pyav():
            from faster_whisper.feature_extractor import FeatureExtractor

        try:
            session = open_session(states_graph(path, WINDOW_S), threads=threads)
        except Exception as error:  # the runtime's exceptions share no base class
            raise ModelError(
                f"{path}: not Smart Turn version 3, or damaged; delete it and run `halfsec models "
                f"fetch smart-turn` ({first_line(error)})"
            ) from error
        head = head or TurnModelHead.read(HEAD_FILE)
        if head.size != EMBEDDING:
            raise ModelError(
                f"a head of the end-of-turn model takes {EMBEDDING} numbers, this one {head.size}"
            )
        use_one_blas_thread()
        return cls(session, FeatureExtractor(feature_size=NUM_MELS), head)

    def log_odds(self, pcm: Pcm) -> float:
        """Log odds that the turn is over at the end of `pcm`; 0 is even.

        `pcm` is the turn so far, float32 [n] at 16 kHz, of any length, with the pause in question
        at its end; NaN and infinities count as silence.
        """
        return float(self._head.log_odds(self.embedding(pcm)))

    def embedding(self, pcm: Pcm) -> Embedding:
        """The head's input for a turn: float32 [EMBEDDING]."""
        ((states,),) = self._session.run(None, {"input_features": self.features(pcm)[None]})
        newest_first = states[::-1]
        means = [newest_first[first:end].mean(axis=0) for first, end in _STRETCHES]
        return np.concatenate(means)

    def features(self, pcm: Pcm) -> npt.NDArray[np.float32]:
        """Log-mel of the newest WINDOW_S seconds, float32 [80, 100 * WINDOW_S]."""
        if pcm.ndim != 1:
            raise ValueError(f"a turn is float32 [n], got {list(pcm.shape)}")
        newest = finite(pcm[-_TRAINED:])
        samples = np.zeros(_TRAINED, np.float32)
        samples[_TRAINED - len(newest) :] = newest
        samples -= samples.mean()
        samples /= np.sqrt(samples.var() + np.float32(_LEAST_VARIANCE))
        mel = self._extractor(samples[-WINDOW_S * RATE_HZ :], padding=0)
        return np.ascontiguousarray(mel[:, : 100 * WINDOW_S], dtype=np.float32)

    def warm(self) -> None:
        """Run every part once, so that the first caller does not pay for it."""
        self.log_odds(np.zeros(RATE_HZ, np.float32))
