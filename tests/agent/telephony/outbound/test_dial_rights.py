"""Permission to place calls, which cost money."""

from typing import Any

import pytest

from tests.support.telephony.outbound_calls import HERE, TwilioApi, ordered
from tests.support.telephony.telephony_server import SETTINGS, ServerUnderTest

pytest_plugins = ["tests.support.telephony.dialing_fixtures"]


@pytest.fixture
def server(dialing_server: ServerUnderTest) -> ServerUnderTest:
    return dialing_server


async def test_who_shows_no_key_calls_nobody(server: ServerUnderTest, twilio: TwilioApi) -> None:
    assert (await ordered(server, headers={})).status_code == 401
    wrong = await ordered(server, headers={"Authorization": "Bearer hs_x"})
    assert wrong.status_code == 401
    bounded = {"Authorization": f"Bearer {await server.key(agents=('sales',))}"}
    assert (await ordered(server, headers=bounded)).status_code == 403
    assert not twilio.orders
    key = {"Authorization": f"Bearer {await server.key('other')}"}
    refused = await ordered(server, headers=key)
    assert (refused.status_code, "--dials" in refused.text) == (403, True)
    assert not twilio.orders


async def test_a_key_with_the_right_to_it_calls_what_is_listed(
    start_server: Any, twilio: TwilioApi
) -> None:
    listed = SETTINGS.replace("[telephony]", '[telephony]\ncalls_to = ["+4930", "+431"]')
    async with start_server(listed) as server:
        key = {"Authorization": f"Bearer {await server.key(dials=True)}"}
        assert (await ordered(server, headers=key)).status_code == 201
        for headers in (key, HERE):
            elsewhere = await ordered(server, {"to": "+4915112345"}, headers)
            assert elsewhere.json()["error"]["code"] == "number_not_allowed"
        bounded = await server.key("kiosk", dials=True, agents=("default",))
        kiosk = {"Authorization": f"Bearer {bounded}"}
        answer = await ordered(server, {"to": "+43123456"}, kiosk)
        assert (answer.status_code, answer.json()["agent"]) == (201, "default")
    async with start_server(SETTINGS) as server:
        key = {"Authorization": f"Bearer {await server.key('other', dials=True)}"}
        answer = await ordered(server, headers=key)
        assert answer.json()["error"]["code"] == "number_not_allowed"
        assert "telephony.calls_to" in answer.text
        assert (await ordered(server)).status_code == 201, "this machine's own"


async def test_client_secrets_order_nothing(server: ServerUnderTest, twilio: TwilioApi) -> None:
    maker = {"Authorization": f"Bearer {await server.key(dials=True)}"}
    made = await server.http.post("/v1/realtime/client_secrets", json={}, headers=maker)
    secret = {"Authorization": f"Bearer {made.json()['value']}"}
    assert (await ordered(server, headers=secret)).status_code == 403
    assert not twilio.orders


async def test_so_many_calls_of_a_key_ring_at_once(start_server: Any, twilio: TwilioApi) -> None:
    few = SETTINGS.replace("[telephony]", '[telephony]\ncalls_to = ["+49"]\nringing_per_key = 1')
    async with start_server(few) as server:
        key = {"Authorization": f"Bearer {await server.key(dials=True)}"}
        assert (await ordered(server, headers=key)).status_code == 201
        more = await ordered(server, headers=key)
        assert (more.status_code, more.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        assert (await ordered(server)).status_code == 201, "another's"
