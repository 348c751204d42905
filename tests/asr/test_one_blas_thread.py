"""numpy's BLAS has no threads that spin beside the models."""

import json
import subprocess
import sys

import pytest

from tests.support.models import model_path

THREADS = """
import ctypes
import json
from pathlib import Path
import numpy
from asr.load import load_end_of_turn_model, load_recognizer

def threads():
    found = []
    for path in Path(numpy.__file__).parents[1].glob("numpy.libs/*openblas64*"):
        found.append(ctypes.CDLL(str(path)).scipy_openblas_get_num_threads64_())
    return found

before = threads()
{load}
print(json.dumps([before, threads()]))
"""


@pytest.mark.parametrize(
    ("load", "model"),
    [
        ("load_recognizer", "whisper-tiny.en"),
        ("load_end_of_turn_model", "smart-turn/smart-turn-v3.2-cpu.onnx"),
    ],
)
def test_a_model_of_speech_leaves_numpy_one_thread(load: str, model: str) -> None:
    """In a process of its own, because the rest of it shares the setting; which may use four."""
    done = subprocess.run(
        [sys.executable, "-c", THREADS.format(load=f"{load}({str(model_path(model))!r})")],
        env={"OPENBLAS_NUM_THREADS": "4"},
        capture_output=True,
        text=True,
        check=True,
    )
    before, after = json.loads(done.stdout)
    if not before:
        pytest.skip("numpy's BLAS is the system's here")
    assert after == [1] * len(before)
