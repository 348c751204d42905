"""`halfsec report`: the report of `latency_budget`, by default of the store of the settings."""

from collections.abc import Sequence

from agent.config.sources import read_config
from agent.stages.model_store.catalogue import turn_store_path
from latency_budget.__main__ import main as report
from latency_budget.storage.database import Place
from latency_budget.storage.postgres_url import PostgresUrl


def main(argv: Sequence[str] | None = None) -> int:
    """Run the report. Returns its exit status. Raises ConfigError where no store is named and the
    settings are wrong."""
    return report(argv, _store_of_settings)


def _store_of_settings(path: str | None) -> Place:
    store = read_config(path=path).latency_budget.store
    return store if isinstance(store, PostgresUrl) else turn_store_path()
