"""Checks of a CTranslate2 Whisper directory: the runtime's own messages do not name the file."""

import json
from pathlib import Path
from typing import Any, Final

from asr.errors import ModelError, first_line

NUM_TIMESTAMPS: Final = 1501
"""Tokens at the end of every Whisper vocabulary: 0.00 to 30.00 s in steps of 20 ms."""

_FETCH_AGAIN: Final = (
    "get the model again from where it came (one of halfsec's own: `halfsec models fetch`)"
)


def check_files(model_dir: Path) -> None:
    """Raise ModelError when a file is missing or empty, or the configuration is no JSON."""
    if not model_dir.is_dir():
        raise ModelError(
            f"{model_dir}: no such directory; run `halfsec models fetch`, or name a directory with "
            "a CTranslate2 Whisper"
        )
    for name in ("model.bin", "config.json", "tokenizer.json"):
        path = model_dir / name
        if not path.is_file() or path.stat().st_size == 0:
            state = "is empty" if path.is_file() else "is missing"
            raise ModelError(f"{path} {state}; {_FETCH_AGAIN}")
    try:
        json.loads((model_dir / "config.json").read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(damaged(model_dir / "config.json", error)) from error


def check_vocabulary(model_dir: Path, tokenizer: Any) -> None:
    """Raise ModelError for a vocabulary that was cut short: CTranslate2 loads it, and then writes
    the wrong words."""
    names = ("vocabulary.json", "vocabulary.txt")
    path = next((model_dir / name for name in names if (model_dir / name).is_file()), None)
    if path is None:
        raise ModelError(f"{model_dir}/vocabulary.txt is missing; {_FETCH_AGAIN}")
    try:
        text = path.read_text(encoding="utf-8")
        count = (
            len(json.loads(text)) if path.suffix == ".json" else text.rstrip("\n").count("\n") + 1
        )
    except ValueError as error:
        raise ModelError(damaged(path, error)) from error
    no_timestamps = tokenizer.token_to_id("<|notimestamps|>")
    if no_timestamps is None:
        raise ModelError(f"{model_dir}/tokenizer.json is not Whisper's; {_FETCH_AGAIN}")
    expected = no_timestamps + 1 + NUM_TIMESTAMPS
    if count < expected:
        raise ModelError(damaged(path, f"{count} of {expected} entries"))


def damaged(path: Path, reason: object) -> str:
    """Error message for a damaged file."""
    return (
        f"{path} cannot be read, probably damaged or cut short; delete it and {_FETCH_AGAIN}: "
        f"{first_line(reason)}"
    )
