"""The page's display of a turn, of tools, and of words as they are spoken."""

import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect

from tests.support.browser.fake_server import (
    WIRE_RATE_HZ,
    FakeCall,
    FakeServer,
    begin_reply,
    end_reply,
    hear,
    reply,
    say,
)
from tests.support.browser.pages import Open, tone

pytest_plugins = ["tests.support.browser.fixtures"]
pytestmark = pytest.mark.browser

QUESTION = "What should I cook for dinner tonight?"
ANSWER = "How about an omelette?"
TURN: dict[str, Any] = {
    "turn": 1,
    "caller_text": QUESTION,
    "agent_text": ANSWER,
    "e2e_ear_ms": 412.0,
    "e2e_server_ms": 390.0,
    "cut_in": False,
    "interrupted": False,
    "stages": {
        "endpoint": {"spent_ms": 330.0, "exposed_ms": 330.0},
        "tts": {"spent_ms": 82.0, "exposed_ms": 82.0},
    },
    "reply_s": 0.5,
}

COUNT_FRAMES = """() => {
const ask = requestAnimationFrame;
globalThis.numFrames = 0;
globalThis.requestAnimationFrame = (draw) => {
  numFrames += 1;
  return ask(draw);
};
}"""


class Steps:
    """A script waits at each of them until the test has come so far."""

    def __init__(self) -> None:
        self._num_taken = 0

    def take(self) -> None:
        self._num_taken += 1

    async def until(self, number: int, call: FakeCall) -> None:
        """Looked at with every frame of the page's, and it sends its microphone all the time."""
        await call.until(lambda: self._num_taken >= number)


@pytest.fixture
def steps() -> Steps:
    return Steps()


async def mark(call: FakeCall, turn: int | None, name: str, at_ms: float, now_ms: float) -> None:
    fields = {"turn": turn, "name": name, "at_ms": at_ms, "now_ms": now_ms, "guess": False}
    await call.send("halfsec.mark", **fields)


async def marks_of_a_pause(call: FakeCall, at_ms: float) -> None:
    """Known 160 ms after the caller's last word, which was at `at_ms`."""
    for name, after_ms in (("speech_paused", 85), ("asr_start", 90), ("asr_final", 150)):
        await mark(call, None, name, at_ms + after_ms, at_ms + 160)
    await mark(call, None, "caller_last_voiced", at_ms, at_ms + 160)
    await mark(call, None, "audio_received", at_ms + 8, at_ms + 160)


def press_talk(page: Page, server: FakeServer) -> FakeCall:
    page.get_by_role("button", name="Press and talk").click()
    return server.wait_for_call()


def figure(page: Page) -> int:
    text = page.locator(".turn.live strong").text_content() or ""
    found = re.fullmatch(r"(\d+) ms", text)
    assert found, text
    return int(found[1])


async def a_turn(call: FakeCall, steps: Steps) -> None:
    await call.send("input_audio_buffer.speech_started", item_id="item_1", audio_start_ms=0)
    await marks_of_a_pause(call, 1000)
    await steps.until(1, call)
    await mark(call, None, "void", 1400, 1400)
    await steps.until(2, call)
    await marks_of_a_pause(call, 3000)
    await hear(call, "item_1", QUESTION)
    await mark(call, None, "endpoint", 3330, 3331)
    await steps.until(3, call)
    await mark(call, 1, "released", 3390, 3391)
    await reply(call, "item_2", [(ANSWER, tone(0.5))])
    await steps.until(4, call)
    await call.send("halfsec.turn", turn=TURN)


