"""Erlang B: share of calls refused by a fixed number of lines.

Calls arrive at random (Poisson), find a free line or are refused, and do not come back. The share
depends on the mean length of calls alone, not on its distribution. Source: A. K. Erlang 1917.
"""


def erlang_b(num_lines: int, offered: float) -> float:
    """Share of calls that find all lines taken. `offered`: calls that would be in progress on
    average if none were refused (arrivals a second x mean length in seconds)."""
    refused = 1.0
    for line in range(1, num_lines + 1):
        refused = offered * refused / (line + offered * refused)
    return refused


def lines_for(offered: float, max_refused: float) -> int:
    """Fewest lines at which at most this share of calls is refused. Raises ValueError for a share
    that no number of lines attains."""
    if not 0 < max_refused <= 1:
        raise ValueError("the share of refused calls must be above 0 and at most 1")
    refused, line = 1.0, 0
    while refused > max_refused:
        line += 1
        refused = offered * refused / (line + offered * refused)
    return line
