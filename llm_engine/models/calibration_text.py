"""Text that calibration runs through a model: what its weights are rounded for."""

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from llm_engine.checkpoints.checkpoint import Checkpoint
from llm_engine.errors import ModelError

_TEXTS = Path(__file__).resolve().parents[1] / "training"
DEFAULT_TEXTS = _TEXTS / "spoken_questions.txt", _TEXTS / "calibration.txt"
"""Spoken language, and the wider vocabulary of a technical manual."""

_MAX_TOKENS = 4096
"""Tokens of the text. Fewer: the moments of wide inputs are noise. More: conversion takes longer,
which is mostly the text's way through the layers."""
_MAX_CHARS = 16 * _MAX_TOKENS
_SEQUENCE = 1024
"""Longest sequence in tokens."""


@dataclass(frozen=True, slots=True)
class CalibrationText:
    """Token ids of a text, cut into sequences."""

    sequences: tuple[tuple[int, ...], ...]
    digest: str
    """Hash of the ids, for the cache."""


def read_text(checkpoint: Checkpoint, path: Path | None) -> CalibrationText:
    """Read the text at `path`, or the default one. Raises ModelError where it can't be read."""
    all_ids: list[int] = []
    for file in DEFAULT_TEXTS if path is None else (path,):
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeError) as error:
            raise ModelError(f"{file}: cannot be read as the calibration's text: {error}") from None
        all_ids += checkpoint.tokenizer.encode(text[:_MAX_CHARS])
    ids = tuple(all_ids[:_MAX_TOKENS])
    if not ids:
        raise ModelError(f"{path}: there is no text to calibrate with")
    length = min(_SEQUENCE, checkpoint.config.context_length)
    sequences = tuple(ids[start : start + length] for start in range(0, len(ids), length))
    return CalibrationText(sequences, sha256(repr(ids).encode()).hexdigest()[:16])
