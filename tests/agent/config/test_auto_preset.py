"""The preset that is chosen for a machine, and the measurement that it rests on."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from agent.config import auto_preset
from agent.config.auto_preset import Gpu, Machine, PresetChoice, choose, preset_for_here
from agent.config.layers import load_config
from agent.config.sources import read_config
from agent.stages.model_store.catalogue import load_catalogue
from latency_budget.account.budget import budget_profile

TWO_CORES = Machine("Xeon", 2.0, 16_000, 15.0)
FOUR_CORES = Machine("Xeon", 4.0, 16_000, 60.0)
FAST_TWO_CORES = Machine("Xeon", 2.0, 24_000, 29.8)
"""58 ms a token with 1.5 billion parameters, measured: the first sound comes after 0.9 s."""
GPU = Gpu("NVIDIA H100", 81_000, 9.0)


@pytest.mark.parametrize(
    ("here", "num_calls", "preset", "why"),
    [
        (TWO_CORES, 4, "embedded-0.5b", "not embedded-1.5b: its first clause would take"),
        (FAST_TWO_CORES, 4, "embedded-0.5b", "ms, more than 400"),
        (FOUR_CORES, 4, "embedded-1.5b", "4 cores, 16000 MB"),
        (replace(FOUR_CORES, memory_mb=3000), 4, "embedded-0.5b", "it needs 3500 MB of memory"),
        (replace(TWO_CORES, memory_mb=1800), 4, "embedded", "it needs 1900 MB of memory"),
        (replace(TWO_CORES, mb_per_ms=5.0), 1, "embedded", "not embedded-0.5b"),
        (replace(TWO_CORES, mb_per_ms=0.1), 1, "embedded", "2 cores"),
        (TWO_CORES, 20, "embedded", "20 calls speak 48 tokens a second, and it makes"),
        (replace(TWO_CORES, gpu=GPU), 4, "gpu-8b", "NVIDIA H100, 81000 MB"),
        (replace(TWO_CORES, gpu=replace(GPU, memory_mb=16_000)), 4, "gpu-4b", "needs 20000"),
        (replace(TWO_CORES, gpu=replace(GPU, memory_mb=8000)), 4, "embedded-0.5b", "has 8000 MB"),
        (replace(TWO_CORES, gpu=replace(GPU, capability=8.0)), 4, "embedded-0.5b", "no FP8"),
    ],
)
def test_the_largest_model_that_keeps_up(
    here: Machine, num_calls: int, preset: str, why: str
) -> None:
    choice = choose(here, num_calls)
    assert choice.preset == preset
    assert why in choice.reason


def test_without_the_hub_the_largest_model_from_pypi(tmp_path: Path) -> None:
    def obstacle(preset: str) -> str:
        return f"the models of {preset} are not here, and the hub does not answer"

    choice = choose(replace(FOUR_CORES, gpu=GPU), 4, obstacle)
    assert choice.preset == "embedded-1.5b"
    assert "not gpu-8b: the models of gpu-8b are not here" in choice.reason
    assert "\n" not in choice.reason
    only_8b = choose(replace(FOUR_CORES, gpu=GPU), 4, lambda it: "" if it == "gpu-4b" else "x")
    assert only_8b.preset == "gpu-4b"


def test_presets_for_this_machine_have_models_and_a_budget() -> None:
    catalogue = load_catalogue(Path("/nowhere"))
    for listed in (*auto_preset.CPU_PRESETS, *auto_preset.GPU_PRESETS):
        assert load_config({"agent.preset": listed.name}).llm_engine.model in catalogue
        assert budget_profile(listed.name).name == listed.name


def test_threads_follow_the_cores() -> None:
    assert choose(replace(TWO_CORES, cores=1.0), 1).num_threads == 2
    assert choose(FOUR_CORES, 1).num_threads == 4
    assert choose(replace(FOUR_CORES, cores=64.0), 1).num_threads == 8


def test_a_machine_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env = {"HALFSEC_HOME": str(tmp_path / "home")}
    asked: list[int] = []

    def measure(num_threads: int) -> tuple[float, Gpu | None]:
        asked.append(num_threads)
        return 15.0, None

    monkeypatch.setattr(auto_preset, "usable_cores", lambda: 2.0)
    monkeypatch.setattr(auto_preset, "memory_mb", lambda: 16_000)
    monkeypatch.setattr(auto_preset, "_GPU_DEVICE", tmp_path / "nvidia0")
    assert preset_for_here(4, None, env).preset == "embedded", "nobody measured it"
    assert preset_for_here(4, measure, env).preset == "embedded-0.5b"
    assert preset_for_here(4, measure, env) == preset_for_here(4, None, env)
    assert asked == [2]
    monkeypatch.setattr(auto_preset, "memory_mb", lambda: 1800)
    assert preset_for_here(4, measure, env).preset == "embedded", "memory is not measured"
    monkeypatch.setattr(auto_preset, "usable_cores", lambda: 4.0)
    preset_for_here(4, measure, env)
    assert asked == [2, 4]
    (tmp_path / "nvidia0").touch()
    preset_for_here(4, measure, env)
    assert asked == [2, 4, 4]
    (tmp_path / "home" / "machine.json").write_text('{"name": 1}')
    preset_for_here(4, measure, env)
    assert asked == [2, 4, 4, 4]


def test_a_gpu_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env = {"HALFSEC_HOME": str(tmp_path)}
    monkeypatch.setattr(auto_preset, "_GPU_DEVICE", tmp_path)
    assert preset_for_here(4, lambda _: (15.0, GPU), env).preset == "gpu-8b"
    assert preset_for_here(4, None, env).preset == "gpu-8b"
    assert json.loads((tmp_path / "machine.json").read_text())["gpu"]["capability"] == 9.0


def test_a_home_that_can_not_be_written_is_no_failure(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    env = {"HALFSEC_HOME": str(tmp_path / "file")}
    assert preset_for_here(1, lambda _: (100.0, None), env).preset.startswith("embedded")


def test_whoever_names_a_preset_gets_it() -> None:
    calls: list[int] = []

    def chosen(num_calls: int) -> PresetChoice:
        calls.append(num_calls)
        return PresetChoice("embedded-0.5b", "it is quick", 3)

    config = load_config({"agent.max_sessions": 7}, choose=chosen)
    assert calls == [7]
    assert config.agent.preset == "embedded-0.5b"
    assert config.llm_engine.model == "qwen2.5-coder-0.5b-instruct"
    assert config.llm_engine.threads == 3
    assert config.origins["agent.preset"] == "chosen for this machine: it is quick"
    assert load_config({"agent.preset": "auto"}, choose=chosen).llm_engine.threads == 3
    assert load_config({"llm_engine.threads": 1}, choose=chosen).llm_engine.threads == 1
    own = load_config({"llm_engine.model": "mine.gguf"}, choose=chosen)
    assert (own.llm_engine.model, own.agent.preset) == ("mine.gguf", "embedded-0.5b")
    calls.clear()
    assert load_config({"agent.preset": "cpu"}, choose=chosen).agent.preset == "cpu"
    assert calls == []


def test_settings_are_read_for_this_machine(tmp_path: Path) -> None:
    env = {"HALFSEC_HOME": str(tmp_path)}
    config = read_config(env=env, measure=lambda _: (1000.0, None))
    assert config.agent.preset in ("embedded-1.5b", "embedded-0.5b", "embedded")
    assert config.origins["agent.preset"].startswith("chosen for this machine: ")
    assert (tmp_path / "machine.json").exists()
