"""Packages with plug-ins, installed for one test as pip would leave them: modules, metadata, entry
points."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent

import pytest

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Installs a package: `install("mine", "halfsec.voices", "hum = mine_voice:load", source)`.

    The module of the entry point has this source. A package may be installed again with another
    entry point.
    """
    site = tmp_path / "site-packages"
    site.mkdir()
    monkeypatch.syspath_prepend(site)
    before = set(sys.modules)

    def installed(package: str, group: str, entry: str, source: str = "") -> None:
        metadata = site / f"{package.replace('-', '_')}-1.0.dist-info"
        metadata.mkdir(exist_ok=True)
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        with (metadata / "entry_points.txt").open("a") as file:
            file.write(f"[{group}]\n{entry}\n")
        module = entry.partition("=")[2].partition(":")[0].strip()
        (site / f"{module}.py").write_text(dedent(source))

    yield installed
    for name in set(sys.modules) - before:
        path = getattr(sys.modules[name], "__file__", None)
        if path is not None and Path(path).is_relative_to(site):
            del sys.modules[name]
