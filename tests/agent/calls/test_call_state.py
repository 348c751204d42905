"""The state of a call, written and read: everything comes back, and what can't be read is refused
with a reason."""

import json
from dataclasses import replace

import pytest

from agent.calls.call_state import (
    FORMAT,
    CallHead,
    CallState,
    CallStateEncoder,
    SavedToken,
    _settings_json,
    read_state,
)
from agent.calls.session_start import resumed_start
from agent.calls.state_store.store import UnreadableStateError
from agent.config.layers import load_config
from agent.session.api.conversation import (
    FunctionCall,
    FunctionOutput,
    Item,
    ItemId,
    Message,
    ModelCall,
    ToolRound,
)
from agent.session.api.session_state import (
    BackgroundResult,
    BackgroundState,
    ReplyState,
    SessionState,
    SpokenChunk,
)
from agent.session.api.settings import (
    SemanticVad,
    ServerVad,
    SessionSettings,
    Truncation,
    TurnDetection,
)

ROUND = ToolRound(4, 9, (ModelCall("book", '{"seat": "4A"}'),), ("done",))
ITEMS: tuple[Item, ...] = (
    Message(ItemId("item_1"), "system", "text", "Be brief."),
    Message(ItemId("item_2"), "user", "audio", "Grüße \U0001f600\x00", "completed"),
    Message(ItemId("item_3"), "user", "audio", None, "completed", ItemId("item_2")),
    FunctionCall(ItemId("item_4"), "call_1", "weather", '{"city": "Rome"}'),
    FunctionOutput(ItemId("item_5"), "call_1", "sunny"),
    Message(ItemId("item_6"), "assistant", "audio", "It is", "in_progress", None, (ROUND,)),
)
REPLY = ReplyState(
    ItemId("item_6"),
    True,
    True,
    "It is sunny in Rome.",
    0,
    6,
    False,
    None,
    24_000,
    4_321,
    (
        SpokenChunk(0, 9_600, (0, 12), ((2, 3_000), (5, 6_000))),
        SpokenChunk(9_600, 9_700, (12, 20), ()),
    ),
    (ROUND,),
)


def state_with(
    detection: TurnDetection | None = None,
    items: tuple[Item, ...] = ITEMS,
    reply: ReplyState | None = REPLY,
    received: int = 7,
) -> CallState:
    settings = SessionSettings(
        agent="sales",
        instructions="Sell.",
        speed=1.5,
        output_encoding="pcmu",
        turn_detection=detection,
        transcription={"model": "whisper-1"},
        tools=({"type": "function", "name": "weather", "parameters": {"x": [1, 2.5, None]}},),
        tool_choice={"type": "function", "name": "weather"},
        parallel_tool_calls=False,
        truncation=Truncation(retention_ratio=0.5, post_instructions_tokens=900),
    )
    tokens = (SavedToken("0123456789ab", "00" * 32), SavedToken("ba9876543210", "ff" * 32))
    head = CallHead(
        "sess_1", "sales", "gpt", ("audio", "tools"), "key:1", 1_800_000_000, received, tokens
    )
    session = SessionState(settings, items, 6, 2, 1, 12_345, ("They met.",), 2, True, False, reply)
    return CallState(head, session)


@pytest.mark.parametrize(
    "detection",
    [
        None,
        SemanticVad("low", create_response=False),
        SemanticVad(),
        ServerVad(),
        ServerVad(0.7, 100, 900, 5_000, interrupt_response=False),
    ],
)
def test_everything_comes_back(detection: TurnDetection | None) -> None:
    for state in (state_with(detection), state_with(detection, (), None)):
        fields = CallStateEncoder().fields(state)
        assert read_state(fields) == state
        assert "background" not in fields


def test_tools_in_the_background_come_back() -> None:
    running, ended = ModelCall("search", '{"to": "Porto"}'), ModelCall("search", "{}")
    background = BackgroundState((running,), (BackgroundResult(ended, "89 euros"),), is_due=True)
    state = state_with(None)
    state = replace(state, session=replace(state.session, background=background))
    encoder = CallStateEncoder()
    assert read_state(encoder.fields(state)) == state
    state = replace(state, session=replace(state.session, background=BackgroundState()))
    assert "background" not in encoder.fields(state)


def test_replies_that_are_played_in_front_of_the_newest_come_back() -> None:
    state, encoder = state_with(), CallStateEncoder()
    for reply in (REPLY, None):
        earlier = (replace(REPLY, item_id=ItemId("item_0")), replace(REPLY, played_samples=0))
        session = replace(state.session, reply=reply, earlier=earlier)
        first = encoder.fields(replace(state, session=session))
        assert read_state(first) == replace(state, session=session)
        moved = replace(session, earlier=(earlier[0], replace(REPLY, played_samples=900)))
        second = encoder.fields(replace(state, session=moved))
        assert {name for name in second if second[name] != first[name]} == {"earlier_played"}
    assert "earlier" not in encoder.fields(state)
    first["earlier_played"] = b"[]"
    with pytest.raises(UnreadableStateError, match="damaged"):
        read_state(first)


