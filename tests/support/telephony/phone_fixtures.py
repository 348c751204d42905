"""Fixture of a server that carriers call; see `telephony_server.py`."""

import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.agent.telephony.carriers.test_webhooks import TELNYX_PUBLIC, VONAGE_SECRET
from tests.support.telephony.telephony_server import (
    AUTH_TOKEN,
    SETTINGS,
    ServerUnderTest,
    telephony_server,
)


@pytest.fixture
async def server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> AsyncIterator[ServerUnderTest]:
    """A server with the secrets of all carriers."""
    caplog.set_level(logging.INFO)
    monkeypatch.setenv("TWILIO_AUTH_TOKEN", AUTH_TOKEN)
    monkeypatch.setenv("PLIVO_AUTH_TOKEN", "plivo's")
    monkeypatch.setenv("VONAGE_SIGNATURE_SECRET", VONAGE_SECRET)
    monkeypatch.setenv("JAMBONZ_WEBHOOK_SECRET", "jambonz'")
    settings = SETTINGS.replace(
        "[telephony]", f'[telephony]\ntelnyx_public_key = "{TELNYX_PUBLIC}"'
    )
    async with telephony_server(tmp_path, monkeypatch, settings) as made:
        yield made
