"""The page on security: the tests that it names exist, its figures are those of the kept run."""

import json
import re
from pathlib import Path

from tests.fuzz.targets import TARGETS

ROOT = Path(__file__).resolve().parents[1]


def test_every_promise_names_tests_that_exist() -> None:
    text = (ROOT / "docs" / "how-to" / "security.md").read_text(encoding="utf-8")
    promises = text.partition("## What is promised")[2].partition("\n## ")[0]
    rows = [row for row in re.findall(r"^\| (.*) \|$", promises, re.MULTILINE) if "---" not in row]
    for row in rows[1:]:
        named = re.findall(r"`(tests/[\w/]+\.py)`", row)
        assert named, row
        assert [path for path in named if not (ROOT / path).is_file()] == []


def test_the_table_of_fuzzing_is_that_of_the_kept_run() -> None:
    text = (ROOT / "docs" / "how-to" / "security.md").read_text(encoding="utf-8")
    results = (ROOT / "benchmarks" / "results").glob("fuzz-*.json")
    runs = [json.loads(each.read_text(encoding="utf-8")) for each in results]
    kept = max(runs, key=lambda run: str(run["date"]))
    assert kept["inputs"] == sum(each["inputs"] for each in kept["targets"])
    assert f"{kept['inputs']:,} inputs" in text
    assert {each["target"] for each in kept["targets"]} == TARGETS.keys()
    for each in kept["targets"]:
        inputs, seconds = f"{each['inputs']:,}", round(each["seconds"])
        row = f"| `{each['target']}` | {inputs} | {seconds} | {each['coverage_edges']:,} |"
        row += f" {len(each['findings'])} |"
        assert row in text, row
    assert kept["machine"] in text
    assert kept["date"][:10] in text
