"""The table of licences is that of the packages that an installation brings."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

from packaging.utils import canonicalize_name

from tests.support.licences import COPYLEFT, asked_for, licence_of, needed

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "reference" / "licences.md"


def table() -> dict[str, str]:
    """Licences by package, of the table of packages."""
    text = PAGE.read_text(encoding="utf-8").partition("## Packages")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (\w[\w.-]*)(?:, [^|]*)? \| ([^|]+) \|$", text, re.MULTILINE)
    return {canonicalize_name(name): licence for name, licence in rows if name != "package"}


def test_every_package_has_its_licence_in_the_table() -> None:
    rows = table()
    missing = {canonicalize_name(name) for name in needed()} - rows.keys()
    assert missing == set()
    named = {name: licence_of(name) for name in rows}
    wrong = {name: (rows[name], it) for name, it in named.items() if it and rows[name] != it}
    assert wrong == {}


def test_the_table_has_no_package_that_is_not_asked_for() -> None:
    for name, licence in table().items():
        assert name in asked_for() or COPYLEFT.search(licence), name


def test_copyleft_is_found_by_whatever_name() -> None:
    assert {canonicalize_name(name) for name in needed()} >= {"soxr", "piper-tts", "tqdm"}
    for named in ("LGPL-2.1-or-later", "GNU General Public License v3", "MPL-2.0 AND MIT", "AGPL"):
        assert COPYLEFT.search(named)
    for named in ("MIT", "Apache-2.0 WITH LLVM-exception", "BSD-3-Clause AND 0BSD"):
        assert not COPYLEFT.search(named)


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
