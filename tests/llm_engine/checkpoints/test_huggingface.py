"""Unusable Hugging Face directories give an error that names the cause."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer as Bpe

from llm_engine.backends.cpu import CpuBackend
from llm_engine.checkpoints.load import load_checkpoint
from llm_engine.config import EngineConfig
from llm_engine.errors import ModelError
from tests.support.fakes.llm_models import save_tiny_model


@pytest.fixture
def model(tmp_path: Path) -> Path:
    save_tiny_model(tmp_path, "qwen2", num_hidden_layers=1)
    return tmp_path


def change_config(model: Path, **changes: Any) -> None:
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, **changes}))


def rope(**values: Any) -> dict[str, Any]:
    return {"rope_parameters": values}


SLIDES = {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 0}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "olmo9"}, "'olmo9' is not supported; these are: llama, mistral, qwen2"),
        ({"model_type": "mixtral"}, r"'mixtral' is not supported \(mixtures of experts\)"),
        ({"model_type": "smollm3"}, r"\(layers without rotary embedding\)"),
        ({"model_type": "gpt_oss"}, r"\(attention sinks and mixtures of experts\)"),
        ({"model_type": "mamba"}, r"\(state-space layers\)"),
        ({"model_type": ["llama"]}, "is not supported; these are"),
        ({"hidden_act": "gelu"}, "'hidden_act' = 'gelu' is not supported"),
        ({"num_local_experts": 8}, r"mixtures of experts \('num_local_experts' = 8\)"),
        ({"partial_rotary_factor": 0.5}, "rotary embedding of part of a head"),
        ({"alibi": True}, "ALiBi"),
        ({"attn_logit_softcapping": 50.0}, "capped attention scores"),
        ({"final_logit_softcapping": 30.0}, "capped logits"),
        ({"no_rope_layers": [1, 0]}, "layers without rotary embedding"),
        ({"residual_multiplier": 0.22}, "scaled residuals"),
        ({"quantization_config": {"bits": 4}}, "'quantization_config'"),
        (rope(rope_type="longrope"), "'longrope' is not supported; these are: default, linear"),
        (rope(type="dynamic", factor=2.0), "'dynamic' is not supported"),
        (rope(rope_type=["yarn"]), "is not supported"),
        (rope(rope_type="linear"), "rotary scaling: 'factor' must be a number, not None"),
        (rope(rope_type="llama3"), "rotary scaling: 'factor' must be a number, not None"),
        (rope(rope_type="llama3", factor=8.0, low_freq_factor=4, high_freq_factor=4), "not the lo"),
        (rope(rope_type="yarn", factor=0.0), "factor is 0.0"),
        (rope(rope_type="yarn", factor=-2.0), "factor is -2.0"),
        (rope(rope_type="yarn", factor=float("nan")), "factor is nan"),
        (rope(rope_type="yarn", factor=10**400), "'factor' must be a number, not 1000"),
        (rope(rope_type="yarn", factor=4.0, beta_fast=0.5), "beta_slow is 1.0, more than"),
        (rope(rope_type="yarn", factor=1e6), "context length is"),
        (rope(partial_rotary_factor=0.5), "rotary embedding of part of a head"),
        (rope(full_attention={"rope_type": "default"}), "rotary settings {.*} are not supported"),
        ({"rope_parameters": 7}, "rotary settings 7 are not supported"),
        ({"rope_parameters": None, "rope_theta": "10000"}, "'rope_theta' must be a number"),
        (rope(rope_theta=1.0), "rotary base 1.0"),
        ({"rms_norm_eps": float("inf")}, "'rms_norm_eps' must be a number"),
        ({"hidden_size": "64"}, "'hidden_size' must be a whole number from 1"),
        ({"num_attention_heads": 5}, "heads"),
        (  # a list as long was made before the size was looked at
            {"model_type": "qwen2", "use_sliding_window": True, "num_hidden_layers": 10**12},
            "'num_hidden_layers' must be a whole number from 1 to 4194304",
        ),
        ({"hidden_act": "x" * 5000}, "activation 'hidden_act' = 'x.*[.]{3}$"),
        ({"num_hidden_layers": 2}, r"layers\.1\.\S+ is missing"),
        ({**SLIDES, "sliding_window": -1}, "'sliding_window' must be a whole number from 1"),
        ({**SLIDES, "layer_types": ["chunked"]}, r"'layer_types' = \['chunked'\] are not"),
        ({**SLIDES, "layer_types": ["sliding_attention"] * 2}, "do not fit 1 layers"),
        ({**SLIDES, "model_type": "mistral"}, "'layer_types' in a Mistral are not supported"),
        ({"intermediate_size": 95}, r"shape \(96, 64\)"),
    ],
)
def test_configurations(model: Path, changes: dict[str, Any], message: str) -> None:
    change_config(model, **changes)
    with pytest.raises(ModelError, match=message) as caught:
        CpuBackend(load_checkpoint(model), EngineConfig(), 128)
    assert str(model) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", None, "config.json is missing"),
        ("config.json", "{", "cannot be read as JSON"),
        ("config.json", "[]", "holds list instead of an object"),
        ("tokenizer.json", None, "tokenizer.json is missing"),
        ("tokenizer.json", "{}", "not a usable tokenizer"),
        ("tokenizer_config.json", "{", "cannot be read as JSON"),
        ("tokenizer_config.json", "[" * 5000, "cannot be read as JSON"),
        ("model.safetensors", None, "model.safetensors is missing"),
        ("model.safetensors", "short", "truncated or not safetensors"),
        ("model.safetensors.index.json", "{}", "lacks 'weight_map'"),
        ("model.safetensors.index.json", '{"weight_map": {"a": "b.st"}}', r"b\.st missing"),
        ("model.safetensors.index.json", f'{{"weight_map": {{"a": "{"b" * 300}"}}}}', "b missing"),
    ],
)
def test_files(model: Path, name: str, content: str | None, message: str) -> None:
    file = model / name
    if content is None:
        file.unlink()
    else:
        file.write_text(content)
    with pytest.raises(ModelError, match=message) as caught:
        load_checkpoint(model)
    assert str(model) in str(caught.value)


@pytest.mark.parametrize("token_id", [10**9, 2**32 - 1])
def test_a_token_id_that_no_vocabulary_has(model: Path, token_id: int) -> None:
    """A table up to it takes 8 GB and more."""
    file = model / "tokenizer.json"
    description = json.loads(file.read_text())
    description["model"]["vocab"]["far"] = token_id
    file.write_text(json.dumps(description))
    with pytest.raises(ModelError, match=f"has a token with the id {token_id}"):
        load_checkpoint(model)


def test_tokens_without_a_row_in_the_embedding(model: Path) -> None:
    """Only those that can be in a prompt are refused: images' tokens never are."""
    file = model / "tokenizer.json"
    tokenizer = Bpe.from_file(str(file))
    tokenizer.add_special_tokens(["<|added|>"])
    tokenizer.save(str(file))
    added = load_checkpoint(model).tokenizer.added_texts["<|added|>"]
    change_config(model, vocab_size=added)
    load_checkpoint(model)
    change_config(model, vocab_size=added - 1)
    with pytest.raises(ModelError, match=rf"a token {added - 1}, the model only {added - 1} rows"):
        load_checkpoint(model)
    change_config(model, vocab_size=added)
    chat = json.loads((model / "tokenizer_config.json").read_text())
    chat["chat_template"] = "<|added|>" + chat["chat_template"]
    (model / "tokenizer_config.json").write_text(json.dumps(chat))
    with pytest.raises(ModelError, match=rf"a token {added}, the model only {added} rows"):
        load_checkpoint(model)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("model.layers.0.mlp.experts.0.up_proj.weight", "no place in a decoder of 1 layers"),
        ("model.layers.0.self_attn.sinks", "has no place"),
        ("model.layers.0.self_attn.q_proj.qweight", "has no place"),
        ("model.layers.0.self_attn.q_norm.weight", "of the qwen2 family"),
        ("model.layers.0.input_layernorm.bias", "has no place"),
        ("model.layers.1.mlp.up_proj.weight", "no place in a decoder of 1 layers"),
    ],
)
def test_tensors_that_would_stay_unread(model: Path, name: str, message: str) -> None:
    file = model / "model.safetensors"
    save_file({**load_file(file), name: torch.ones(2)}, file, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=message) as caught:
        load_checkpoint(model)
    assert f"{file}: tensor {name!r}" in str(caught.value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_no_weight_is(model: Path, value: float) -> None:
    file = model / "model.safetensors"
    tensors = load_file(file)
    tensors["model.layers.0.mlp.up_proj.weight"][17, 5] = value
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"up_proj\.weight' is damaged: it holds NaN or infinity"):
        CpuBackend(load_checkpoint(model), EngineConfig(), 64)


