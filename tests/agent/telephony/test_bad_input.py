"""What carriers may send that they should not, and what they may leave out, in virtual time. What
is no stream, and a second stream of a call: `test_live.py`, over real sockets."""

import asyncio
import base64
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from agent.calls.service import LINES_OF_ADDRESS
from agent.calls.session_start import SessionStart, session_start
from agent.config.access import AccessSettings
from agent.http.auth.principal import ANYONE
from agent.telephony.carriers.asterisk import Asterisk
from agent.telephony.carriers.audiosocket import AudioSocket
from agent.telephony.carriers.json_media_stream import MAX_FRAME, MAX_FRAME_MARKS, MAX_TEXT
from agent.telephony.carriers.media_stream import (
    FlowChanged,
    Frame,
    MarkReached,
    PhoneEvent,
    StreamError,
)
from agent.telephony.carriers.twilio import Twilio
from agent.telephony.endpoint import MAX_OPENING_CHARS, _described
from agent.telephony.media_session import PhoneLine
from latency_budget.account.clock import ManualClock
from tests.agent.telephony.carriers.test_carriers import (
    ALL,
    ASTERISK,
    EXOTEL,
    JAMBONZ,
    PLIVO,
    TELNYX,
    VONAGE,
    Vectors,
)
from tests.agent.telephony.carriers.test_twilio import frame, media, start
from tests.agent.telephony.test_call_detail_record import record_of
from tests.agent.telephony.test_transport import QUIET, hold, messages
from tests.support.telephony.telephony_harness import (
    CHAR_S,
    SILENCE,
    ScriptedCarrier,
    TelephonyHarness,
    play,
)

Story = Callable[[TelephonyHarness, ScriptedCarrier], Awaitable[None]]

GREETING = "Welcome to the house by the sea where everybody is welcome at every hour of the day."
GREETS = f'{QUIET}[agents.default]\ngreeting = "{GREETING}"\n'


@pytest.mark.parametrize("minutes", [1, 5])
def test_minutes_of_audio_at_once_delay_nothing_that_follows(tmp_path: Path, minutes: int) -> None:
    """What is more than `access.burst_s` ahead of time is dropped: it would be late for ever."""
    took_s: list[float] = []

    async def story(scene: TelephonyHarness, carrier: ScriptedCarrier) -> None:
        second = base64.b64encode(bytes(8000)).decode()
        for _ in range(60 * minutes):
            carrier.say(media(second))
        began_ns = scene.clock.now_ns()
        carrier.press("1#")
        await carrier.until(lambda: len(carrier.heard) > 800)
        took_s.append((scene.clock.now_ns() - began_ns) / 1e9)
        scene.ears.say("Hello?")
        before = len(carrier.heard)
        await carrier.until(lambda: len(carrier.heard) > before + 800)
        carrier.say(frame("stop"))

    users: list[object] = []

    async def tells(scene: TelephonyHarness, carrier: ScriptedCarrier) -> None:
        await story(scene, carrier)
        users.extend(messages(scene, "user"))

    record = record_of(tmp_path, tells, settings=QUIET)
    assert users == ["(I pressed 1 on my telephone.)", "Hello?"]
    assert took_s[0] < 5, "of virtual time: nothing of the minutes was waited for"
    dropped = 60 * minutes - AccessSettings().burst_s
    assert max(0, dropped) <= record.lost_frames <= max(0, dropped + 10)


def test_where_marks_never_come_back_the_clock_says_what_was_heard(tmp_path: Path) -> None:
    async def story(scene: TelephonyHarness, carrier: ScriptedCarrier) -> None:
        await asyncio.sleep(20 * CHAR_S)
        scene.ears.say("Stop.")
        await asyncio.sleep(10)
        assert "mark" in carrier.events
        carrier.say(frame("stop"))

    scene, _ = hold(tmp_path, story, settings=GREETS, plays=False)
    (heard, *_) = messages(scene, "assistant")
    assert isinstance(heard, str)
    assert heard
    assert GREETING.startswith(heard)
    assert len(heard) <= 20 + 5, "what was sent ahead may count as heard, and no more"


