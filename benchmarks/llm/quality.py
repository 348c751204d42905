"""`halfsec bench quality`: perplexity and agreement of each quantization scheme.

Perplexity of fixed texts (by default this project's licence), each read as one sequence: by
float32, by the quick backend in chunks as a prompt is, and by a GPU's arithmetic, emulated. The
texts are arbitrary: the ratio of perplexities is the distance of an arithmetic from the exact one
on the same weights, and its standard error over the text's tokens is the uncertainty.
"""

import argparse
import importlib.metadata
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from latency_budget.account.clock import unix_ns
from latency_budget.host import machine
from llm_engine.backends.base import CacheLayout, PageId, SequenceRows, Slot
from llm_engine.backends.factory import make_backend
from llm_engine.checkpoints.checkpoint import Checkpoint
from llm_engine.checkpoints.load import default_model, load_checkpoint
from llm_engine.config import BackendName, EngineConfig, Precision, SamplingParams
from llm_engine.cuda.model import DeviceModel
from llm_engine.cuda.quantization import emulation
from llm_engine.cuda.quantization.emulation import Arithmetic
from llm_engine.cuda.quantization.quantize import BLOCK
from llm_engine.cuda.weights import WeightFormat, load_model
from llm_engine.errors import ModelError, RequestError

from .model_path import locate_model

_ROOT = Path(__file__).resolve().parents[2]


def _licence() -> Path:
    """The licence's text: of the checkout, or of the installed package."""
    path = _ROOT / "LICENSE"
    if path.exists():
        return path
    files = importlib.metadata.files("halfsec") or []
    return Path(str(next(file for file in files if file.name == "LICENSE").locate()))


LICENCE = _licence()
CALIBRATION = (
    _ROOT / "llm_engine" / "training" / "spoken_questions.txt",
    _ROOT / "llm_engine" / "training" / "calibration.txt",
)
"""Texts that weights are calibrated with: spoken language, and a wider vocabulary. The second is a
technical manual, this project's own of 2026-11-22, unchanged so that figures of different dates are
comparable."""
_CALIBRATION_TOKENS = 9872
"""Number of tokens to calibrate with. Divergence from bfloat16 of SmolLM2 135M with all weights in
8 bits, in nats a token: 0.044 without calibration, 0.034 with the 1,680 tokens of the questions
alone, 0.022 with this number."""
_CALIBRATION_LENGTH = 2048
"""Length of a calibration sequence in tokens."""
NUM_TOKENS = 1024
"""Number of tokens to read: the standard error of the ratio is some 0.2 % for int8, 0.7 % for
8-bit floats; a minute with the slowest backend."""
_CHUNK = 64

CONFIGS = (
    EngineConfig(backend=BackendName.TORCH),
    EngineConfig(precision=Precision.INT8, backend=BackendName.ONNX),
    EngineConfig(precision=Precision.INT4, backend=BackendName.ONNX),
)
"""Configurations on the CPU. The first is the reference of all others."""


@dataclass(frozen=True, slots=True)
class QuantizationScheme:
    """Formats of weights, activations and cache on a GPU."""

    name: str
    weights: WeightFormat
    arithmetic: Arithmetic = field(default_factory=Arithmetic)
    is_calibrated: bool = False
    """True if weights are rounded after calibration with `CALIBRATION`."""


_FP8 = WeightFormat(Precision.FP8)
_FP8_BLOCKS = WeightFormat(Precision.FP8, block=BLOCK)
_FP8_BODY = WeightFormat(Precision.FP8, head=Precision.BFLOAT16)
BFLOAT16 = QuantizationScheme("bfloat16", WeightFormat())
"""Reference of the 8-bit schemes."""
SCHEMES = (
    BFLOAT16,
    QuantizationScheme("bfloat16, fp8 cache", WeightFormat(), Arithmetic(cache=True)),
    QuantizationScheme("fp8 blocks", _FP8_BLOCKS),
    QuantizationScheme("fp8 blocks, fp8 activations", _FP8_BLOCKS, Arithmetic(activations=True)),
    QuantizationScheme("fp8 rows, bf16 head", _FP8_BODY),
    QuantizationScheme("fp8 rows", _FP8),
    QuantizationScheme("fp8 rows, fp8 activations", _FP8, Arithmetic(activations=True)),
    QuantizationScheme("calibrated, bf16 head", _FP8_BODY, is_calibrated=True),
    QuantizationScheme(
        "calibrated, bf16 head, fp8 activations",
        _FP8_BODY,
        Arithmetic(activations=True),
        is_calibrated=True,
    ),
    QuantizationScheme("calibrated", _FP8, is_calibrated=True),
    QuantizationScheme(
        "calibrated, fp8 activations", _FP8, Arithmetic(activations=True), is_calibrated=True
    ),
)


