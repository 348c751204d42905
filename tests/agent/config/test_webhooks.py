"""Settings of webhook endpoints: which are refused at the start, and what is shown of them."""

import pytest

from agent.config.layers import load_config
from agent.config.schema import Config
from agent.errors import ConfigError
from agent.server.startup_checks.preflight import check_webhooks
from tests.support.service.webhook_receiver import SECRET


def loaded(url: str, more: str = "") -> Config:
    return load_config(file_text=f"[webhooks.crm]\nurl = '{url}'\n{more}")


def test_endpoints_of_the_settings() -> None:
    config = loaded("https://hooks.example/calls?token=1", "transcript = false\n")
    (crm,) = config.webhooks.values()
    assert (crm.url, crm.transcript, crm.allow_private, crm.max_age_h) == (
        "https://hooks.example/calls?token=1", False, False, 24,
    )  # fmt: skip
    shown = {each.key: each.value for each in config.effective()}
    assert shown["webhooks.crm.url"] == "https://hooks.example/..."
    assert Config().webhooks == {}


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("", "is missing"),
        ("hooks.example", "must be an address like"),
        ("ftp://hooks.example/", "must be an address like"),
        ("https:///calls", "must be an address like"),
        ("https://hooks.example:0/", "must be an address like"),
        ("https://hooks.example:99999/", "host or port"),
        ("https://[::1/", "host or port"),
        ("https://user:secret@hooks.example/", "no user"),
        ("https://hooks.example/#part", "no fragment"),
        ("https://hooks.example/a b", "without spaces"),
        ("https://höks.example/", "in ASCII"),
        ("http://hooks.example/", "must begin with https://"),
        ("https://localhost/", "inside the network"),
        ("https://127.0.0.1/", "inside the network"),
        ("https://127.1/", "inside the network"),
        ("https://2130706433/", "inside the network"),
        ("https://0x7f000001/", "inside the network"),
        ("https://10.0.0.8/", "inside the network"),
        ("https://169.254.169.254/latest/meta-data", "inside the network"),
        ("https://[::ffff:192.168.0.1]/", "inside the network"),
    ],
)
def test_bad_addresses_are_refused_and_not_repeated(url: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=r"^webhooks\.crm\.url ") as caught:
        loaded(url)
    assert problem in caught.value.message
    assert not url or url not in caught.value.message


@pytest.mark.parametrize("url", ["http://127.0.0.1:9000/", "https://10.0.0.8/", "http://crm/x"])
def test_addresses_inside_are_admitted_on_request(url: str) -> None:
    assert loaded(url, "allow_private = true\n").webhooks["crm"].url == url


def test_they_need_the_store() -> None:
    with pytest.raises(ConfigError, match=r"Webhooks need latency_budget\.store"):
        loaded("https://hooks.example/", "[latency_budget]\nstore = false\n")


def test_there_are_eight_at_most() -> None:
    text = "".join(f"[webhooks.n{n}]\nurl = 'https://hooks.example/'\n" for n in range(9))
    with pytest.raises(ConfigError, match="8 are the most"):
        load_config(file_text=text)


def test_the_secret_is_checked_before_the_server_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    config = loaded("https://hooks.example/", "secret_env = 'CRM_SECRET'\n")
    monkeypatch.delenv("CRM_SECRET", raising=False)
    with pytest.raises(ConfigError, match=r"webhooks\.crm\.secret_env needs .* CRM_SECRET"):
        check_webhooks(config)
    monkeypatch.setenv("CRM_SECRET", SECRET)
    check_webhooks(config)
