"""Waits between requests to a model elsewhere that does not work."""

from typing import Final

RECOVERY_S: Final = 2.0
"""Wait before the first request to it; each later one is twice as long. Shorter: a provider that
rejects a key is asked too often."""

MAX_DOUBLINGS: Final = 3


def recovery_wait_s(num_failed: int) -> float:
    """Wait before the next request, after so many others in a row that failed."""
    return RECOVERY_S * (1 << min(num_failed, MAX_DOUBLINGS))
