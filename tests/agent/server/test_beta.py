"""Clients of the beta dialect, as their users see it: an error that says what to do; the end."""

import json
from typing import Any

import pytest
import websockets.asyncio.client as websockets_client
from websockets.exceptions import ConnectionClosedError
from websockets.typing import Subprotocol

from tests.support.service.live import LiveServer
from tests.support.service.live_call import call_to
from tests.support.wire.wire_frames import check_strictly

pytest_plugins = ["tests.support.service.live_fixtures"]
pytestmark = pytest.mark.models

HANDSHAKES: dict[str, dict[str, Any]] = {
    "a header": {"additional_headers": {"OpenAI-Beta": "realtime=v1"}},
    "a header of many": {"additional_headers": {"OpenAI-Beta": "assistants=v2, Realtime=v1"}},
    "a subprotocol": {
        "subprotocols": [
            Subprotocol("realtime"),
            Subprotocol("openai-insecure-api-key.sk-secret"),
            Subprotocol("openai-beta.realtime-v1"),
        ]
    },
}


@pytest.mark.parametrize("handshake", HANDSHAKES.values(), ids=HANDSHAKES)
async def test_the_beta_is_refused(live: LiveServer, handshake: dict[str, Any]) -> None:
    async with websockets_client.connect(live.url, proxy=None, **handshake) as socket:
        event = json.loads(await socket.recv())
        with pytest.raises(ConnectionClosedError):
            await socket.recv()
    check_strictly(event)
    assert event["type"] == "error"
    assert event["error"]["code"] == "beta_api_shape_disabled"
    assert event["error"]["type"] == "invalid_request_error"
    assert "general release" in event["error"]["message"]
    assert socket.close_code == 4000
    assert socket.close_reason == "invalid_request_error.beta_api_shape_disabled"
    assert socket.subprotocol == ("realtime" if "subprotocols" in handshake else None)
    assert len(live.calls) == 0


async def test_other_betas_are_not_ours_to_refuse(live: LiveServer) -> None:
    headers = {"OpenAI-Beta": "assistants=v2"}
    async with call_to(live.url, additional_headers=headers) as call:
        await call.prove_alive()
