"""Which names the server answers to, and whose pages may call it."""

import pytest

from agent.config.schema import ServiceSettings
from agent.http.auth.origin_check import OriginCheck, name_of

LOCAL = ("127.0.0.1:8080", "localhost", "LOCALHOST:8472", "localhost.:80", "[::1]:8080",
         "127.8.9.1", "page.localhost:8080")  # fmt: skip
FOREIGN = ("evil.example:8472", "evil.example", "localhost.evil.example", "127.0.0.1.evil.example",
           "[bad", "", "[::1", "localhost@evil.example", "evil.example:x",
           "user@localhost", "127.0.0.1/..", "evil\\@localhost", "localhost?x", "localhost#x",
           "user:word@127.0.0.1:80", "evil.example\\.localhost")  # fmt: skip
ADDRESSES = ("192.168.1.5:8080", "[fe80::1]:8080", "10.0.0.1")


def answers(called: str | None, **settings: object) -> bool:
    return OriginCheck(ServiceSettings(**settings)).refuse_host(called) is None  # type: ignore[arg-type]


@pytest.mark.parametrize("bound", ["127.0.0.1", "0.0.0.0", "::", "192.168.1.5"])
def test_only_loopback_host_names_are_accepted(bound: str) -> None:
    assert all(answers(host, host=bound) for host in LOCAL)
    assert not any(answers(host, host=bound) for host in FOREIGN)
    assert answers(None, host=bound)  # no browser


def test_dns_rebinding_is_refused() -> None:
    assert all(answers(host, host="0.0.0.0") for host in ADDRESSES)
    assert not any(answers(host) for host in ADDRESSES)
    assert answers("192.168.1.5:8080", host="192.168.1.5")
    assert not answers("192.168.1.6:8080", host="192.168.1.5")
    assert answers("voice.lan:8080", host="voice.lan")


def test_configured_host_names_are_accepted() -> None:
    names = ("Voice.example.com", "other.example:443")
    for host in ("voice.example.com", "VOICE.example.com:8080", "other.example"):
        assert answers(host, allowed_hosts=names)
    assert not answers("sub.voice.example.com", allowed_hosts=names)
    assert answers("evil.example", allowed_hosts=("*",))


def test_refusal_names_the_setting() -> None:
    refusal = OriginCheck(ServiceSettings(host="0.0.0.0")).refuse_host("voice.example.com:8080")
    assert refusal is not None
    assert "agent.allowed_hosts" in refusal.message
    assert "HALFSEC_AGENT__ALLOWED_HOSTS=voice.example.com" in refusal.message
    assert (refusal.status, refusal.error_type) == (403, "invalid_request_error")
    endless = OriginCheck(ServiceSettings()).refuse_host("a" * 5000)
    assert endless is not None
    assert len(endless.message) < 500


@pytest.mark.parametrize(
    ("origin", "host", "allowed"),
    [
        (None, "localhost:8472", True),
        ("http://localhost:8472", "localhost:8472", True),
        ("https://localhost:8472", "localhost:8472", True),
        ("http://LOCALHOST:8472", "localhost:8472", True),
        ("http://localhost:8473", "localhost:8472", False),
        ("http://evil.example", "localhost:8472", False),
        ("http://user@localhost:8472", "localhost:8472", False),
        ("null", "localhost:8472", False),
        ("", "localhost:8472", False),
        ("http://[bad", "localhost:8472", False),
        ("http://localhost:8472", None, False),
        ("https://pages.example", "localhost:8472", True),
    ],
)
def test_page_origins(origin: str | None, host: str | None, allowed: bool) -> None:
    visitors = OriginCheck(ServiceSettings(allowed_origins=("https://Pages.example/",)))
    refusal = visitors.refuse_origin(origin, host)
    assert (refusal is None) == allowed
    if refusal is not None:
        assert "agent.allowed_origins" in refusal.message
    assert OriginCheck(ServiceSettings(allowed_origins=("*",))).refuse_origin(origin, host) is None


def test_host_header_is_parsed() -> None:
    assert name_of("[::1]:80") == "::1"
    assert name_of("a.example.") == "a.example"
    assert name_of("[bad") is None
