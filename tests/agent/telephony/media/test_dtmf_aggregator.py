"""Keys that make an entry, and the end of an entry."""

from agent.telephony.media.dtmf_aggregator import LATE_NS, MAX_KEYS, DtmfAggregator

S = 1_000_000_000


def test_the_terminator_ends_an_entry() -> None:
    keypad = DtmfAggregator()
    assert [keypad.press(key, 0) for key in "123"] == [None, None, None]
    assert keypad.press("#", 0) == "123"
    assert keypad.next_deadline_ns() is None


def test_a_terminator_alone_is_an_entry() -> None:
    keypad = DtmfAggregator()
    assert not keypad.is_late_end("#", 0)
    assert keypad.press("#", 0) == "#"


def test_a_terminator_behind_an_entry_that_is_over_belongs_to_it() -> None:
    keypad = DtmfAggregator(pause_ms=2000)
    keypad.press("4", 0)
    assert not keypad.is_late_end("#", S), "it ends this one"
    assert keypad.on_timer(2 * S) == "4"
    assert keypad.is_late_end("#", 2 * S + LATE_NS - 1)
    assert not keypad.is_late_end("5", 2 * S)
    assert not keypad.is_late_end("#", 2 * S + LATE_NS)


def test_an_entry_ends_when_no_key_comes() -> None:
    keypad = DtmfAggregator(pause_ms=1500)
    keypad.press("4", 0)
    keypad.press("2", S)
    assert keypad.next_deadline_ns() == 5 * S // 2
    assert keypad.on_timer(5 * S // 2 - 1) is None
    assert keypad.on_timer(5 * S // 2) == "42"
    assert keypad.on_timer(9 * S) is None


def test_nobody_presses_keys_for_ever() -> None:
    keypad = DtmfAggregator()
    entries = [keypad.press("7", 0) for _ in range(2 * MAX_KEYS)]
    assert [entry for entry in entries if entry] == ["7" * MAX_KEYS] * 2


def test_there_may_be_no_terminator() -> None:
    keypad = DtmfAggregator(terminator="")
    assert keypad.press("#", 0) is None
    assert keypad.on_timer(2 * S) == "#"