@runtime_checkable
class Scorer(Protocol):
    """Backend that returns logits, as those on the CPU do."""

    @property
    def layout(self) -> CacheLayout: ...

    def open_slot(self) -> Slot: ...

    def close_slot(self, slot: Slot) -> None: ...

    def logits(self, rows: SequenceRows) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class SchemeFigures:
    """Perplexity and agreement of one scheme on one text."""

    backend: str
    precision: str
    perplexity: float
    ratio: float
    """Ratio to float32's perplexity."""
    error: float
    """Standard error of that ratio."""
    agreement: float
    """Share of tokens whose likeliest token is float32's."""
    bf16_ratio: float | None = None
    """Ratio to the perplexity in bfloat16; None on the CPU."""
    bf16_error: float | None = None
    """Standard error of that ratio."""
    text: str = ""
    """Name of the text."""


@dataclass(frozen=True, slots=True)
class _Scores:
    """Scores of a text's tokens after the first."""

    each: Tensor
    """-log p of each token in nats, [tokens - 1]."""
    likeliest: Tensor
    """Ids of the likeliest tokens, [tokens - 1]."""

    @property
    def nats(self) -> float:
        return float(self.each.double().mean())


@torch.inference_mode()
def score(backend: Scorer, token_ids: Sequence[int]) -> _Scores:
    """Read a text and compare each position's logits with the following token."""
    slot = backend.open_slot()
    pages = [PageId(page) for page in range(backend.layout.num_pages)]  # all for this one
    nats: list[Tensor] = []
    likeliest: list[Tensor] = []
    num_rows = len(token_ids) - 1
    for first in range(0, num_rows, _CHUNK):
        ids = tuple(token_ids[first : min(first + _CHUNK, num_rows)])
        rows = SequenceRows(slot, ids, first, len(ids), SamplingParams(), seed=0, pages=pages)
        _note(torch.as_tensor(backend.logits(rows)), token_ids[first + 1 :], nats, likeliest)
    backend.close_slot(slot)
    return _Scores(torch.cat(nats), torch.cat(likeliest))


def load(checkpoint: Checkpoint, scheme: QuantizationScheme) -> DeviceModel:
    """Load the weights of a scheme on the CPU. Raises ModelError, and OSError if a calibration text
    is missing."""
    return load_model(
        checkpoint,
        scheme.weights,
        "cpu",
        context_length=checkpoint.config.context_length,
        calibration=_calibration(checkpoint) if scheme.is_calibrated else (),
    )


def emulated(model: DeviceModel, scheme: QuantizationScheme, token_ids: Sequence[int]) -> _Scores:
    """Read a text by a GPU's arithmetic, emulated."""
    hidden = emulation.hidden(model, torch.tensor(token_ids[:-1]), scheme.arithmetic)
    nats: list[Tensor] = []
    likeliest: list[Tensor] = []
    for first in range(0, len(hidden), _CHUNK):
        logits = emulation.logits(model, hidden[first : first + _CHUNK])
        _note(logits, token_ids[first + 1 :], nats, likeliest)
    return _Scores(torch.cat(nats), torch.cat(likeliest))


