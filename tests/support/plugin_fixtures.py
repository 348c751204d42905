"""Fixture for packages with plug-ins."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.plugins import Install


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Installs packages for one test."""
    site = tmp_path / "site-packages"
    site.mkdir()
    monkeypatch.syspath_prepend(site)
    install = Install(site)
    yield install
    install.forget()
