"""Who may have whom called: calls cost money."""

from typing import Any

import pytest

from tests.support.telephony.dialing_house import HERE, TwilioApi, ordered
from tests.support.telephony.phone_house import SETTINGS, House

pytest_plugins = ["tests.support.telephony.dialing_fixtures"]


@pytest.fixture
def house(dialing_house: House) -> House:
    return dialing_house


async def test_who_shows_no_key_calls_nobody(house: House, twilio: TwilioApi) -> None:
    assert (await ordered(house, headers={})).status_code == 401
    wrong = await ordered(house, headers={"Authorization": "Bearer hs_x"})
    assert wrong.status_code == 401
    bounded = {"Authorization": f"Bearer {await house.key(agents=('sales',))}"}
    assert (await ordered(house, headers=bounded)).status_code == 403
    assert not twilio.orders
    key = {"Authorization": f"Bearer {await house.key('other')}"}
    refused = await ordered(house, headers=key)
    assert (refused.status_code, "--dials" in refused.text) == (403, True)
    assert not twilio.orders


async def test_a_key_with_the_right_to_it_calls_what_is_listed(
    open_house: Any, twilio: TwilioApi
) -> None:
    listed = SETTINGS.replace("[telephony]", '[telephony]\ncalls_to = ["+4930", "+431"]')
    async with open_house(listed) as house:
        key = {"Authorization": f"Bearer {await house.key(dials=True)}"}
        assert (await ordered(house, headers=key)).status_code == 201
        for headers in (key, HERE):
            elsewhere = await ordered(house, {"to": "+4915112345"}, headers)
            assert elsewhere.json()["error"]["code"] == "number_not_allowed"
        bounded = await house.key("kiosk", dials=True, agents=("default",))
        kiosk = {"Authorization": f"Bearer {bounded}"}
        answer = await ordered(house, {"to": "+43123456"}, kiosk)
        assert (answer.status_code, answer.json()["agent"]) == (201, "default")
    async with open_house(SETTINGS) as house:
        key = {"Authorization": f"Bearer {await house.key('other', dials=True)}"}
        answer = await ordered(house, headers=key)
        assert answer.json()["error"]["code"] == "number_not_allowed"
        assert "telephony.calls_to" in answer.text
        assert (await ordered(house)).status_code == 201, "this machine's own"


async def test_client_secrets_order_nothing(house: House, twilio: TwilioApi) -> None:
    maker = {"Authorization": f"Bearer {await house.key(dials=True)}"}
    made = await house.http.post("/v1/realtime/client_secrets", json={}, headers=maker)
    secret = {"Authorization": f"Bearer {made.json()['value']}"}
    assert (await ordered(house, headers=secret)).status_code == 403
    assert not twilio.orders


async def test_so_many_calls_of_a_key_ring_at_once(open_house: Any, twilio: TwilioApi) -> None:
    few = SETTINGS.replace("[telephony]", '[telephony]\ncalls_to = ["+49"]\nringing_per_key = 1')
    async with open_house(few) as house:
        key = {"Authorization": f"Bearer {await house.key(dials=True)}"}
        assert (await ordered(house, headers=key)).status_code == 201
        more = await ordered(house, headers=key)
        assert (more.status_code, more.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        assert (await ordered(house)).status_code == 201, "another's"
