"""What is in the way of a preset whose models come from the hub."""

from pathlib import Path

import pytest

from agent.stages.model_store.hub import hub_obstacle
from tests.support.fakes.hub import FakeHub, serving


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HALFSEC_HOME", str(tmp_path))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    return tmp_path


def test_a_hub_that_answers_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(FakeHub({})) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        assert hub_obstacle("gpu-4b") == ""
    problem = hub_obstacle("gpu-4b")
    model = "deepdml/faster-whisper-large-v3-turbo-ct2"
    assert problem == f"{model} is not here, and the Hugging Face hub ({hub.url}) does not answer"


def test_a_hub_that_is_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert hub_obstacle("gpu-8b").endswith("HF_HUB_OFFLINE is set")


def test_nobody_asks_for_what_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(
        "agent.stages.model_store.catalogue.ModelStore.presence", lambda *_: "present"
    )
    assert hub_obstacle("gpu-8b") == ""
