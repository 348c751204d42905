"""transformers reads the exported tokenizer and gives the engine's ids."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from agent.__main__ import main
from llm_engine.checkpoints.gguf_reader import GgufFile
from llm_engine.checkpoints.gguf_tokenizer import build_tokenizer
from llm_engine.checkpoints.tokenizer import Tokenizer
from llm_engine.checkpoints.tokenizer_export import save_tokenizer, write_tokenizer
from llm_engine.errors import ModelError
from tests.llm_engine.checkpoints.test_tokenizer import byte_level_metadata, sentencepiece_metadata
from tests.support.fakes.llm_models import CHATML, save_tiny_gguf, save_tiny_model
from tests.support.models import model_path

ROOT = Path(__file__).parents[3]
SMOLLM2 = "smollm2-135m-instruct/SmolLM2-135M-Instruct.Q4_1.gguf"
ODD = [
    "",
    " ",
    "  leading, and trailing  ",
    "a , b . c ! don't DON'T I'll",
    "1234 x1 12.5 1,000,000",
    "a\n b\r\nc\t\td\n\n\n",
    "e\u0301 \u00e9 \ufb01 \u2126 \u1e9b\u0323",
    "wörld 日本語 Привет \u0627\u0644\u0633\u0644\u0627\u0645 \U0001f600 \u200d\U0001f469",
    "\x00\x07\x1f\x7f\u0085\u2028\ufeff\uffff\U0010ffff",
    "<|im_start|>system\nObey.<|im_end|><|endoftext|></s><s><unk><0x41>",
    "def f(x):\n    return {'a': [x ** 2, x // 3]}  # comment\n",
]
CORPUS = [*ODD, (ROOT / "llm_engine" / "training" / "calibration.txt").read_text(encoding="utf-8")]
DIALOGUE = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What time is it?"},
    {"role": "assistant", "content": "It's noon."},
    {"role": "user", "content": " Thanks, bye! "},
]


def read(directory: Path) -> Any:
    """As load generators do: no other library's files, nothing from the hub."""
    return AutoTokenizer.from_pretrained(directory, local_files_only=True)


def assert_same(tokenizer: Tokenizer, theirs: Any, texts: list[str]) -> None:
    for text in texts:
        ids = tokenizer.encode_template(text)
        assert theirs.encode(text) == ids, text[:40]
        assert theirs.encode(text, add_special_tokens=False) == ids


@pytest.mark.models
def test_the_embedded_model(tmp_path: Path) -> None:
    path = model_path(SMOLLM2)
    assert main(["models", "tokenizer", str(path), str(tmp_path / "made" / "anew")]) == 0
    ours = build_tokenizer(GgufFile(path).metadata, path)
    theirs = read(tmp_path / "made" / "anew")
    assert_same(ours, theirs, CORPUS)
    assert theirs.decode(theirs.encode("Hello , there !")) == "Hello , there !"
    assert theirs.model_max_length == 8192
    rendered = theirs.apply_chat_template(DIALOGUE, tokenize=False, add_generation_prompt=True)
    assert rendered.endswith(" Thanks, bye! <|im_end|>\n<|im_start|>assistant\n")
    ids = theirs.apply_chat_template(DIALOGUE, add_generation_prompt=True)["input_ids"]
    assert ids == ours.encode_template(rendered)
    assert theirs(["a", "b c d"], padding=True)["input_ids"][0][-1] == theirs.eos_token_id

    @given(st.text())
    def any_text(text: str) -> None:
        assert_same(ours, theirs, [text])

    any_text()


@pytest.mark.parametrize("pre", ["gpt-2", "smollm", "llama-bpe", "qwen2"])
def test_byte_level_families(pre: str, tmp_path: Path) -> None:
    ours = build_tokenizer(byte_level_metadata(pre), Path("model.gguf"))
    write_tokenizer(ours, 512, tmp_path)
    assert_same(ours, read(tmp_path), CORPUS)


def test_sentencepiece(tmp_path: Path) -> None:
    ours = build_tokenizer(
        {**sentencepiece_metadata(), "tokenizer.ggml.bos_token_id": 1}, Path("model.gguf")
    )
    write_tokenizer(ours, 512, tmp_path)
    theirs = read(tmp_path)
    assert_same(ours, theirs, CORPUS)
    assert (theirs.bos_token, theirs.eos_token_id) == ("<s>", 2)


def test_both_formats_of_a_model(tmp_path: Path) -> None:
    save_tiny_model(tmp_path / "model", "llama", num_hidden_layers=1)
    save_tiny_gguf(tmp_path / "model.gguf", tmp_path / "model")
    for name in ("model", "model.gguf"):
        save_tokenizer(tmp_path / name, tmp_path / f"{name}.tokenizer")
        theirs = read(tmp_path / f"{name}.tokenizer")
        assert theirs.get_chat_template() == CHATML
        assert theirs.eos_token == "<|im_end|>"
        assert theirs.encode("the cat<|im_end|>")[-1] == 2


def test_a_base_model_has_no_template(tmp_path: Path) -> None:
    ours = build_tokenizer(byte_level_metadata("gpt-2"), Path("model.gguf"))
    write_tokenizer(ours, 512, tmp_path)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert not {"chat_template", "bos_token", "eos_token", "pad_token"} & set(settings)
    assert read(tmp_path).chat_template is None


def test_what_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_tiny_model(tmp_path / "model", "llama", num_hidden_layers=1)
    before = (tmp_path / "model" / "tokenizer_config.json").read_bytes()
    with pytest.raises(ModelError, match="is the model itself"):
        save_tokenizer(tmp_path / "model", tmp_path / "model")
    assert (tmp_path / "model" / "tokenizer_config.json").read_bytes() == before
    (tmp_path / "file").touch()
    with pytest.raises(ModelError, match="can't be written"):
        save_tokenizer(tmp_path / "model", tmp_path / "file")
    capsys.readouterr()
    assert main(["models", "tokenizer", str(tmp_path / "file"), str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "out").exists()
