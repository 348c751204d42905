"""`halfsec report`: the report of `latency_budget`, by default of the service's own store."""

from collections.abc import Sequence

from agent.stages.model_store.catalogue import turn_store_path
from latency_budget.__main__ import main as report


def main(argv: Sequence[str] | None = None) -> int:
    """Run the report. Returns its exit status."""
    return report(argv, turn_store_path())
