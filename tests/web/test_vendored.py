"""Libraries that come with the pages are what their makers published, to the byte."""

import hashlib
import json
from pathlib import Path

from agent.http.static_files import WEB_DEMO

ROOT = Path(__file__).resolve().parents[2]
VENDOR = WEB_DEMO / "vendor"


def test_each_file_has_the_hash_that_is_written_down() -> None:
    folders = [path for path in VENDOR.iterdir() if path.is_dir()]
    assert [path.name for path in folders] == ["uplot"]
    for folder in folders:
        told = json.loads((folder / "VERSION.json").read_text(encoding="utf-8"))
        there = {
            path.name: hashlib.sha256(path.read_bytes()).hexdigest()
            for path in folder.iterdir()
            if path.name != "VERSION.json"
        }
        assert there == told["sha256"]
        assert told["version"] in (folder / "uPlot.iife.min.js").read_text(encoding="utf-8")


def test_its_licence_is_there_and_named() -> None:
    assert "MIT" in (VENDOR / "uplot" / "LICENSE").read_text(encoding="utf-8")
    table = (ROOT / "docs" / "reference" / "licences.md").read_text(encoding="utf-8")
    assert "uPlot 1.6.32" in table
    assert "web_demo/vendor/uplot/" in table
