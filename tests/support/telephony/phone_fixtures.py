"""A house that carriers call at; see `phone_house.py`."""

import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.agent.telephony.carriers.test_webhooks import TELNYX_PUBLIC, VONAGE_SECRET
from tests.support.telephony.phone_house import AUTH_TOKEN, SETTINGS, House, phone_house


@pytest.fixture
async def house(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> AsyncIterator[House]:
    """One that has the secrets of all carriers."""
    caplog.set_level(logging.INFO)
    monkeypatch.setenv("TWILIO_AUTH_TOKEN", AUTH_TOKEN)
    monkeypatch.setenv("PLIVO_AUTH_TOKEN", "plivo's")
    monkeypatch.setenv("VONAGE_SIGNATURE_SECRET", VONAGE_SECRET)
    monkeypatch.setenv("JAMBONZ_WEBHOOK_SECRET", "jambonz'")
    settings = SETTINGS.replace(
        "[telephony]", f'[telephony]\ntelnyx_public_key = "{TELNYX_PUBLIC}"'
    )
    async with phone_house(tmp_path, monkeypatch, settings) as made:
        yield made
