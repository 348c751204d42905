"""Certificates: of the server's own making, from files, and who trusts them."""

import asyncio
import datetime
import ipaddress
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from agent.config.layers import load_config
from agent.config.local_urls import local_voice_url, page_url
from agent.config.schema import Config
from agent.errors import ConfigError
from agent.http.auth import tls
from agent.http.auth.cli_credentials import entry_at, entry_here
from agent.http.auth.key_needed import needs_key
from agent.http.auth.keys import KeyFile
from agent.http.auth.local_key import forget_local_key, local_key, make_local_key
from agent.http.auth.principal import KeyLimits
from agent.http.auth.tls import (
    Certificate,
    certificate_of,
    client_context,
    keep_own,
    own_addresses,
    server_context,
    trust,
)
from agent.server import event_loop
from agent.server.startup_checks.access import check_access, tell_of_access


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HALFSEC_HOME", str(tmp_path))
    monkeypatch.delenv("HALFSEC_API_KEY", raising=False)
    return tmp_path


def config(**flags: Any) -> Config:
    return load_config({key.replace("__", "."): value for key, value in flags.items()})


def made(**flags: Any) -> Certificate:
    settings = config(access__tls_self_signed=True, **flags)
    certificate = certificate_of(settings)
    assert certificate is not None
    keep_own(settings, certificate)
    return certificate


