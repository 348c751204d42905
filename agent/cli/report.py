"""`halfsec report`: the report of `latency_budget`, of the service's own store if no other file is
named."""

from collections.abc import Sequence

from agent.stages.model_store.catalogue import turn_store_path
from latency_budget.__main__ import main as report


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status; see there."""
    return report(argv, turn_store_path())
