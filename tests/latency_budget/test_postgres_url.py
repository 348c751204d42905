"""Addresses of databases: strict, and without credentials wherever they are shown."""

import copy
import json
from dataclasses import asdict
from pathlib import Path

import pytest

from agent.config.help import settings_file
from agent.config.layers import load_config
from agent.config.schema import LatencySettings
from agent.errors import ConfigError
from latency_budget.reporting.trace_or_store import SourceError, read_source
from latency_budget.storage.open_database import place_of
from latency_budget.storage.postgres_url import PostgresUrl

URL = "postgresql://ana:s3cr%2Ft@db.example:5432/turns?sslmode=require&sslpassword=hush%21hush"
SHOWN = "postgresql://***@db.example:5432/turns"


def test_nothing_shows_the_credentials() -> None:
    url = PostgresUrl(URL)
    assert (str(url), f"{url}", repr(url)) == (SHOWN, SHOWN, f"'{SHOWN}'")
    assert url.reveal() == URL
    assert url == copy.deepcopy(url)
    assert url != PostgresUrl(URL.replace("s3cr", "other"))
    said = f"no route from s3cr%2Ft\n\ts3cr/t and hush!hush to {URL}"
    assert url.redacted(said) == "no route from *** *** and *** to ***"


def test_no_setting_shows_the_credentials() -> None:
    config = load_config(env={"HALFSEC_LATENCY_BUDGET__STORE": URL})
    assert config.latency_budget.store == PostgresUrl(URL)
    (setting,) = [each for each in config.effective() if each.key == "latency_budget.store"]
    shown = [
        repr(setting.value),
        repr(config),
        json.dumps(asdict(config.latency_budget), default=str),
        settings_file(config),
    ]
    for text in shown:
        assert SHOWN in text
        assert "ana" not in text.replace("analy", "")
        assert "s3cr" not in text
    other = load_config({"latency_budget.store": URL.replace("s3cr", "t0ld")})
    assert other.fingerprint() == config.fingerprint()
    assert load_config().fingerprint() != config.fingerprint()


@pytest.mark.parametrize(
    "shown", ["postgresql://db/turns", "postgresql:///turns", "postgresql://[::1]:5432,b/turns"]
)
def test_an_address_without_credentials_is_shown_as_it_is(shown: str) -> None:
    assert str(PostgresUrl(shown)) == shown


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ana:s3cret@db",
        "postgresql://ana:s3c/ret@db/turns",
        "postgresql://ana:s3c@ret@db/turns",
        "postgresql://ana:s3cret%zz@db/turns",
        "postgresql://ana:s3cret%00@db/turns",
        "postgresql://ana:s3cret/turns",
        "postgresql://db/turns?password",
        "postgresql://db/turns?password=s3cret=s3cret",
        "mysql://ana:s3cret@db/turns",
        "postgresql://ana:s3cret@db/turns\nx",
    ],
)
def test_a_wrong_address_is_refused_without_being_repeated(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config({"latency_budget.store": url})
    message = str(caught.value)
    assert "latency_budget.store must be like postgresql://USER:PASSWORD@HOST" in message
    assert "or true or false" in message
    assert not any(part in message for part in ("s3c", "ana", "db/"))
    if url.startswith("postgresql"):
        with pytest.raises(SourceError) as refused:
            read_source(url)
        assert not any(part in str(refused.value) for part in ("s3c", "ana", "db/"))


@pytest.mark.parametrize(
    "source",
    [
        "postgres//ana:s3cret@db/turns",
        "postgresql//ana:s3cret@db/turns",
        "PostgreSQL://ana:s3cret@db/turns",
        "postgres:/ana:s3cret@db/turns",
    ],
)
def test_an_address_with_a_wrong_beginning_is_not_taken_for_a_file(source: str) -> None:
    with pytest.raises(SourceError, match=r"must be like postgresql://USER:PASSWORD@HOST") as said:
        read_source(source)
    assert "s3c" not in str(said.value)
    with pytest.raises(ConfigError, match=r"must be like postgresql://USER:PASSWORD@HOST"):
        load_config({"latency_budget.store": source})


def test_a_file_may_be_called_postgres() -> None:
    for path in ("postgres.sqlite", "postgres/turns.sqlite", "./postgres//turns.sqlite"):
        assert place_of(path) == Path(path)


@pytest.mark.parametrize(("text", "value"), [("true", True), ("off", False)])
def test_a_store_is_still_turned_on_and_off(text: str, value: bool) -> None:
    assert load_config({"latency_budget.store": text}).latency_budget.store is value
    written = f"[latency_budget]\nstore = {str(value).lower()}"
    assert load_config(file_text=written).latency_budget.store is value
    assert LatencySettings().store is True
