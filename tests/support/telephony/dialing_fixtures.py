"""Fixtures of a server that places outbound calls; see `outbound_calls.py`."""

import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from agent.config.telephony import TelephonySettings
from agent.server import app
from agent.telephony.outbound.twilio_account import TwilioAccount
from tests.support.telephony.outbound_calls import ACCOUNT, TwilioApi
from tests.support.telephony.telephony_server import (
    AUTH_TOKEN,
    SETTINGS,
    ServerUnderTest,
    telephony_server,
)


@pytest.fixture
def twilio() -> TwilioApi:
    return TwilioApi()


@pytest.fixture
def start_server(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    twilio: TwilioApi,
) -> Callable[[str], Any]:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("TWILIO_ACCOUNT_SID", ACCOUNT)
    monkeypatch.setenv("TWILIO_AUTH_TOKEN", AUTH_TOKEN)

    def account(settings: TelephonySettings) -> TwilioAccount:
        return TwilioAccount(settings, twilio)

    monkeypatch.setattr(app, "TwilioAccount", account)
    return lambda settings: telephony_server(tmp_path, monkeypatch, settings)


@pytest.fixture
async def dialing_server(start_server: Any) -> AsyncIterator[ServerUnderTest]:
    async with start_server(SETTINGS) as made:
        yield made
