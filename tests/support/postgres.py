"""A real PostgreSQL for tests: a cluster of its own in a temporary folder, as Debian installs it.

`PostgresServer` runs `initdb` and `pg_ctl` of the newest version that is installed, as the user
`postgres` where the tests run as root, which PostgreSQL refuses. Nothing is synced to the disk.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pytest

from latency_budget.storage.database import Place
from latency_budget.storage.postgres_url import PostgresUrl

PASSWORD: Final = "p@ss/w0rd: %"
"""With all characters that an address has to write as %XX."""

_SETTINGS: Final = (
    "fsync=off full_page_writes=off wal_level=minimal max_wal_senders=0"
    " shared_buffers=16MB max_connections=30 autovacuum=off listen_addresses=127.0.0.1"
)
_SECONDS: Final = 60


def programs() -> Path | None:
    """Folder of `initdb` and `pg_ctl`; None where PostgreSQL is not installed."""
    found = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[-3])
    )
    on_path = shutil.which("initdb")
    return found[-1].parent if found else Path(on_path).parent if on_path else None


class PostgresServer:
    """A cluster with the database `turns` of the superuser `halfsec`. Blocks."""

    def __init__(self, bin_folder: Path) -> None:
        """Create the cluster, and start it."""
        self._bin = bin_folder
        self._user: dict[str, Any] = {}
        self.folder = Path(tempfile.mkdtemp(prefix="halfsec-postgres-"))
        if os.getuid() == 0:
            self._user = {"user": "postgres", "group": "postgres", "extra_groups": []}
            shutil.chown(self.folder, "postgres", "postgres")
        with socket.socket() as any_port:
            any_port.bind(("127.0.0.1", 0))
            self.port: int = any_port.getsockname()[1]
        self._schemas = count(1)
        password = self.folder / "password"
        password.write_text(PASSWORD)
        password.chmod(0o644)
        self._run(
            *("initdb", "--no-sync", "--no-locale", "--encoding=UTF8", "--username=halfsec"),
            *("--auth=scram-sha-256", f"--pwfile={password}", "--pgdata", self._data),
        )
        self.start()
        try:
            self.execute("CREATE DATABASE turns", database="postgres")
        except BaseException:
            self.remove()
            raise

    @property
    def _data(self) -> str:
        return str(self.folder / "data")

    def start(self) -> None:
        """Start the server, and wait until it takes connections."""
        settings = " ".join(f"-c {each}" for each in _SETTINGS.split())
        options = f"{settings} -c port={self.port} -c unix_socket_directories={self.folder}"
        log = str(self.folder / "log")
        self._run("pg_ctl", "start", "--wait", "--pgdata", self._data, "--log", log, "-o", options)

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """End the server at once, as if it had crashed, and start it again afterwards."""
        self._stop()
        try:
            yield
        finally:
            self.start()

    def remove(self) -> None:
        """End the server, and delete the cluster."""
        self._stop()
        shutil.rmtree(self.folder)

    def _stop(self) -> None:
        self._run("pg_ctl", "stop", "--wait", "--mode", "immediate", "--pgdata", self._data)

    def url(
        self,
        database: str = "turns",
        *,
        password: str = PASSWORD,
        parameters: str = "",
        port: int | None = None,
    ) -> PostgresUrl:
        """Address of a database, by a name that is to be looked up."""
        login = f"halfsec:{quote(password, safe='')}"
        host = f"localhost:{self.port if port is None else port}"
        return PostgresUrl(f"postgresql://{login}@{host}/{database}?{parameters}")

    def new_store(self) -> PostgresUrl:
        """Address of a place without tables: a schema of its own, which is made in a moment."""
        schema = f"store_{next(self._schemas)}"
        self.execute(f"CREATE SCHEMA {schema}")
        return self.url(parameters=f"options=-csearch_path%3D{schema}")

    def execute(self, statement: str, *, database: str = "turns") -> None:
        """Execute a statement by itself."""
        import psycopg

        address = self.url(database).reveal()
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute(statement)

    def _run(self, program: str, *arguments: str) -> None:
        # To a file: the server inherits the output of `pg_ctl`, and keeps a pipe open.
        with (self.folder / f"{program}.log").open("w+") as output:
            done = subprocess.run(
                [str(self._bin / program), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                timeout=_SECONDS,
                check=False,
                **self._user,
            )
            output.seek(0)
            assert done.returncode == 0, output.read()


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """The server of this run, started with the first test that needs it."""
    found = programs()
    if found is None:
        assert "REQUIRE_POSTGRES" not in os.environ, "apt-get install postgresql"
        pytest.skip("PostgreSQL is not installed")
    pytest.importorskip("psycopg")
    server = PostgresServer(found)
    yield server
    server.remove()


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A place without a store: once for a SQLite file, once in PostgreSQL."""
    if request.param == "sqlite":
        return tmp_path / "state" / "turns.sqlite"
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.new_store()
