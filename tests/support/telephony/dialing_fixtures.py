"""A house that calls others; see `dialing_house.py`."""

import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from agent.config.telephony import TelephonySettings
from agent.telephony import routes
from agent.telephony.outbound.twilio_dialer import TwilioDialer
from tests.support.telephony.dialing_house import ACCOUNT, TwilioApi
from tests.support.telephony.phone_house import AUTH_TOKEN, SETTINGS, House, phone_house


@pytest.fixture
def twilio() -> TwilioApi:
    return TwilioApi()


@pytest.fixture
def open_house(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    twilio: TwilioApi,
) -> Callable[[str], Any]:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("TWILIO_ACCOUNT_SID", ACCOUNT)
    monkeypatch.setenv("TWILIO_AUTH_TOKEN", AUTH_TOKEN)

    def dialer(settings: TelephonySettings) -> TwilioDialer:
        return TwilioDialer(settings, twilio)

    monkeypatch.setattr(routes, "TwilioDialer", dialer)
    return lambda settings: phone_house(tmp_path, monkeypatch, settings)


@pytest.fixture
async def dialing_house(open_house: Any) -> AsyncIterator[House]:
    async with open_house(SETTINGS) as made:
        yield made
