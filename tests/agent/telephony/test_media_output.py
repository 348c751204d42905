"""Frames of a reply to carriers: whole, marked, and no more than they can play."""

import base64
import json
from dataclasses import dataclass

import numpy as np
import pytest

from agent.codec.g711 import mulaw_decode, mulaw_encode
from agent.session.api import client_events as ask
from agent.session.api.conversation import ItemId
from agent.telephony.carriers.media_stream import Frame, MediaStreamProtocol, StreamStarted
from agent.telephony.media_output import MAX_HELD_MS, PhoneOutput
from tests.agent.telephony.carriers.test_carriers import ASTERISK, EXOTEL, VONAGE, Vectors, begun

FIRST, SECOND = ItemId("item_1"), ItemId("item_2")
HALF = 4000
"""Samples of half a second."""


@dataclass
class Sent:
    audio: bytes
    marks: list[str]


def started(vectors: Vectors) -> PhoneOutput:
    assert isinstance(vectors.started, StreamStarted)
    return PhoneOutput(begun(vectors), vectors.started.media)


def on_asterisk() -> tuple[PhoneOutput, MediaStreamProtocol]:
    dialect = begun(ASTERISK)
    return PhoneOutput(dialect, ASTERISK.started.media), dialect


def sent_by(output: PhoneOutput) -> Sent:
    audio, marks = b"", []
    for frame in output.take_frames():
        if isinstance(frame, bytes):
            audio += frame
            continue
        fields = json.loads(frame)
        if "media" in fields:
            audio += base64.b64decode(fields["media"]["payload"])
        else:
            name = fields.get("mark", fields.get("payload", {})).get("name")
            marks.append(name or fields.get("correlation_id", fields.get("command")))
    return Sent(audio, marks)


def voice(num_samples: int, first: int = 0) -> np.ndarray[tuple[int], np.dtype[np.int16]]:
    """Of which every sample can be told from its neighbours, and none is silence."""
    return (1000 + (first + np.arange(num_samples)) % 7000).astype(np.int16)


@pytest.mark.parametrize("vectors", [EXOTEL, VONAGE], ids=["Exotel", "Vonage"])
def test_pieces_are_put_together_and_only_the_end_is_filled_up(vectors: Vectors) -> None:
    output = started(vectors)
    output.begin(FIRST)
    sizes, whole = (810, 803, 50, 3, 900), b""
    for number, size in enumerate(sizes):
        output.append(FIRST, voice(size, sum(sizes[:number])))
        sent = sent_by(output)
        assert len(sent.audio) % 320 == 0
        whole += sent.audio
    output.end(FIRST)
    whole += sent_by(output).audio
    said = voice(sum(sizes)).astype("<i2").tobytes()
    assert whole.startswith(said), "no gap within"
    assert len(whole) - len(said) < 320
    assert set(whole[len(said) :]) == {0}


def test_a_mark_is_no_further_than_what_was_sent() -> None:
    output = started(VONAGE)
    output.begin(FIRST)
    output.append(FIRST, voice(810))  # 100 ms and a bit: five frames
    (first,) = sent_by(output).marks
    output.append(FIRST, voice(100))  # less than a frame, both bits together
    assert sent_by(output) == Sent(b"", [])
    output.end(FIRST)
    (second,) = sent_by(output).marks
    assert output.reached(first) == [ask.PlaybackReport(FIRST, 100)]
    assert output.reached(second) == [ask.PlaybackReport(FIRST, round(910 / 8))]


def test_the_end_of_a_reply_is_not_the_beginning_of_the_next() -> None:
    output, _ = on_asterisk()
    for item_id, size in ((FIRST, 250), (SECOND, 160)):
        output.begin(item_id)
        output.append(item_id, voice(size))
        output.end(item_id)
        sent = sent_by(output)
        heard = mulaw_decode(sent.audio)
        assert len(heard) % 160 == 0
        assert np.array_equal(heard[:size], mulaw_decode(mulaw_encode(voice(size))))
        assert not heard[size:].any()
        output.reached(sent.marks[-1])
    assert output.is_played


def test_what_was_cleared_leaves_nothing_behind() -> None:
    output, _ = on_asterisk()
    output.begin(FIRST)
    output.append(FIRST, voice(250))
    sent_by(output)
    output.clear()
    assert output.take_cleared()
    assert not output.take_cleared()
    assert sent_by(output) == Sent(b"", ["FLUSH_MEDIA"])
    output.begin(SECOND)
    output.append(SECOND, voice(160))
    assert sent_by(output).audio == mulaw_encode(voice(160))


def test_a_sound_that_was_never_taken_is_cleared_too() -> None:
    """There is no mark behind it."""
    output, _ = on_asterisk()
    output.takes_audio = False
    output.play(voice(160))
    assert output.take_frames() == []
    output.clear()
    assert sent_by(output) == Sent(b"", ["FLUSH_MEDIA"])


def held(output: PhoneOutput, item_id: ItemId) -> list[ask.Request]:
    """More of it than is kept behind a full queue."""
    asked: list[ask.Request] = []
    for _ in range(MAX_HELD_MS // 500 + 1):
        asked += output.append(item_id, voice(HALF))
    return asked


def test_nobody_waits_for_ever_for_a_carrier_that_plays_nothing() -> None:
    output, _ = on_asterisk()
    output.begin(FIRST)
    output.append(FIRST, voice(HALF))
    (first,) = sent_by(output).marks
    output.reached(first)
    output.append(FIRST, voice(HALF))  # is in its queue for good
    sent_by(output)
    output.takes_audio = False
    assert held(output, FIRST) == [ask.PlaybackReport(FIRST, 500), ask.CancelResponse()]
    assert sent_by(output) == Sent(b"", ["FLUSH_MEDIA"])
    for _ in range(3):  # until the session has heard of it
        assert output.append(FIRST, voice(HALF)) == []
    assert sent_by(output) == Sent(b"", [])


def test_of_a_reply_that_is_over_the_history_is_cut_all_the_same() -> None:
    output, _ = on_asterisk()
    output.takes_audio = False
    output.begin(FIRST)
    output.append(FIRST, voice(HALF))
    output.end(FIRST)
    output.begin(SECOND)
    assert held(output, SECOND) == [
        ask.TruncateItem(FIRST, 0),
        ask.PlaybackReport(SECOND, 0),
        ask.CancelResponse(),
    ]


def test_a_queue_that_has_room_again_gets_all_that_waited() -> None:
    output, _ = on_asterisk()
    output.begin(FIRST)
    output.takes_audio = False
    for _ in range(3):
        output.append(FIRST, voice(HALF))
    frames: list[Frame] = output.take_frames()
    assert frames == []
    output.takes_audio = True
    assert len(sent_by(output).audio) == 3 * HALF
    output.takes_audio = False
    for _ in range(MAX_HELD_MS // 500):
        assert output.append(FIRST, voice(HALF)) == [], "it counts from here on"