def _calibration(checkpoint: Checkpoint) -> list[list[int]]:
    """Token ids of the calibration texts, cut into sequences. Raises OSError."""
    ids: list[int] = []
    for file in CALIBRATION:
        ids += checkpoint.tokenizer.encode(file.read_text(encoding="utf-8"))
    length = min(_CALIBRATION_LENGTH, checkpoint.config.context_length)
    num_tokens = min(_CALIBRATION_TOKENS, len(ids))
    return [ids[start : start + length] for start in range(0, num_tokens, length)]


def _note(
    logits: Tensor, following: Sequence[int], nats: list[Tensor], likeliest: list[Tensor]
) -> None:
    targets = torch.tensor(following[: len(logits)])
    nats.append(torch.nn.functional.cross_entropy(logits, targets, reduction="none"))
    likeliest.append(logits.argmax(dim=1))


def measure(
    checkpoint: Checkpoint,
    texts: Mapping[str, str],
    num_tokens: int,
    schemes: Sequence[QuantizationScheme] = SCHEMES,
) -> Iterator[SchemeFigures]:
    """Yield the figures of each of `CONFIGS` and of the schemes, whose first is the reference of
    `bf16_ratio`, on each text, by its name. Raises ModelError, and RequestError for a text that is
    too short."""
    token_ids = {
        name: checkpoint.tokenizer.encode(text)[: num_tokens + 1] for name, text in texts.items()
    }
    if any(len(ids) < 2 for ids in token_ids.values()):
        raise RequestError("text", "has too few tokens")
    exact: dict[str, _Scores] = {}
    for config in CONFIGS:
        backend = make_backend(checkpoint, config, num_tokens, lambda share: None)
        assert isinstance(backend, Scorer)
        for name, ids in token_ids.items():
            scores = score(backend, ids)
            row = _row(config.backend, config.precision, scores, exact.setdefault(name, scores))
            yield replace(row, text=name)
        del backend
    sixteen: dict[str, _Scores] = {}
    kinds = groupby(schemes, lambda scheme: (scheme.weights, scheme.is_calibrated))
    for _, alike in kinds:  # the same weights are made once
        first = next(alike)
        model = load(checkpoint, first)
        for scheme in (first, *alike):
            for name, ids in token_ids.items():
                scores = emulated(model, scheme, ids)
                beside = sixteen.setdefault(name, scores)
                row = _row(BackendName.CUDA, scheme.name, scores, exact[name], beside)
                yield replace(row, text=name)


def _row(
    backend: str, precision: str, scores: _Scores, exact: _Scores, sixteen: _Scores | None = None
) -> SchemeFigures:
    ratio, error = _ratio(scores, exact)
    bf16_ratio, bf16_error = (None, None) if sixteen is None else _ratio(scores, sixteen)
    return SchemeFigures(
        backend=str(backend),
        precision=str(precision),
        perplexity=math.exp(scores.nats),
        ratio=ratio,
        error=error,
        agreement=float((scores.likeliest == exact.likeliest).double().mean()),
        bf16_ratio=bf16_ratio,
        bf16_error=bf16_error,
    )


def _ratio(scores: _Scores, reference: _Scores) -> tuple[float, float]:
    """Ratio of perplexities, and its standard error. Differences by token: the difficulty of a
    token is common to both, and cancels."""
    differences = scores.each.double() - reference.each.double()
    ratio = math.exp(float(differences.mean()))
    return ratio, ratio * float(differences.std(correction=0)) / math.sqrt(len(differences))


def mean_ratio(rows: Sequence[SchemeFigures], precision: str) -> float:
    """Geometric mean, over the texts, of the ratios to float32's perplexity; NaN without any."""
    logs = [math.log(row.ratio) for row in rows if row.precision == precision]
    return math.exp(fmean(logs)) if logs else math.nan


HEADER = (
    f"{'':<44}{'perplexity':>12}{'ratio to float32':>18}{'same likeliest':>16}{'ratio to bf16':>18}"
)
FOOTNOTE = "cuda: emulated on this machine; ± one standard error over the text's tokens"


def line_of(row: SchemeFigures) -> str:
    """Format figures as a row under `HEADER`."""
    line = (
        f"{row.backend + ' ' + row.precision:<44}{row.perplexity:>12.4f}"
        f"{row.ratio:>9.4f} ± {row.error:.4f}{row.agreement:>16.3f}"
    )
    if row.bf16_ratio is not None:
        line += f"{row.bf16_ratio:>9.4f} ± {row.bf16_error:.4f}"
    return line


