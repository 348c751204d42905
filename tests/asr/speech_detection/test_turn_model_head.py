"""The turn model's head: its arithmetic, and files that are none."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from asr.errors import ModelError
from asr.speech_detection.turn_model import EMBEDDING, HEAD_FILE
from asr.speech_detection.turn_model_head import TurnModelHead


def head(size: int = 3) -> TurnModelHead:
    hidden = np.array([[1.0] * size, [-2.0] * size], np.float32)
    biases = np.array([0.5, 0.25], np.float32)
    return TurnModelHead(hidden, biases, np.array([1.0, 3.0], np.float32), -1.0)


def test_log_odds_of_one_and_of_many() -> None:
    ours = head()
    up, down = np.ones(3, np.float32), -np.ones(3, np.float32)
    assert float(ours.log_odds(up)) == 3.5 - 1.0, "the second unit is off"
    assert float(ours.log_odds(down)) == 3 * 6.25 - 1.0, "the first one is"
    assert ours.log_odds(np.stack([up, down])).tolist() == [2.5, 17.75]


def test_a_file_says_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "head.npz"
    head().write(path)
    read = TurnModelHead.read(path)
    assert read.size == 3
    for name in ("hidden", "hidden_bias", "output"):
        assert np.array_equal(getattr(read, name), getattr(head(), name))
    assert read.bias == -1.0
    first = path.read_bytes()
    read.write(path)
    assert path.read_bytes() == first


def test_the_one_that_ships() -> None:
    shipped = TurnModelHead.read(HEAD_FILE)
    assert shipped.size == EMBEDDING
    assert np.isfinite(shipped.log_odds(np.zeros(EMBEDDING, np.float32)))


@pytest.mark.parametrize("content", [b"", b"nothing", b"PK\x03\x04 cut off"])
def test_a_file_that_is_none(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "head.npz"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=r"head\.npz: not a head of the end-of-turn model"):
        TurnModelHead.read(path)
    with pytest.raises(ModelError, match="No such file"):
        TurnModelHead.read(tmp_path / "none.npz")


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"output": None}, "output"),
        ({"hidden": np.ones(3)}, "its layers don't fit together"),
        ({"output": np.ones(3)}, "its layers don't fit together"),
        ({"bias": np.ones(1)}, "its layers don't fit together"),
        ({"hidden": np.full((2, 3), np.nan)}, "not finite"),
        ({"hidden": np.array([object()])}, "not a head"),
    ],
)
def test_arrays_that_make_no_head(
    tmp_path: Path, changes: dict[str, NDArray[Any] | None], problem: str
) -> None:
    path = tmp_path / "head.npz"
    ours = head()
    whole = {"hidden": ours.hidden, "hidden_bias": ours.hidden_bias, "output": ours.output}
    arrays = whole | {"bias": np.array(0.0)} | changes
    given: dict[str, Any] = {name: each for name, each in arrays.items() if each is not None}
    np.savez(path, **given)
    with pytest.raises(ModelError, match=problem):
        TurnModelHead.read(path)
