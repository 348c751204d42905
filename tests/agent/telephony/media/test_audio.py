"""Sound on its way through a call: no seams at any rate, no drift, no wrapping at full level."""

import base64
import itertools
import json
import random
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pytest

import asr
from agent.codec.g711 import mulaw_decode, mulaw_encode
from agent.session.api import client_events as ask
from agent.session.api import server_events as say
from agent.session.api.conversation import ItemId
from agent.session.api.settings import SessionSettings
from agent.session.ports.playback import FRAME_MS, Playback
from agent.stages.call_audio import GuardedStream
from agent.telephony.carriers.asterisk import Asterisk
from agent.telephony.carriers.media_stream import Frame
from agent.telephony.carriers.twilio import Twilio
from agent.telephony.media_session import PhoneLine
from tests.agent.telephony.carriers.test_twilio import media, start
from tts.resample import StreamResampler

Int16 = npt.NDArray[np.int16]
Float = npt.NDArray[np.floating[Any]]

TONE_HZ: Final = 1000
LEVEL: Final = 8000
LEAD_MS: Final = 200
SHIFT_S: Final = 2e-4
"""Of a word's place: soxr at a variable rate leaves a tenth of a millisecond."""
NS: Final = 1_000_000_000


class Ears:
    """A detector that keeps what it hears: float32 at 16 kHz."""

    def __init__(self) -> None:
        self.heard: list[npt.NDArray[np.float32]] = []

    def probability(self, frame: npt.NDArray[np.float32], state: asr.VadState) -> float:
        self.heard.append(frame.copy())
        return 0.0


def tone(rate_hz: int, seconds: float, hz: int = TONE_HZ) -> Int16:
    angle = 2 * np.pi * hz * np.arange(round(rate_hz * seconds)) / rate_hz
    pcm: Int16 = np.rint(LEVEL * np.sin(angle)).astype(np.int16)
    return pcm


def line_at(form: str) -> PhoneLine:
    """A call whose audio travels like that."""
    line = PhoneLine(Twilio() if form == "twilio" else Asterisk())
    opening = f"MEDIA_START connection_id:c channel:x format:{form} optimal_frame_size:320"
    assert line.open(start() if form == "twilio" else opening)
    return line


def frames_of(form: str, pcm: Int16) -> list[Frame]:
    """20 ms each."""
    size = RATES[form] // 50
    pieces = [pcm[first : first + size] for first in range(0, len(pcm), size)]
    if form == "twilio":
        return [media(base64.b64encode(mulaw_encode(piece)).decode()) for piece in pieces]
    return [piece.astype("<i2").tobytes() for piece in pieces]


RATES: Final = {"twilio": 8_000, "slin": 8_000, "slin16": 16_000, "slin24": 24_000}

NOISE: Final = {"twilio": 0.05, "slin": 2e-3, "slin16": 2e-3, "slin24": 2e-3}
"""The most that a sample may differ from the tone, as a share of its level. mu-law is so coarse."""


def off_the_tone(heard: Float, rate_hz: int) -> tuple[Float, float]:
    """What of it is no such tone, as a share of the tone's level; and how late the tone is in s."""
    angle = 2 * np.pi * TONE_HZ * np.arange(len(heard)) / rate_hz
    waves = np.stack([np.sin(angle), np.cos(angle)], axis=1)
    (sine, cosine), *_ = np.linalg.lstsq(waves, heard, rcond=None)
    level = float(np.hypot(sine, cosine))
    late_s = (-np.arctan2(cosine, sine) / (2 * np.pi) % 1) / TONE_HZ
    return (heard - waves @ np.array([sine, cosine])) / level, float(late_s)