def missed_gates(
    rows: Sequence[SchemeFigures],
    weights: float | None,
    activations: float | None,
    int4: float | None = None,
) -> list[str]:
    """Lines for the schemes whose ratio exceeds a gate. `weights`: gate of 8-bit weights alone,
    beside bfloat16; `activations`: gate with 8-bit activations; `int4`: gate of the 4 bits of a
    processor, beside float32, of the mean over the texts; None: no gate. The cache has none."""
    schemes = {scheme.name: scheme for scheme in SCHEMES if scheme.weights.body is Precision.FP8}
    missed = []
    for row in rows:
        scheme = schemes.get(row.precision)
        if scheme is None or row.bf16_ratio is None:
            continue
        gate = activations if scheme.arithmetic.activations else weights
        if gate is not None and not row.bf16_ratio <= gate:
            missed.append(f"{row.precision}: {row.bf16_ratio:.4f} of bfloat16's > {gate}")
    if int4 is not None and not (found := mean_ratio(rows, Precision.INT4)) <= int4:
        missed.append(f"int4: {found:.4f} of float32's > {int4}")
    return missed


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line. Returns 0; 1 if a gate is missed; 2 for a model or text that can't be
    used."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    options = _parser().parse_args(arguments)
    try:
        path = default_model() if options.model is None else locate_model(options.model)
        checkpoint = load_checkpoint(path)
        files: list[Path] = options.text or [LICENCE]
        texts = {file.name: file.read_text(encoding="utf-8") for file in files}
        length = min(checkpoint.config.context_length, options.tokens)
        rows: list[SchemeFigures] = []
        print(HEADER)
        for row in measure(checkpoint, texts, length, () if options.cpu else SCHEMES):
            print(line_of(row), row.text if len(texts) > 1 else "", flush=True)
            rows.append(row)
    except (ModelError, RequestError, OSError, UnicodeError) as error:
        print(f"bench quality: {error}", file=sys.stderr)
        return 2
    if len(texts) > 1:
        for config in CONFIGS[1:]:
            mean = mean_ratio(rows, config.precision)
            print(
                f"{config.precision} over {len(texts)} texts: {mean:.4f} of float32's (geometric)"
            )
    print(FOOTNOTE)
    if options.json is not None:
        result: dict[str, Any] = {
            "bench": "quality",
            "machine": machine(),
            "date": datetime.fromtimestamp(unix_ns() / 1e9, UTC).isoformat(timespec="seconds"),
            "command": " ".join(["halfsec bench quality", *arguments]),
            "model": path.name,
            "texts": list(texts),
            "tokens": length,
            "rows": [asdict(row) for row in rows],
        }
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    missed = missed_gates(rows, options.gate_weights, options.gate_activations, options.gate_int4)
    for line in missed:
        print(f"GATE MISSED: {line}")
    return 1 if missed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="halfsec bench quality",
        description="Perplexity of each quantization scheme.",
        epilog="example: halfsec bench quality --gate-weights 1.01 --gate-activations 1.015",
    )
    add = parser.add_argument
    add("--model", help="name of a fetched model, GGUF file or Hugging Face directory")
    add("--text", type=Path, action="append", help="file to read, repeatable (the licence)")
    add("--tokens", type=int, default=NUM_TOKENS, help="tokens of each text (%(default)s)")
    add("--cpu", action="store_true", help="only the arithmetic of a processor; a GPU's is slow")
    add("--json", type=Path, metavar="FILE", help="save the result")
    ratio = "highest ratio to bfloat16's perplexity with 8-bit"
    add("--gate-weights", type=float, metavar="RATIO", help=f"{ratio} weights")
    add("--gate-activations", type=float, metavar="RATIO", help=f"{ratio} weights and activations")
    add(
        "--gate-int4",
        type=float,
        metavar="RATIO",
        help="highest ratio to float32's perplexity with the 4 bits of a processor, over all texts",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
