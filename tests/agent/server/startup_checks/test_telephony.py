"""Settings of telephone calls that don't fit together."""

from pathlib import Path
from typing import Any

import pytest

from agent.__main__ import main as halfsec
from agent.cli.doctor import examine
from agent.config.layers import load_config
from agent.errors import ConfigError
from agent.server.startup_checks.telephony import check_telephony


def check(**telephony: Any) -> None:
    flags = {f"telephony.{name}": value for name, value in telephony.items()}
    check_telephony(load_config(flags, file_text="[agents.front-desk]\n"))


def test_what_fits_is_taken() -> None:
    check()
    check(
        numbers='{ "+493012345" = "front-desk", "110" = "default" }',
        audiosocket_agent="front-desk",
        transfers='{ sales = "+493067890", desk = "sip:desk@pbx.example.com;transport=tls" }',
        calls_to='["+4930"]',
    )
    check(transfers='{ sales = "+493067890" }')
    check(public_url="https://a.example:65535/voice")
    check(audiosocket_allow="asterisk.local")  # nothing listens there


@pytest.mark.parametrize(
    ("settings", "key", "words"),
    [
        (
            {"numbers": '{ "+493012345" = "frontdesk" }'},
            "telephony.numbers",
            "+493012345 answered by 'frontdesk', and there is no such agent; there are default, "
            "front-desk. Did you mean front-desk?",
        ),
        ({"public_url": "https://a.example:65536"}, "telephony.public_url", "from 1 to 65535"),
        ({"public_url": "https://a.example:0/x"}, "telephony.public_url", "from 1 to 65535"),
        ({"audiosocket_agent": "x"}, "telephony.audiosocket_agent", "is 'x', and there is no such"),
        (
            {"audiosocket_port": 9092, "audiosocket_allow": "asterisk.local"},
            "telephony.audiosocket_allow",
            "'asterisk.local' does not appear to be an IPv4 or IPv6 network. Give addresses",
        ),
        ({"transfers": '{ a = "0301234567" }'}, "telephony.transfers", "'a' at '0301234567': give"),
        ({"transfers": '{ a = "sip:desk" }'}, "telephony.transfers", "sip:sales@example.com"),
        ({"transfers": '{ a = "tel:+493067890" }'}, "telephony.transfers", "like +493012345"),
        (
            {"transfers": '{ a = "+13067890" }', "calls_to": "+49, +43"},
            "telephony.transfers",
            "at +13067890, which begins with none of telephony.calls_to (+49, +43): add",
        ),
    ],
)
def test_what_does_not_is_named(settings: dict[str, str], key: str, words: str) -> None:
    with pytest.raises(ConfigError) as raised:
        check(**settings)
    assert raised.value.key == key
    assert words in raised.value.message


def test_the_doctor_says_so_too() -> None:
    config = load_config({"telephony.numbers": '{ "+493012345" = "nobody" }'})
    (section,) = (each for each in examine(config) if each.title == "Telephony")
    (finding,) = section.findings
    assert (finding.name, finding.verdict) == ("telephony.numbers", "WRONG")
    assert "there is no such agent" in finding.value
    assert "Telephony" not in {each.title for each in examine(load_config())}


def test_a_server_does_not_start_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HALFSEC_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert halfsec(["serve", "--set", 'telephony.numbers={ "+493012345" = "nobody" }']) == 2
    assert "there is no such agent" in capsys.readouterr().err


@pytest.mark.parametrize("beginning", ["49", "+0", "+49x", "0049"])
def test_a_beginning_has_a_country(beginning: str) -> None:
    with pytest.raises(ConfigError, match="the beginning of numbers, like"):
        check(calls_to=beginning)
