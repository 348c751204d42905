"""The measurement of a machine: real products, and what the driver says of a GPU."""

from pathlib import Path

import pytest

from agent.config.auto_preset import Gpu
from agent.stages.machine_speed import first_gpu, measure_machine


def test_a_machine_multiplies(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.stages.machine_speed.first_gpu", lambda: None)
    mb_per_ms, gpu = measure_machine(2)
    assert mb_per_ms > 0
    assert gpu is None
    assert "Measuring this machine" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("said", "gpu"),
    [
        (
            "NVIDIA H100 80GB HBM3, 81559, 9.0\nother, 1, 1.0",
            Gpu("NVIDIA H100 80GB HBM3", 81559, 9.0),
        ),
        ("No devices were found", None),
        ("NVIDIA A2, [N/A], 8.6", None),
        ("", None),
    ],
)
def test_the_driver_is_asked_for_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, gpu: Gpu | None
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\ncat <<'END'\n{said}\nEND\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert first_gpu() == gpu
    tool.unlink()
    assert first_gpu() is None