@contextmanager
def serving(context: ssl.SSLContext) -> Iterator[int]:
    """A TLS peer that says hello to one caller. Gives its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def greet() -> None:
            plain, _ = listener.accept()
            with plain:
                try:
                    with context.wrap_socket(plain, server_side=True) as secured:
                        secured.sendall(b"hello")
                except OSError:
                    pass  # the caller does not trust us

        thread = threading.Thread(target=greet)
        thread.start()
        yield listener.getsockname()[1]
        thread.join()


def greeted(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> str:
    """Connect under this name. Gives the version of TLS."""
    with (
        serving(server) as port,
        socket.create_connection(("127.0.0.1", port)) as plain,
        client.wrap_socket(plain, server_hostname=name) as secured,
    ):
        assert secured.recv(5) == b"hello"
        return secured.version() or ""


def test_self_signed_certificate_names_the_host_and_is_reused(home: Path) -> None:
    first = made(agent__host="0.0.0.0", agent__allowed_hosts="voice.lan,*")
    found = x509.load_pem_x509_certificate(first.cert.read_bytes())
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert set(names.get_values_for_type(x509.DNSName)) == {"localhost", "voice.lan"}
    addresses = {ipaddress.ip_address("127.0.0.1"), ipaddress.ip_address("::1")}
    addresses |= {ipaddress.ip_address(each) for each in own_addresses()}
    assert set(names.get_values_for_type(x509.IPAddress)) == addresses
    lifetime = found.not_valid_after_utc - found.not_valid_before_utc
    assert lifetime <= datetime.timedelta(days=tls.LIFETIME_DAYS)
    assert first.key.stat().st_mode & 0o777 == 0o600
    before = first.fingerprint()
    assert made(agent__host="0.0.0.0").fingerprint() == before
    assert len(before.split(":")) == 32


def test_unusable_certificate_is_regenerated(monkeypatch: pytest.MonkeyPatch) -> None:
    first = made()
    before = first.fingerprint()
    monkeypatch.setattr(tls, "own_addresses", lambda: ["192.0.2.9"])
    again = made()
    moved = again.fingerprint()
    assert moved != before
    monkeypatch.setattr(tls, "own_addresses", list)
    assert made().fingerprint() == moved  # it still has all names
    again.key.write_bytes(b"not a key")
    assert made().fingerprint() not in (before, moved)
    monkeypatch.setattr(tls, "RENEW_DAYS", tls.LIFETIME_DAYS)
    kept = made().fingerprint()
    assert made().fingerprint() != kept


def test_clients_that_trust_the_certificate() -> None:
    certificate = made(agent__host="0.0.0.0")
    server = server_context(certificate)
    for name in ("localhost", "127.0.0.1"):
        assert greeted(server, trust(str(certificate.cert)), name) == "TLSv1.3"
    assert greeted(server, client_context(certificate), "whatever.example") == "TLSv1.3"
    with pytest.raises(ssl.SSLCertVerificationError):
        greeted(server, trust(str(certificate.cert)), "whatever.example")
    with pytest.raises(ssl.SSLCertVerificationError):
        greeted(server, ssl.create_default_context(), "localhost")
    certificate.cert.unlink()
    other = made(agent__host="0.0.0.0")
    with pytest.raises(ssl.SSLCertVerificationError):
        greeted(server, client_context(other), "localhost")


def test_old_tls_versions_are_refused() -> None:
    certificate = made()
    server = server_context(certificate)
    assert server.minimum_version == ssl.TLSVersion.TLSv1_2
    older = client_context(certificate)
    older.maximum_version = ssl.TLSVersion.TLSv1_2
    assert greeted(server, older, "localhost") == "TLSv1.2"


def test_silent_tls_connection_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_loop, "TLS_TIMEOUT_S", 0.01)
    context = server_context(made())

    async def waits() -> bytes:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0, ssl=context)
        port = server.sockets[0].getsockname()[1]
        async with server:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            async with asyncio.timeout(30):
                said = await reader.read()
            writer.close()
            return said

    with asyncio.Runner(loop_factory=event_loop.loop_factory()) as runner:
        assert runner.run(waits()) == b""


def from_files(cert: Path, key: Path) -> None:
    settings = config(access__tls_cert=str(cert), access__tls_key=str(key))
    certificate = certificate_of(settings)
    assert certificate is not None
    assert not certificate.is_own
    server_context(certificate)


def test_unusable_certificate_files_are_named(home: Path) -> None:
    certificate = made()
    from_files(certificate.cert, certificate.key)
    missing, nonsense = home / "none.pem", home / "nonsense.pem"
    nonsense.write_text("hello")
    for cert, key, words in (
        (missing, certificate.key, "tls_cert.*none.pem can't be read: No such file"),
        (certificate.cert, missing, "tls_key.*none.pem can't be read"),
        (nonsense, certificate.key, "tls_cert.*is no PEM file"),
        (certificate.cert, certificate.cert, "can't be used"),
        (certificate.key, certificate.key, "can't be used"),
    ):
        with pytest.raises(ConfigError, match=words):
            from_files(cert, key)
    locked = home / "locked.pem"
    locked.write_text("-----BEGIN ENCRYPTED PRIVATE KEY-----\n")
    with pytest.raises(ConfigError, match="has a password"):
        from_files(certificate.cert, locked)
    old = certificate.cert.read_bytes()
    certificate.cert.unlink()
    other = made()
    (home / "old.pem").write_bytes(old)
    with pytest.raises(ConfigError, match="do not belong together"):
        from_files(home / "old.pem", other.key)


def test_contradictory_tls_settings_are_refused() -> None:
    for flags, words in (
        ({"access__tls_cert": "a.pem"}, "access.tls_key is missing"),
        ({"access__tls_key": "a.pem"}, "access.tls_cert is missing"),
        ({"access__tls_cert": "a.pem", "access__tls_self_signed": "true"}, "choose"),
    ):
        with pytest.raises(ConfigError, match=words):
            certificate_of(config(**flags))
    assert certificate_of(config()) is None
    with pytest.raises(ConfigError, match="can't be used as a certificate"):
        trust("none.pem")


def test_urls_use_https() -> None:
    secure = config(access__tls_self_signed=True)
    assert local_voice_url(secure) == "wss://127.0.0.1:8080/v1/realtime"
    assert page_url(secure, "0.0.0.0", 8080) == "https://localhost:8080/"
    assert page_url(config(), "fe80::1", 80) == "http://[fe80::1]:80/"


# --- what is said at the start ---


def complaint(keys: KeyFile, **flags: Any) -> str:
    try:
        check_access(config(**flags), keys)
    except ConfigError as error:
        return error.message
    return ""


def test_public_server_without_protection_does_not_start(home: Path) -> None:
    keys = KeyFile(home / "keys.json")
    assert complaint(keys) == ""
    assert complaint(keys, telephony__public_url="https://voice.example.com") == ""
    assert needs_key(config(telephony__public_url="https://voice.example.com"), has_keys=False)
    assert not needs_key(config(), has_keys=False)
    for host in ("0.0.0.0", "::", "192.0.2.1", "voice.example"):
        assert "halfsec keys add NAME" in complaint(keys, agent__host=host)
        assert "access.require_key=never" in complaint(keys, agent__host=host)
        assert complaint(keys, agent__host=host, access__require_key="never") == ""
    assert "there is no key" in complaint(keys, access__require_key="always")
    keys.add("ana", KeyLimits(), 0)
    for flags in ({"agent__host": "0.0.0.0"}, {"access__require_key": "always"}, {}):
        assert complaint(keys, **flags) == ""
    keys.revoke("ana")
    assert complaint(keys) == ""
    assert "there is no key" in complaint(keys, agent__host="0.0.0.0")


def test_partial_jwt_settings_are_refused(home: Path) -> None:
    keys = KeyFile(home / "keys.json")
    whole = {
        "access__jwt_issuer": "https://login.example",
        "access__jwt_audience": "halfsec",
        "access__jwt_jwks_url": "https://login.example/jwks",
    }
    assert complaint(keys, agent__host="0.0.0.0", **whole) == ""
    for left_out in whole:
        rest = {key: value for key, value in whole.items() if key != left_out}
        assert left_out.replace("__", ".") in complaint(keys, **rest)
    for url in ("http://login.example/jwks", "ftp://x", "https://a b"):
        with pytest.raises(ConfigError, match="begin with https"):
            config(access__jwt_jwks_url=url)


def test_startup_notes_for_the_operator() -> None:
    open_to_all = config(agent__host="0.0.0.0", access__require_key="never")
    said = "\n".join(tell_of_access(open_to_all, None))
    assert "there is no key" in said
    assert "there is no TLS" in said
    assert list(tell_of_access(config(), None)) == []
    public = {"telephony__public_url": "https://voice.example.com"}
    assert list(tell_of_access(config(**public), None)) == []
    (said,) = tell_of_access(config(access__require_key="never", **public), None)
    assert "on voice.example.com there is no key" in said
    certificate = made(agent__host="0.0.0.0")
    secure = config(agent__host="0.0.0.0", access__tls_self_signed=True)
    said = "\n".join(tell_of_access(secure, certificate))
    assert certificate.fingerprint() in said
    for address in own_addresses():
        assert (f"https://{address}:8080/" in said) == (":" not in address)  # it has no IPv6
    assert "no TLS" not in said


# --- commands on this machine ---


def test_server_writes_a_local_key_file(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = make_local_key(8080)
    path = home / "local" / "8080.key"
    assert path.stat().st_mode & 0o777 == 0o600
    assert entry_here(config()).api_key() == text
    for url in ("ws://127.0.0.1:8080/v1/realtime", "http://localhost:8080", "ws://[::1]:8080/"):
        assert entry_at(url).api_key() == text
    for url in ("ws://192.0.2.1:8080/", "wss://localhost.evil.example:8080", "ws://localhost:x"):
        assert entry_at(url).api_key() is None
    assert entry_at("ws://localhost:8080").headers() == {"Authorization": f"Bearer {text}"}
    assert entry_at("ws://localhost:8081").api_key() is None
    assert entry_at("ws://localhost:8081").headers() == {}
    monkeypatch.setenv("HALFSEC_API_KEY", "named")
    assert entry_here(config()).api_key() == "named"
    assert entry_at("ws://192.0.2.1:8080/").api_key() == "named"
    assert entry_at("ws://192.0.2.1:8080/", "given").api_key() == "given"
    forget_local_key(8080)
    assert local_key(8080) is None
    forget_local_key(8080)


def test_local_key_file_that_can_not_be_written(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (home / "local").write_text("in the way")
    assert make_local_key(8080) == ""
    assert "will need a key" in caplog.text
