"""Engine configuration from the settings, and progress reports of a conversion."""

import logging
from pathlib import Path
from typing import Any

import pytest

import llm_engine
from agent.config.schema import Config, LlmSettings, ServiceSettings
from agent.stages.load_progress import LOG_EVERY_NS, Conversion
from agent.stages.loading import Loading
from agent.stages.model_store.catalogue import ModelStore
from latency_budget.account.clock import ManualClock, SystemClock
from tests.support.fakes.llm_models import save_tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    save_tiny_model(path, "llama", head_dim=16)
    return path


class Shares(Conversion):
    """Notes what it was told."""

    def __init__(self) -> None:
        super().__init__("tiny", SystemClock())
        self.noted: list[float] = []

    def note(self, share: float) -> None:
        self.noted.append(share)
        super().note(share)


def loading(config: Config, home: Path, conversion: Conversion) -> Loading:
    return Loading(config, ModelStore(home, {}), SystemClock(), conversion)


def test_weights_are_converted_once_and_said_to_be(model: Path, tmp_path: Path) -> None:
    config = Config(llm_engine=LlmSettings(model=str(model), context=256))
    for is_first in (True, False):
        conversion = Shares()
        loading(config, tmp_path, conversion).engine().close()
        assert conversion.noted == ([0.25, 0.5, 0.75, 1.0] if is_first else [])
        assert str(conversion) == (
            "loading: 100 % of the weights converted" if is_first else "loading"
        )


@pytest.mark.parametrize(
    ("preset", "offer"),
    [
        ("embedded-0.5b", "take a smaller model, such as that of: halfsec serve --preset embedded"),
        ("embedded", "; take a smaller model"),
    ],
)
def test_a_model_without_room_offers_the_next_smaller_preset(
    preset: str, offer: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llm_engine.backends.cpu_memory.available_mb", lambda: 100)
    config = Config(
        agent=ServiceSettings(preset=preset),
        llm_engine=LlmSettings(model=str(model), context=256),
    )
    with pytest.raises(llm_engine.MemoryShortageError) as refused:
        loading(config, tmp_path, Shares()).engine()
    assert str(refused.value).endswith(offer)


@pytest.mark.parametrize(("max_sessions", "max_batch", "effective"), [(1, 4, 1), (8, 4, 4)])
def test_no_more_replies_together_than_there_are_calls(
    max_sessions: int,
    max_batch: int,
    effective: int,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[llm_engine.EngineConfig] = []

    def load(path: Path, config: llm_engine.EngineConfig, **_: Any) -> None:
        seen.append(config)

    monkeypatch.setattr(llm_engine.Engine, "load", load)
    config = Config(
        agent=ServiceSettings(max_sessions=max_sessions),
        llm_engine=LlmSettings(model=str(model), max_batch=max_batch),
    )
    loading(config, tmp_path, Shares()).engine()
    assert seen[0].max_batch == effective
    assert seen[0].max_sequences == 4 * max_sessions


def test_the_log_tells_of_a_long_conversion_now_and_then(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()
    conversion = Conversion("big", clock)
    with caplog.at_level(logging.INFO, "agent"):
        for percent in range(10, 101, 10):
            conversion.note(percent / 100)
            clock.advance_ms(LOG_EVERY_NS / 2e6)
        told = caplog.messages
        assert told[0] == "converting the weights of big; the next start finds them"
        assert [line.split(": ")[1] for line in told[1:]] == ["30 %", "50 %", "70 %", "90 %"]
        conversion.begin()
        assert str(conversion) == "loading"
        conversion.note(0.1)
        assert len(caplog.messages) == 6  # a new load begins with a line of its own
