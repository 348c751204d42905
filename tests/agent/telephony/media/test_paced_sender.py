"""Departure times of queued audio, to the frame, in virtual time."""

from hypothesis import given
from hypothesis import strategies as st

from agent.telephony.carriers.audiosocket import CLEAR, MARK, MessageReader
from agent.telephony.carriers.media_stream import Frame
from agent.telephony.media.paced_sender import FRAME_NS, MAX_BEHIND_NS, PacedSender

SLIN, SLIN16 = 0x10, 0x12
SIZE = 320
"""Bytes of 20 ms at 8 kHz."""


def audio(num_bytes: int, value: int = 1, kind: int = SLIN) -> bytes:
    return bytes([kind]) + bytes([value]) * num_bytes


def payloads(frames: list[Frame]) -> list[bytes]:
    stream = b"".join(each for each in frames if isinstance(each, bytes))
    return [payload for _, payload in MessageReader().feed(stream)]


def played(queue: PacedSender, until_ns: int) -> list[tuple[int, Frame]]:
    """All that leaves until then, and when, with a clock that is always on time."""
    out: list[tuple[int, Frame]] = []
    while (due_ns := queue.next_due_ns()) is not None and due_ns <= until_ns:
        out += [(due_ns, each) for each in queue.take(due_ns)]
    return out


def test_a_frame_leaves_every_20_ms() -> None:
    queue = PacedSender()
    queue.put(audio(5 * SIZE), 1000)
    assert queue.queued_ms == 100
    assert queue.take(999) == []
    times = [at_ns for at_ns, _ in played(queue, 10**9)]
    assert times == [1000 + each * FRAME_NS for each in range(5)]
    assert queue.next_due_ns() is None


def test_being_late_delays_nothing_that_follows() -> None:
    queue = PacedSender()
    queue.put(audio(10 * SIZE), 0)
    late = FRAME_NS // 3
    sent = [len(payloads(queue.take(each * FRAME_NS + late))) for each in range(10)]
    assert sent == [1] * 10
    queue.put(audio(10 * SIZE), 10 * FRAME_NS)
    queue.take(10 * FRAME_NS)
    assert len(payloads(queue.take(13 * FRAME_NS))) == 3, "catches up"
    assert queue.next_due_ns() == 14 * FRAME_NS


def test_after_a_long_hold_there_is_no_burst() -> None:
    queue = PacedSender()
    queue.put(audio(50 * SIZE), 0)
    now_ns = MAX_BEHIND_NS + 1
    assert len(payloads(queue.take(now_ns))) == 1
    assert queue.next_due_ns() == now_ns + FRAME_NS


def test_audio_after_silence_begins_at_once() -> None:
    queue = PacedSender()
    queue.put(audio(SIZE), 0)
    played(queue, 10**9)
    queue.put(audio(SIZE), 5 * 10**9)
    assert queue.next_due_ns() == 5 * 10**9


def test_audio_right_behind_a_frame_waits_until_that_was_played() -> None:
    queue = PacedSender()
    queue.put(audio(SIZE), 0)
    queue.take(0)
    queue.put(audio(SIZE), 1)
    assert queue.next_due_ns() == FRAME_NS


def test_pieces_are_joined_and_only_the_end_is_filled_up() -> None:
    queue = PacedSender()
    for value in (1, 2, 3):
        queue.put(audio(200, value), 0)
    first, second = payloads([each for _, each in played(queue, 10**9)])
    assert first == b"\1" * 200 + b"\2" * 120
    assert second == b"\2" * 80 + b"\3" * 200 + b"\0" * 40


def test_the_rate_says_how_long_a_frame_is() -> None:
    queue = PacedSender()
    queue.put(audio(2 * SIZE, kind=SLIN16), 0)
    assert queue.queued_ms == 20
    assert [len(each) for each in payloads(queue.take(0))] == [2 * SIZE]


def test_a_mark_is_reached_when_the_audio_before_it_was_played() -> None:
    queue = PacedSender()
    queue.put(MARK + "start", 0)
    queue.put(audio(SIZE + 10), 0)
    queue.put(MARK + "inside", 0)
    queue.put(audio(SIZE - 10), 0)
    queue.put(MARK + "end", 0)
    marks = [(at_ns, each) for at_ns, each in played(queue, 10**9) if isinstance(each, str)]
    assert marks == [
        (0, MARK + "start"),
        (2 * FRAME_NS, MARK + "inside"),
        (2 * FRAME_NS, MARK + "end"),
    ]


def test_nothing_that_was_cleared_leaves() -> None:
    queue = PacedSender()
    queue.put(audio(9 * SIZE, 1), 0)
    queue.put(MARK + "1", 0)
    queue.take(0)
    queue.put(CLEAR, 1)
    assert queue.next_due_ns() is None
    assert queue.queued_ms == 0
    queue.put(audio(SIZE, 2), 2)
    assert [(at_ns, payloads([each])) for at_ns, each in played(queue, 10**9)] == [
        (FRAME_NS, [b"\2" * SIZE])
    ]


@given(
    st.lists(st.tuples(st.integers(1, 400), st.booleans())),
    st.integers(FRAME_NS // 9, 3 * FRAME_NS),
)
def test_all_samples_leave_once_and_in_order(pieces: list[tuple[int, bool]], step_ns: int) -> None:
    queue, wanted, marks = PacedSender(), b"", []
    for number, (num_samples, is_marked) in enumerate(pieces):
        pcm = bytes([number % 255 + 1]) * 2 * num_samples
        wanted += pcm
        queue.put(bytes([SLIN]) + pcm, 0)
        if is_marked:
            marks.append(f"{MARK}{number}")
            queue.put(marks[-1], 0)
    out: list[Frame] = []
    now_ns = 0
    while queue.next_due_ns() is not None:
        out += queue.take(now_ns)
        now_ns += step_ns
    sent = b"".join(payloads(out))
    assert sent[: len(wanted)] == wanted
    assert set(sent[len(wanted) :]) <= {0}
    assert len(sent) - len(wanted) < SIZE
    assert [each for each in out if isinstance(each, str)] == marks
