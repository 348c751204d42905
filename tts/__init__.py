"""Text to speech: a reply is cut into pieces while it is generated, and a voice speaks them.

    chunker = TextChunker()
    voice = load_voice("hibari", models_dir)
    for piece in chunker.push(delta):
        for chunk in voice.synthesize(piece):
            play(chunk.pcm)

Everything is synchronous and belongs to one thread at a time.
"""

from tts.text.normalize import normalize
from tts.voices.engine import RawSpeech, SynthesisEngine, VoiceError, VoiceOptions

from .contract import check_voice
from .load import available_voices, load_voice
from .text_chunker import CutterConfig, SpeakablePiece, TextChunker
from .voice import SpeechChunk, Voice
from .word_times import PhonemeGroup, WordTime

__all__ = [
    "CutterConfig",
    "PhonemeGroup",
    "RawSpeech",
    "SpeakablePiece",
    "SpeechChunk",
    "SynthesisEngine",
    "TextChunker",
    "Voice",
    "VoiceError",
    "VoiceOptions",
    "WordTime",
    "available_voices",
    "check_voice",
    "load_voice",
    "normalize",
]
