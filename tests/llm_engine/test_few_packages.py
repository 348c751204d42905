"""The engine imports and runs with few of its packages installed, as on bare GPU machines."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.fakes.llm_models import save_tiny_gguf, save_tiny_model

MISSING = (
    *("gguf", "llguidance", "llama_cpp", "ctranslate2", "faster_whisper", "soundfile", "soxr"),
    *("hibari", "piper", "starlette", "uvicorn", "httpx", "hypothesis", "transformers", "tqdm"),
    *("huggingface_hub", "prometheus_client"),
)
NO_PLUGINS = (*MISSING, "ml_dtypes", "pytest_asyncio", "pytest_timeout")
HERE = Path(__file__).resolve().parents[1]
NOT_FOR_BENCHES = (*MISSING, "ml_dtypes", "agent", "asr", "tts", "onnx", "onnxruntime", "tests")

WITHOUT = "import sys; sys.modules.update(dict.fromkeys({missing!r}.split()))\n"
IMPORT_ALL = """
import importlib, pkgutil, llm_engine, tests.conftest
needs = ("llm_engine.checkpoints.gguf_", "llm_engine.training.train_heads")
needs += ("llm_engine.cuda.ops.triton_", "llm_engine.cuda.ops.flashinfer_")
needs += ("llm_engine.cuda.kernels",)
for module in pkgutil.walk_packages(llm_engine.__path__, "llm_engine."):
    if not module.name.startswith(needs) and not module.name.endswith("__main__"):
        importlib.import_module(module.name)
"""
LOAD = """
import asyncio
from pathlib import Path
from llm_engine import Engine, Grammar, ModelError, RequestError, SamplingParams
try:
    Engine.load({gguf!r})
except ModelError as error:
    print(error)
engine = Engine.load({directory!r})
async def ask(sampling):
    return [chunk async for chunk in engine.generate("the cat", sampling)]
assert asyncio.run(ask(SamplingParams(max_tokens=3, ignore_eos=True)))
try:
    asyncio.run(ask(SamplingParams(grammar=Grammar("start: /a+/"))))
except RequestError as error:
    print(error)
engine.close()
"""


def run_without(missing: tuple[str, ...], code: str) -> str:
    """What a fresh interpreter prints that lacks these packages."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT.format(missing=" ".join(missing)) + code],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_everything_imports_that_reads_no_gguf() -> None:
    run_without(MISSING, IMPORT_ALL)


@pytest.mark.slow
def test_what_needs_a_package_says_which_when_it_is_asked_for(tmp_path: Path) -> None:
    directory, gguf = tmp_path / "tiny", tmp_path / "tiny.gguf"
    save_tiny_model(directory, "llama")
    save_tiny_gguf(gguf, directory)
    said = run_without(MISSING, LOAD.format(gguf=str(gguf), directory=str(directory)))
    about_file, about_grammar = said.splitlines()
    assert str(gguf) in about_file
    assert "pip install gguf" in about_file
    assert about_grammar.startswith("grammar: ")
    assert "'llguidance'" in about_grammar


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_gpu_s_tests_need_nothing_but_pytest(monkeypatch: pytest.MonkeyPatch) -> None:
    """All are found, and some are tried out, without a GPU, a plugin, or the project's settings."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("HALFSEC_GPU_TESTS", "rehearse")
    options = ["-c", "tests/gpu/pytest.ini", "--rootdir", ".", "-p", "no:cacheprovider", "-q"]
    code = "import pytest\nassert pytest.main({!r}) == 0"
    code += "\nimport tests.gpu.sanitize"
    found = run_without(NO_PLUGINS, code.format([*options, "--collect-only", "tests/gpu"]))
    files = {line.partition("::")[0] for line in found.splitlines() if "::" in line}
    assert files == {f"tests/gpu/{path.name}" for path in (HERE / "gpu").glob("test_*.py")}
    done = run_without(NO_PLUGINS, code.format([*options, "tests/gpu/test_gpu_service.py"]))
    assert "2 passed" in done


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_bench_of_a_gpu_runs_to_its_end_with_little(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    options = [
        *("--device", "cuda", "--rehearse", "--steps", "10", "--repeats", "1"),
        *("--precision", "fp8", "--acceptance", "0.5", "--drafts", "3", "--heads", "2"),
        *("--json", str(out)),
    ]
    code = f"from benchmarks.llm.__main__ import main\nassert main({options!r}) == 0"
    printed = run_without(NOT_FOR_BENCHES, code)
    assert "no figure counts" in printed
    result = json.loads(out.read_text())
    assert result["is_gpu"] is False
    sections = result["sections"]
    others = {name for name in sections if "problem" in sections[name]}
    assert others == {f"tiny fp8: {name}" for name in ("transformers", "vllm", "sglang")}
    figures = {name: [one["name"] for one in sections[name]["figures"]] for name in sections}
    assert "ITL p99.9" in figures["tiny fp8: itl"]
    assert "graph of 8 sequences" in figures["tiny fp8: itl"]
    assert "ITL p50, temperature and top_p" in figures["tiny fp8: itl"]
    assert "graph alone, temperature" in figures["tiny fp8: itl"]
    assert "TTFT of 32 tokens after 4096" in figures["tiny fp8: ttft"]
    assert "a token with 3 drafted, 50% right" in figures["tiny fp8: speculation"]
    assert "a token with 2 heads, 50% right" in figures["tiny fp8: heads"]
    assert "norm, gate and up, SiLU, M=8" in figures["tiny fp8: operations"]
    assert "50 sockets, both: p99 / p50" in figures["tiny fp8: jitter"]
    assert "cuBLAS bf16 head, M=1" in figures["tiny: libraries"]
    assert "copy, read and written" in figures["card: bandwidth"]
    judged = [one for each in sections.values() for one in each["figures"] if "is_held" in one]
    assert not judged, "a CPU's figures are compared with no bar"
