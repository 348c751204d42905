"""Push-to-talk on the page: what is sent while it is held, in every way that it can be held."""

from collections.abc import Callable
from functools import partial

import pytest
from playwright.sync_api import Page, expect

from tests.support.browser.fake_server import FakeCall, FakeServer, begin_reply, obey, say
from tests.support.browser.pages import Open, remembering, settings_of, talk, tone, updates

pytest_plugins = ["tests.support.browser.fixtures"]
pytestmark = pytest.mark.browser

HALF_SECOND = 12_000
"""Samples at 24 kHz."""

WATCH_LEVEL = """() => {
  let moves = 0;
  const bar = document.getElementById('bottom-bar');
  window.soundArrives = new Promise((resolve) =>
    new MutationObserver(() => (moves += 1) === 10 && resolve()).observe(bar, { attributes: true })
  );
}"""
"""Sound arrives at the page: ten frames in which the meter moved. The fake microphone has a few
seconds of it, from the moment at which it is opened."""


@pytest.fixture
def server(server: FakeServer) -> FakeServer:
    server.script = obey
    return server


def kinds(call: FakeCall) -> list[str]:
    apart = ("session.update", "halfsec.playback")
    return [event["type"] for event in call.events if event["type"] not in apart]


def has(counted: Callable[[], int], number: int) -> bool:
    return counted() == number


def holding(open_page: Open, server: FakeServer) -> tuple[Page, FakeCall]:
    """In a call with push-to-talk, with nothing said yet."""
    page = remembering(open_page, turns="hold")
    page.evaluate(WATCH_LEVEL)
    talk(page).click()
    call = server.wait_for_call()
    expect(page.locator("#phase")).to_contain_text("Hold the button, or Space")
    server.wait_for(lambda: updates(call), "how turns end")
    assert updates(call) == [{"audio": {"input": {"turn_detection": None}}}]
    return page, call


def say_something(server: FakeServer, call: FakeCall) -> None:
    before = len(call.audio)
    server.wait_for(lambda: len(call.audio) >= before + HALF_SECOND, "what is said")


def test_only_what_is_said_while_it_is_held_is_sent(open_page: Open, server: FakeServer) -> None:
    page, call = holding(open_page, server)
    page.evaluate("() => window.soundArrives")
    assert len(call.audio) == 0
    page.locator("#phase").click()
    page.keyboard.down("Space")
    expect(page.locator("#phase")).to_contain_text("Let go when you have finished")
    expect(talk(page)).to_have_attribute("aria-pressed", "true")
    say_something(server, call)
    before = len(kinds(call))
    page.keyboard.up("Space")
    server.wait_for(lambda: call.of_type("response.create"), "the wish for an answer")
    said = len(call.audio)
    assert kinds(call)[before:] == ["input_audio_buffer.commit", "response.create"]
    expect(page.locator("#phase")).to_have_text("Thinking")
    page.wait_for_timeout(500)
    assert len(call.audio) == said


def test_a_slip_of_the_finger_does_no_harm(open_page: Open, server: FakeServer) -> None:
    page, call = holding(open_page, server)
    before = len(kinds(call))
    talk(page).click()
    server.wait_for(lambda: len(kinds(call)) >= before + 2, "what becomes of it")
    assert set(kinds(call)) == {"input_audio_buffer.clear"}
    expect(page.locator("#phase")).to_contain_text("Hold the button")


