"""`python -m agent.turn_llm PAUSES OUT`: what the language model says to the words at each pause.

Adds to each pause of `asr.turn_pauses` the probability that the caller's message ends there.
Whisper closes almost every text with a full stop, also in the middle of a sentence, so its last
punctuation is taken off, and the model is asked whether the end of the message or a ".", "?" or "!"
comes next.
"""

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import torch

from asr.errors import AudioError
from asr.turn_pauses import read_pauses
from llm_engine.__main__ import default_model
from llm_engine.backends.base import PageId, SequenceRows
from llm_engine.backends.choice import make_backend
from llm_engine.config import EngineConfig, Precision, SamplingParams
from llm_engine.errors import ModelError
from llm_engine.quality import Scorer
from llm_engine.weights import load_checkpoint

PROMPT: Final = (
    "<|im_start|>system\nYou are a helpful voice assistant on the phone.<|im_end|>\n"
    "<|im_start|>user\n"
)
"""Of the embedded model's family (ChatML)."""

ENDS: Final = ".?!"

_MAX_WORDS: Final = 60
"""Words before the pause that are read: what ends a sentence lies in its own."""


def make_judge(path: Path) -> Callable[[str], float]:
    """The probability, 0..1, that a message ends after these words. Raises ModelError."""
    checkpoint = load_checkpoint(path)
    backend = make_backend(
        checkpoint, EngineConfig(precision=Precision.INT8), 512, lambda share: None
    )
    assert isinstance(backend, Scorer)
    tokenizer = checkpoint.tokenizer
    prompt = tokenizer.encode_template(PROMPT)
    ends = [*tokenizer.encode_template("<|im_end|>")[:1], *(tokenizer.encode(c)[0] for c in ENDS)]
    slot = backend.open_slot()
    pages = [PageId(page) for page in range(backend.layout.num_pages)]

    @torch.inference_mode()
    def judge(text: str) -> float:
        words = " ".join(text.split()[-_MAX_WORDS:]).rstrip(".?!,;:- ")
        ids = (*prompt, *tokenizer.encode(words))[-500:]
        rows = SequenceRows(slot, ids, 0, 1, SamplingParams(), seed=0, pages=pages)
        probabilities = torch.softmax(backend.logits(rows)[-1].float(), dim=-1)
        return float(probabilities[ends].sum())

    return judge


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m agent.turn_llm", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("pauses", type=Path, help="what `python -m asr.turn_pauses` wrote")
    parser.add_argument("out", type=Path, help="the same with the model's answers")
    parser.add_argument("--model", type=Path, help="GGUF file or Hugging Face directory")
    args = parser.parse_args(argv)
    try:
        pauses = read_pauses(args.pauses)
        judge = make_judge(args.model or default_model())
        known: dict[str, float] = {"": 0.0}
        with args.out.open("w", encoding="utf-8") as out:
            for pause in pauses:
                if pause.final not in known:
                    known[pause.final] = round(judge(pause.final), 5)
                found = dataclasses.replace(pause, llm=known[pause.final])
                out.write(json.dumps(dataclasses.asdict(found)) + "\n")
    except (AudioError, ModelError, OSError) as error:
        print(f"agent.turn_llm: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
