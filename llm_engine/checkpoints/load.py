"""Opens a model of any supported format."""

import os
from pathlib import Path

from llm_engine.errors import ModelError

from .checkpoint import Checkpoint
from .huggingface_weights import open_directory


def load_checkpoint(path: Path) -> Checkpoint:
    """Open a GGUF file or a Hugging Face directory. Raises ModelError."""
    if path.is_dir():
        return open_directory(path)
    if path.exists():
        return _open_file(path)
    raise ModelError(
        f"{path}: no such file; give a GGUF file or a Hugging Face directory with config.json"
    )


def _open_file(path: Path) -> Checkpoint:
    try:
        # Imported here, so that reading directories needs no package for GGUF.
        from .gguf_weights import open_gguf
    except ModuleNotFoundError as error:
        raise ModelError(
            f"{path}: GGUF files are read with the package {error.name!r}, which is missing: pip "
            "install gguf, or give a Hugging Face directory"
        ) from None
    return open_gguf(path)


def default_model() -> Path:
    """Path of the embedded model's GGUF under HALFSEC_HOME. Raises ModelError if not fetched."""
    home = Path(os.environ.get("HALFSEC_HOME") or "~/.halfsec").expanduser()
    directory = home / "models" / "smollm2-135m-instruct"
    files = sorted(directory.glob("*.gguf"))
    if not files:
        raise ModelError(
            f"{directory}: no GGUF file; run `halfsec models fetch` or give one with --model"
        )
    return files[0]