class FullTwilio(Twilio):
    """With a queue that is full from this mark on, as Asterisk's is whose channel plays nothing."""

    def receive(self, frame: Frame) -> list[PhoneEvent]:
        return [
            FlowChanged(takes_audio=False) if event == MarkReached("full") else event
            for event in super().receive(frame)
        ]


def test_of_a_reply_that_is_never_played_nothing_was_heard(tmp_path: Path) -> None:
    tale = "It is a long tale. " * 20

    async def story(scene: TelephonyHarness, carrier: ScriptedCarrier) -> None:
        carrier.say(frame("mark", mark={"name": "full"}))
        scene.ears.say("Tell me a tale.")
        await asyncio.sleep(30)
        assert len(scene.calls) == 1
        scene.ears.say("Hello?")
        await asyncio.sleep(10)
        carrier.say(frame("stop"))

    scene, carrier = hold(tmp_path, story, tale, "Yes?", dialect=FullTwilio())
    assert len(carrier.heard) / 8000 < 10
    assert messages(scene, "user") == ["Tell me a tale.", "Hello?"]
    assert ("truncate", 0) in scene.chat.calls


class ConsiderateTwilio(Twilio):
    """As an Asterisk whose phone suppresses silence: nothing comes while nobody speaks."""

    sends_silence = False


def test_a_caller_who_is_silent_on_a_line_that_sends_no_silence_stays(tmp_path: Path) -> None:
    async def story(scene: TelephonyHarness, carrier: ScriptedCarrier) -> None:
        await asyncio.sleep(300)
        scene.ears.say("Hello?")
        await carrier.until(lambda: len(carrier.heard) > 800)
        carrier.say(frame("stop"))

    how: dict[str, Any] = {"settings": QUIET, "silent": True}
    record = record_of(tmp_path, story, dialect=ConsiderateTwilio(), **how)
    assert record.cause == "caller_hung_up"
    assert record.ended_unix_ns - record.began_unix_ns > 300e9
    assert record_of(tmp_path, story, **how).cause == "lost", "other carriers have gone then"


def test_who_sends_silence_and_who_says_goodbye() -> None:
    assert not Asterisk.sends_silence
    assert not AudioSocket.sends_silence
    for vectors in (TELNYX, EXOTEL, PLIVO, VONAGE, JAMBONZ):
        assert vectors.make().sends_silence
    assert Twilio.says_stop
    assert not Asterisk.says_stop


@pytest.mark.parametrize(
    ("vectors", "name"),
    [
        (TELNYX, "sample_rate"),
        (EXOTEL, "sample_rate"),
        (PLIVO, "sampleRate"),
        (JAMBONZ, "sampleRate"),
    ],
)
def test_numbers_may_be_texts(vectors: Vectors, name: str) -> None:
    bare = str(vectors.start).replace('"8000"', "8000")
    assert f'"{name}": 8000' in bare
    for first in (bare, bare.replace("8000", '"8000"')):
        assert vectors.make().receive(first) == [vectors.started]


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (start(), "start came twice"),
        (media(SILENCE).replace("MZ", "MY"), "another stream"),
        (media("%%%"), "not base64"),
        (media(base64.b64encode(bytes(10)).decode()[:-1]), "not base64"),
        (frame("dtmf", dtmf={"digit": 4}), "dtmf.digit"),
        (frame("mark", mark={"name": ["a"]}), "mark.name"),
        ("[]", "one JSON object"),
        ("x" * 70_000, "70000 characters"),
        (b"\x00", "binary"),
    ],
)
def test_what_is_bad_in_the_middle_of_a_call_ends_it_and_no_more_is_said(
    tmp_path: Path, sent: str | bytes, reason: str
) -> None:
    async def story(scene: TelephonyHarness, carrier: ScriptedCarrier) -> None:
        await carrier.until(lambda: len(carrier.heard) > 4000)
        if isinstance(sent, bytes):
            carrier._said.put_nowait({"type": "websocket.receive", "bytes": sent})
        else:
            carrier.say(sent)

    _, carrier = hold(tmp_path, story, settings=GREETS)
    assert carrier.closed is not None
    code, said = carrier.closed
    assert code == 1008
    assert reason in said
    assert len(carrier.heard) / 8000 < len(GREETING) * CHAR_S / 2


