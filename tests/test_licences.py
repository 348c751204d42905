"""The tables of licences are what `halfsec licences` prints of an installation with everything."""

import contextlib
import io
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, Final

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from agent.__main__ import main
from agent.cli import licences
from agent.cli.licences import ABSENT, UNKNOWN, LicensedPart, is_permissive, licence_of, unaccepted
from agent.errors import HalfsecError

ROOT: Final = Path(__file__).resolve().parents[1]
PAGE: Final = (ROOT / "docs" / "reference" / "licences.md").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without models of the user's own."""
    monkeypatch.setenv("HALFSEC_HOME", str(tmp_path))
    return tmp_path


def requirements() -> list[str]:
    """Those of pyproject.toml, in the form of an installed package's."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = [*project["dependencies"]]
    for extra, wanted in project["optional-dependencies"].items():
        for each in map(Requirement, wanted):
            marker = f"({each.marker}) and " if each.marker else ""
            each.marker = None
            found.append(f'{each}; {marker}extra == "{extra}"')
    return found


def rows(title: str) -> list[str]:
    """Lines of the page's table of this title."""
    table = PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]
    return [line for line in table.splitlines() if line.startswith("| ")][2:]


def run(*arguments: str) -> tuple[int, str]:
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        status = main(["licences", *arguments])
    return status, output.getvalue()


def test_every_package_has_its_licence_on_the_page() -> None:
    parts = licences.packages(requirements())
    shown = rows("Packages")
    parts = [part for part in parts if not part.name.startswith(("nvidia-", "cuda-"))]  # in words
    wrong = [
        part
        for part in parts
        if part.licence != ABSENT and licences.markdown_row(part) not in shown
    ]
    assert wrong == []
    names = {canonicalize_name(part.name) for part in parts}
    assert {canonicalize_name(row.split(" | ")[0].removeprefix("| ")) for row in shown} >= names


def test_the_page_has_no_package_that_is_not_asked_for() -> None:
    asked = licences.asked_for(requirements())
    for row in rows("Packages"):
        _, name, licence, *_ = (each.strip() for each in row.split("|"))
        assert canonicalize_name(name) in asked or not is_permissive(licence), row


@pytest.mark.parametrize(
    "title", ["Models", "Files that come with halfsec", "Libraries inside of wheels"]
)
def test_the_other_tables_are_those_of_the_command(title: str) -> None:
    assert rows(title) == [licences.markdown_row(part) for part in licences.tables()[title]]


def test_every_licence_is_accepted() -> None:
    """What CI checks, by `halfsec licences --check`."""
    assert unaccepted([*licences.packages(requirements()), *licences.models()]) == []
    status, printed = run("--check")
    assert status == 0, printed
    assert "piper-tts" in printed


def test_a_licence_that_was_not_accepted_fails_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(licences, "ACCEPTED", {})
    status, printed = run("--check")
    assert status == 1
    assert re.search(r"^not accepted: soxr: LGPL", printed, re.MULTILINE)


def test_the_command_prints_the_tables_in_each_form() -> None:
    found: dict[str, list[dict[str, Any]]] = json.loads(run("--json")[1])
    groups = licences.tables()
    markdown, plain = run("--markdown")[1], run()[1]
    assert found.keys() == groups.keys()
    for title, parts in groups.items():
        assert [each["name"] for each in found[title]] == [part.name for part in parts]
        for part in parts:
            assert licences.markdown_row(part) in markdown
            assert re.search(rf"^  {re.escape(part.name)} +{re.escape(part.licence)}", plain, re.M)


def test_permissive_licences_are_told_from_others() -> None:
    for named in ("MIT", "Apache-2.0 OR GPL-3.0", "(MIT OR Apache-2.0)", "BSD-3-Clause AND 0BSD"):
        assert is_permissive(named), named
    for named in (
        *("GPL-3.0-or-later", "MPL-2.0 AND MIT", "not stated", "", "MIT AND GPL-2.0"),
        *("(MIT OR GPL-2.0) AND GPL-3.0", "LicenseRef-NVIDIA-Proprietary"),
    ):
        assert not is_permissive(named), named
    assert is_permissive("(MIT OR GPL-2.0) AND (ISC OR (GPL-3.0 AND MIT))")
    assert unaccepted([LicensedPart("x", ABSENT), LicensedPart("soxr", "LGPL-2.1-or-later")]) == []


