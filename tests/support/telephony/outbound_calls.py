"""Outbound calls and a double of Twilio's REST API, placed below its official library."""

import json
from dataclasses import dataclass, field
from typing import Any
from xml.etree import ElementTree

import httpx
from twilio.http import HttpClient
from twilio.http.response import Response

from tests.support.telephony.telephony_server import AUTH_TOKEN, LOCAL_KEY, ServerUnderTest

ACCOUNT = "AC00000000000000000000000000000000"
HERE = {"Authorization": f"Bearer {LOCAL_KEY}"}
ORDER = {"to": "+49 (30) 999-99", "agent": "sales"}


@dataclass
class TwilioApi(HttpClient):  # type: ignore[misc]
    """Accepts calls, as https://www.twilio.com/docs/voice/api/call-resource has it."""

    orders: list[dict[str, Any]] = field(default_factory=list)
    refusal: dict[str, Any] | None = None
    broken: Exception | None = None
    lost: list[dict[str, Any]] = field(default_factory=list)
    """Orders whose request raised `broken`."""

    def request(self, method: str, url: str, **asked: Any) -> Response:
        if self.broken is not None:
            self.lost.append(asked["data"])
            raise self.broken
        assert (method, asked["auth"]) == ("POST", (ACCOUNT, AUTH_TOKEN))
        assert url == f"https://api.twilio.com/2010-04-01/Accounts/{ACCOUNT}/Calls.json"
        if self.refusal is not None:
            return Response(self.refusal["status"], json.dumps(self.refusal))
        self.orders.append(asked["data"])
        return Response(201, json.dumps({"sid": f"CA{len(self.orders)}", "status": "queued"}))


async def ordered(
    server: ServerUnderTest, order: Any = None, headers: dict[str, str] | None = None
) -> httpx.Response:
    wish = ORDER if order is None else order
    return await server.http.post(
        "/telephony/calls", json=wish, headers=HERE if headers is None else headers
    )


def token_of(order: dict[str, Any]) -> str:
    return ElementTree.fromstring(order["Twiml"])[0][0][0].attrib["value"]
