"""Opening a model, whatever its format."""

from pathlib import Path

from llm_engine.checkpoint import Checkpoint
from llm_engine.errors import ModelError
from llm_engine.gguf_weights import open_gguf
from llm_engine.huggingface_weights import open_directory


def load_checkpoint(path: Path) -> Checkpoint:
    """Open a GGUF file or a Hugging Face directory. Raises ModelError."""
    if path.is_dir():
        return open_directory(path)
    if path.exists():
        return open_gguf(path)
    raise ModelError(
        f"{path}: no such file; give a GGUF file or a Hugging Face directory with config.json"
    )
