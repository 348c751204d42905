"""Paths of the embedded models for tests."""

import os
from pathlib import Path

import pytest


def model_path(name: str) -> Path:
    """Path of `models/<name>` under HALFSEC_HOME; skips the test where it was never fetched."""
    home = Path(os.environ.get("HALFSEC_HOME", "~/.halfsec")).expanduser()
    path = home / "models" / name
    if not path.exists():
        pytest.skip(f"{path} is missing: run `halfsec models fetch`")
    return path
