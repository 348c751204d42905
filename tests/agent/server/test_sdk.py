"""Stock clients against the real service: the official SDK, and the strict agents SDK.

The other clients want environments of their own: `make test-clients`.
"""

import json
from collections.abc import AsyncIterator

import pytest

from tests.clients.cable import cable_to
from tests.clients.openai_agents_python import scenarios as agents_sdk
from tests.clients.openai_python import scenarios as sdk
from tests.clients.scene import Scenario, Scene
from tests.support.service.live import LiveServer
from tests.support.service.live_call import RECORDINGS, recording, transcript
from tests.support.wire.wire_frames import check_strictly

pytest_plugins = ["tests.support.service.live_fixtures"]
pytestmark = pytest.mark.models


@pytest.fixture
async def scene(live: LiveServer) -> AsyncIterator[Scene]:
    names = [path.stem for path in RECORDINGS.glob("*.wav")]
    async with cable_to(live.port) as cable:

        async def cut() -> None:
            cable.cut()

        yield Scene(
            f"http://127.0.0.1:{cable.port}",
            {name: recording(name).tobytes() for name in names},
            {name: transcript(name) for name in names},
            cut,
        )
    assert cable.frames
    for frame in cable.frames:
        check_strictly(json.loads(frame))


@pytest.mark.parametrize("scenario", sdk.SCENARIOS.values(), ids=sdk.SCENARIOS)
async def test_the_sdk(scene: Scene, scenario: Scenario) -> None:
    await scenario(scene)


@pytest.mark.parametrize("scenario", agents_sdk.SCENARIOS.values(), ids=agents_sdk.SCENARIOS)
async def test_the_agents_sdk(scene: Scene, scenario: Scenario) -> None:
    await scenario(scene)