def test_a_call_goes_on_with_the_agent_that_it_was_handed_to() -> None:
    config = load_config(
        file_text='[agents.sales]\ngreeting = "Sales."\n[agents.billing]\ngreeting = "Bills."\n'
    )
    state = state_with()
    start = resumed_start(config, state)
    assert (start.agent, start.model, start.profile.greeting) == ("sales", "gpt", "Sales.")
    settings = state.session.settings.changed(agent="billing")
    handed = replace(state, session=replace(state.session, settings=settings))
    start = resumed_start(config, read_state(CallStateEncoder().fields(handed)))
    assert (start.agent, start.model, start.profile.greeting) == ("billing", "billing", "Bills.")


def test_items_that_stay_are_not_written_out_again() -> None:
    encoder = CallStateEncoder()
    first = encoder.fields(state_with())
    changed = Message(ItemId("item_6"), "assistant", "audio", "It is sunny", "incomplete")
    second = encoder.fields(state_with(items=(*ITEMS[1:-1], changed), received=8))
    assert {name for name in second if second[name] is first.get(name)} == {
        f"item:item_{number}" for number in (2, 3, 4, 5)
    }
    differing = {name for name in second if second[name] != first.get(name)}
    assert differing == {"head", "order", "item:item_6"}
    assert first.keys() - second.keys() == {"item:item_1"}


def test_a_position_is_a_small_change() -> None:
    encoder = CallStateEncoder()
    first = encoder.fields(state_with())
    second = encoder.fields(state_with(reply=replace(REPLY, played_samples=9_000)))
    assert {name for name in second if second[name] != first[name]} == {"played"}


def test_a_position_costs_no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    num_encoded = 0

    def counted(settings: SessionSettings) -> bytes:
        nonlocal num_encoded
        num_encoded += 1
        return _settings_json(settings)

    monkeypatch.setattr("agent.calls.call_state._settings_json", counted)
    encoder, state = CallStateEncoder(), state_with()
    for number in range(20):
        reply = replace(REPLY, played_samples=number)
        state = replace(state, session=replace(state.session, reply=reply))
        fields = encoder.fields(state)
    assert num_encoded == 1
    changed = state.session.settings.changed(instructions="Sell more.")
    state = replace(state, session=replace(state.session, settings=changed))
    assert encoder.fields(state)["settings"] != fields["settings"]
    assert num_encoded == 2


@pytest.mark.parametrize("number", [FORMAT + 1, 0, "1", None])
def test_another_version_is_refused(number: object) -> None:
    fields = CallStateEncoder().fields(state_with())
    head = {**json.loads(fields["head"]), "format": number}
    with pytest.raises(UnreadableStateError, match="another version"):
        read_state({**fields, "head": json.dumps(head).encode()})


def test_fields_of_a_newer_version_are_passed_over() -> None:
    state = state_with()
    fields = CallStateEncoder().fields(state)
    head = {**json.loads(fields["head"]), "colour": "blue"}
    newer = {**fields, "head": json.dumps(head).encode(), "mood": b"{}"}
    assert read_state(newer) == state


@pytest.mark.parametrize("name", [*CallStateEncoder().fields(state_with())])
@pytest.mark.parametrize(
    "value", [None, b"", b"\xff", b"{}", b"[]", b"5", b'{"message": 5}', b'{"x": {}}']
)
def test_a_damaged_record_is_refused(name: str, value: bytes | None) -> None:
    fields = CallStateEncoder().fields(state_with())
    del fields[name]
    if value is not None:
        fields[name] = value
    if name == "reply" and value is None:
        assert read_state(fields).session.reply is None
        return
    if (name, value) == ("order", b"[]"):
        assert read_state(fields).session.items == ()
        return
    with pytest.raises(UnreadableStateError):
        read_state(fields)


def test_half_a_character_can_not_be_written() -> None:
    item = Message(ItemId("item_1"), "user", "text", "\ud800")
    with pytest.raises(ValueError, match="surrogates"):
        CallStateEncoder().fields(state_with(items=(item,)))


def test_an_order_with_an_item_twice_is_refused() -> None:
    fields = CallStateEncoder().fields(state_with())
    with pytest.raises(UnreadableStateError, match="order"):
        read_state({**fields, "order": b'["item_1", "item_1"]'})