def install(site: Path, name: str, *lines: str) -> None:
    """Metadata of a package, as pip writes them."""
    folder = site / f"{name.replace('-', '_')}-1.0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("\n".join([f"Name: {name}", "Version: 1.0", *lines]) + "\n")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of installed packages."""
    folder = tmp_path / "site"
    monkeypatch.syspath_prepend(str(folder))
    return folder


def test_what_others_bring_is_listed_and_judged_where_it_is_not_permissive(site: Path) -> None:
    install(
        site,
        "asked-for",
        *("License-Expression: MIT", "Requires-Dist: nvidia-nothing", "Requires-Dist: unsaid"),
        *("Requires-Dist: bought", "Requires-Dist: free", "Requires-Dist: elsewhere"),
    )
    install(site, "nvidia-nothing", "License-Expression: LicenseRef-NVIDIA-Proprietary")
    install(site, "unsaid")
    install(site, "bought", "Classifier: License :: Other/Proprietary License")
    install(site, "free", "License: Apache License, Version 2.0")
    parts = licences.packages(["asked-for"])
    assert [(part.name, part.licence, part.note) for part in parts] == [
        ("asked-for", "MIT", ""),
        ("bought", "Other/Proprietary License", "other packages need it"),
        ("nvidia-nothing", "LicenseRef-NVIDIA-Proprietary", "other packages need it"),
        ("unsaid", UNKNOWN, "other packages need it"),
    ]
    assert [part.name for part in unaccepted(parts)] == ["bought", "unsaid"]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("lines", "licence"),
    [
        (["License-Expression: MIT", "License: BSD"], "MIT"),
        (["License: Apache"], "Apache-2.0"),
        (["License: mit"], "MIT"),
        (["License: GPLv3"], "GPLv3"),
        (
            [
                "Classifier: License :: OSI Approved",
                "Classifier: License :: OSI Approved :: Apache Software License",
                "Classifier: License :: OSI Approved :: BSD License",
            ],
            "Apache-2.0 OR BSD-3-Clause",
        ),
        (
            [
                "License: Copyright (c) 2026\n        All rights reserved.",
                "Classifier: License :: OSI Approved :: MIT License",
            ],
            "MIT",
        ),
        (["License: MIT License\n        Copyright (c) 2026"], "MIT"),
        ([], UNKNOWN),
    ],
)
def test_licences_are_read_by_their_older_names(site: Path, lines: list[str], licence: str) -> None:
    install(site, "something", *lines)
    assert licence_of("something") == licence


def test_models_of_the_user_are_shown_and_not_judged(home: Path) -> None:
    (home / "models.toml").write_text(
        '[models.mine]\nstage = "llm"\nlicence = "all rights reserved"\nhub = "me/mine"\n'
    )
    status, printed = run("--check")
    assert status == 0, printed
    title, _, table = printed.partition(licences.OWN_MODELS)
    assert "mine" not in title
    assert re.search(r"^  mine +all rights reserved", table, re.MULTILINE)
    assert "mine" not in [part.name for part in licences.models()]


def test_without_an_installed_halfsec_the_command_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(licences, "_requires", lambda name: [])
    with pytest.raises(HalfsecError, match="pip install"):
        licences.main(["--check"])


def test_the_recognizer_loads_no_ffmpeg() -> None:
    """PyAV's is built with x264, under the GPL; it comes where it is used, and not before."""
    code = (
        "import sys\n"
        "from asr.audio.without_pyav import without_pyav\n"
        "with without_pyav():\n"
        "    from faster_whisper.feature_extractor import FeatureExtractor\n"
        "    from faster_whisper.tokenizer import Tokenizer\n"
        "assert 'av' not in sys.modules\n"
        "import faster_whisper.audio\n"
        "print(faster_whisper.audio.av.__version__)\n"
        "assert 'av' in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip()[0].isdigit()
