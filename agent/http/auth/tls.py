"""TLS: the server's certificate, given or self-signed, and how this project's clients trust it.

A self-signed certificate is for a network without names: it names localhost and the addresses of
this machine, and is kept, so that a browser that was once made to trust it does not ask again. When
the machine's address changes, the certificate is made anew, with the old addresses in it too: a
laptop that moves between two networks has one for both.
"""

import contextlib
import datetime
import ipaddress
import socket
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from agent.config.home import halfsec_home
from agent.config.schema import Config
from agent.errors import ConfigError
from latency_budget.account.clock import unix_ns
from latency_budget.storage.private_files import make_private_folder

from .keys import write_private
from .origin_check import name_of

LIFETIME_DAYS: Final = 397
"""Apple's systems take no certificate that is valid for more than 825 days, browsers none of public
authorities for more than 398."""
RENEW_DAYS: Final = 30
MAX_NAMES: Final = 64
"""In a certificate; of more the newest are kept."""

_ANYWHERE: Final = (("192.0.2.1", socket.AF_INET), ("2001:db8::1", socket.AF_INET6))
"""Addresses of documentation: asking the system which of ours it would use sends nothing."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """Certificate and key that the server presents."""

    cert: Path
    key: Path
    is_own: bool

    def fingerprint(self) -> str:
        """SHA-256 of the certificate, as browsers show it: "AB:CD:..."."""
        found = x509.load_pem_x509_certificates(self.cert.read_bytes())[0]
        return found.fingerprint(hashes.SHA256()).hex(":").upper()


def certificate_of(config: Config) -> Certificate | None:
    """The certificate that the settings ask for, be it there or not; None: no TLS. Raises
    ConfigError."""
    access = config.access
    if access.tls_self_signed and (access.tls_cert or access.tls_key):
        raise ConfigError(
            "access.tls_self_signed makes a certificate, access.tls_cert names one: choose.",
            key="access.tls_self_signed",
        )
    if access.tls_self_signed:
        directory = halfsec_home() / "tls"
        return Certificate(directory / "cert.pem", directory / "key.pem", is_own=True)
    if bool(access.tls_cert) != bool(access.tls_key):
        key = "access.tls_key" if access.tls_cert else "access.tls_cert"
        raise ConfigError(f"{key} is missing: TLS needs a certificate and its key.", key=key)
    if not access.tls_cert:
        return None
    return Certificate(
        Path(access.tls_cert).expanduser(), Path(access.tls_key).expanduser(), is_own=False
    )


def keep_own(config: Config, certificate: Certificate) -> None:
    """See to it that a certificate of our own is there, valid, and names this machine. Raises
    ConfigError and KeyFileError where it can't be kept."""
    names = _names(config)
    before = _names_in(certificate)
    if before is None or not set(names) <= set(before):
        _make(certificate, list(dict.fromkeys([*names, *(before or [])]))[:MAX_NAMES])


def server_context(certificate: Certificate) -> ssl.SSLContext:
    """TLS 1.2 and newer. Raises ConfigError that names the file at fault."""
    for key, path in (("tls_cert", certificate.cert), ("tls_key", certificate.key)):
        try:
            text = path.read_bytes()
        except OSError as error:
            raise ConfigError(
                f"access.{key}: {path} can't be read: {error.strerror}.", key=f"access.{key}"
            ) from None
        if b"-----BEGIN" not in text:
            raise ConfigError(f"access.{key}: {path} is no PEM file.", key=f"access.{key}")
        if b"ENCRYPTED" in text:
            raise ConfigError(
                f"access.{key}: {path} has a password; write it without one, for instance with "
                "openssl pkey -in FILE -out FILE",
                key=f"access.{key}",
            )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(certificate.cert, certificate.key)
    except (ssl.SSLError, OSError) as error:
        reason = getattr(error, "reason", None) or str(error)
        why = "they do not belong together" if "MISMATCH" in str(reason) else f"{reason}"
        raise ConfigError(
            f"The certificate {certificate.cert} and the key {certificate.key} can't be used: "
            f"{why}.",
            key="access.tls_cert",
        ) from None
    return context


def client_context(certificate: Certificate) -> ssl.SSLContext:
    """Trusts exactly this certificate, under whatever name: for calls to the server on this
    machine. Raises ConfigError."""
    try:
        first, _, _ = certificate.cert.read_text("ascii").partition("-----END CERTIFICATE-----")
        return _trusting(cadata=f"{first}-----END CERTIFICATE-----\n", check_hostname=False)
    except (OSError, ValueError, ssl.SSLError) as error:
        raise ConfigError(
            f"The certificate {certificate.cert} can't be read: {error}.", key="access.tls_cert"
        ) from None


def trust(path: str) -> ssl.SSLContext:
    """Trusts the certificates in a PEM file, under their own names. Raises ConfigError."""
    try:
        return _trusting(cadata=Path(path).read_text("ascii"), check_hostname=True)
    except (OSError, ValueError, ssl.SSLError) as error:
        raise ConfigError(f"{path} can't be used as a certificate: {error}.") from None


def _trusting(*, cadata: str, check_hostname: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = check_hostname
    # A certificate that is trusted itself needs none above it.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(cadata=cadata)
    return context


def own_addresses() -> list[str]:
    """Addresses of this machine in its network: at most one of each family."""
    found = []
    for elsewhere, family in _ANYWHERE:
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((elsewhere, 9))
            found.append(str(probe.getsockname()[0]))
    return found


def _names(config: Config) -> list[str]:
    """Under which the server may be called."""
    named = [name for each in config.agent.allowed_hosts if (name := name_of(each))]
    names = ["localhost", "127.0.0.1", "::1"]
    bound = [] if config.agent.host in ("0.0.0.0", "::") else [config.agent.host]
    return [
        name
        for name in dict.fromkeys([*names, *own_addresses(), *bound, *named])
        if name and name.isascii() and "*" not in name and len(name) < 64
    ]


def _names_in(certificate: Certificate) -> list[str] | None:
    """Names of a stored certificate; None if it is missing, broken, or expires soon."""
    try:
        found = x509.load_pem_x509_certificate(certificate.cert.read_bytes())
        server_context(certificate)
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (OSError, ValueError, ConfigError, x509.ExtensionNotFound, UnsupportedAlgorithm):
        return None
    if found.not_valid_after_utc - _now() < datetime.timedelta(days=RENEW_DAYS):
        return None
    dns = names.get_values_for_type(x509.DNSName)
    return [*dns, *map(str, names.get_values_for_type(x509.IPAddress))]


def _make(certificate: Certificate, names: Iterable[str]) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "halfsec on this machine")])
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    signed = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_now() - datetime.timedelta(days=1))  # clocks differ
        .not_valid_after(_now() + datetime.timedelta(days=LIFETIME_DAYS - 1))
        .add_extension(x509.SubjectAlternativeName([_general_name(n) for n in names]), False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(identifier, critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), False
        )
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    try:
        make_private_folder(certificate.cert.parent)
    except OSError as error:
        raise ConfigError(
            f"{certificate.cert.parent} can't be made: {error.strerror}. Set HALFSEC_HOME to a "
            "directory that can be written.",
            key="access.tls_self_signed",
        ) from None
    write_private(certificate.key, private)
    write_private(certificate.cert, signed.public_bytes(serialization.Encoding.PEM))


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _now() -> datetime.datetime:
    return datetime.datetime.fromtimestamp(unix_ns() / 1e9, datetime.UTC)
