"""llama.cpp as a contestant, called as in its own server.

`llama_decode` and a greedy sampler in C; the sequence's cache is cut back to the longest common
prefix.
"""

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from latency_budget.account.clock import SystemClock

from .contestant import Arrivals, CallerMessage

_CLOCK = SystemClock()
_BATCH: Final = 512
"""Batch size in tokens: llama.cpp's default."""
FILE_TYPES: Final = {"Q8_0": 7, "Q4_0": 2}
"""`llama_ftype` of the quantized files that are made from the model's own."""


class LlamaCpp:
    """A `Contestant`."""

    def __init__(
        self,
        path: Path,
        *,
        threads: int,
        context_length: int,
        max_sequences: int,
        file_type: str | None = None,
        directory: Path | None = None,
    ) -> None:
        """`file_type`: key of `FILE_TYPES`; the model is then quantized into `directory`."""
        self._source = path
        self._file_type = file_type
        self._path = path
        if file_type is not None and directory is not None:
            self._path = directory / f"{path.stem}.{file_type}.gguf"
        self._threads = threads
        self._context_length = context_length
        self._max_sequences = max_sequences
        self._lib: Any = None
        self._known: list[int] = []
        """Tokens in the cache of sequence 0."""

    @property
    def version(self) -> str:
        return f"llama-cpp-python {self._lib.__version__}"

    def prepare(self) -> None:
        import llama_cpp

        self._lib = llama_cpp
        self._quiet = llama_cpp.llama_log_callback(lambda level, text, data: None)
        llama_cpp.llama_log_set(self._quiet, None)
        llama_cpp.llama_backend_init()
        if self._file_type is not None and not self._path.exists():
            wanted = llama_cpp.llama_model_quantize_default_params()
            wanted.ftype = FILE_TYPES[self._file_type]
            wanted.allow_requantize = True
            wanted.nthread = self._threads
            files = str(self._source).encode(), str(self._path).encode()
            if llama_cpp.llama_model_quantize(*files, ctypes.byref(wanted)):
                raise ValueError(f"llama.cpp can't make {self._file_type} from {self._source}")

    def load(self) -> None:
        lib = self._lib
        self._model = lib.llama_model_load_from_file(
            str(self._path).encode(), lib.llama_model_default_params()
        )
        if not self._model:
            raise ValueError(f"llama.cpp can't read {self._path}")
        settings = lib.llama_context_default_params()
        settings.n_ctx = self._context_length
        settings.n_batch = settings.n_ubatch = _BATCH
        settings.n_threads = settings.n_threads_batch = self._threads
        settings.n_seq_max = self._max_sequences
        settings.kv_unified = True
        self._context = lib.llama_init_from_model(self._model, settings)
        self._memory = lib.llama_get_memory(self._context)
        self._vocabulary = lib.llama_model_get_vocab(self._model)
        self._sampler = lib.llama_sampler_init_greedy()
        self._batch = lib.llama_batch_init(_BATCH, 0, 1)
        self.reply([1, 2, 3], 2)

    def reply(self, prompt: Sequence[int], num_tokens: int, *, may_end: bool = False) -> Arrivals:
        self._lib.llama_memory_clear(self._memory, True)
        self._known = []
        return self._continued(prompt, num_tokens, may_end=may_end)

    def dialogue(self, turns: Sequence[CallerMessage], num_tokens: int) -> list[float]:
        self._lib.llama_memory_clear(self._memory, True)
        self._known = []
        history: list[int] = []
        first_ms = []
        for turn in turns:
            history += turn.token_ids
            first_ms.append(self._continued(history, num_tokens)[0][0])
            history = [*self._known, self._last]
        return first_ms

    def together(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> list[Arrivals]:
        lib = self._lib
        lib.llama_memory_clear(self._memory, True)
        start_ns = _CLOCK.now_ns()
        arrivals: list[Arrivals] = [[] for _ in prompts]
        lengths = [len(prompt) for prompt in prompts]
        latest: list[int] = []
        for sequence, prompt in enumerate(prompts):
            self._decode([(token, at, sequence) for at, token in enumerate(prompt)])
            latest.append(lib.llama_sampler_sample(self._sampler, self._context, -1))
            arrivals[sequence].append(((_CLOCK.now_ns() - start_ns) / 1e6, 1))
        for _ in range(num_tokens - 1):
            self._decode([(latest[n], lengths[n], n) for n in range(len(prompts))], wants_all=True)
            for n in range(len(prompts)):
                latest[n] = lib.llama_sampler_sample(self._sampler, self._context, n)
                lengths[n] += 1
                arrivals[n].append(((_CLOCK.now_ns() - start_ns) / 1e6, 1))
        return arrivals

    def nats(self, token_ids: Sequence[int]) -> float:
        lib = self._lib
        lib.llama_memory_clear(self._memory, True)
        num_words = lib.llama_vocab_n_tokens(self._vocabulary)
        total = 0.0
        for first in range(0, len(token_ids) - 1, _BATCH):
            rows = [
                (token_ids[at], at, 0)
                for at in range(first, min(first + _BATCH, len(token_ids) - 1))
            ]
            self._decode(rows, wants_all=True)
            for _, at, _ in rows:
                pointer = lib.llama_get_logits_ith(self._context, at - first)
                logits = np.ctypeslib.as_array(pointer, shape=(num_words,)).astype(np.float64)
                total += np.logaddexp.reduce(logits) - logits[token_ids[at + 1]]
        return float(total / (len(token_ids) - 1))

    def _continued(
        self, tokens: Sequence[int], num_tokens: int, *, may_end: bool = False
    ) -> Arrivals:
        """Continue in sequence 0, and reuse the cache of the common prefix."""
        lib = self._lib
        start_ns = _CLOCK.now_ns()
        pairs = zip(self._known, tokens[:-1], strict=False)
        common = next((at for at, (a, b) in enumerate(pairs) if a != b), None)
        if common is None:
            common = min(len(self._known), len(tokens) - 1)
        lib.llama_memory_seq_rm(self._memory, 0, common, -1)
        self._decode([(tokens[at], at, 0) for at in range(common, len(tokens))])
        self._known = list(tokens)
        arrivals: Arrivals = []
        while True:
            self._last = lib.llama_sampler_sample(self._sampler, self._context, -1)
            if may_end and lib.llama_vocab_is_eog(self._vocabulary, self._last):
                return arrivals
            arrivals.append(((_CLOCK.now_ns() - start_ns) / 1e6, 1))
            if len(arrivals) == num_tokens:
                return arrivals
            self._decode([(self._last, len(self._known), 0)])
            self._known.append(self._last)

    def _decode(self, rows: Sequence[tuple[int, int, int]], *, wants_all: bool = False) -> None:
        """Run rows of (token, position, sequence); logits of the last row, or of all."""
        for first in range(0, len(rows), _BATCH):
            part = rows[first : first + _BATCH]
            batch = self._batch
            batch.n_tokens = len(part)
            for at, (token, position, sequence) in enumerate(part):
                batch.token[at] = token
                batch.pos[at] = position
                batch.n_seq_id[at] = 1
                batch.seq_id[at][0] = sequence
                batch.logits[at] = wants_all or first + at == len(rows) - 1
            if self._lib.llama_decode(self._context, batch):
                raise ValueError("llama_decode failed")
