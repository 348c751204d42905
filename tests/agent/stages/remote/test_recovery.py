"""Waits between requests to what does not work."""

from agent.stages.remote.recovery import recovery_wait_s


def test_waits_double_up_to_a_limit() -> None:
    assert [recovery_wait_s(number) for number in (0, 1, 2, 3, 4, 5000)] == [2, 4, 8, 16, 16, 16]
