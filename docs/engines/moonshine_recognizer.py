"""Recognizer by Moonshine, a model of 27 million parameters: `asr.model = "moonshine:"`.

Needs `pip install moonshine-voice==0.0.44`, which has the English model in it. Another model of
the architecture "tiny" is named by its directory, like "moonshine:~/models/tiny-ja".
"""

from pathlib import Path

import moonshine_voice

import asr


class MoonshineEngine:
    """An `asr.RecognitionEngine`."""

    def __init__(self, argument: str, options: asr.RecognizerOptions) -> None:
        """The factory: `argument` is what stands behind "moonshine:"."""
        own = moonshine_voice.get_model_path("tiny-en")
        folder = Path(argument).expanduser() if argument else own
        self.languages = (options.language,)
        # Its own voice detection is switched off: halfsec knows where the speech is.
        self._transcriber = moonshine_voice.Transcriber(
            str(folder), moonshine_voice.ModelArch.TINY, options={"vad_threshold": "0.0"}
        )

    def recognize(self, pcm: asr.Pcm, options: asr.TranscriptionOptions) -> asr.RawTranscript:
        """Recognize 16 kHz samples. Moonshine takes no prompt, and knows no times of words."""
        found = self._transcriber.transcribe_without_streaming(pcm.tolist(), asr.RATE_HZ)
        return asr.RawTranscript(" ".join(line.text for line in found.lines))
