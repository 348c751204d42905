"""Other engines on the same card, on the same shapes or the same checkpoint.

Each runs in a process of its own, which takes its task as JSON and prints its result as JSON: none
of them frees its memory, some start processes, and a crash must not end the bench. An engine that
is not installed is reported.
"""

import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from latency_budget.account.clock import SystemClock
from llm_engine.config import ModelConfig, Precision
from llm_engine.cuda import memory
from llm_engine.errors import EngineError

from .device_limits import read_bandwidth
from .figures import Figure, gaps_ms, percentile
from .models import DeviceUnderTest, Subject

CONTEXT: Final = 1024
_STEPS: Final = 256
_TIMEOUT_S: Final = 400.0
"""Timeout in s of a process: compiling takes one or two minutes, loading as long."""
_CLOCK = SystemClock()
NAMES: Final = ("transformers", "vllm", "sglang")


def compared(name: str, subject: Subject, target: DeviceUnderTest) -> Iterator[Figure]:
    """ITL and TTFT of another engine. Raises EngineError if it is not installed or fails."""
    if importlib.util.find_spec(name) is None:
        raise EngineError(f"{name} is not installed")
    if name == "transformers" and subject.precision is not Precision.BFLOAT16:
        raise EngineError("transformers is measured in bfloat16 only")
    if subject.precision is Precision.INT4:
        raise EngineError("other engines are measured in bfloat16 and fp8 only")
    task = _task(subject, target)
    found = _in_process(name, task)
    limit = None
    if target.is_gpu:
        weights = memory.weight_bytes(subject.config, subject.storage)
        table = 2 * subject.config.vocab_size * subject.config.hidden_size
        cache = CONTEXT * memory.token_bytes(subject.config, subject.storage)
        limit = (weights - table + cache) / read_bandwidth(target) * 1e3
    label = f"{name} {found['version']}"
    note = f"{len(found['itl_ms'])} of them"
    yield Figure(f"{label}: ITL p50", percentile(found["itl_ms"], 0.5), "ms", limit, note=note)
    yield Figure(f"{label}: ITL p99", percentile(found["itl_ms"], 0.99), "ms", limit)
    yield Figure(f"{label}: TTFT of {task['context']} tokens", found["first_ms"], "ms")


def _task(subject: Subject, target: DeviceUnderTest) -> dict[str, Any]:
    path = subject.checkpoint.path if subject.checkpoint is not None else None
    return {
        "config": huggingface_config(subject.config),
        "directory": str(path) if path is not None and path.is_dir() else None,
        "is_fp8": subject.precision is Precision.FP8,
        "device": str(target.device),
        "compiles": target.is_gpu,
        "context": CONTEXT if target.is_gpu else 32,
        "steps": _STEPS if target.is_gpu else 8,
    }


def _in_process(name: str, task: dict[str, Any]) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.llm.gpu.other_engines", name, json.dumps(task)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise EngineError(f"{name} took more than {_TIMEOUT_S:.0f} s") from None
    lines = done.stdout.strip().splitlines()
    if done.returncode != 0 or not lines:
        said = " ".join(done.stderr.strip().splitlines()[-3:])
        raise EngineError(f"{name} ended with status {done.returncode}: {said}")
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def huggingface_config(config: ModelConfig) -> dict[str, Any]:
    """Contents of `config.json`, without the scaling of rotary frequencies, which costs no time."""
    names = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}
    return {
        "architectures": [f"{names[config.architecture]}ForCausalLM"],
        "model_type": config.architecture,
        "num_hidden_layers": config.num_layers,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.context_length,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_theta,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }


# --- in the other process ---


