"""The page's modules that need no browser, run by Node: tests/support/browser/*.test.mjs."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_the_modules_pass_their_own_tests(tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        reason = "node is missing: install Node 20 or newer to test the page's modules"
        if os.environ.get("REQUIRE_BROWSER") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    # Browsers take .js files as modules; Node has to be told, by a file the page does not need.
    (tmp_path / "package.json").write_text('{"type": "module"}', encoding="utf-8")
    shutil.copytree(ROOT / "web_demo", tmp_path / "web_demo")
    tests = tmp_path / "tests" / "support" / "browser"
    tests.mkdir(parents=True)
    for source in sorted((ROOT / "tests" / "support" / "browser").glob("*.test.mjs")):
        shutil.copy(source, tests)
    names = [str(path) for path in sorted(tests.glob("*.test.mjs"))]
    assert names
    done = subprocess.run(
        [node, "--test", *names], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "# tests 0" not in done.stdout