def test_it_can_be_held_in_every_way(open_page: Open, server: FakeServer) -> None:
    page, call = holding(open_page, server)
    box = talk(page).bounding_box()
    assert box is not None
    x, y = box["x"] + 20, box["y"] + 20
    touch = page.context.new_cdp_session(page)

    def finger(kind: str, *points: dict[str, float]) -> None:
        touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": list(points)})

    def click() -> None:
        talk(page).evaluate("(button) => button.click()")  # as screen readers do

    def press() -> None:
        page.mouse.move(x, y)
        page.mouse.down()

    def key() -> None:
        talk(page).focus()
        page.keyboard.down("Enter")

    ways: list[tuple[Callable[[], object], Callable[[], object]]] = [
        (press, page.mouse.up),
        (lambda: finger("touchStart", {"x": x, "y": y}), lambda: finger("touchEnd")),
        (click, click),
        (key, lambda: page.keyboard.up("Enter")),
        (press, lambda: page.evaluate("dispatchEvent(new Event('blur'))")),
    ]

    def turns() -> int:
        return len(call.of_type("response.create"))

    for count, (hold, let_go) in enumerate(ways, start=1):
        hold()
        expect(talk(page)).to_have_attribute("aria-pressed", "true")
        say_something(server, call)
        let_go()
        server.wait_for(partial(has, turns, count), f"turn {count}")
        expect(talk(page)).to_have_attribute("aria-pressed", "false")
        assert len(call.of_type("input_audio_buffer.commit")) == count


def test_taking_the_floor_interrupts_the_agent(open_page: Open, server: FakeServer) -> None:
    async def script(call: FakeCall) -> None:
        await call.until_event("session.update")
        await begin_reply(call, "item_1")
        await say(call, "item_1", "A very long story.", tone(5.0))

    server.script = script
    page = remembering(open_page, turns="hold")
    talk(page).click()
    call = server.wait_for_call()
    expect(page.locator("#phase")).to_have_text("Speaking: hold to interrupt")
    page.mouse.click(4, 400)
    page.keyboard.down("Space")
    server.wait_for(lambda: call.of_type("conversation.item.truncate"), "what was heard")
    assert call.of_type("response.cancel")
    expect(page.locator(".message.agent[data-state=cut]")).to_be_visible()
    page.keyboard.up("Space")


def test_space_writes_where_one_writes(open_page: Open, server: FakeServer) -> None:
    page, call = holding(open_page, server)
    before = len(kinds(call))
    page.get_by_label("Write to the agent").press_sequentially("one two")
    expect(page.get_by_label("Write to the agent")).to_have_value("one two")
    dialog = settings_of(page)
    dialog.get_by_label("Echo cancellation").focus()
    page.keyboard.press("Space")
    expect(dialog.get_by_label("Echo cancellation")).not_to_be_checked()
    assert len(kinds(call)) == before


def test_what_is_held_before_the_line_is_open_is_not_lost(
    open_page: Open, server: FakeServer
) -> None:
    page = remembering(open_page, turns="hold")
    page.locator("#phase").click()
    page.keyboard.down("Space")
    call = server.wait_for_call()
    say_something(server, call)
    page.keyboard.up("Space")
    server.wait_for(lambda: call.of_type("response.create"), "the turn")
    first, *rest = [event["type"] for event in call.events]
    assert first == "session.update", "before any sound"
    assert rest[-2:] == ["input_audio_buffer.commit", "response.create"]
    page.get_by_role("button", name="End the call").click()
    expect(page.locator("#phase")).to_have_text("Press and talk")


def test_the_sample_question_is_a_turn_with_push_to_talk_too(
    open_page: Open, server: FakeServer
) -> None:
    page = remembering(open_page, turns="hold")
    page.get_by_role("button", name="Play a sample question").click()
    call = server.wait_for_call()
    server.wait_for(lambda: call.of_type("response.create"), "the question")
    assert len(call.audio) > 2 * HALF_SECOND


def test_muted_it_hears_silence(open_page: Open, server: FakeServer) -> None:
    page = open_page()
    talk(page).click()
    call = server.wait_for_call()
    server.wait_for(lambda: bool(call.audio.any()), "speech")
    mute = page.get_by_role("button", name="Mute")
    mute.click()
    expect(mute).to_have_attribute("aria-pressed", "true")
    expect(page.locator("#phase")).to_have_text("Muted: it hears silence")
    before = len(call.audio)
    server.wait_for(lambda: len(call.audio) >= before + 2 * HALF_SECOND, "silence")
    assert not call.audio[-HALF_SECOND:].any()
    mute.click()
    expect(page.locator("#phase")).to_have_text("Listening: go ahead")
