"""The engines of `docs/how-to/engines.md`: each is short, is what its package says, and keeps its
contract. Those whose package or model is not here are skipped."""

import importlib.metadata
import shutil
import sys
import tomllib
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

import asr
import llm_engine
import tts
from engine_plugins.contract import ContractError
from engine_plugins.discovery import PluginKind, installed_plugins
from tests.support.models import model_path
from tests.test_docs import PAGES, blocks

ENGINES: Final = Path(__file__).resolve().parents[2] / "docs" / "engines"
PROJECT: Final = tomllib.loads((ENGINES / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture
def examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package of the examples, installed as pip leaves it."""
    site = tmp_path / "site-packages"
    metadata = site / "halfsec_example_engines-0.1.0.dist-info"
    metadata.mkdir(parents=True)
    name = PROJECT["project"]["name"]
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1.0\n")
    lines = []
    for group, entries in PROJECT["project"]["entry-points"].items():
        lines += [f"[{group}]", *(f"{entry} = {value}" for entry, value in entries.items())]
    (metadata / "entry_points.txt").write_text("\n".join(lines))
    for module in PROJECT["tool"]["setuptools"]["py-modules"]:
        shutil.copy(ENGINES / f"{module}.py", site)
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.syspath_prepend(site)


def test_each_is_short_and_stands_on_the_page() -> None:
    files = sorted(path for path in ENGINES.glob("*.py") if path.name != "__init__.py")
    assert [path.stem for path in files] == sorted(PROJECT["tool"]["setuptools"]["py-modules"])
    for path in files:
        text = path.read_text(encoding="utf-8")
        assert len(text.splitlines()) < 60, path
        assert text.rstrip() in PAGES["docs/how-to/engines.md"]


@pytest.mark.usefixtures("examples")
def test_each_kind_has_one() -> None:
    assert importlib.metadata.version(PROJECT["project"]["name"]) == "0.1.0"
    assert all(installed_plugins(kind) for kind in PluginKind)


def test_the_engine_of_five_minutes_and_the_one_that_fails() -> None:
    files = {path.read_text(encoding="utf-8").rstrip() for path in ENGINES.glob("*.py")}
    spaces: list[dict[str, Any]] = []
    for block in blocks("python"):
        if block.page == "docs/how-to/engines.md" and block.text.rstrip() not in files:
            spaces.append({})
            exec(compile(block.text, block.page, "exec"), spaces[-1])
    echo, silent = spaces
    assert len(llm_engine.check_chat(echo["EchoChat"]("You said", None))) == 7
    with pytest.raises(ContractError, match=r"speech gives words.*: the speech gives an empty"):
        silent["test_the_contract"]()


@pytest.mark.slow
@pytest.mark.usefixtures("examples")
def test_the_recognizer() -> None:
    moonshine: Any = pytest.importorskip("moonshine_voice")
    if not Path(moonshine.get_model_path("tiny-en"), "encoder_model.ort").exists():
        pytest.skip("this version comes without its model")
    assert len(asr.check_recognizer(asr.load_recognizer("moonshine:"))) == 9


@pytest.mark.slow
@pytest.mark.usefixtures("examples")
def test_the_voice() -> None:
    pytest.importorskip("kokoro_onnx")
    folder = model_path("kokoro")
    with np.load(folder / "voices.bin") as voices:
        name = next(iter(voices))
    assert len(tts.check_voice(tts.load_voice(f"kokoro:{folder}/{name}", folder))) == 9


@pytest.mark.models
@pytest.mark.slow
@pytest.mark.usefixtures("examples")
def test_the_language_model() -> None:
    pytest.importorskip("llama_cpp")
    path = model_path("smollm2-135m-instruct") / "SmolLM2-135M-Instruct.Q4_1.gguf"
    options = llm_engine.ChatModelOptions(context=1024)
    assert len(llm_engine.check_chat(llm_engine.load_chat(f"llama:{path}", options))) == 7
