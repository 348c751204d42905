"""`halfsec bench tts`: comparison of the voices, with the recognizer's word error rate on each.

The round trip through speech recognition is here, because neither package imports the other.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import numpy.typing as npt

import asr
import tts
from agent.client.simulated_caller.talk import TalkError
from agent.stages.model_store.catalogue import ModelStore
from benchmarks.asr.scoring import load_jiwer
from latency_budget.host import machine

from .speed import compare, table


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line. Returns 0. Raises TalkError for a voice or model that can't be used,
    and BenchError without jiwer."""
    parser = argparse.ArgumentParser(
        prog="halfsec bench tts",
        description="Compare voices: milliseconds a sentence, first audible sample, and the word "
        "error rate of the recognizer that listens to them.",
    )
    parser.add_argument("voices", nargs="*", metavar="VOICE", help="default: all on this machine")
    parser.add_argument("--json", type=Path, metavar="FILE", help="save the result")
    options = parser.parse_args(argv)
    load_jiwer()  # missing, it is reported before the models are loaded
    store = ModelStore()
    try:
        recognizer = asr.load_recognizer(store.locate("whisper-tiny.en"))
        names = options.voices or tts.available_voices(store.directory)
        voices = [tts.load_voice(name, store.directory) for name in names]

        def transcribe(pcm: npt.NDArray[np.int16]) -> str:
            return recognizer.transcribe(pcm.astype(np.float32) / np.float32(32768)).text

        rows = compare(voices, transcribe)
    except (asr.ModelError, tts.VoiceError) as error:
        raise TalkError(str(error)) from None
    print(f"{machine()}\n{table(rows)}")
    if options.json is not None:
        result = {"bench": "tts", "machine": machine(), "voices": [asdict(row) for row in rows]}
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
