"""RFC 6455, case by case: kosoku against the service's own WebSocket server.

Every case that does not pass has to be shown to be none of ours: by our own limit of a message,
which lifted lets it pass. Compression is off
(`permessage-deflate` lets a peer make a gigabyte of a megabyte), so its cases find nothing to test.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tests.clients.peers import ROOT, build

pytestmark = pytest.mark.timeout(600)

GOOD: Final = ("OK", "NON-STRICT", "INFORMATIONAL")
OF_COMPRESSION: Final = ("12.", "13.")
BEYOND_THE_LIMIT: Final = {"9.1.5", "9.1.6", "9.2.5", "9.2.6"}
"""Messages of 8 and 16 MiB; the service takes 4."""


@contextmanager
def echo(kind: str) -> Iterator[int]:
    """A server of that kind. Yields its port."""
    command = (sys.executable, "-m", "tests.clients.kosoku.echo", kind)
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        try:
            assert server.stdout is not None
            yield int(server.stdout.readline())
        finally:
            server.terminate()


def reports(kind: str, folder: Path, *cases: str) -> dict[str, dict[str, Any]]:
    """What is reported of a server of that kind in each case (of those that fit a pattern)."""
    kosoku = str(build("kosoku") / "bin" / "kosoku")
    chosen = [word for case in cases for word in ("-i", case)]
    with echo(kind) as port:
        command = (kosoku, "-m", "fuzzingclient", *chosen, "-o", str(folder), f"127.0.0.1:{port}")
        # It says by its status whether all passed, which is for us to judge.
        subprocess.run(command, capture_output=True, timeout=400, check=False)
    told = json.loads((folder / "index.json").read_text())
    ((_, found),) = told.items()
    return dict(found)


def results(kind: str, folder: Path, *cases: str) -> dict[str, str]:
    """How a server of that kind behaves in each case (of those that fit a pattern)."""
    return {case: _worst(each) for case, each in reports(kind, folder, *cases).items()}


def _worst(result: dict[str, str]) -> str:
    both = (result["behavior"], result["behaviorClose"])
    return next((each for each in both if each not in GOOD), both[0])


def test_every_case_of_the_rfc(tmp_path: Path) -> None:
    found = results("ours", tmp_path / "ours")
    assert len(found) == 517
    compression = {case for case in found if case.startswith(OF_COMPRESSION)}
    assert {found[case] for case in compression} == {"UNIMPLEMENTED"}
    failed = {case for case, how in found.items() if how not in GOOD} - compression
    assert failed == BEYOND_THE_LIMIT
    print(f"{len(found) - len(compression)} cases, {len(failed)} of them explained below")


def test_what_fails_for_the_limit(tmp_path: Path) -> None:
    found = results("roomy", tmp_path, *BEYOND_THE_LIMIT)
    assert found == dict.fromkeys(BEYOND_THE_LIMIT, "OK")


def test_a_message_beyond_the_limit_is_closed_with_1009(tmp_path: Path) -> None:
    """As it must be: RFC 6455, 7.4.1. A close amid fragments (7.1.5) is answered, with its code."""
    found = reports("ours", tmp_path, *BEYOND_THE_LIMIT, "7.1.5")
    codes = {case: each["remoteCloseCode"] for case, each in found.items()}
    assert codes == {**dict.fromkeys(BEYOND_THE_LIMIT, 1009), "7.1.5": 1000}
