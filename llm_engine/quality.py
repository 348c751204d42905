"""`python -m llm_engine.quality`: what each way to calculate costs in quality.

Perplexity of a fixed text (this project's licence, unless another is given), read in one sequence
and in chunks as a prompt is, by float32 and by the quick backend. The text stands for nothing; the
ratio says how far the quick arithmetic is from the exact one on the same weights.
"""

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from llm_engine.__main__ import default_model
from llm_engine.backends.base import CacheLayout, PageId, SequenceRows, Slot
from llm_engine.backends.choice import make_backend
from llm_engine.checkpoint import Checkpoint
from llm_engine.config import BackendName, EngineConfig, Precision, SamplingParams
from llm_engine.errors import ModelError, RequestError
from llm_engine.weights import load_checkpoint

LICENCE = Path(__file__).resolve().parents[1] / "LICENSE"
NUM_TOKENS = 1024
"""Enough for a standard error of the ratio of some 0.2 %; a minute for the slowest backend."""
_CHUNK = 64

CONFIGS = (
    EngineConfig(backend=BackendName.TORCH),
    EngineConfig(precision=Precision.INT8, backend=BackendName.ONNX),
)
"""The first is what the others are compared with."""


@runtime_checkable
class Scorer(Protocol):
    """A backend that tells its logits, as those on the CPU do."""

    @property
    def layout(self) -> CacheLayout: ...

    def open_slot(self) -> Slot: ...

    def close_slot(self, slot: Slot) -> None: ...

    def logits(self, rows: SequenceRows) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class Row:
    """One way to calculate."""

    backend: str
    precision: str
    perplexity: float
    ratio: float
    """To the first row's perplexity."""
    agreement: float
    """Share of tokens for which the likeliest is that of the first row."""


@dataclass(frozen=True, slots=True)
class _Scores:
    nats: float
    """Mean of -log p over the text's tokens after the first."""
    likeliest: Tensor


@torch.inference_mode()
def score(backend: Scorer, token_ids: Sequence[int]) -> _Scores:
    """Read a text, comparing each position's logits with the token that follows."""
    slot = backend.open_slot()
    pages = [PageId(page) for page in range(backend.layout.num_pages)]  # all for this one
    nats, likeliest = [], []
    num_rows = len(token_ids) - 1
    for first in range(0, num_rows, _CHUNK):
        ids = tuple(token_ids[first : min(first + _CHUNK, num_rows)])
        rows = SequenceRows(slot, ids, first, len(ids), SamplingParams(), seed=0, pages=pages)
        logits = backend.logits(rows)
        following = torch.tensor(token_ids[first + 1 : first + len(ids) + 1])
        nats.append(torch.nn.functional.cross_entropy(logits, following, reduction="none"))
        likeliest.append(logits.argmax(dim=1))
    backend.close_slot(slot)
    return _Scores(float(torch.cat(nats).double().mean()), torch.cat(likeliest))


def measure(checkpoint: Checkpoint, text: str, num_tokens: int) -> list[Row]:
    """A row for each of `CONFIGS`. Raises ModelError, RequestError for a text that is too short."""
    token_ids = checkpoint.tokenizer.encode(text)[: num_tokens + 1]
    if len(token_ids) < 2:
        raise RequestError("text", "has too few tokens")
    rows: list[Row] = []
    exact: _Scores | None = None
    for config in CONFIGS:
        backend = make_backend(checkpoint, config, num_tokens, lambda share: None)
        assert isinstance(backend, Scorer)
        scores = score(backend, token_ids)
        exact = exact or scores
        rows.append(
            Row(
                backend=config.backend.value,
                precision=config.precision.value,
                perplexity=math.exp(scores.nats),
                ratio=math.exp(scores.nats - exact.nats),
                agreement=float((scores.likeliest == exact.likeliest).double().mean()),
            )
        )
    return rows


def table(rows: Sequence[Row]) -> str:
    lines = [f"{'':<16}{'perplexity':>12}{'ratio':>9}{'same likeliest':>16}"]
    lines += [
        f"{row.backend + ' ' + row.precision:<16}{row.perplexity:>12.4f}{row.ratio:>9.4f}"
        f"{row.agreement:>16.3f}"
        for row in rows
    ]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 0, or 2 for a model or text that can't be used."""
    parser = argparse.ArgumentParser(
        prog="halfsec bench quality", description="Perplexity by each way to calculate."
    )
    parser.add_argument("--model", type=Path, help="GGUF file or Hugging Face directory")
    parser.add_argument("--text", type=Path, default=LICENCE, help="a file to read (the licence)")
    parser.add_argument("--tokens", type=int, default=NUM_TOKENS, help="of the text (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="save the result")
    options = parser.parse_args(argv)
    try:
        path = options.model or default_model()
        checkpoint = load_checkpoint(path)
        text = options.text.read_text(encoding="utf-8")
        length = min(checkpoint.config.context_length, options.tokens)
        rows = measure(checkpoint, text, length)
    except (ModelError, RequestError, OSError, UnicodeError) as error:
        print(f"bench quality: {error}", file=sys.stderr)
        return 2
    print(table(rows))
    if options.json is not None:
        result = {"bench": "quality", "model": path.name, "rows": [asdict(row) for row in rows]}
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
