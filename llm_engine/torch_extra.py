"""Check for torch, which is an extra: the ONNX backend runs without it.

What needs torch calls this before it imports its modules, so that the error says what to install
instead of naming a module.
"""

from importlib.util import find_spec

from llm_engine.errors import ModelError


def require_torch(what: str, *, extra: str = "torch") -> None:
    """Raise ModelError, with the extra to install, where torch is missing. `what`: subject of the
    sentence, such as "precision float32"."""
    if find_spec("torch") is None:
        raise ModelError(
            f"{what} needs torch, which is not installed: pip install 'halfsec[{extra}]'"
        )
