"""Jitter buffer: every order of packets gives one stream, and silence where nothing was sent."""

from typing import Final

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.webrtc.jitter_buffer import (
    DTX_OVERDUE_MS,
    FRAME,
    MAX_AHEAD,
    MAX_GAP_S,
    OVERDUE_MS,
    JitterBuffer,
)
from agent.webrtc.opus import DTX_BYTES, OpusDecoder, OpusEncoder, OpusError
from tests.support.service.live_call import recording

RATE_HZ: Final = 24_000
SAMPLES: Final = RATE_HZ // 50
MS: Final = 1_000_000

Int16 = npt.NDArray[np.int16]


def speech(num_frames: int) -> Int16:
    """Something that is never silent, and never the same."""
    at_s = np.arange(num_frames * SAMPLES) / RATE_HZ
    tone = np.sin(2 * np.pi * (180 + 60 * np.sin(2 * np.pi * at_s)) * at_s)
    pcm: Int16 = (9000 * tone * (1.2 + np.sin(2 * np.pi * 4 * at_s)) / 2.2).astype(np.int16)
    return pcm


def encoded(pcm: Int16) -> list[bytes | None]:
    encoder = OpusEncoder(RATE_HZ)
    return [encoder.encode(pcm[at : at + SAMPLES]) for at in range(0, len(pcm), SAMPLES)]


def packets(num: int) -> list[bytes]:
    return [packet for packet in encoded(speech(num)) if packet is not None]


def new_buffer() -> JitterBuffer:
    return JitterBuffer(OpusDecoder(RATE_HZ))


def push(buffer: JitterBuffer, number: int, payload: bytes, at_ms: int, first: int = 0) -> Int16:
    seq, timestamp = (first + number) & 0xFFFF, (first + number * FRAME) & 0xFFFFFFFF
    return joined(buffer.push(seq, timestamp, payload, at_ms * MS))


def joined(pieces: list[Int16]) -> Int16:
    return np.concatenate([np.zeros(0, np.int16), *pieces])


def plainly_decoded(payloads: list[bytes]) -> Int16:
    decoder = OpusDecoder(RATE_HZ)
    return joined([decoder.decode(payload) for payload in payloads])


@pytest.mark.parametrize("first", [0, 65_530, 0xFFFFFFFF - 3 * FRAME])
def test_packets_in_order_are_passed_on_at_once(first: int) -> None:
    sent, buffer = packets(12), new_buffer()
    heard = [push(buffer, number, each, 20 * number, first) for number, each in enumerate(sent)]
    assert [len(each) for each in heard] == [SAMPLES] * 12
    assert np.array_equal(np.concatenate(heard), plainly_decoded(sent))
    assert buffer.counts.late == buffer.counts.filled == 0


@given(st.permutations(range(1, MAX_AHEAD)), st.lists(st.integers(0, MAX_AHEAD), max_size=3))
def test_any_order_gives_the_same_stream(order: list[int], again: list[int]) -> None:
    sent, buffer = packets(MAX_AHEAD + 1), new_buffer()
    heard = [push(buffer, 0, sent[0], 0)]
    heard += [push(buffer, number, sent[number], 20) for number in order]
    heard.append(push(buffer, MAX_AHEAD, sent[MAX_AHEAD], 20))
    heard += [push(buffer, number, sent[number], 20) for number in again]
    assert np.array_equal(np.concatenate(heard), plainly_decoded(sent))
    assert buffer.counts.late == len(again)
    assert buffer.num_waiting == 0


