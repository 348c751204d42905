"""The row of reordered packets in `halfsec bench faults`."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from benchmarks.callers.lossy_line import DatagramPath
from benchmarks.faults.fault_case import FaultSite
from benchmarks.faults.plan import CASES
from benchmarks.faults.reordered_call import LINE, ReorderingLine, _WithItems, overtaken

CASE = {case.name: case for case in CASES}


def test_the_row_is_run_where_webrtc_is() -> None:
    case = CASE["network: reordered packets (RTP, up to 60 ms)"]
    assert case.around is not None
    assert case.not_here() == ""


async def test_a_line_on_which_nothing_was_overtaken_fails_the_row(tmp_path: Path) -> None:
    line = ReorderingLine(tmp_path)
    site = cast("FaultSite", SimpleNamespace(around=line))
    assert (await overtaken(site)).why == ["no packet was overtaken"]
    up, down = DatagramPath(LINE, "up"), DatagramPath(LINE, "down")
    line.calls.append(cast(Any, SimpleNamespace(up=up, down=down)))
    for number in range(100):
        assert up.arrival_ns(number * 20_000_000) is not None
    assert up.num_overtaken > 0
    assert (await overtaken(site)).why == ["no packet was overtaken"]  # the other way
    for number in range(100):
        assert down.arrival_ns(number * 20_000_000) is not None
    found = await overtaken(site)
    assert found.why == []
    assert found.seen == [
        f"{up.num_overtaken} of 100 packets overtaken",
        f"{down.num_overtaken} of 100 packets overtaken",
    ]


async def test_events_go_by_the_data_channel() -> None:
    sent: list[tuple[str, dict[str, Any]]] = []
    client = SimpleNamespace(send=lambda kind, **fields: sent.append((kind, fields)))
    call = _WithItems(cast(Any, SimpleNamespace(client=client, input_rate_hz=24_000)))
    await call.send({"type": "conversation.item.retrieve", "item_id": "item_1"})
    assert sent == [("conversation.item.retrieve", {"item_id": "item_1"})]
    assert call.input_rate_hz == 24_000