def run_transformers(task: dict[str, Any]) -> dict[str, Any]:
    """Measure transformers with a static cache and decoding compiled with CUDA graphs, the fastest
    configuration in its manual."""
    import torch
    import transformers

    device, dtype = torch.device(task["device"]), torch.bfloat16
    auto: Any = transformers.AutoModelForCausalLM
    with torch.inference_mode(), device:
        if task["directory"]:
            model = auto.from_pretrained(task["directory"], dtype=dtype, device_map=device)
        else:
            settings = {key: task["config"][key] for key in task["config"] if key != "model_type"}
            config = transformers.AutoConfig.for_model(task["config"]["model_type"], **settings)
            model = auto.from_config(config, dtype=dtype)
        model.eval()
        context, steps = task["context"], task["steps"]
        room = context + steps + 64
        cache = transformers.StaticCache(config=model.config, max_cache_len=room)

        def step(token_ids: Any, positions: Any) -> Any:
            output = model(token_ids, position_ids=positions, past_key_values=cache, use_cache=True)
            return output.logits[:, -1].argmax(-1, keepdim=True)

        prompt = torch.randint(0, model.config.vocab_size, (1, context))
        start_ns = _CLOCK.now_ns()
        token = step(prompt, torch.arange(context)[None]).clone()
        token.tolist()
        first_ms = (_CLOCK.now_ns() - start_ns) / 1e6
        compiled = torch.compile(step, mode="reduce-overhead")
        decode = compiled if task["compiles"] else step
        instants = []
        warm_up = 16 if task["compiles"] else 0
        for number in range(steps + warm_up):
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
            token = decode(token, torch.tensor([[context + number]])).clone()
            token.tolist()
            instants.append(_CLOCK.now_ns())
    itl_ms = gaps_ms(instants[warm_up:])
    return {"version": transformers.__version__, "first_ms": first_ms, "itl_ms": itl_ms}


def run_vllm(task: dict[str, Any]) -> dict[str, Any]:
    """Measure vLLM by the difference between long and short replies."""
    import vllm

    with tempfile.TemporaryDirectory() as directory:
        llm = vllm.LLM(
            **_served(task, Path(directory)),
            quantization="fp8" if task["is_fp8"] else None,
            max_model_len=4096,
            gpu_memory_utilization=0.7,
            enable_prefix_caching=False,
        )

        def reply(num_tokens: int) -> None:
            params = vllm.SamplingParams(
                max_tokens=num_tokens, ignore_eos=True, temperature=0, detokenize=False
            )
            llm.generate([{"prompt_token_ids": _prompt(task)}], params, use_tqdm=False)

        return {"version": vllm.__version__} | _by_difference(reply, task["steps"])


def run_sglang(task: dict[str, Any]) -> dict[str, Any]:
    """Measure SGLang by the difference between long and short replies."""
    import sglang

    with tempfile.TemporaryDirectory() as directory:
        served = _served(task, Path(directory))
        served["model_path"] = served.pop("model")
        engine = sglang.Engine(
            **served,
            quantization="fp8" if task["is_fp8"] else None,
            mem_fraction_static=0.7,
            disable_radix_cache=True,
        )

        def reply(num_tokens: int) -> None:
            sampling = {"max_new_tokens": num_tokens, "ignore_eos": True, "temperature": 0}
            engine.generate(input_ids=_prompt(task), sampling_params=sampling)

        found = {"version": sglang.__version__} | _by_difference(reply, task["steps"])
        engine.shutdown()
        return found


def _served(task: dict[str, Any], directory: Path) -> dict[str, Any]:
    """Options of the model that vLLM and SGLang share."""
    if task["directory"]:
        return {"model": task["directory"], "dtype": "bfloat16"}
    (directory / "config.json").write_text(json.dumps(task["config"]), encoding="utf-8")
    return {
        "model": str(directory),
        "dtype": "bfloat16",
        "load_format": "dummy",
        "skip_tokenizer_init": True,
    }


def _prompt(task: dict[str, Any]) -> list[int]:
    return [number % 1000 + 1 for number in range(task["context"])]


def _by_difference(reply: Callable[[int], None], num_tokens: int) -> dict[str, Any]:
    """ITL and TTFT from five long and five short replies, after a warm-up of one each."""

    def ms(number: int) -> float:
        start_ns = _CLOCK.now_ns()
        reply(number)
        return (_CLOCK.now_ns() - start_ns) / 1e6

    ms(1), ms(num_tokens)
    pairs = [(ms(1), ms(num_tokens)) for _ in range(5)]
    itl = [(long - short) / (num_tokens - 1) for short, long in pairs]
    return {"itl_ms": itl, "first_ms": percentile([short for short, _ in pairs], 0.5)}


_RUN: Final = {"transformers": run_transformers, "vllm": run_vllm, "sglang": run_sglang}


def main(argv: Sequence[str]) -> int:
    """Run an engine's task. `argv`: name and task. Prints the result as the last line, in JSON."""
    name, task = argv
    print(json.dumps(_RUN[name](json.loads(task))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
