"""`python -m benchmarks.end_of_turn.synthetic_readers`: read recorded turns with other voices.

A synthetic voice reads the texts of command-like turns (see `benchmarks/end_of_turn/turn_data.py`):
OUT/NAME.wav and OUT/texts.txt. A turn model's head that is fitted on one reader alone overfits that
reader. A text has the name of its recording, and so belongs to the same half.
"""

import argparse
import sys
from pathlib import Path
from typing import Final

import numpy as np
import soundfile

import tts
from asr.__main__ import models_dir
from asr.errors import AudioError
from tts.text_chunker import TextChunker

from .turn_data import read_turns

MAX_WORDS: Final = 40
"""Greatest number of words of a text: longer ones are announcements."""


def spoken(voice: tts.Voice, text: str) -> tuple[np.ndarray, int]:
    """Synthesize a text. Returns int16 [n] and its rate in Hz."""
    cutter = TextChunker()
    chunks = [
        chunk
        for piece in [*cutter.push(text), *cutter.flush()]
        for chunk in voice.synthesize(piece)
    ]
    return np.concatenate([chunk.pcm for chunk in chunks]), chunks[0].rate_hz


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.end_of_turn.synthetic_readers", description=__doc__
    )
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("turns", type=Path, help="folder written by turn_data")
    parser.add_argument("out", type=Path)
    parser.add_argument("--voice", required=True, help="as for the service: hibari, piper-joe, ...")
    parser.add_argument("--models", type=Path, default=models_dir())
    args = parser.parse_args(argv)
    try:
        turns = [turn for turn in read_turns(args.turns) if turn.kind == "command"]
        voice = tts.load_voice(args.voice, args.models, threads=1)
        args.out.mkdir(parents=True, exist_ok=True)
        with (args.out / "texts.txt").open("w", encoding="utf-8") as texts:
            for turn in turns:
                if len(turn.text.split()) <= MAX_WORDS:
                    path = args.out / f"{turn.name}.wav"
                    path.parent.mkdir(parents=True, exist_ok=True)
                    pcm, rate_hz = spoken(voice, turn.text)
                    soundfile.write(path, pcm, rate_hz, subtype="PCM_16")
                    texts.write(f"{turn.name}: {turn.text}\n")
    except (AudioError, tts.VoiceError, OSError) as error:
        print(f"synthetic_readers: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
