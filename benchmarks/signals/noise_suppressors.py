"""Noise suppressors in front of the voice detector, to measure what they would bring.

The service has none: `docs/how-it-works/end-of-turn.md` has the figures. The recognizer and the
sound model hear the audio as received.

Each suppressor takes the detector's frame (512 samples) and gives as many samples back: `webrtc`
10 ms later, beside the delay of its own filter bank, `gtcrn` 16 ms later.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Protocol

import numpy as np

from agent.errors import BenchError
from asr.audio.samples import Pcm, float32_to_pcm16, pcm16_to_float32

NO_GAIN: Final = 0
STRONGEST: Final = 4
"""Arguments of WebRTC's processor: no automatic gain, the strongest of four levels."""


class NoiseSuppressor(Protocol):
    """State of one call."""

    def process(self, pcm: Pcm) -> Pcm:
        """Take float32 [n] at 16 kHz, give float32 [n] back, delayed."""
        ...


class WebrtcSuppressor:
    """Noise suppression of WebRTC's audio processing, by `webrtc-noise-gain` (MIT; BSD-3)."""

    FRAME: Final = 160

    def __init__(self, processor: Any) -> None:
        """`processor`: the package's `AudioProcessor`, of this call alone."""
        self._processor = processor
        self._waiting = np.zeros(0, np.float32)
        # Whatever the length of the input, less than a frame of it waits.
        self._ready = np.zeros(self.FRAME, np.float32)

    def process(self, pcm: Pcm) -> Pcm:
        waiting = np.concatenate([self._waiting, pcm])
        whole = len(waiting) // self.FRAME * self.FRAME
        parts = [self._ready]
        for start in range(0, whole, self.FRAME):
            frame = float32_to_pcm16(waiting[start : start + self.FRAME])
            parts.append(pcm16_to_float32(self._processor.Process10ms(frame).audio))
        self._waiting = waiting[whole:]
        ready = np.concatenate(parts)
        self._ready = ready[len(pcm) :]
        return ready[: len(pcm)]


class GtcrnSuppressor:
    """GTCRN (Rong et al. 2024, 24 k parameters, MIT), streaming ONNX graph of its authors.

    STFT of 512 samples every 256 under the root of Hann's window; the output is 256 samples late.
    """

    HOP: Final = 256

    def __init__(self, session: Any) -> None:
        """`session`: ONNX Runtime's, of `stream/onnx_models/gtcrn_simple.onnx`."""
        self._session = session
        self._window = np.sqrt(np.hanning(2 * self.HOP + 1)[:-1]).astype(np.float32)
        self._before = np.zeros(self.HOP, np.float32)
        self._overlap = np.zeros(self.HOP, np.float32)
        self._caches = {
            "conv_cache": np.zeros((2, 1, 16, 16, 33), np.float32),
            "tra_cache": np.zeros((2, 3, 1, 1, 16), np.float32),
            "inter_cache": np.zeros((2, 1, 33, 16), np.float32),
        }

    def process(self, pcm: Pcm) -> Pcm:
        """As `NoiseSuppressor.process`; n is a multiple of 256."""
        return np.concatenate([self._hop(hop) for hop in pcm.reshape(-1, self.HOP)])

    def _hop(self, hop: Pcm) -> Pcm:
        spectrum = np.fft.rfft(np.concatenate([self._before, hop]) * self._window)
        self._before = hop
        mix = np.stack([spectrum.real, spectrum.imag], axis=-1).astype(np.float32)
        enhanced, *caches = self._session.run(None, {"mix": mix[None, :, None, :], **self._caches})
        self._caches = dict(zip(self._caches, caches, strict=True))
        pairs = enhanced[0, :, 0, :]
        sound = np.fft.irfft(pairs[:, 0] + 1j * pairs[:, 1]).astype(np.float32) * self._window
        ready = self._overlap + sound[: self.HOP]
        self._overlap = sound[self.HOP :]
        return ready


MakeSuppressor = Callable[[], NoiseSuppressor]


def _webrtc(model: Path | None) -> MakeSuppressor:
    try:
        from webrtc_noise_gain import AudioProcessor
    except ImportError:
        raise BenchError("--suppressor webrtc: pip install 'webrtc-noise-gain>=1.2,<2'") from None
    return lambda: WebrtcSuppressor(AudioProcessor(NO_GAIN, STRONGEST))


def _gtcrn(model: Path | None) -> MakeSuppressor:
    if model is None or not model.is_file():
        raise BenchError(
            "--suppressor gtcrn: give stream/onnx_models/gtcrn_simple.onnx of "
            "https://github.com/Xiaobin-Rong/gtcrn as --suppressor-model FILE."
        )
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    return lambda: GtcrnSuppressor(session)


SUPPRESSORS: Final[Mapping[str, Callable[[Path | None], MakeSuppressor]]] = MappingProxyType(
    {"webrtc": _webrtc, "gtcrn": _gtcrn}
)
"""Loaders by name; each takes the path of a model file. They raise BenchError."""
