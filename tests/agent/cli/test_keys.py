"""`halfsec keys`, and the findings of `halfsec doctor` about access to the server."""

import errno
from pathlib import Path

import pytest

from agent.__main__ import main
from agent.cli.doctor import examine
from agent.config import sources
from agent.config.layers import load_config
from agent.http.auth.keys import KeyFile
from tests.support.service.redis_server import RedisServer

pytest_plugins = ["tests.support.service.redis_fixtures"]

Output = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HALFSEC_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def close_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the working directory be one that this user may not enter; root may enter them all."""

    def is_there(path: Path) -> bool:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(sources, "Path", type("Closed", (type(Path()),), {"exists": is_there}))


def test_a_key_is_made_shown_once_and_taken_away(home: Path, capsys: Output) -> None:
    assert main(["keys", "list"]) == 0
    assert "There is no key" in capsys.readouterr().out
    options = ["--max-calls", "2", "--agents", "pirate, front-desk", "--expires", "12h"]
    assert main(["keys", "add", "ana", *options]) == 0
    made = capsys.readouterr()
    text = made.out.strip()
    assert text.startswith("hs_")
    assert " " not in text  # alone: KEY=$(halfsec keys add ana)
    assert "From now on the server asks for a key" in made.err
    (key,) = KeyFile(home / "keys.json").read()
    assert key.limits.agents == ("pirate", "front-desk")
    assert not key.limits.dials
    assert key.expires_unix_s == key.created_unix_s + 12 * 3600
    assert main(["keys", "add", "ben", "--dials"]) == 0
    assert "From now on" not in capsys.readouterr().err
    assert main(["keys", "list"]) == 0
    listed = capsys.readouterr().out
    names, first, second = listed.splitlines()
    assert names.split() == ["NAME", "ID", "MADE", "EXPIRES", "CALLS", "DIALS", "AGENTS"]
    assert first.split()[0] == "ana"
    assert first.endswith("2      no     pirate,front-desk")
    assert second.endswith("never             any    yes    all")
    assert text not in listed
    assert key.digest.hex() not in listed
    assert main(["keys", "revoke", "ana"]) == 0
    told = capsys.readouterr().out
    assert "Keys left: 1" in told
    assert "No other server was told: there is no halfsec.toml in this directory" in told
    assert main(["keys", "revoke", "ben"]) == 0
    assert "the server stays closed" in capsys.readouterr().out


def test_a_key_is_taken_away_on_all_machines(
    home: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch, redis: RedisServer
) -> None:
    for name in ("ana", "ben", "cleo"):
        assert main(["keys", "add", name]) == 0
    ana, ben, cleo = KeyFile(home / "keys.json").read()
    settings = home / "server.toml"
    settings.write_text(f'[agent]\nstate_store = "{redis.address()}"\n')
    capsys.readouterr()
    assert main(["keys", "revoke", "cleo", "--config", str(settings)]) == 0
    assert f"that share agent.state_store (file {settings})" in capsys.readouterr().out
    monkeypatch.setenv("HALFSEC_AGENT__STATE_STORE", redis.address())
    assert main(["keys", "revoke", "ana"]) == 0
    assert "(environment variable HALFSEC_AGENT__STATE_STORE)" in capsys.readouterr().out
    revoked = redis.command("SMEMBERS", "test:revoked")
    assert cleo.key_id.encode() in revoked
    assert ana.key_id.encode() in revoked
    assert ben.key_id.encode() not in revoked
    monkeypatch.setenv("HALFSEC_AGENT__STATE_STORE", "redis://:secret@127.0.0.1:1/0")
    capsys.readouterr()
    assert main(["keys", "revoke", "ben"]) == 1
    told = capsys.readouterr().err
    assert "Revoked on this machine only" in told
    assert "secret" not in told
    assert KeyFile(home / "keys.json").read() == ()


def test_what_a_revocation_looked_for_is_told(home: Path, capsys: Output) -> None:
    for name in ("ana", "ben"):
        assert main(["keys", "add", name]) == 0
    settings = home / "server.toml"
    settings.write_text("[agent]\nport = 9000\n")
    capsys.readouterr()
    assert main(["keys", "revoke", "ana", "--config", str(settings)]) == 0
    assert f"No other server was told: {settings} names no Redis" in capsys.readouterr().out
    assert main(["keys", "revoke", "ben", "--config", "none.toml"]) == 1
    told = capsys.readouterr().err
    assert "Revoked on this machine only: Can't read the settings file none.toml" in told
    assert KeyFile(home / "keys.json").read() == ()


def test_a_revocation_in_a_directory_that_is_closed_says_what_it_did(
    home: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["keys", "add", "ana"]) == 0
    close_directory(monkeypatch)
    assert main(["keys", "revoke", "ana"]) == 1
    told = capsys.readouterr().err
    assert "Revoked on this machine only: Can't look for halfsec.toml in this directory" in told
    assert KeyFile(home / "keys.json").read() == ()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--max-calls", "0"], "--max-calls is from 1"),
        (["--agents", ","], "--agents takes names"),
        (["--expires", "0d"], "--expires takes a time"),
        (["--expires", "1y"], "--expires takes a time"),
    ],
)
def test_limits_that_make_no_sense(options: list[str], words: str, capsys: Output) -> None:
    assert main(["keys", "add", "ana", *options]) == 2
    assert words in capsys.readouterr().err


def found(section: str, **flags: str) -> dict[str, tuple[str, str]]:
    config = load_config({key.replace("__", "."): value for key, value in flags.items()})
    (wanted,) = (each for each in examine(config) if each.title == section)
    return {finding.name: (finding.verdict, finding.value) for finding in wanted.findings}


def test_doctor_reports_whether_keys_are_needed(home: Path) -> None:
    verdict, value = found("Access")["keys"]
    assert (verdict, value) == ("ok", "not needed: open to this machine; none was made")
    verdict, value = found("Access", agent__host="0.0.0.0")["keys"]
    assert verdict == "WRONG"
    assert "halfsec keys add NAME" in value
    never = found("Access", agent__host="0.0.0.0", access__require_key="never")
    assert never["keys"] == ("note", "not needed: open to everybody; none was made")
    assert never["TLS"] == ("note", "none")
    assert main(["keys", "add", "ana"]) == 0
    verdict, value = found("Access", agent__host="0.0.0.0")["keys"]
    assert (verdict, value) == ("ok", f"needed; 1 in {home / 'keys.json'}")
    (home / "keys.json").write_text("{")
    assert "is damaged" in found("Access")["keys"][1]


def test_the_doctor_looks_at_certificates(home: Path) -> None:
    verdict, value = found("Access", access__tls_self_signed="true")["TLS"]
    assert verdict == "ok"
    assert "the server will make" in value
    assert not (home / "tls").exists()
    verdict, value = found("Access", access__tls_cert="none.pem", access__tls_key="x")["TLS"]
    assert verdict == "WRONG"
    assert "none.pem can't be read" in value