def test_lost_packets_are_recovered_from_those_behind_them() -> None:
    pcm = recording("vm-nobodyavail", RATE_HZ)
    sent = [
        packet for packet in encoded(pcm[: len(pcm) // SAMPLES * SAMPLES]) if packet is not None
    ]
    lost = range(20, len(sent) - MAX_AHEAD, 7)
    buffer = new_buffer()
    heard = joined(
        [push(buffer, number, each, 20) for number, each in enumerate(sent) if number not in lost]
    )
    plain = plainly_decoded(sent)
    assert len(heard) == len(plain)
    assert buffer.counts.filled == len(lost)
    voiced = [
        np.corrcoef(heard[frame], plain[frame])[0, 1]
        for frame in (slice(number * SAMPLES, (number + 1) * SAMPLES) for number in lost)
        if np.abs(plain[frame]).max() > 1500
    ]
    assert len(voiced) > 5
    assert np.mean(voiced) > 0.9, "FEC has the frames themselves; concealment reaches 0.6"


def test_a_missing_packet_is_not_waited_for_once_enough_came_behind_it() -> None:
    sent, buffer = packets(2 + MAX_AHEAD), new_buffer()
    push(buffer, 0, sent[0], 0)
    behind = [push(buffer, 2 + number, sent[2 + number], 20) for number in range(MAX_AHEAD)]
    assert [len(each) for each in behind] == [0] * (MAX_AHEAD - 1) + [(MAX_AHEAD + 1) * SAMPLES]
    assert len(push(buffer, 1, sent[1], 20)) == 0
    assert buffer.counts.late == 1


def test_a_pause_that_was_not_sent_is_as_long_as_it_was() -> None:
    """DTX: sequence numbers go on, time stamps jump."""
    talk = np.concatenate([speech(10), np.zeros(60 * SAMPLES, np.int16), speech(10)])
    buffer, heard, seq, filled = new_buffer(), [], 0, 0
    for number, packet in enumerate(encoded(talk)):
        if packet is not None:
            heard += buffer.push(seq, number * FRAME, packet, 20 * number * MS)
            seq += 1
        before = len(heard)
        heard += buffer.advance((20 * number + 1) * MS)
        filled += len(heard) - before
    assert seq < 40, "most of the pause was not sent"
    assert filled > 20, "the pause is heard while it lasts"
    assert len(joined(heard)) == len(talk)


def test_a_network_that_stands_still_costs_no_audio() -> None:
    """What was filled meanwhile is saved at the next gap."""
    sent, buffer = packets(30), new_buffer()
    heard = [push(buffer, 0, sent[0], 0)]
    heard.append(joined(buffer.advance((OVERDUE_MS + 100) * MS)))
    num_filled = buffer.counts.filled
    assert num_filled == 5
    heard += [push(buffer, number, sent[number], OVERDUE_MS + 100) for number in range(1, 20)]
    assert len(np.concatenate(heard)) == (20 + num_filled) * SAMPLES
    late = buffer.push(20, 30 * FRAME, sent[20], 600 * MS)  # ten frames were not sent
    assert len(joined(late)) == (10 - num_filled + 1) * SAMPLES


def test_many_short_halts_of_the_network_do_not_add_up() -> None:
    """After each halt what was sent meanwhile comes at once. Nothing of it is lost, and the stream
    is never further ahead of the client than the longest halt."""
    sent, buffer = packets(25), new_buffer()
    heard, most = 0, 0
    for number in range(400):
        halts = number // 25 % 2 == 1
        arrives_ms = 20 * (number // 25 * 25 + 24 if halts else number)
        if number % 25 == 0 and halts:
            for at_ms in range(20 * number, arrives_ms, 20):
                heard += len(joined(buffer.advance(at_ms * MS)))
        heard += len(push(buffer, number, sent[number % 25], arrives_ms))
        most = max(most, heard // SAMPLES - (number + 1))
    assert buffer.counts.late == 0
    assert heard // SAMPLES >= 400
    assert 0 < most <= 25
    quiet = sum(len(joined(buffer.advance(20 * at * MS))) for at in range(400, 500))
    assert heard + quiet <= 500 * SAMPLES, "silence that was heard already is not heard again"


def test_a_silence_that_is_announced_is_filled_at_once() -> None:
    """A turn that ends in DTX is over as soon as one that ends in packets of silence."""
    talk = np.concatenate([speech(10), np.zeros(40 * SAMPLES, np.int16)])
    sent = encoded(talk)
    announced = next(number for number, each in enumerate(sent) if each and len(each) <= DTX_BYTES)
    assert sent[announced + 1] is None, "it is sent once"
    for last, overdue_ms in ((announced, DTX_OVERDUE_MS), (announced - 1, OVERDUE_MS)):
        buffer = new_buffer()
        for number, payload in enumerate(sent[: last + 1]):
            assert payload is not None
            push(buffer, number, payload, 20 * number)
        assert len(joined(buffer.advance((20 * last + overdue_ms) * MS))) == 0
        for num_filled in range(1, 5):
            late_ms = 20 * (last + num_filled - 1) + overdue_ms + 1
            assert len(joined(buffer.advance(late_ms * MS))) == SAMPLES


def test_a_voice_behind_an_announced_silence_is_heard_whole_and_late_packets_owe_silence() -> None:
    talk = np.concatenate([speech(10), np.zeros(30 * SAMPLES, np.int16), speech(10)])
    sent = encoded(talk)
    buffer, seq, num_heard = new_buffer(), 0, 0
    delay_ms = 0
    for number, payload in enumerate(sent):
        num_heard += len(joined(buffer.advance((20 * number + delay_ms) * MS)))
        if number == 40:
            delay_ms = 50
        if payload is not None:
            at_ns = (20 * number + delay_ms) * MS
            num_heard += len(joined(buffer.push(seq, number * FRAME, payload, at_ns)))
            seq += 1
    assert buffer.counts.late == 0
    assert len(sent) * SAMPLES <= num_heard <= (len(sent) + 3) * SAMPLES


def test_a_turn_whose_first_word_came_late_ends_no_later() -> None:
    """The silence that was filled meanwhile is saved once the turn is over."""
    first, last, num_frames = 70, 99, 200
    pieces = speech(10), np.zeros(60 * SAMPLES, np.int16), speech(30)
    sent = encoded(np.concatenate([*pieces, np.zeros(100 * SAMPLES, np.int16)]))
    assert all(sent[first : last + 1])

    def heard(late_ms: int) -> tuple[int, int, int]:
        """Frames that were heard before the turn, in the 600 ms behind its last word, and in all;
        with its first packet late."""
        buffer, seq, total, in_silence = new_buffer(), 0, 0, 0
        before = 0
        for number, payload in enumerate(sent):
            at_ms = max(20 * number, 20 * first + late_ms if number >= first else 0)
            while (next_ns := buffer.next_ns) is not None and next_ns <= at_ms * MS:
                num = len(joined(buffer.advance(next_ns))) // SAMPLES
                total += num
                in_silence += num if last < number <= last + 30 else 0
            before = total if number == first else before
            if payload is not None:
                pushed = buffer.push(seq, number * FRAME, payload, at_ms * MS)
                num = len(joined(pushed)) // SAMPLES
                seq, total = seq + 1, total + num
                in_silence += num if last < number <= last + 30 else 0
        return before, in_silence, total

    before, in_silence, total = heard(0)
    late_before, late_in_silence, late_total = heard(55)
    assert (before, total) == (first, num_frames - 1)
    assert late_before == before + 3, "at 5, 25 and 45 ms behind its time"
    assert late_in_silence >= in_silence
    assert late_total == total


def test_a_jump_is_a_new_beginning_and_fills_nothing() -> None:
    sent, buffer = packets(3), new_buffer()
    push(buffer, 0, sent[0], 0)
    assert len(joined(buffer.push(30_000, 5_000_000, sent[1], 20 * MS))) == SAMPLES
    assert len(joined(buffer.push(30_001, 900_000_000, sent[2], 40 * MS))) == SAMPLES


@pytest.mark.parametrize("back_s", [6, 60, 10_000])
def test_after_a_jump_back_silence_is_filled_as_before(back_s: int) -> None:
    """Numbers go on, as where a client begins its time stamps again."""
    sent, buffer = packets(2), new_buffer()
    buffer.push(0, 2**31, sent[0], 0)
    buffer.push(1, 2**31 - back_s * 48_000, sent[1], 20 * MS)
    assert len(joined(buffer.advance((20 + OVERDUE_MS + 100) * MS))) == 5 * SAMPLES


def test_small_jumps_back_save_no_more_silence_than_the_longest_gap() -> None:
    sent, buffer = packets(1), new_buffer()
    for number in range(20):
        buffer.push(number, 2**31 - number * 48_000, sent[0], 0)
    filled = joined(buffer.advance((OVERDUE_MS + (MAX_GAP_S + 1) * 1000) * MS))
    assert len(filled) == RATE_HZ


def test_another_stream_begins_at_once() -> None:
    """Its numbers and times have nothing to do with those of the one before."""
    sent, buffer = packets(4), new_buffer()
    push(buffer, 0, sent[0], 0)
    assert len(push(buffer, 2, sent[2], 20)) == 0, "it waits for the one before"
    buffer.restart()
    for number, seq in enumerate((500, 501)):
        heard = buffer.push(seq, 5_000_000 + number * FRAME, sent[number], (40 + 20 * number) * MS)
        assert len(joined(heard)) == SAMPLES
    assert buffer.num_waiting == buffer.counts.late == buffer.counts.filled == 0
    buffer.restart()
    assert len(joined(buffer.advance((60 + OVERDUE_MS + 100) * MS))) == 5 * SAMPLES


def test_payloads_that_are_no_opus_count_as_lost() -> None:
    sent, buffer = packets(3), new_buffer()
    push(buffer, 0, sent[0], 0)
    assert len(push(buffer, 1, b"\xff" * 9, 20)) == 0
    assert len(push(buffer, 2, sent[2], 40)) == 2 * SAMPLES


@given(
    st.lists(
        st.tuples(
            st.integers(0, 65_535), st.integers(0, 2**32 - 1), st.binary(min_size=1, max_size=40)
        ),
        max_size=30,
    )
)
def test_anything_may_come(frames: list[tuple[int, int, bytes]]) -> None:
    buffer = new_buffer()
    for at_ms, (seq, timestamp, payload) in enumerate(frames):
        pieces = buffer.push(seq, timestamp, payload, at_ms * MS) + buffer.advance(at_ms * MS)
        assert len(joined(pieces)) <= 60 * RATE_HZ
        assert buffer.num_waiting <= MAX_AHEAD


def test_silence_is_not_sent_and_what_is_no_packet_is_refused() -> None:
    quiet = encoded(np.zeros(100 * SAMPLES, np.int16))
    assert quiet.count(None) > 80
    with pytest.raises(OpusError, match="read"):
        OpusDecoder(RATE_HZ).num_samples(b"")
    with pytest.raises(OpusError, match="no encoder"):
        OpusEncoder(44_100)
