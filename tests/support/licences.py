"""Packages that an installation brings, and the licences that they name."""

import importlib.metadata
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

TOOLS: Final = frozenset({"bench", "dev", "docs"})
"""Extras that are no part of the service: they run nowhere else."""

PYPROJECT: Final = Path(__file__).resolve().parents[2] / "pyproject.toml"

COPYLEFT: Final = re.compile(r"\b(A?L?GPL|MPL|EPL|CDDL|EUPL)\b|General Public|Mozilla")

_SPDX: Final = {
    "Apache 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "MIT License": "MIT",
    "BSD": "BSD-3-Clause",
    "BSD License": "BSD-3-Clause",
    "BSD 3-Clause License": "BSD-3-Clause",
    "3-Clause BSD License": "BSD-3-Clause",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
}
"""Names of licences in older metadata."""


def needed() -> dict[str, bool]:
    """Packages that stand in the table of licences, by the name that they go by: True for those
    that halfsec asks for, False for copyleft ones that others ask for."""
    asked = asked_for()
    all_of_them, waiting = set(asked), list(asked)
    while waiting:
        for name in _names(_requires(waiting.pop())):
            if name not in all_of_them:
                all_of_them.add(name)
                waiting.append(name)
    found = {name: licence_of(name) for name in all_of_them}
    return {
        _shown(name): name in asked
        for name, licence in found.items()
        if name in asked or (licence and COPYLEFT.search(licence))
    }


def licence_of(name: str) -> str:
    """The licence that an installed package names; "" where it is not installed."""
    try:
        metadata = importlib.metadata.metadata(name)
    except importlib.metadata.PackageNotFoundError:
        return ""
    classifiers = [
        each.rpartition(" :: ")[2]
        for each in metadata.get_all("Classifier") or []
        if each.startswith("License :: ") and each.count("::") > 1
    ]
    named = metadata["License-Expression"] or metadata["License"] or " OR ".join(classifiers)
    return _SPDX.get(named.strip(), named.strip())


def asked_for() -> list[str]:
    """Packages that halfsec itself asks for, also in an extra of the service."""
    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    lists = [project["dependencies"], *(extras[name] for name in extras.keys() - TOOLS)]
    return _names([each for requirements in lists for each in requirements])


def _requires(name: str) -> list[str]:
    try:
        return importlib.metadata.requires(name) or []
    except importlib.metadata.PackageNotFoundError:
        return []


def _names(requirements: Iterable[str]) -> list[str]:
    """Canonical names of those that this machine needs, without extras of theirs."""
    return [
        canonicalize_name(each.name)
        for each in map(Requirement, requirements)
        if each.marker is None or each.marker.evaluate({"extra": ""})
    ]


def _shown(name: str) -> str:
    try:
        return str(importlib.metadata.metadata(name)["Name"])
    except importlib.metadata.PackageNotFoundError:
        return name
