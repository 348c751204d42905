"""A reply played quietly while the server wonders: what a caller of ours hears and saves."""

import asyncio

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.client import events as ev
from agent.client.call import connect
from agent.client.simulated_caller.caller import SimulatedCaller
from agent.client.simulated_caller.ducking import DUCKED, FALL_NS, RISE_NS, Ducking
from agent.client.simulated_caller.playback import SimulatedPlayback
from agent.session.api.conversation import ItemId
from agent.session.api.server_events import (
    Extension,
    ReplyAudio,
    ReplyEnded,
    ReplyStarted,
    SpeechStarted,
    Usage,
)
from tests.support.fakes.realtime_peer import SETTINGS, Peer, serving

MS = 1_000_000
RATE_HZ = 8_000
VOICE = np.full(RATE_HZ * 2, 10_000, np.int16)
Int16 = npt.NDArray[np.int16]


def level_at(ducking: Ducking, ms: float) -> float:
    return float(ducking.level(np.array([round(ms * MS)]))[0])


def test_down_within_20_ms_and_back_within_100() -> None:
    ducking = Ducking()
    assert level_at(ducking, 5) == 1.0
    ducking.duck(100 * MS)
    assert [level_at(ducking, ms) for ms in (99, 100)] == [1.0, 1.0]
    assert level_at(ducking, 110) == pytest.approx(0.6)
    assert [level_at(ducking, ms) for ms in (120, 500)] == [DUCKED, DUCKED]
    ducking.unduck(500 * MS)
    assert level_at(ducking, 550) == pytest.approx(0.6)
    assert [level_at(ducking, ms) for ms in (600, 900)] == [1.0, 1.0]


def test_called_back_halfway_it_turns_around_where_it_is() -> None:
    ducking = Ducking()
    ducking.duck(100 * MS)
    ducking.unduck(110 * MS)
    assert level_at(ducking, 110) == pytest.approx(0.6)
    assert level_at(ducking, 160) == 1.0
    assert level_at(ducking, 135) == pytest.approx(0.8)


@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 300 * MS)), max_size=12),
    st.integers(1_000, 48_000),
)
def test_the_level_never_steps_nor_leaves_its_bounds(
    turns: list[tuple[bool, int]], rate_hz: int
) -> None:
    ducking, at_ns = Ducking(), 0
    for is_duck, pause_ns in turns:
        at_ns += pause_ns
        (ducking.duck if is_duck else ducking.unduck)(at_ns)
    times = np.arange(0, at_ns + 2 * RISE_NS, 1_000_000_000 // rate_hz, dtype=np.int64)
    levels = ducking.level(times)
    assert levels.min() >= DUCKED - 1e-9
    assert levels.max() <= 1.0
    steepest = (1 - DUCKED) / FALL_NS * (1_000_000_000 // rate_hz)
    assert np.abs(np.diff(levels)).max(initial=0.0) <= steepest * 1.001
    assert levels[-1] == pytest.approx(DUCKED if turns and turns[-1][0] else 1.0)


def test_recording_contains_the_played_audio() -> None:
    speaker = SimulatedPlayback()
    speaker.push("r1", "i1", VOICE[:RATE_HZ], RATE_HZ, 0)
    speaker.duck("i1", 200 * MS)
    speaker.unduck("i1", 600 * MS)
    speaker.duck("i1", 900 * MS)
    speaker.push("r2", "i2", VOICE[:RATE_HZ], RATE_HZ, 950 * MS)
    sound = speaker.recording(RATE_HZ)
    assert sound[: RATE_HZ // 5].min() == sound[RATE_HZ // 5 - 1] == 10_000
    assert set(sound[RATE_HZ * 22 // 100 : RATE_HZ * 6 // 10].tolist()) == {2_000}
    assert set(sound[RATE_HZ * 7 // 10 : RATE_HZ * 9 // 10].tolist()) == {10_000}
    assert set(sound[RATE_HZ * 92 // 100 : RATE_HZ].tolist()) == {2_000}
    assert set(sound[RATE_HZ : 2 * RATE_HZ].tolist()) == {10_000}  # the next is not ducked


def test_what_is_not_recorded_costs_nothing() -> None:
    speaker = SimulatedPlayback(record=False)
    speaker.push("r1", "i1", VOICE, RATE_HZ, 0)
    speaker.duck("i1", 200 * MS)
    speaker.unduck("i2", 300 * MS)
    assert speaker.playing(500 * MS)
    assert not len(speaker._ducked)


# --- on a call ---

ITEM = ItemId("item_a")


async def say_one(peer: Peer, item_id: ItemId, response_id: str, pcm: Int16) -> None:
    await peer.say(ReplyStarted(response_id, item_id, None, "audio", SETTINGS))
    await peer.say(ReplyAudio(response_id, pcm, RATE_HZ))


async def test_a_caller_obeys_the_server() -> None:
    seen: list[ev.ClientEvent] = []
    arrived = asyncio.Event()

    def note(event: ev.ClientEvent) -> None:
        seen.append(event)
        if isinstance(event, ev.ReplyDone) and event.response_id == "resp_2":
            arrived.set()

    async with serving() as peer, connect(peer.url) as call, asyncio.TaskGroup() as group:
        caller = SimulatedCaller(call, on_event=note)
        running = group.create_task(caller.run())
        await say_one(peer, ITEM, "resp_1", VOICE)
        await peer.say(Extension("halfsec.duck", {"item_id": ITEM}))
        await asyncio.sleep(0.25)
        await peer.say(Extension("halfsec.unduck", {"item_id": ITEM}))
        await asyncio.sleep(0.2)
        await peer.say(Extension("halfsec.duck", {"item_id": ITEM}))
        await asyncio.sleep(0.1)
        await peer.say(SpeechStarted(ItemId("item_u"), 100))
        await peer.say(ReplyEnded("resp_1", "cancelled", "turn_detected", "", Usage(3, 1, 2)))
        await say_one(peer, ItemId("item_b"), "resp_2", VOICE[: RATE_HZ // 4])
        await peer.say(ReplyEnded("resp_2", "completed", None, "Hi", Usage(3, 1, 2)))
        await arrived.wait()
        caller.stop()
        await running
    times = {type(event): event.at_ns for event in seen}
    assert times[ev.Duck] > times[ev.Unduck]  # the second one was the last
    sound = caller.loudspeaker.recording(RATE_HZ)
    quiet = np.abs(sound.astype(int) - 2_000) < 50
    edges = np.flatnonzero(np.diff(np.concatenate([[0], quiet.astype(int), [0]]))).reshape(-1, 2)
    assert len(edges) == 2  # until it came back, and until the caller interrupted
    assert all(end - begin > RATE_HZ * 5 // 100 for begin, end in edges)
    assert np.abs(sound[-RATE_HZ // 8 : -1] - 9_852).max() < 200  # mu-law's nearest to 10,000
