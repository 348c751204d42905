"""The tests that the page on security names exist."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_every_promise_names_tests_that_exist() -> None:
    text = (ROOT / "docs" / "how-to" / "security.md").read_text(encoding="utf-8")
    promises = text.partition("## What is promised")[2].partition("\n## ")[0]
    rows = [row for row in re.findall(r"^\| (.*) \|$", promises, re.MULTILINE) if "---" not in row]
    for row in rows[1:]:
        named = re.findall(r"`(tests/[\w/]+\.py)`", row)
        assert named, row
        assert [path for path in named if not (ROOT / path).is_file()] == []
