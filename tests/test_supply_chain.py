"""Audit of the dependencies, and the bill of materials."""

import json
import re
import sys
from pathlib import Path

import pytest

from agent.cli.licences import VENDORED
from agent.stages.model_store.catalogue import ModelStore
from tests.support.supply_chain import audit
from tests.support.supply_chain.sbom import further_components

ROOT = Path(__file__).resolve().parents[1]


def stand_in(folder: Path, stdout: str, stderr: str, status: int) -> str:
    """A program that says what pip-audit has said."""
    path = folder / "pip-audit"
    path.write_text(
        f"#!{sys.executable}\nimport sys\nprint({stdout!r})\nprint({stderr!r}, file=sys.stderr)\n"
        f"sys.exit({status})\n"
    )
    path.chmod(0o700)
    return str(path)


KNOWN = {
    "name": "h11",
    "version": "0.14.0",
    "vulns": [{"id": "PYSEC-1", "fix_versions": ["0.16.0"], "aliases": [], "description": "d"}],
}
FINE = {"name": "anyio", "version": "4.9.0", "vulns": []}
SKIPPED = {"name": "x", "skip_reason": "Dependency not found on PyPI"}


@pytest.mark.parametrize(
    ("found", "status", "words"),
    [
        ([FINE], 0, "1 packages of constraints.txt: 0 with known"),
        ([FINE, KNOWN], 1, "h11 0.14.0: PYSEC-1, mended in 0.16.0"),
        ([FINE, SKIPPED], 1, "x: not looked up: Dependency not found"),
    ],
)
def test_audit_reports_what_is_known(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    found: list[dict[str, object]],
    status: int,
    words: str,
) -> None:
    text = json.dumps({"dependencies": found, "fixes": []})
    assert audit.main([stand_in(tmp_path, text, "", int(status > 0))]) == status
    assert words in capsys.readouterr().out


@pytest.mark.parametrize("tool", ["offline", "missing", "behind a proxy"])
def test_audit_without_a_network_says_that_nothing_was_audited(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], tool: str
) -> None:
    """Though pip-audit's own status is that of a vulnerability, or of none."""
    path = str(tmp_path / "none")
    if tool == "offline":
        path = stand_in(tmp_path, "", "ERROR:pip_audit: Could not connect to PyPI", 1)
    if tool == "behind a proxy":
        path = stand_in(tmp_path, json.dumps({"dependencies": [SKIPPED]}), "none found", 0)
    assert audit.main([path]) == audit.NOT_ASKED
    said = capsys.readouterr().err
    assert "NOTHING WAS AUDITED" in said
    assert "https://pypi.org" in said


def test_the_bill_of_materials_has_the_models_and_what_comes_with_halfsec() -> None:
    components = further_components()
    references = [each["bom-ref"] for each in components]
    assert len(references) == len(set(references))
    models = {each["name"]: each for each in components if each["type"] != "library"}
    assert models.keys() == ModelStore().catalogue.keys()
    for name, model in ModelStore().catalogue.items():
        hashes = [file["hashes"][0]["content"] for file in models[name].get("components", ())]
        assert hashes == [file.sha256 for file in model.files]
        assert all(re.fullmatch("[0-9a-f]{64}", each) for each in hashes)
    assert len(components) - len(models) == len(VENDORED)


def test_make_has_the_targets() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in ("audit", "sbom", "fuzz"):
        assert re.search(rf"^{target}:", text, re.MULTILINE), target
        assert re.search(rf"^# make {target}\b", text, re.MULTILINE), target
