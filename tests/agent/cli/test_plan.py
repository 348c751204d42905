"""`halfsec plan`: what it reads, what it prints, and what it refuses."""

import json

import pytest
import yaml

from agent.__main__ import main
from agent.cli.plan import burst_of, figures_in, hours_of
from agent.errors import HalfsecError
from latency_budget.capacity.load import CallBurst

SMALL = ["plan", "--calls", "2", "--start-s", "4", "--per-hour", "600", "--length-s", "60"]


def test_calls_an_hour_by_time_of_day() -> None:
    assert hours_of("400") == (400.0,)
    hours = hours_of("8=300, 20=60")
    assert (len(hours), hours[0], hours[7], hours[8], hours[19], hours[20]) == (
        24, 60, 60, 300, 300, 60,
    )  # fmt: skip
    for wrong in ("", "many", "24=1", "8=", "8:300"):
        with pytest.raises(ValueError, match="calls an hour are like"):
            hours_of(wrong)


def test_a_burst() -> None:
    assert burst_of("500@09:30/60") == CallBurst(9.5 * 3600, 500, 60)
    for wrong in ("500", "500@24:00/60", "500@9:00/0", "x@9:00/60"):
        with pytest.raises(ValueError, match="a burst is like"):
            burst_of(wrong)


def test_figures_of_a_server() -> None:
    text = (
        "# TYPE halfsec_calls_capacity gauge\nhalfsec_calls_capacity 3.0\n"
        "# TYPE halfsec_start_seconds gauge\n# TYPE other gauge\nother 1\n"
        "# TYPE process_resident_memory_bytes gauge\nprocess_resident_memory_bytes 1.2e9\n"
    )
    assert figures_in(text) == {"calls": 3, "memory_bytes": 1.2e9}
    with pytest.raises(HalfsecError, match="no halfsec"):
        figures_in("<!doctype html><p>hello")


def test_it_prints_replicas_refusals_and_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--memory-mb", "1000", "--refused", "0.01"]) == 0
    text = capsys.readouterr().out
    assert "600 calls an hour at most, 60 s each: 10 at once" in text
    assert "fixed        9 replicas: 18 lines by Erlang B" in text
    assert "GB in all at most" in text
    assert main([*SMALL, "--refused", "0.01", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["num_lines"] == 18
    assert found["fixed"]["min_replicas"] == 9
    assert found["result"]["refused"] <= 0.01 * found["result"]["arrived"]


def test_it_writes_a_configuration_for_ray_serve(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--refused", "0.01", "--drain-s", "600", "--serve-config"]) == 0
    (application,) = yaml.safe_load(capsys.readouterr().out)["applications"]
    (deployment,) = application["deployments"]
    assert deployment["max_ongoing_requests"] == 2
    scaling = deployment["autoscaling_config"]
    assert scaling["min_replicas"] <= 9 <= scaling["max_replicas"]
    assert scaling["target_ongoing_requests"] <= 2


def test_what_is_missing_or_wrong_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    load = ["--per-hour", "10", "--length-s", "60"]
    assert main(["plan", "--start-s", "4", *load]) == 2
    assert "--calls is missing" in capsys.readouterr().err
    assert main(["plan", "--calls", "2", "--start-s", "4", *load, "--refused", "0"]) == 2
    assert "share of refused calls" in capsys.readouterr().err
    assert main([*SMALL[:5], "--at-once", "5", "--length-s", "0"]) == 2
    assert "calls have some length" in capsys.readouterr().err
    assert main(["plan", "--calls", "0", "--start-s", "4", *load]) == 2
    assert "at least one call" in capsys.readouterr().err
    assert main(["plan", "--url", "http://127.0.0.1:9", *load]) == 2
    assert "There is no server at http://127.0.0.1:9/metrics" in capsys.readouterr().err