@pytest.mark.parametrize("form", RATES)
def test_the_ears_hear_no_seam_between_frames(form: str) -> None:
    line, listening, ears = line_at(form), GuardedStream(asr.ListenerConfig()), Ears()
    for frame in frames_of(form, tone(RATES[form], 2.0)):
        (request,) = line.receive(frame)
        assert isinstance(request, ask.AppendAudio)
        listening.take_in(ears, [(request.pcm, request.rate_hz)], [])
    heard = np.concatenate(ears.heard)
    held_s = 2.0 - len(heard) / asr.RATE_HZ
    frame_s = len(ears.heard[0]) / asr.RATE_HZ
    assert held_s <= asr.Resampler(RATES[form]).delay_ms / 1000 + frame_s
    error, late_s = off_the_tone(heard[asr.RATE_HZ // 2 :], asr.RATE_HZ)
    assert np.abs(error).max() < NOISE[form]
    off_s = min(late_s, 1 / TONE_HZ - late_s)
    assert off_s < SHIFT_S, "the filter's delay is taken out: words are where they were"


@pytest.mark.parametrize("form", RATES)
def test_the_caller_hears_no_seam_between_frames(form: str) -> None:
    rate_hz = RATES[form]
    resampler = StreamResampler(24_000, rate_hz)
    voice = np.concatenate([resampler.push(tone(24_000, 2.0)), resampler.flush()])
    line = line_at(form)
    item_id = ItemId("item_1")
    line.send(say.ReplyStarted("resp_1", item_id, None, "audio", SessionSettings()))
    playback = Playback(rate_hz, LEAD_MS)
    playback.push(voice, (0, 5), ())
    sent: list[Frame] = []
    while (due_ns := playback.next_due_ns()) is not None:
        for outgoing in playback.due(max(due_ns, 1)):
            line.send(say.ReplyAudio("resp_1", outgoing.pcm, rate_hz))
            sent += line.frames()
    heard = np.concatenate([_samples(form, frame) for frame in sent])[: len(voice)]
    expected = mulaw_decode(mulaw_encode(voice)) if form == "twilio" else voice
    assert np.array_equal(heard, expected)
    error, _ = off_the_tone(heard[rate_hz // 2 : -rate_hz // 2].astype(float), rate_hz)
    assert np.abs(error).max() < NOISE[form]


def _samples(form: str, frame: Frame) -> Int16:
    if form != "twilio":
        return np.frombuffer(frame, "<i2") if isinstance(frame, bytes) else np.zeros(0, np.int16)
    message = json.loads(frame)
    payload = message["media"]["payload"] if message["event"] == "media" else ""
    return mulaw_decode(base64.b64decode(payload))


def test_the_loudest_voice_does_not_wrap_on_the_line() -> None:
    square = np.where(tone(24_000, 0.5, 100) >= 0, 32767, -32768).astype(np.int16)
    resampler = StreamResampler(24_000, 8_000)
    line = np.concatenate([resampler.push(square), resampler.flush()])
    heard = mulaw_decode(mulaw_encode(line)).astype(int)
    assert heard.max() > 30_000
    assert heard.min() < -30_000
    assert np.array_equal(np.sign(heard), np.sign(line))
    assert len(np.flatnonzero(np.diff(np.sign(heard)))) < 110  # 2 for each of 50 waves, and edges


def test_nothing_drifts_within_an_hour() -> None:
    hour_s, rate_hz = 3600, 8_000
    playback = Playback(rate_hz, LEAD_MS)
    ten_s = np.ones(10 * rate_hz, np.int16)
    for number in range(hour_s // 10):
        playback.push(ten_s, (number, number + 1), ())
    late, now_ns, sent, first_ns = random.Random(3), NS, 0, 0
    for count in itertools.count():
        due_ns = playback.next_due_ns()
        if due_ns is None:
            break
        now_ns = max(now_ns, due_ns + late.randrange(5_000_000))  # no sleep ends on time
        for frame in playback.due(now_ns):
            first_ns = first_ns or frame.at_ns
            assert frame.first_sample == sent
            assert frame.at_ns == first_ns + frame.first_sample * NS // rate_hz
            sent += len(frame.pcm)
            assert frame.at_ns - now_ns <= LEAD_MS * NS // 1000
        assert count < hour_s * 1000 // FRAME_MS + 10
    assert sent == hour_s * rate_hz
    assert playback.end_ns() == first_ns + hour_s * NS
