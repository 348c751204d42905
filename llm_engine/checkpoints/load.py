"""Opening a model, whatever its format."""

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
        # Here, so that machines which only ever read directories need no package for GGUF.
        from .gguf_weights import open_gguf
    except ModuleNotFoundError as error:
        raise ModelError(
            f"{path}: GGUF files are read with the package {error.name!r}, which is missing: pip "
            "install gguf, or give a Hugging Face directory"
        ) from None
    return open_gguf(path)
