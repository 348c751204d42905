"""Voice by Kokoro (82 million parameters): `tts.voice = "kokoro:FOLDER/af_heart"`.

Needs `pip install kokoro-onnx` (which brings espeak-ng, under GPL-3), and in the folder the files
kokoro.onnx and voices.bin of https://github.com/thewh1teagle/kokoro-onnx/releases.
"""

from pathlib import Path

import kokoro_onnx
import numpy as np
import onnxruntime

import tts


class KokoroEngine:
    """A `tts.SynthesisEngine`."""

    rate_hz = 24_000

    def __init__(self, argument: str, options: tts.VoiceOptions) -> None:
        """The factory: `argument` is what stands behind "kokoro:"."""
        path = Path(argument).expanduser()
        session_options = onnxruntime.SessionOptions()
        session_options.intra_op_num_threads = options.threads
        session = onnxruntime.InferenceSession(path.parent / "kokoro.onnx", session_options)
        self._kokoro = kokoro_onnx.Kokoro.from_session(session, str(path.parent / "voices.bin"))
        self._voice = path.name
        if self._voice not in self._kokoro.get_voices():
            raise ValueError(f"there is no such voice, only {self._kokoro.get_voices()}")

    def speak(self, line: str, speed: float = 1.0) -> tts.RawSpeech:
        """Synthesize a sentence. Kokoro's own limits of speed are narrower than halfsec's."""
        speed = min(max(speed, 0.5), 2.0)
        try:
            samples, _ = self._kokoro.create(line, self._voice, speed, trim=False)
        except ValueError:  # it has no sounds for these words, such as another script
            samples = np.zeros(0)
        return tts.RawSpeech(np.asarray(samples, np.float32))