def test_a_turn_is_drawn_while_it_happens(
    open_page: Open, server: FakeServer, steps: Steps
) -> None:
    server.script = partial(a_turn, steps=steps)
    page = open_page()
    page.evaluate(COUNT_FRAMES)
    press_talk(page, server)
    live = page.locator(".turn.live")
    expect(live).to_have_attribute("data-now", "endpoint")
    expect(live.locator(".turn-note")).to_have_text("End of turn")
    # It begins with the time that has passed already, and goes on by itself.
    first = figure(page)
    assert first >= 160
    page.wait_for_function("(first) => parseInt(document.querySelector('.live strong').textContent)"
                           " > first + 50", arg=first)  # fmt: skip
    assert live.locator("xpath=ancestor-or-self::*[@aria-hidden='true']").count() == 1
    steps.take()
    expect(live).to_have_count(0)
    steps.take()
    expect(live.locator(".turn-note")).to_have_text(re.compile("Recognition|Reading"))
    steps.take()
    # Where the account will stand, and still.
    heard = page.locator(".message.agent .turn.live")
    expect(heard.locator(".turn-note")).to_have_text("from your last word to the first sound")
    assert heard.locator(".turn-part").first.get_attribute("data-stage") == "capture"
    assert page.locator("#transcript .at-end").count() == 0
    frames = page.evaluate("numFrames")
    assert frames > 3
    call = server.calls[0]
    heard_ms = figure(page)
    sent = len(call.audio)
    server.wait_for(lambda: len(call.audio) >= sent + WIRE_RATE_HZ // 2, "half a second of audio")
    assert page.evaluate("numFrames") == frames
    assert figure(page) == heard_ms
    said = page.locator("#announcer p")
    expect(said.last).to_have_text(f"Agent: {ANSWER}")
    steps.take()
    expect(live).to_have_count(0)
    expect(page.locator(".message.agent .turn")).to_have_attribute("data-wait-ms", "412")
    expect(said.last).to_have_text("Answered after 412 milliseconds.")
    assert not [text for text in said.all_text_contents() if "End of turn" in text]


def test_reduced_motion_is_respected(open_page: Open, server: FakeServer, steps: Steps) -> None:
    server.script = partial(a_turn, steps=steps)
    page = open_page(reduced_motion="reduce")
    page.evaluate(COUNT_FRAMES)
    press_talk(page, server)
    expect(page.locator(".turn.live")).to_have_attribute("data-now", "endpoint")
    for _ in range(3):
        steps.take()
    expect(page.locator(".message.agent .turn.live .turn-note")).to_have_text(
        "from your last word to the first sound"
    )
    assert page.evaluate("numFrames") == 0


def test_a_broken_connection_takes_the_bar_away(
    open_page: Open, server: FakeServer, steps: Steps
) -> None:
    async def script(call: FakeCall) -> None:
        await hear(call, "item_1", QUESTION)
        await marks_of_a_pause(call, 1000)
        await steps.until(1, call)
        await call.close(1011)

    server.script = script
    page = open_page(expect_errors=True)  # Chromium's own lines about the lost server
    press_talk(page, server)
    expect(page.locator(".turn.live")).to_be_visible()
    server.full = True
    steps.take()
    expect(page.locator(".turn.live")).to_have_count(0)
    page.get_by_role("button", name="End the call").click()


def test_marks_before_the_bar_is_fetched_are_drawn(open_page: Open, server: FakeServer) -> None:
    """The code of the bar comes when the call begins: marks may be there first."""

    async def script(call: FakeCall) -> None:
        await marks_of_a_pause(call, 1000)
        await hear(call, "item_1", QUESTION)

    server.script = script
    page = open_page()
    held: list[Route] = []
    page.route("**/call-views.js", lambda route: held.append(route))
    press_talk(page, server)
    expect(page.locator(".message.caller")).to_contain_text(QUESTION)
    expect(page.locator(".turn.live")).to_have_count(0)
    held.pop().continue_()
    live = page.locator(".turn.live")
    expect(live).to_have_attribute("data-now", "endpoint")
    # The time that it was held back counts: the caller has waited for it.
    assert figure(page) > 160


def test_words_are_marked_as_they_are_played(open_page: Open, server: FakeServer) -> None:
    words = "one two three four five six seven eight nine ten eleven twelve"

    async def script(call: FakeCall) -> None:
        await begin_reply(call, "item_1")
        # Little ahead of what is heard, as the server does: the rest of the audio comes later.
        voice = tone(6.0)
        await say(call, "item_1", words, voice[: WIRE_RATE_HZ // 2])
        await call.until(lambda: any(e["played_ms"] >= 300 for e in played(call)))
        for start in range(WIRE_RATE_HZ // 2, len(voice), WIRE_RATE_HZ // 2):
            await say(call, "item_1", "", voice[start : start + WIRE_RATE_HZ // 2])
        await call.until(lambda: any(e["played_ms"] >= 3000 for e in played(call)))
        await call.send("input_audio_buffer.speech_started", item_id="item_2", audio_start_ms=0)
        await end_reply(call, "item_1", "cancelled")

    server.script = script
    page = open_page()
    page.evaluate("""() => {
        globalThis.seen = new Set();
        new MutationObserver(() => {
            const now = document.querySelector('.message.agent .now');
            if (now) seen.add(now.textContent.trim());
        }).observe(document.getElementById('transcript'), { childList: true, subtree: true });
    }""")
    call = press_talk(page, server)
    expect(page.locator(".message.agent")).to_have_attribute("data-state", "cut")
    expect(page.locator(".message.agent .now")).to_have_count(0)
    cut_ms = call.of_type("conversation.item.truncate")[0]["audio_end_ms"]
    heard = (page.locator(".message.agent .sure").text_content() or "").split()
    unheard = (page.locator(".message.agent del").text_content() or "").split()
    assert [*heard, *unheard] == words.split()
    # By the letters, for the voice never said how long it takes: 63 of them in 6 s.
    assert abs(len(heard) - 12 * cut_ms / 6000) <= 3
    seen = page.evaluate("[...seen]")
    assert [word for word in words.split() if word in seen] == heard[: len(seen)] == seen


def played(call: FakeCall) -> list[dict[str, Any]]:
    return call.of_type("halfsec.playback")


def test_tool_calls_are_shown(open_page: Open, server: FakeServer, steps: Steps) -> None:
    async def script(call: FakeCall) -> None:
        await hear(call, "item_1", "Will it rain?")
        for name in ("weather", "weather", "<b>calendar"):
            await call.send("halfsec.tool", item_id="item_2", name=name, state="started", ms=0)
        for state in ("started", "background"):
            await call.send("halfsec.tool", item_id="item_2", name="flights", state=state, ms=0)
        await steps.until(1, call)
        for name, state in (("weather", "done"), ("<b>calendar", "failed"), ("flights", "done")):
            await call.send("halfsec.tool", item_id="item_2", name=name, state=state, ms=120)
        await reply(call, "item_2", [("It will.", tone(0.1))])

    server.script = script
    page = open_page()
    press_talk(page, server)
    lines = page.locator("#transcript .tool")
    begun = [f"Looking that up: {name} …" for name in ("weather", "weather", "<b>calendar")]
    expect(lines).to_have_text([*begun, "Looking that up in the background: flights …"])
    steps.take()
    expect(lines).to_have_text(
        [
            "Looking that up: weather … done, 120 ms",
            "Looking that up: weather …",
            "Looking that up: <b>calendar … failed, 120 ms",
            "Looking that up: flights … done, 120 ms",
        ]
    )
    page.get_by_role("button", name="End the call").click()
    expect(lines.nth(1)).to_have_text("Looking that up: weather … cancelled")
    assert page.locator("#transcript b").count() == 0


def test_a_handoff_is_told(open_page: Open, server: FakeServer) -> None:
    async def script(call: FakeCall) -> None:
        await call.send("halfsec.handoff", **{"from": "desk", "to": "<b>billing"})

    server.script = script
    page = open_page()
    page.get_by_role("button", name="Press and talk").click()
    expect(page.locator("#transcript .divider")).to_have_text("You talk to <b>billing now")
    page.locator("#download summary").click()
    with page.expect_download() as found:
        page.get_by_role("button", name="Transcript").click()
    text = Path(found.value.path()).read_text(encoding="utf-8")
    assert "The agent desk handed the call over to \\<b\\>billing." in text


def test_what_is_written_without_a_connection_waits_for_one(
    open_page: Open, server: FakeServer
) -> None:
    async def script(call: FakeCall) -> None:
        created = await call.until_event("conversation.item.create")
        await call.send("conversation.item.added", item={"id": "item_1", **created["item"]})
        await call.until_event("response.create")
        await reply(call, "item_2", [("I do now.", tone(0.1))])

    server.script = script
    server.full = True
    page = open_page(expect_errors=True)
    field = page.get_by_label("Write to the agent")
    field.fill("Do you hear me?")
    page.keyboard.press("Enter")
    waiting = page.locator(".message.caller")
    expect(waiting).to_have_attribute("data-state", "unsent")
    expect(waiting.locator(".words")).to_have_text("Do you hear me?")
    expect(field).to_have_value("")
    server.full = False
    expect(page.locator(".message.agent[data-state=done]")).to_have_count(1)
    expect(page.locator(".message.caller")).to_have_count(1)
    expect(page.locator(".message.caller")).to_have_attribute("data-state", "done")
    assert len(server.calls[0].of_type("conversation.item.create")) == 1


def test_long_texts_are_written_in_several_lines_and_never_cut(
    open_page: Open, server: FakeServer
) -> None:
    page = open_page()
    field = page.get_by_label("Write to the agent")
    height = field.bounding_box()
    field.focus()
    page.keyboard.type("one")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("two")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("three")
    grown = field.bounding_box()
    assert height
    assert grown
    assert grown["height"] > 1.5 * height["height"]
    field.evaluate("(field) => (field.value = 'a'.repeat(4010))")
    page.keyboard.press("Enter")
    note = page.locator("#text-note")
    expect(note).to_have_text("10 characters too long for one message.")
    expect(field).to_have_attribute("aria-invalid", "true")
    assert server.calls == []
    field.fill("one\ntwo")
    expect(note).to_be_empty()
    page.keyboard.press("Enter")
    call = server.wait_for_call()
    server.wait_for(lambda: call.of_type("response.create"), "a question")
    (created,) = call.of_type("conversation.item.create")
    assert created["item"]["content"] == [{"type": "input_text", "text": "one\ntwo"}]
    assert server.num_refused == 0
