"""A file's turns move to the store of a fleet: all of them, in their order, and once."""

from dataclasses import replace
from pathlib import Path

import pytest

from latency_budget.storage import copy_store
from latency_budget.storage.call_records import read_calls
from latency_budget.storage.copy_store import main
from latency_budget.storage.database import Place
from latency_budget.storage.store import TurnStore
from latency_budget.storage.store_query import read_turns
from tests.agent.telephony.test_call_detail_record import RECORD
from tests.latency_budget.test_store import address, stored


def test_everything_is_copied_once(
    place: Place,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(copy_store, "CHUNK", 3)
    source = TurnStore(tmp_path / "old.sqlite", max_days=36_500)
    source.start()
    for number in range(1, 9):
        source.add(stored(number, f"s{number % 2}"))
    source.add(RECORD)
    source.close()
    command = [str(source.place), address(place), "--replica", "old:8080"]
    assert main(command) == 0
    assert capsys.readouterr().out == "8 turns and 1 calls were copied\n"
    copied = read_turns(place)
    assert [each.entry for each in copied] == [each.entry for each in read_turns(source.place)]
    assert {each.replica for each in copied} == {"old:8080"}
    ((_, record),) = read_calls(place, max_calls=9)
    assert record == replace(RECORD, replica="old:8080")
    assert main(command) == 2
    assert "are there already" in capsys.readouterr().err
    assert len(read_turns(place)) == 8


def test_nothing_is_copied_where_something_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path / "none.sqlite"), "postgresql://db/turns"]) == 2
    assert "there is no store" in capsys.readouterr().err
    assert main([str(tmp_path / "none.sqlite"), "postgresql://ana:s3c/ret@db/turns"]) == 2
    assert "s3c" not in capsys.readouterr().err
