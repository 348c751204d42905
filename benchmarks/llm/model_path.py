"""Model that a bench's command line names, and the folder of benches' files."""

import os
from pathlib import Path

from llm_engine.errors import ModelError


def halfsec_home() -> Path:
    """Folder of models and of benches' files."""
    return Path(os.environ.get("HALFSEC_HOME") or "~/.halfsec").expanduser()


def locate_model(reference: str) -> Path:
    """Path of a model: a file or directory, or the name of one that was fetched. Raises
    ModelError."""
    path = Path(reference).expanduser()
    if path.exists():
        return path
    directory = halfsec_home() / "models" / reference
    files = sorted(directory.glob("*.gguf"))
    if not files:
        raise ModelError(f"{reference}: neither a path nor a fetched model ({directory})")
    return files[0]