def test_a_head_that_the_configuration_promises(model: Path) -> None:
    tensors = load_file(model / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, model / "model.safetensors", {"format": "pt"})
    change_config(model, tie_word_embeddings=False)
    with pytest.raises(ModelError, match=r"lm_head\.weight' is missing"):
        load_checkpoint(model)
    change_config(model, tie_word_embeddings=True)
    load_checkpoint(model)


def test_tensors_that_say_nothing_new(model: Path) -> None:
    file = model / "model.safetensors"
    before = load_checkpoint(model).names
    extra = ["rotary_emb.inv_freq", "self_attn.k_scale", "self_attn.q_proj.input_scale"]
    tensors = {f"model.layers.0.{name}": torch.ones(2) for name in extra}
    save_file({**load_file(file), **tensors}, file, metadata={"format": "pt"})
    assert load_checkpoint(model).names == before


def test_a_truncated_safetensors_file(model: Path) -> None:
    file = model / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ModelError, match="truncated"):
        load_checkpoint(model)


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 600),
    st.sampled_from([10**30, -(10**400), 1e300, float("nan"), float("inf"), 0.5, "", "yarn"]),
    st.lists(st.sampled_from([None, 1, "full_attention", "sliding_attention"]), max_size=3),
    st.dictionaries(st.sampled_from(["rope_type", "factor"]), st.sampled_from(["yarn", 2])),
)
ROPE_KEYS = (
    "rope_type type factor low_freq_factor high_freq_factor beta_fast beta_slow truncate mscale "
    "original_max_position_embeddings rope_theta attention_factor mscale_all_dim"
)
KEYS = (
    "model_type hidden_size intermediate_size num_hidden_layers num_attention_heads head_dim "
    "num_key_value_heads vocab_size max_position_embeddings rms_norm_eps rope_theta hidden_act "
    "sliding_window max_window_layers layer_types use_sliding_window tie_word_embeddings "
    "quantization_config rope_scaling num_experts eos_token_id original_max_position_embeddings"
)
KINDS = st.sampled_from(["linear", "llama3", "yarn"])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model to damage."""
    folder = tmp_path_factory.mktemp("whole")
    save_tiny_model(folder, "qwen2", num_hidden_layers=1)
    (folder / "config.json").rename(folder / "good.json")
    return folder


def load_or_refuse(model: Path) -> None:
    try:
        CpuBackend(load_checkpoint(model), EngineConfig(), 64)
    except ModelError as error:
        assert str(model) in str(error)  # noqa: PT017


@given(
    st.dictionaries(st.sampled_from(KEYS.split()), JUNK, max_size=3),
    st.dictionaries(st.sampled_from(ROPE_KEYS.split()), JUNK, max_size=4),
    KINDS,
)
def test_any_configuration_is_used_or_refused(
    whole: Path, values: dict[str, Any], rotary: dict[str, Any], kind: str
) -> None:
    good = json.loads((whole / "good.json").read_text())
    given_rope = {"rope_type": kind, "factor": 2.0, "low_freq_factor": 1, "high_freq_factor": 2}
    good["rope_parameters"] = {**given_rope, **rotary}
    (whole / "config.json").write_text(json.dumps({**good, "use_sliding_window": True, **values}))
    load_or_refuse(whole)


@given(st.data())
def test_any_tensor_header_damage_is_reported_or_harmless(whole: Path, data: st.DataObject) -> None:
    (whole / "config.json").write_text((whole / "good.json").read_text())
    file = whole / "model.safetensors"
    undamaged = file.read_bytes()
    damaged = bytearray(undamaged)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, 1500))
        damaged[at] = data.draw(st.sampled_from([0, 34, 44, 48, 57, 66, 93, 125, 255]))
    file.write_bytes(damaged)
    try:
        load_or_refuse(whole)
    finally:
        file.write_bytes(undamaged)


@pytest.mark.parametrize(
    "weight_map",
    [
        {"model.norm.weight": "model.safetensors", "nothing": "model.safetensors"},
        {"model.norm.weight": None},
        {"model.norm.weight": "."},
        {"model.norm.weight": "a\0b"},
        {"model.norm.weight": ["model.safetensors"]},
        [],
    ],
)
def test_an_odd_index(model: Path, weight_map: Any) -> None:
    index = model / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(ModelError) as caught:
        load_checkpoint(model)
    assert str(model) in str(caught.value)


@pytest.mark.parametrize("stated", [1, 90, 400])
def test_an_added_token_has_the_id_that_the_library_gives_it(model: Path, stated: int) -> None:
    """The library counts on where the file says another one, and so must end tokens."""
    file = model / "tokenizer.json"
    description = json.loads(file.read_text())
    (end,) = [each for each in description["added_tokens"] if each["content"] == "<|im_end|>"]
    own, end["id"] = end["id"], stated
    description["added_tokens"].sort(key=lambda each: each["id"])
    file.write_text(json.dumps(description))
    tokenizer = load_checkpoint(model).tokenizer
    assert own in tokenizer.end_ids & tokenizer.control_ids
    assert len(tokenizer.control_ids) == len(description["added_tokens"])
    assert all(tokenizer.token_bytes[token_id] == b"" for token_id in tokenizer.control_ids)