# --- what a stream may hold before it says what call it is ---


class Opening:
    """The frames of a stream's beginning, one after the other."""

    def __init__(self, *frames: Frame) -> None:
        self.frames = list(frames)

    async def frame(self) -> Frame:
        return self.frames.pop(0)


async def described(vectors: Vectors, *frames: Frame) -> PhoneLine:
    socket: Any = Opening(*frames)
    line = PhoneLine(vectors.make())
    assert await _described(socket, line) is line.started
    return line


@pytest.mark.parametrize("vectors", [TELNYX, EXOTEL, PLIVO, VONAGE, JAMBONZ, ASTERISK])
async def test_a_frame_of_many_values_is_refused_unparsed(
    vectors: Vectors, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = ['{"event":"x","a":[' + value * (MAX_FRAME_MARKS + 1) for value in ("[],", "1,")]
    assert max(map(len, frames)) < min(MAX_OPENING_CHARS, MAX_FRAME)
    monkeypatch.setattr("json.loads", None)
    for each in frames:
        with pytest.raises(StreamError, match="brackets and commas; at most 1024"):
            await described(vectors, each)


async def test_a_long_opening_is_refused_unparsed(monkeypatch: pytest.MonkeyPatch) -> None:
    longest = f'{{"event":"{"x" * (MAX_OPENING_CHARS - 12)}"}}'
    socket: Any = Opening(longest, longest, start())
    monkeypatch.setattr("json.loads", lambda text, **_: {"event": text[10:-2]})
    line = PhoneLine(Twilio())
    read: list[Frame] = []
    monkeypatch.setattr(line, "open", read.append)
    with pytest.raises(StreamError, match="none of them says what call it is"):
        await _described(socket, line)
    assert (read, socket.frames) == ([longest], [start()])


@pytest.mark.parametrize("vectors", ALL)
async def test_openings_of_carriers_are_a_quarter_of_what_is_taken(vectors: Vectors) -> None:
    opening = (*vectors.before, vectors.start)
    assert (await described(vectors, *opening)).started == vectors.started
    assert 4 * sum(map(len, opening)) < MAX_OPENING_CHARS


async def test_a_start_with_thirty_long_parameters_is_taken() -> None:
    text = "Ann, who called on Monday, asks for an invoice, "
    parameters = {f"name{number}": (text * 10)[: MAX_TEXT - 30] for number in range(30)}
    socket: Any = Opening('{"event":"connected"}', start(customParameters=parameters))
    described_ = await _described(socket, PhoneLine(Twilio()))
    assert described_.parameters == parameters


# --- who holds how many lines ---


def test_telephone_lines_count_for_no_address(
    tmp_path: Path,
) -> None:
    async def main(clock: ManualClock) -> None:
        scene = TelephonyHarness(clock, tmp_path, settings="[access]\ncalls_per_address = 1\n")
        assert scene.config.access == AccessSettings(calls_per_address=1)
        scope = {"client": ("192.0.2.7", 5000)}
        began = session_start(scene.config, ANYONE, None)
        assert isinstance(began, SessionStart)
        service = scene.call_service
        for where, refused in ((None, None), (scope, LINES_OF_ADDRESS)):
            assert service.refusal(ANYONE, where, lambda *_: False) is None, "beside the others"
            service.admit(ANYONE, where, began, service.phone_rules)
            assert service.refusal(ANYONE, where, lambda *_: False) == refused
        assert len(scene.calls) == 2

    play(main)
