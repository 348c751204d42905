"""`halfsec bench languages --calls`: what callers say, the rounds, the table and its gates."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import languages as spoken
from agent.client.simulated_caller.spoken_turn import SpokenTurn
from agent.errors import BenchError
from benchmarks.languages import calls, round_trip
from benchmarks.signals.recordings import TurnRecording
from benchmarks.voice.harness import CallerPlan, HeldCall

pytestmark = pytest.mark.slow


def recordings(language: str, num: int) -> list[TurnRecording]:
    silence = np.zeros(8, np.int16)
    return [TurnRecording(Path(f"{language}-{n}"), silence, 16_000, None) for n in range(num)]


def held(language: str, *ear_ms: float | None, first: int = 0) -> HeldCall:
    """A call with these times at the ear."""
    call = HeldCall(recordings(language, first + len(ear_ms))[first:])
    for ms in ear_ms:
        exchange = SpokenTurn(1, np.zeros(0, np.int16), 16_000)
        exchange.e2e_ear_ms = ms
        stages = {"endpoint": {"spent_ms": 416.0, "exposed_ms": 416.0}}
        exchange.reports = [{"turn": 1, "stages": stages}]
        call.exchanges.append(exchange)
    return call


def test_callers_of_all_languages_say_as_much_for_as_long() -> None:
    pytest.importorskip("py_nanotts")
    sentences = calls.load_sentences()
    assert set(sentences) == set(calls.VOICES) == set(spoken.PROFILES)
    seconds: dict[str, float] = {}
    for language, said in sentences.items():
        assert len(said) == len(set(said)) == len(sentences["en"])
        assert not any(character.isdigit() for character in "".join(said))
        found = calls.recordings_in(language, said[:3])
        assert len({one.path.name.partition("-")[2] for one in found}) == 3
        seconds[language] = sum(len(one.pcm) for one in found) / 48_000 - 2.5
    assert max(seconds.values()) < 1.5 * min(seconds.values()), seconds
    assert [each for each in sentences if calls.is_agents_voice(each)] == ["de", "es", "fr"]


async def test_languages_alternate_and_the_first_call_of_each_is_not_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[tuple[str | None, list[str]]] = []

    async def hold(said: Sequence[TurnRecording], url: str, plan: CallerPlan) -> HeldCall:
        made.append((plan.language, [one.path.name for one in said]))
        return HeldCall(said)

    async def ready(url: str, timeout_s: float) -> None: ...

    monkeypatch.setattr(calls, "hold", hold)
    monkeypatch.setattr(calls, "wait_ready", ready)
    said = {each: recordings(each, 5) for each in ("en", "de", "fr")}
    found = await calls.measure(said, "ws://nowhere", 2)
    assert made[:3] == [(each, [f"{each}-0"]) for each in said]
    order = [language for language, _ in made[3:]]
    assert order == ["en", "de", "fr", "de", "fr", "en", "fr", "en", "de"]
    for language, turns in found.items():
        names = [one.path.name for call in turns for one in call.recordings]
        assert names == [f"{language}-{number}" for number in range(5)]


def test_differences_are_of_the_same_request() -> None:
    english = [held("en", 500.0, None), held("en", 700.0, first=2)]
    others = [held("de", 560.0, 900.0), held("de", 640.0, first=2)]
    assert calls.over_english_ms(others, english) == [60.0, -60.0]
    assert calls.median_interval([]) is None
    assert calls.median_interval([5.0]) == (5.0, 5.0)
    low, high = calls.median_interval([0.0, 10.0, 20.0, 30.0, 100.0]) or (0.0, 0.0)
    assert (low, high) == (0.0, 100.0)
    low, high = calls.median_interval([10.0] * 50 + [20.0] * 50) or (0.0, 0.0)
    assert (low, high) == (10.0, 20.0)


def test_table_and_gates(capsys: pytest.CaptureFixture[str]) -> None:
    by_language = {
        "en": [held("en", 500.0, 520.0, 540.0)],
        "de": [held("de", 560.0, 590.0, 620.0)],
        "fr": [held("fr", 700.0, 720.0, None)],
        "es": [held("es", None)],
    }
    by_language["es"][0].errors.append("The call has ended: 1011.")
    result: dict[str, Any] = {"machine": "M", "date": "D", "languages": calls.figures(by_language)}
    result["passes"] = {"de": vars_of(calls.PassTimes("whisper-base", 1, 2, 3, 4, 50, 5, 6))}
    assert result["languages"]["de"]["over_english"]["median_ms"] == 70.0
    assert calls.missed_gates(result, 80.0) == [
        "GATE MISSED: fr: p50 over English: 180.0 ms > 80 ms",
        "GATE MISSED: fr: later than in English, request by request: 200.0 ms > 80 ms",
        "GATE MISSED: es: p50 over English: - ms > 80 ms",
        "GATE MISSED: es: later than in English, request by request: - ms > 80 ms",
    ]
    calls.show(result)
    printed = capsys.readouterr().out
    for part in ("+70 (+60 .. +80)", "416/416", "de, fr, es", "5 and 6 of 50", "error (es)"):
        assert part in printed
    json.dumps(result)


def vars_of(times: calls.PassTimes) -> dict[str, Any]:
    return {name: getattr(times, name) for name in times.__slots__}


def test_the_command_hands_its_options_on(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []

    def main(argv: list[str]) -> int:
        seen.append(argv)
        return 1

    monkeypatch.setattr(calls, "main", main)
    assert round_trip.main(["--calls", "de", "--sentences", "2"]) == 1
    assert seen == [["de", "--sentences", "2"]]


def test_all_languages_are_meant_where_none_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    voices: list[str] = []

    def recordings_in(language: str, sentences: Sequence[str]) -> list[TurnRecording]:
        voices.append(language)
        raise BenchError("That is enough.")

    monkeypatch.setattr(calls, "recordings_in", recordings_in)
    with pytest.raises(BenchError, match="enough"):
        calls.main(["--sentences", "1"])
    assert voices == ["en"]
    with pytest.raises(BenchError, match="no sentences in nl"):
        calls.main(["nl"])
