"""A telephone call in virtual time: its keys, and every way in which it can end."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent.errors import StageError
from agent.http.auth.principal import FILE_KEY, Principal
from agent.realtime.socket import SocketEnd, Take
from agent.session.api import server_events as say
from agent.session.api.conversation import ItemId, Message
from agent.session.api.settings import SessionSettings
from agent.telephony.carriers.asterisk import Asterisk
from agent.telephony.carriers.media_stream import Frame
from agent.telephony.media_session import PhoneLine
from agent.telephony.transport import PhoneCall
from latency_budget.account.clock import ManualClock
from tests.agent.telephony.carriers.test_twilio import frame, media
from tests.support.fakes.stages import Calling
from tests.support.telephony.telephony_harness import ScriptedCarrier, TelephonyHarness, play

QUIET = "[telephony]\nidle_prompt_ms = 0\nidle_hangup_ms = 0\n"


def hold(
    tmp_path: Path,
    story: Callable[[TelephonyHarness, ScriptedCarrier], Awaitable[None]],
    *replies: str | Exception | Calling,
    settings: str = QUIET,
    **how: Any,
) -> tuple[TelephonyHarness, ScriptedCarrier]:
    """One call, to its end. Nothing of it is left."""
    kept: list[tuple[TelephonyHarness, ScriptedCarrier]] = []

    async def main(clock: ManualClock) -> None:
        scene = TelephonyHarness(clock, tmp_path, *replies, settings=settings)
        carrier = await scene.call(lambda carrier: story(scene, carrier), **how)
        assert scene.is_empty
        assert scene.chat.closed
        kept.append((scene, carrier))

    play(main)
    return kept[0]


def messages(scene: TelephonyHarness, role: str) -> list[object]:
    return [text for who, text in scene.chat.calls if who == role]


# --- keys ---


def test_keys_are_a_message_when_the_terminator_comes(tmp_path: Path) -> None:
    async def story(scene: TelephonyHarness, carrier: ScriptedCarrier) -> None:
        carrier.press("42#")
        await carrier.until(lambda: len(carrier.heard) > 4000)
        carrier.say(frame("stop"))

    scene, carrier = hold(tmp_path, story, "Thank you.")
    assert messages(scene, "user") == ["(I pressed 4 2 on my telephone.)"]
    assert carrier.closed == (1000, "the carrier ended the stream")


def test_keys_are_a_message_when_no_other_comes(tmp_path: Path) -> None:
    async def story(scene: TelephonyHarness, carrier: ScriptedCarrier) -> None:
        carrier.press("4")
        await asyncio.sleep(1.5)
        carrier.press("2")
        await asyncio.sleep(1.9)
        assert messages(scene, "user") == []
        await asyncio.sleep(0.2)
        carrier.press("7")
        await asyncio.sleep(2.1)
        carrier.say(frame("stop"))

    scene, _ = hold(tmp_path, story)
    assert messages(scene, "user") == [
        "(I pressed 4 2 on my telephone.)",
        "(I pressed 7 on my telephone.)",
    ]


def test_the_first_key_silences_the_agent(tmp_path: Path) -> None:
    async def story(scene: TelephonyHarness, carrier: ScriptedCarrier) -> None:
        await carrier.until(lambda: len(carrier.heard) > 4000)
        carrier.press("1")
        await carrier.until(lambda: "clear" in carrier.events)
        cut = len(carrier.heard)
        await asyncio.sleep(1.9)
        assert len(carrier.heard) <= cut + 800  # the piece that is being played
        carrier.press("2")
        assert carrier.events.count("clear") == 1
        await asyncio.sleep(3)
        carrier.say(frame("stop"))

    greeting = "Welcome to a very long greeting that nobody wants to hear to its end."
    settings = f'{QUIET}[agents.default]\ngreeting = "{greeting}"\n'
    scene, _ = hold(tmp_path, story, "Fine.", settings=settings)
    assert messages(scene, "user") == ["(I pressed 1 2 on my telephone.)"]


# --- ends ---


async def nothing(scene: TelephonyHarness, carrier: ScriptedCarrier) -> None:
    pass


async def stops(scene: TelephonyHarness, carrier: ScriptedCarrier) -> None:
    carrier.say(frame("stop"))


async def closes(scene: TelephonyHarness, carrier: ScriptedCarrier) -> None:
    carrier.leave()


async def breaks(scene: TelephonyHarness, carrier: ScriptedCarrier) -> None:
    carrier.leave(1006)


async def sends_rubbish(scene: TelephonyHarness, carrier: ScriptedCarrier) -> None:
    carrier.say(media("no base64"))


@pytest.mark.parametrize(
    ("story", "how", "closed"),
    [
        (stops, {}, (1000, "the carrier ended the stream")),
        (closes, {}, None),
        (breaks, {}, None),
        (sends_rubbish, {}, (1008, "media.payload is not base64")),
        (nothing, {"silent": True}, (1000, "the client sent nothing for too long")),
    ],
)
def test_however_a_call_ends_nothing_is_left(
    tmp_path: Path,
    story: Callable[[TelephonyHarness, ScriptedCarrier], Awaitable[None]],
    how: dict[str, Any],
    closed: tuple[int, str] | None,
) -> None:
    _, carrier = hold(tmp_path, story, **how)
    if closed is not None:
        assert carrier.closed == closed


def test_a_carrier_that_does_not_read_is_given_up(tmp_path: Path) -> None:
    greeting = "[agents.default]\ngreeting = 'Hello there.'\n"
    _, carrier = hold(tmp_path, nothing, settings=QUIET + greeting, reads=False)
    assert carrier.closed == (1008, "the client does not read what it is sent")


def test_a_call_ends_at_its_limit(tmp_path: Path) -> None:
    async def main(clock: ManualClock) -> None:
        scene = TelephonyHarness(
            clock, tmp_path, settings=f"{QUIET}limit_s = 300\nlimit_notice = ''\n"
        )
        began_ns = clock.now_ns()
        carrier = await scene.call(lambda carrier: nothing(scene, carrier))
        assert (clock.now_ns() - began_ns) // 10**9 == 300
        assert carrier.closed == (1000, "the session reached its time limit")
        assert carrier.events == []
        assert scene.is_empty

    play(main)


def test_a_caller_who_is_told_of_the_limit(tmp_path: Path) -> None:
    settings = f"{QUIET}limit_s = 100\nlimit_notice = 'Soon over.'\n"
    tale = "Once upon a time " + "".join(f"there was king {number} " for number in range(200))

    async def main(clock: ManualClock) -> None:
        scene = TelephonyHarness(clock, tmp_path, tale, settings=settings)
        began_ns = clock.now_ns()
        heard: list[int] = []

        async def story(carrier: ScriptedCarrier) -> None:
            scene.ears.say("Tell me a story.")
            await asyncio.sleep(69)
            assert "clear" not in carrier.events, "still at it"
            await carrier.until(lambda: "clear" in carrier.events)
            heard.append((clock.now_ns() - began_ns) // 10**9)
            before = len(carrier.heard)
            await asyncio.sleep(5)
            heard.append(len(carrier.heard) - before)

        carrier = await scene.call(story)
        assert heard[0] == 70
        assert 0 < heard[1] - 10 * 0.15 * 8000 < 3000  # the notice, and what was being played
        assert carrier.closed == (1000, "the session reached its time limit")

    play(main)


def test_a_caller_who_says_nothing_is_asked_and_then_given_up(tmp_path: Path) -> None:
    greeting = "[agents.default]\ngreeting = 'Hello there.'\n"

    async def main(clock: ManualClock) -> None:
        scene = TelephonyHarness(clock, tmp_path, settings=greeting)
        began_ns = clock.now_ns()
        carrier = await scene.call(lambda carrier: nothing(scene, carrier))
        assert carrier.closed == (1000, "nobody has spoken for too long")
        assert 54 < (clock.now_ns() - began_ns) / 1e9 < 70

    play(main)


def test_a_call_whose_models_fail_is_no_call(tmp_path: Path) -> None:
    async def main(clock: ManualClock) -> None:
        scene = TelephonyHarness(clock, tmp_path)
        scene.stages.fault = StageError("asr", "the detector is gone")
        carrier = await scene.call(lambda carrier: nothing(scene, carrier))
        assert carrier.closed is not None
        assert carrier.closed[0] == 1013
        assert scene.is_empty

    play(main)


def test_a_call_of_a_key_that_was_revoked_ends(tmp_path: Path) -> None:
    async def main(clock: ManualClock) -> None:
        scene = TelephonyHarness(clock, tmp_path)
        scene.principal = Principal("carrier", "key", key_id=f"{FILE_KEY}gone")
        carrier = await scene.call(lambda carrier: nothing(scene, carrier))
        assert carrier.closed == (1008, "the key of this call was revoked")
        assert scene.is_empty

    play(main)


def test_a_call_that_the_server_gives_up_leaves_nothing(tmp_path: Path) -> None:
    async def story(scene: TelephonyHarness, carrier: ScriptedCarrier) -> None:
        scene.ears.say("Hello?")
        await carrier.until(lambda: len(carrier.heard) > 800)
        assert scene.serving is not None
        scene.serving.cancel()

    hold(tmp_path, story, "Good day to you.")


def test_the_same_call_can_come_again_and_again(tmp_path: Path) -> None:
    async def main(clock: ManualClock) -> None:
        scene = TelephonyHarness(clock, tmp_path)
        num_tasks = len(asyncio.all_tasks())
        for number in range(100):
            ends = (stops, closes, sends_rubbish)[number % 3]
            carrier = await scene.call(partial(ends, scene))
            assert carrier.closed is not None
            assert scene.is_empty
            assert len(asyncio.all_tasks()) == num_tasks

    play(main)


# --- what the carrier gets ---


class Link:
    """A `PhoneLink` that keeps what it gets."""

    def __init__(self) -> None:
        self.put_: list[Frame] = []
        self.last: list[Frame] = []
        self.closed: tuple[int, str] | None = None

    def put(self, frame: Frame) -> None:
        self.put_.append(frame)

    def forget(self) -> None:
        self.put_.clear()

    async def carry(self, take: Take) -> SocketEnd:
        return SocketEnd.HUNG_UP

    def stop(self) -> None: ...

    async def send_last(self, frames: Iterable[Frame]) -> None:
        self.last += frames

    def release(self, code: int, reason: str = "") -> None:
        self.closed = code, reason


def on_asterisk() -> tuple[PhoneCall, Link, PhoneLine]:
    line, link = PhoneLine(Asterisk()), Link()
    assert line.open("MEDIA_START connection_id:c channel:x format:ulaw optimal_frame_size:160")
    return PhoneCall(line, link, ManualClock()), link, line


async def test_the_carrier_is_told_before_its_stream_is_closed() -> None:
    phone, link, _ = on_asterisk()
    await phone.end(1000, "the session reached its time limit")
    assert link.last == ["HANGUP"]
    assert link.closed == (1000, "the session reached its time limit")


def test_a_full_queue_gets_nothing_until_there_is_room() -> None:
    phone, link, line = on_asterisk()
    item_id = ItemId("item_1")
    phone.notify(say.ReplyStarted("resp_1", item_id, None, "audio", SessionSettings()))
    line.receive("MEDIA_XOFF")
    phone.notify(say.ReplyAudio("resp_1", np.zeros(160, np.int16), 8_000))
    assert link.put_ == []
    line.receive("MEDIA_XON")
    phone.notify(say.ReplyAudio("resp_1", np.zeros(160, np.int16), 8_000))
    assert [len(each) for each in link.put_] == [160, 12, 160, 12]


def test_who_has_said_goodbye_hangs_up_unless_the_caller_says_more() -> None:
    item_id = ItemId("item_1")
    said: tuple[say.Notice, ...] = (
        say.AudioCommitted(item_id, None),
        say.ItemAdded(Message(item_id, "user", "text", ""), None),
        say.ItemAdded(Message(item_id, "assistant", "text", ""), None),
    )
    ends = []
    for notice in said:
        phone, _, _ = on_asterisk()
        phone.ends_after_reply = True
        phone.notify(notice)
        ends.append(phone.ends_after_reply)
    # A result of a tool in the background is a message of the agent's.
    assert ends == [False, False, True]
