"""Voice activity detection: silero VAD (version 5 and later) on ONNX Runtime.

The network sees 32 ms at a time, each with the last 4 ms of the frame before, and carries the
state of its LSTM. That state belongs to the call and is passed in, so one session of the runtime
(and one copy of the weights) serves every call of a process. One thread without spinning: 0.3 ms of
work does not divide, and a thread that spins takes a core from Whisper.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from asr.audio.samples import RATE_HZ, Pcm
from asr.errors import ModelError, first_line

from .onnx_session import open_session

FRAME: Final = 512
"""Samples of a frame. The network was trained on this size alone at 16 kHz."""

FRAME_MS: Final = FRAME * 1000 // RATE_HZ

_CONTEXT: Final = 64


@dataclass(slots=True)
class VadState:
    """The network's state for one call. Changed by `probability`; one for each call."""

    lstm: npt.NDArray[np.float32] = field(
        default_factory=lambda: np.zeros((2, 1, 128), np.float32), repr=False
    )
    """float32 [2, 1, 128]."""
    context: Pcm = field(default_factory=lambda: np.zeros(_CONTEXT, np.float32), repr=False)
    """float32 [64]: the end of the frame before."""


class VoiceDetector(Protocol):
    """Interface of a voice detector. One model serves all calls; the state belongs to the call."""

    def probability(self, frame: Pcm, state: VadState) -> float:
        """Probability of speech in a frame of 512 samples, 0..1. Changes `state`."""
        ...


class SileroVad:
    """A `VoiceDetector`. Thread-safe, as long as each state is used by one thread at a time."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self._rate = np.array(RATE_HZ, np.int64)

    @classmethod
    def load(cls, path: Path | str) -> "SileroVad":
        """Load the ONNX file. Raises ModelError when it is missing, damaged or another model."""
        path = Path(path)
        if not path.is_file():
            raise ModelError(f"{path}: the voice detector is missing; run `halfsec models fetch`")
        try:
            session = open_session(path, threads=1)
        except Exception as error:  # the runtime's exceptions share no base class
            raise ModelError(
                f"{path}: not a readable ONNX model, probably damaged or cut short; delete it and "
                f"run `halfsec models fetch` ({first_line(error)})"
            ) from error
        names = sorted(value.name for value in session.get_inputs())
        if names != ["input", "sr", "state"]:
            raise ModelError(
                f"{path}: not silero VAD version 5 or later: it takes {', '.join(names)} instead "
                "of input, sr, state"
            )
        return cls(session)

    def probability(self, frame: Pcm, state: VadState) -> float:
        """Probability of speech in a frame of 512 samples, 0..1. Changes `state`."""
        if frame.shape != (FRAME,):
            raise ValueError(f"a frame is float32 [{FRAME}], got {list(frame.shape)}")
        samples = np.concatenate([state.context, frame])
        output, state.lstm = self._session.run(
            ["output", "stateN"], {"input": samples[None], "state": state.lstm, "sr": self._rate}
        )
        state.context = samples[-_CONTEXT:]
        return float(output[0, 0])
