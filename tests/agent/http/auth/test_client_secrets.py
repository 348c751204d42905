"""Client secrets: how long they hold, how many there may be, and what they fix."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from agent.errors import ClientError
from agent.http.auth import client_secrets
from agent.http.auth.client_secrets import ClientSecrets
from agent.http.auth.principal import KeyLimits, Principal
from agent.realtime.protocol.fixed_fields import fixed_fields, without_fixed
from agent.realtime.protocol.protocol import RealtimeProtocol
from agent.session.api.client_events import CreateResponse, UpdateSession
from agent.session.api.settings import SessionSettings
from tests.support.wire.wire_frames import one, refused, update

SECOND = 10**9


def holder(**session: Any) -> Principal:
    limits = KeyLimits(agents=("pirate",))
    return Principal("ana", "ephemeral", limits, {"type": "realtime", **session}, "key:1")


def test_client_secret_is_reusable_until_it_expires() -> None:
    secrets = ClientSecrets()
    mine = holder(instructions="Speak like a pirate.")
    text = secrets.mint(mine, 10, 5 * SECOND)
    assert text.startswith("ek_")
    for now_ns in (5 * SECOND, 6 * SECOND, 15 * SECOND - 1):
        assert secrets.find(text, now_ns) == mine
    assert secrets.find(text + "x", 6 * SECOND) is None
    assert secrets.find("ek_", 6 * SECOND) is None
    assert secrets.find(text, 15 * SECOND) is None
    assert secrets.find(text, 6 * SECOND) is None  # forgotten, not only late
    assert len(secrets) == 0


def test_client_secrets_expire_in_any_order() -> None:
    secrets = ClientSecrets()
    long, short = (secrets.mint(holder(), seconds, 0) for seconds in (7200, 10))
    assert secrets.find(short, 11 * SECOND) is None
    assert secrets.find(long, 11 * SECOND) is not None
    assert len(secrets) == 1


def test_number_of_client_secrets_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_secrets, "MAX_SECRETS", 3)
    secrets = ClientSecrets()
    for _ in range(3):
        secrets.mint(holder(), 10, 0)
    with pytest.raises(ClientError) as caught:
        secrets.mint(holder(), 10, 9 * SECOND)
    assert caught.value.code == "rate_limit_exceeded"
    assert secrets.mint(holder(), 10, 10 * SECOND)
    monkeypatch.setattr(client_secrets, "MAX_OF_A_KEY", 1)
    other = Principal("ben", "ephemeral", KeyLimits(), {}, "key:2")
    assert secrets.mint(other, 10, 10 * SECOND)
    with pytest.raises(ClientError):
        secrets.mint(other, 10, 10 * SECOND)
    secrets.mint(other, 10, 20 * SECOND)
    monkeypatch.setattr(client_secrets, "MAX_BYTES", 1000)
    with pytest.raises(ClientError):
        secrets.mint(holder(instructions="x" * 1000), 10, 10 * SECOND)


class CountingCounter(Counter[str]):
    """Counter that counts the keys it is asked for one by one, and all of them where it is
    iterated."""

    num_touched = 0

    def __getitem__(self, key: str) -> int:
        self.num_touched += 1
        return super().__getitem__(key)

    def items(self) -> Any:
        self.num_touched += len(self)
        return super().items()

    def __iter__(self) -> Iterator[str]:
        self.num_touched += len(self)
        return super().__iter__()


def test_expiry_takes_work_in_proportion_to_the_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = ClientSecrets()
    num_of = CountingCounter()
    monkeypatch.setattr(secrets, "_num_of", num_of)
    for number in range(300):
        for _ in range(2):
            secrets.mint(Principal("u", "ephemeral", KeyLimits(), {}, f"jwt:{number}"), 10, 0)
    num_of.num_touched = 0
    assert secrets.find("ek_x", 11 * SECOND) is None
    assert len(secrets) == 0
    assert secrets._num_of is num_of, "it is not made anew"
    assert num_of.num_touched <= 3 * 600
    assert not num_of, "a key without secrets is forgotten"


BOUND: dict[str, Any] = {
    "type": "realtime",
    "model": "pirate",
    "instructions": "Arr.",
    "tools": [],
    "audio": {"input": {"turn_detection": None}, "output": {"voice": "hibari"}},
}


def test_fields_set_by_a_session() -> None:
    assert fixed_fields(BOUND) == {
        "type", "instructions", "tools", "audio.input.turn_detection", "audio.output.voice",
    }  # fmt: skip
    assert fixed_fields({"type": "realtime", "model": "x"}) == {"type"}
    assert fixed_fields({"audio": {}}) == set()


def bound_protocol() -> RealtimeProtocol:
    settings = SessionSettings(instructions="Arr.", turn_detection=None)
    return RealtimeProtocol(settings, model="m", fixed=fixed_fields(BOUND))


def test_fixed_fields_stay_and_the_rest_can_be_changed() -> None:
    protocol = bound_protocol()
    settings = update(
        protocol,
        instructions="Tell me a secret.",
        tools=[{"type": "function", "name": "pay"}],
        max_output_tokens=7,
        audio={
            "input": {"turn_detection": {"type": "server_vad"}, "transcription": {"model": "w"}},
            "output": {"voice": "another", "speed": 1.2},
        },
    )
    assert (settings.instructions, settings.tools, settings.turn_detection) == ("Arr.", (), None)
    assert settings.voice == SessionSettings().voice
    assert (settings.max_output_tokens, settings.speed) == (7, 1.2)
    assert settings.transcription == {"model": "w"}


def test_response_can_not_override_fixed_fields() -> None:
    response = {
        "instructions": "Tell.",
        "tools": [{"type": "function", "name": "pay"}],
        "max_output_tokens": 5,
        "conversation": "none",
    }
    asked = one(bound_protocol(), type="response.create", response=response)
    assert isinstance(asked, CreateResponse)
    assert (asked.options.instructions, asked.options.tools) == (None, None)
    assert asked.options.max_output_tokens == 5
    assert asked.options.out_of_band


@pytest.mark.parametrize("session", [None, 1, "x", [], {"audio": 1}, {"audio": {"output": []}}])
def test_malformed_updates_pass_to_the_validator(session: object) -> None:
    event = {"type": "session.update", "session": session}
    assert without_fixed(event, fixed_fields(BOUND), "realtime") == event
    frame = '{"type": "session.update", "session": 5}'
    assert refused(bound_protocol(), frame).code == "invalid_value"


def test_no_field_is_fixed_without_a_client_secret() -> None:
    protocol = RealtimeProtocol(SessionSettings(), model="m")
    assert update(protocol, instructions="Mine.").instructions == "Mine."
    event = {"type": "conversation.item.create", "item": {"instructions": "x"}}
    assert without_fixed(event, fixed_fields(BOUND), "realtime") is event


@pytest.mark.parametrize("bound", ["realtime", "transcription"])
@pytest.mark.parametrize("asked", ["realtime", "transcription", "another", None, 5])
def test_session_type_can_not_be_changed(bound: str, asked: object) -> None:
    settings = SessionSettings(transcribes_only=bound == "transcription")
    protocol = RealtimeProtocol(settings, model="m", fixed=fixed_fields({"type": bound}))
    transcription = {"prompt": "Names: Kaczmarek."}
    session = {"type": asked, "audio": {"input": {"transcription": transcription}}}
    request = one(protocol, type="session.update", session=session)
    assert isinstance(request, UpdateSession)
    assert request.settings.transcribes_only == (bound == "transcription")
    assert request.settings.transcription == transcription
