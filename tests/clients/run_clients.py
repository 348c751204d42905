"""Every client, every scenario, against one service: `make test-clients`.

Not collected by the ordinary suite: it installs packages, and takes minutes. A client whose tools
are not on this machine is skipped, with the reason; HALFSEC_CLIENTS=need makes that a failure.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.clients.certificate import write_certificate
from tests.clients.peers import CACHE, PEERS, ROOT, SCENARIOS, MissingTool, Peer, build, run
from tests.clients.service import Service, service
from tests.support.wire.every_event import frames_of_every_kind

pytestmark = pytest.mark.timeout(1200)  # environments are built in it

MUST: Final = os.environ.get("HALFSEC_CLIENTS") == "need"


def missing(reason: object) -> None:
    if MUST:
        pytest.fail(f"{reason}; HALFSEC_CLIENTS=need allows no gap")
    pytest.skip(str(reason))


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with service(tmp_path_factory.mktemp("service")) as running:
        yield running


@pytest.fixture(scope="session")
def secure(tmp_path_factory: pytest.TempPathFactory, certificate: Path) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("secure-service")
    with service(folder, certificate=certificate) as running:
        yield running


class Run:
    """The process of a client that goes through its scenarios."""

    def __init__(self, peer: Peer, names: list[str], running: Service, certificate: Path) -> None:
        build(peer.folder)
        told = {
            "HALFSEC_CLIENTS_SCENE": str(running.scene),
            "NODE_EXTRA_CA_CERTS": str(certificate),
            "PYTHONPATH": str(ROOT),
        }
        self._log = CACHE / f"{peer.name}.log"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                (*peer.command(), *names),
                cwd=ROOT,
                env=os.environ | told,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def problem(self, scenario: str) -> str | None:
        """What went wrong in it. They are run, and asked for, in one order."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith('{"scenario":'):
                told: dict[str, str | None] = json.loads(line)
                if told["scenario"] == scenario:
                    return told["problem"]
        return f"the client's process has ended:\n{self._log.read_text()[-4000:]}"

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture(scope="session")
def runs() -> Iterator[dict[str, Run | Exception]]:
    begun: dict[str, Run | Exception] = {}
    yield begun
    for each in begun.values():
        if isinstance(each, Run):
            each.close()


@pytest.fixture
def client(
    peer: Peer,
    request: pytest.FixtureRequest,
    runs: dict[str, Run | Exception],
    certificate: Path,
) -> Run:
    if peer.name not in runs:
        running: Service = request.getfixturevalue("secure" if peer.tls else "plain")
        names = [
            str(item.callspec.params["scenario"])
            for item in request.session.items
            if isinstance(item, pytest.Function)
            and hasattr(item, "callspec")
            and item.callspec.params.get("peer") is peer
        ]
        try:
            runs[peer.name] = Run(peer, names, running, certificate)
        except (MissingTool, subprocess.CalledProcessError) as error:
            runs[peer.name] = error
    begun = runs[peer.name]
    if isinstance(begun, MissingTool):
        missing(f"{peer.name}: {begun}")
    if isinstance(begun, Exception):
        raise begun
    assert isinstance(begun, Run)
    return begun


@pytest.mark.parametrize(
    ("peer", "scenario"),
    [
        pytest.param(peer, scenario, id=f"{peer.name}-{scenario}")
        for peer in PEERS
        for scenario in (*SCENARIOS, *peer.more)
    ],
)
def test_client(peer: Peer, scenario: str, client: Run) -> None:
    problem = client.problem(scenario)
    assert problem is None, problem


@pytest.mark.parametrize("peer", ["pipecat", "livekit"])
def test_every_frame_is_read(peer: str, plain: Service, tmp_path: Path) -> None:
    """Those that the clients above were sent, and one of each kind that there is."""
    frames = tmp_path / "frames.jsonl"
    frames.write_text("".join(f"{frame}\n" for frame in (*frames_of_every_kind(), *plain.frames)))
    python = build(peer) / "bin" / "python"
    print(run(str(python), "-m", f"tests.clients.{peer}.read_frames", str(frames), cwd=ROOT))
