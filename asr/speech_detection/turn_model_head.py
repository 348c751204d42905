"""Head of the end-of-turn model: a small network from the turn model's states to log-odds.

One hidden layer. `python -m benchmarks.end_of_turn` trains it
(`benchmarks/end_of_turn/head_training.py`) and writes `turn_model_head.npz`, in 16-bit floats.
"""

import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from asr.errors import ModelError

Weights = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class TurnModelHead:
    """Weights of the head. Immutable; any thread."""

    hidden: Weights
    """float32 [units, size of the input]."""
    hidden_bias: Weights
    """float32 [units]."""
    output: Weights
    """float32 [units]."""
    bias: float

    @property
    def size(self) -> int:
        """Numbers of its input."""
        return int(self.hidden.shape[1])

    def log_odds(self, embeddings: Weights) -> Weights:
        """Log odds that the turn is over, [...] for embeddings [..., size]; 0 is even."""
        units = np.maximum(embeddings @ self.hidden.T + self.hidden_bias, 0)
        found: Weights = units @ self.output + np.float32(self.bias)
        return found

    @classmethod
    def read(cls, path: Path) -> "TurnModelHead":
        """Read a file that `write` wrote. Raises ModelError."""
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as data:
                hidden, hidden_bias, output, bias = (
                    np.asarray(data[name], np.float32)
                    for name in ("hidden", "hidden_bias", "output", "bias")
                )
        except (
            OSError, ValueError, TypeError, KeyError, EOFError, RuntimeError, zipfile.BadZipFile
        ) as error:  # fmt: skip
            raise ModelError(f"{path}: not a head of the end-of-turn model: {error}") from error
        units = hidden.shape[:1]
        if hidden.ndim != 2 or (hidden_bias.shape, output.shape, bias.shape) != (units, units, ()):
            raise ModelError(
                f"{path}: not a head of the end-of-turn model: its layers don't fit together"
            )
        if not all(np.isfinite(each).all() for each in (hidden, hidden_bias, output, bias)):
            raise ModelError(f"{path}: a head of the end-of-turn model that is damaged: not finite")
        return cls(hidden, hidden_bias, output, float(bias))

    def write(self, path: Path) -> None:
        """Write a file for `read`: 16 bits for each weight of the hidden layer, 32 for the rest."""
        with path.open("wb") as file:
            np.savez(
                file,
                hidden=self.hidden.astype(np.float16),
                hidden_bias=self.hidden_bias,
                output=self.output,
                bias=np.float32(self.bias),
            )
