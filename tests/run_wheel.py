"""The wheel from the package index into an empty environment: `make test-wheel`.

Not collected by the ordinary suite: it downloads packages and models. It is what a user does who
has no checkout: install, serve, talk, with an empty HALFSEC_HOME.
"""

import subprocess
import sys
from pathlib import Path

from tests.support.wheel import ROOT, Installed, build_wheel


def test_install_serve_talk(tmp_path: Path) -> None:
    wheel = build_wheel(tmp_path)
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    found = Installed(tmp_path / "venv", tmp_path / "home")
    pins = ROOT / "constraints.txt"
    found.run(found.python, "-m", "pip", "install", "--quiet", "-c", pins, wheel)
    assert not list(found.packages.glob("torch*"))
    size_mb = sum(path.lstat().st_size for path in found.packages.rglob("*")) >> 20
    print(f"{size_mb} MB of packages")
    assert "All is ready" in found.run(found.command, "doctor", "--port", "0")
    held = found.hold_call()
    assert "smollm2-135m-instruct: ready" in held.log
    (turn,) = held.report["turns"]
    assert turn["agent_text"]
    assert "torch" not in held.libraries
    assert held.status == 0
    assert "All models are present" in found.run(
        found.command, "models", "fetch", "smollm2-135m-instruct"
    )
