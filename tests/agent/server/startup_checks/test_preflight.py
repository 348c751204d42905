"""Problems found before the server listens, and the one command that solves them."""

from pathlib import Path

import pytest

from agent.cli.doctor import examine
from agent.config.layers import load_config
from agent.errors import ConfigError
from agent.server.startup_checks.preflight import check_gpu, check_models
from agent.stages.model_store.catalogue import ModelStore, ModelStoreError, load_catalogue
from llm_engine.cuda.device import DeviceProbe


def complaint(home: Path, **flags: str) -> str:
    config = load_config({key.replace("__", "."): value for key, value in flags.items()})
    with pytest.raises(ModelStoreError) as caught:
        check_models(config, ModelStore(home, load_catalogue(Path("/nowhere"))))
    return caught.value.message


def test_all_that_is_missing_is_one_command(tmp_path: Path) -> None:
    assert complaint(tmp_path, tts__voice="piper-joe", llm_engine__model="owner/name") == (
        "Not on this machine: silero-vad, whisper-tiny.en, smart-turn, owner/name, piper-joe. To "
        "download what is needed: halfsec models fetch silero-vad whisper-tiny.en smart-turn "
        "owner/name piper-joe"
    )


def test_damaged_and_missing_models_are_distinguished(tmp_path: Path) -> None:
    path = tmp_path / "models" / "silero-vad" / "silero_vad.onnx"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"x")
    text = complaint(tmp_path)
    assert "Not on this machine: whisper-tiny.en, smart-turn, smollm2-135m-instruct." in text
    assert f"{path} has 1 bytes" in text


def test_unknown_model_names_are_not_fetched(tmp_path: Path) -> None:
    text = complaint(tmp_path, tts__voice="pipr-joe", asr__model="whisper-tiny")
    assert "Did you mean piper-joe?" in text
    assert "Did you mean whisper-tiny.en?" in text
    assert text.endswith("halfsec models fetch silero-vad smart-turn smollm2-135m-instruct")


@pytest.mark.parametrize(("files", "lacks"), [((), "joe.onnx"), (("joe.onnx",), "joe.onnx.json")])
def test_a_voice_by_its_path(tmp_path: Path, files: tuple[str, ...], lacks: str) -> None:
    for name in files:
        (tmp_path / name).touch()
    text = complaint(tmp_path, tts__voice=str(tmp_path / "joe.onnx"))
    assert f"lacks its file {tmp_path / lacks}." in text


def test_voices_of_ones_own_are_accepted(tmp_path: Path) -> None:
    own = tmp_path / "models" / "mine"
    own.mkdir(parents=True)
    (own / "mine.onnx").touch()
    (own / "mine.onnx.json").touch()
    assert "voice" not in complaint(tmp_path, tts__voice="mine")
    assert "voice" not in complaint(tmp_path, tts__voice=str(own / "mine.onnx"))
    assert "voice" not in complaint(tmp_path, tts__voice="hibari-emma")


def test_the_doctor_misses_the_secret_of_a_webhook(monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_config(file_text='[webhooks.crm]\nurl = "https://crm.example/hook"\n')
    for secret, verdict in (("", "WRONG"), (f"whsec_{'A' * 32}", "ok")):
        monkeypatch.setenv("WEBHOOK_SECRET", secret)
        (webhooks,) = (each for each in examine(config) if each.title == "Webhooks")
        assert [each.verdict for each in webhooks.findings] == [verdict]


def test_a_gpu_that_is_asked_for_and_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "llm_engine.cuda.device.probe", lambda index: DeviceProbe(torch="2.13.0+cpu")
    )
    for flags in ({"llm_engine.dtype": "fp8"}, {"agent.preset": "gpu-8b"}):
        with pytest.raises(ConfigError, match="built without CUDA") as caught:
            check_gpu(load_config(flags))
        assert caught.value.key == "llm_engine.dtype"
    monkeypatch.setattr("ctranslate2.get_cuda_device_count", lambda: 0)
    with pytest.raises(ConfigError, match=r"asr.device: CTranslate2 finds no NVIDIA GPU"):
        check_gpu(load_config({"asr.device": "cuda"}))
    check_gpu(load_config({}))
