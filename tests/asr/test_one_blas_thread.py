"""numpy's BLAS has no threads that spin beside the models."""

import json
import subprocess
import sys

import pytest

from tests.support.models import model_path

THREADS = """
import json
import numpy
import threadpoolctl
from asr.load import load_end_of_turn_model, load_recognizer

def threads():
    return [it["num_threads"] for it in threadpoolctl.threadpool_info()
            if it["user_api"] == "blas" and "numpy" in it["filepath"]]

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
    """In a process of its own, because the rest of it shares the setting; which has four."""
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
