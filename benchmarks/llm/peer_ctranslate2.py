"""CTranslate2 as a contestant.

Its own converter reads only Hugging Face checkpoints. Here its model is filled from any file that
the bench reads; the names of its tokens are their ids.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from latency_budget.account.clock import SystemClock
from llm_engine.checkpoints.checkpoint import Checkpoint
from llm_engine.checkpoints.load import load_checkpoint

from .contestant import Arrivals, CallerMessage

_CLOCK = SystemClock()


class CTranslate2:
    """A `Contestant`. It has no cache between calls: every turn prefills its whole history."""

    def __init__(self, path: Path, *, threads: int, directory: Path) -> None:
        self._path = path
        self._threads = threads
        self._directory = directory / f"{path.stem}.ctranslate2"
        self._generator: Any = None

    @property
    def version(self) -> str:
        import ctranslate2

        return f"ctranslate2 {ctranslate2.__version__}"

    def prepare(self) -> None:
        import ctranslate2  # noqa: F401

        if not self._directory.exists():
            part = self._directory.with_suffix(".part")
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
            _convert(load_checkpoint(self._path), part)
            part.rename(self._directory)

    def load(self) -> None:
        import ctranslate2

        self._generator = ctranslate2.Generator(
            str(self._directory), device="cpu", compute_type="int8", intra_threads=self._threads
        )
        self.reply([1, 2, 3], 2)

    def reply(self, prompt: Sequence[int], num_tokens: int, *, may_end: bool = False) -> Arrivals:
        return self._run([prompt], num_tokens, may_end=may_end)[0]

    def dialogue(self, turns: Sequence[CallerMessage], num_tokens: int) -> list[float]:
        history: list[int] = []
        first_ms = []
        for turn in turns:
            history += turn.token_ids
            arrivals, tokens = self._stream([history], num_tokens, may_end=False)
            first_ms.append(arrivals[0][0][0])
            history += tokens[0]
        return first_ms

    def together(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> list[Arrivals]:
        return self._run(prompts, num_tokens, may_end=False)

    def nats(self, token_ids: Sequence[int]) -> float:
        scores = self._generator.score_batch([[str(token) for token in token_ids]])
        return -float(np.mean(scores[0].log_probs))

    def _run(
        self, prompts: Sequence[Sequence[int]], num_tokens: int, *, may_end: bool
    ) -> list[Arrivals]:
        return self._stream(prompts, num_tokens, may_end=may_end)[0]

    def _stream(
        self, prompts: Sequence[Sequence[int]], num_tokens: int, *, may_end: bool
    ) -> tuple[list[Arrivals], list[list[int]]]:
        start_ns = _CLOCK.now_ns()
        arrivals: list[Arrivals] = [[] for _ in prompts]
        tokens: list[list[int]] = [[] for _ in prompts]
        steps = self._generator.generate_tokens(
            [[str(token) for token in prompt] for prompt in prompts],
            max_length=num_tokens,
            min_length=0 if may_end else num_tokens,
            sampling_topk=1,
        )
        for step in steps:
            arrivals[step.batch_id].append(((_CLOCK.now_ns() - start_ns) / 1e6, 1))
            tokens[step.batch_id].append(int(step.token))
        return arrivals, tokens


def _convert(checkpoint: Checkpoint, directory: Path) -> None:
    """Write a model of the Llama family in CTranslate2's format, in int8."""
    from ctranslate2.specs import common_spec, transformer_spec

    config = checkpoint.config
    extras = config.has_qk_norm or config.rope_scaling or any(config.sliding_windows)
    if extras or any(name.endswith(".bias") for name in checkpoint.names):
        raise ValueError("only plain Llama models are converted here")
    spec = transformer_spec.TransformerDecoderModelSpec.from_config(
        config.num_layers,
        config.num_heads,
        activation=common_spec.Activation.SWISH,
        ffn_glu=True,
        rms_norm=True,
        rotary_dim=0,
        rotary_interleave=False,
        rotary_base=config.rope_theta,
        num_heads_kv=config.num_kv_heads,
        head_dim=config.head_dim,
    )
    decoder = spec.decoder
    decoder.scale_embeddings = False
    names = [str(number) for number in range(config.vocab_size)]
    end = names[min(checkpoint.tokenizer.end_ids)]
    spec.config.bos_token = spec.config.eos_token = spec.config.unk_token = end
    spec.config.layer_norm_epsilon = config.norm_eps

    def read(name: str) -> np.ndarray[Any, Any]:
        return np.array(checkpoint.read(name), np.float32)  # a copy: it is written to

    decoder.embeddings.weight = read("embed_tokens.weight")
    is_tied = "lm_head.weight" not in checkpoint.names
    decoder.projection.weight = decoder.embeddings.weight if is_tied else read("lm_head.weight")
    decoder.layer_norm.gamma = read("norm.weight")
    for number, layer in enumerate(decoder.layer):
        at = f"layers.{number}."
        layer.self_attention.layer_norm.gamma = read(at + "input_layernorm.weight")
        layer.ffn.layer_norm.gamma = read(at + "post_attention_layernorm.weight")
        qkv = [read(f"{at}self_attn.{part}_proj.weight") for part in "qkv"]
        layer.self_attention.linear[0].weight = np.concatenate(qkv)
        layer.self_attention.linear[1].weight = read(at + "self_attn.o_proj.weight")
        layer.ffn.linear_0.weight = read(at + "mlp.gate_proj.weight")
        layer.ffn.linear_0_noact.weight = read(at + "mlp.up_proj.weight")
        layer.ffn.linear_1.weight = read(at + "mlp.down_proj.weight")
    spec.register_vocabulary(names)
    spec.validate()
    spec.optimize(quantization="int8")
    spec.save(str(directory))
