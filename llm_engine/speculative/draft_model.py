"""Draft model: a smaller model that drafts for the target model.

It has a KV cache of its own and shares only the tokens with the target model. Rejected drafts stay
in its cache until the next proposal is matched against it, which cuts them off.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from llm_engine.backends.base import Backend, Plan, SequenceRows, Slot, SubBatch
from llm_engine.backends.factory import make_backend
from llm_engine.checkpoints.load import load_checkpoint
from llm_engine.checkpoints.tokenizer import Tokenizer
from llm_engine.config import EngineConfig, SamplingParams
from llm_engine.errors import ModelError, RequestError
from llm_engine.kv_cache.block_manager import OutOfPagesError
from llm_engine.kv_cache.kv_cache import CachedSequence, KvCache

from .drafter import Draft

_CACHE_SHARE = 8
"""A draft model gets the target model's cache size divided by this: its tokens are that much
smaller, and only replies under way need any."""


class ModelDrafter:
    """Drafts the draft model's likeliest continuation. Belongs to the engine's thread."""

    name = "model"

    def __init__(
        self, backend: Backend, *, context_length: int, max_sequences: int, prefill_chunk: int
    ) -> None:
        self._context_length = context_length
        self.cache = KvCache(backend, max_sequences)
        self._backend = backend
        self._prefill_chunk = prefill_chunk

    def begin(self, slot: Slot) -> Draft:
        return _ModelDraft(self)

    def extend(self, sequence: CachedSequence, tokens: Sequence[int], max_tokens: int) -> list[int]:
        """Draft after these tokens. Nothing while much of them is still to prefill, or without
        room."""
        if len(tokens) + max_tokens > self._context_length:
            return []
        self.cache.match(sequence, tokens[:-1])
        drafted: list[int] = []
        try:
            while len(drafted) < max_tokens:
                missing = [*tokens[len(sequence.token_ids) :], *drafted[-1:]]
                step = missing[: self._prefill_chunk]
                is_last = len(step) == len(missing)
                chosen = self._run(sequence, tuple(step), is_last)
                if not is_last:
                    return []  # the rest before the next token: no reply waits for a draft
                drafted += chosen
        except OutOfPagesError:
            pass
        return drafted

    def _run(
        self, sequence: CachedSequence, token_ids: tuple[int, ...], is_last: bool
    ) -> tuple[int, ...]:
        copies = self.cache.reserve(sequence, len(token_ids), busy={sequence.id})
        rows = SequenceRows(
            slot=sequence.slot,
            token_ids=token_ids,
            first_position=len(sequence.token_ids),
            num_sampled=int(is_last),
            sampling=_GREEDY,
            seed=0,
            pages=sequence.table.pages,
        )
        result = self._backend.collect(self._backend.launch(Plan((SubBatch((rows,)),), copies)))
        sequence.extend(token_ids)
        return result.tokens[sequence.slot]


_GREEDY = SamplingParams()


class _ModelDraft:
    grade = 0

    def __init__(self, drafter: ModelDrafter) -> None:
        self._drafter = drafter
        self._sequence: CachedSequence | None = None
        self._num_agreed = 0
        """Tokens of the request at the last proposal: behind them the cache holds drafts."""

    def num_unread(self, num_tokens: int) -> int:
        held = 0 if self._sequence is None else len(self._sequence.token_ids)
        return num_tokens - min(held, self._num_agreed)

    def propose(self, tokens: Sequence[int], max_tokens: int) -> Sequence[int]:
        if self._sequence is None:
            try:
                self._sequence = self._drafter.cache.open()
            except RequestError:
                return ()  # too many at once
        self._num_agreed = len(tokens)
        return self._drafter.extend(self._sequence, tokens, max_tokens)

    def close(self) -> None:
        if self._sequence is not None:
            self._drafter.cache.close(self._sequence)
            self._sequence = None


def load_drafter(path: Path, tokenizer: Tokenizer, config: EngineConfig) -> ModelDrafter:
    """Load a draft model on the target model's kind of backend. Raises ModelError, also for another
    vocabulary."""
    checkpoint = load_checkpoint(path)
    if checkpoint.tokenizer.token_bytes != tokenizer.token_bytes:
        raise ModelError(
            f"{path}: its vocabulary is not the model's; a draft model needs the same tokens"
        )
    longest = checkpoint.config.context_length
    own = replace(
        config,
        kv_cache_mb=max(1, config.kv_cache_mb // _CACHE_SHARE),
        max_batch=1,  # only a lone reply is drafted for
        num_gpus=1,  # a process leads one process group, and a draft model is small
        megakernel=False,  # it takes every multiprocessor, as the target model's does
        calibration=None,
        draft_model=None,
        draft_heads=None,
    )
    context_length = min(config.context_length or longest, longest)
    return ModelDrafter(
        make_backend(checkpoint, own, context_length, lambda share: None),
        context_length=context_length,
        max_sequences=config.max_sequences,
        prefill_chunk=config.prompt_chunk,
    )
